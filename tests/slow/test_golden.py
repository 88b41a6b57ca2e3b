"""Results to the bit, while the code is rebuilt: every learner's metrics and the arrays that each stage ends with.

golden/NAME.json holds what a version before the rebuilding computed, and what it was computed with; on another
processor, jax or Python, or with other flags of XLA, the tests are skipped. This compares, and writes them anew:

    XLA_FLAGS=--xla_backend_optimization_level=0 python -m pytest -m slow tests/slow/test_golden.py [--write-golden]

To write them after a change of the package makes the tests worthless: they then compare the change with itself. Write
them with the commit before it, e.g. for another machine. They are deleted when the rebuilding is done.
"""
import hashlib
import json
import os
import pathlib
import platform
import re

import jax
import numpy as np
import pytest
from runs import ROOT, alma, arrays_of_stages, blobs, launch, lines

import alma_jax

pytestmark = pytest.mark.slow

IMAGES = ("sm", "ens", "umix", "gens", "bagging", "boosting", "moe", "gmoe", "ff", "hmoe", "anytime,v1")
TEXTS = ("sm", "ens", "gens", "gmoe", "btm", "anytime,v1")
TASKS = ("independent", "finetune", "new_head", "replay", "oracle", "select", "mntdp")
ALL = ("--config.log.tensorboard=false", "--config.checkpoint.keep_every=1", "--config.train.batch_size=64",
       "--config.model.width=8")
SHORT = (*ALL, "--config.train.epochs=2", "--config.stream.num_megabatches=4")
OPTIONS = {
    "digits-anytime,v1": ("--config.train.steps=20",),
    "digits-gmoe": ("--config.stream.replay=0.5", "--config.learner.keep_optimizer=true"),
    "digits-hmoe": ("--config.learner.split_every=2", "--config.learner.em_rounds=2"),
    "tasks-replay": ("--config.train.steps=30",),
    "lm-btm": ("--config.learner.num_domains=2", "--config.stream.num_megabatches=2", "--config.train.steps=12",
               "--config.dataset.cross_documents=false", "--config.train.learning_rate=0.01"),
    "lm-gmoe": ("--config.model.num_experts=2", "--config.learner.add_experts=(1,2)")}
TEXT = (*ALL, "--config.dataset.vocab_size=300", "--config.dataset.sequence_length=16", "--config.model.width=16",
        "--config.model.num_layers=2", "--config.model.num_heads=2", "--config.train.steps=6",
        "--config.train.warmup_steps=2", "--config.train.batch_size=4", "--config.train.eval_every=4",
        "--config.train.learning_rate=(0.01,0.003)")
CASES = [*(f"digits-{learner}" for learner in IMAGES), *(f"lm-{learner}" for learner in TEXTS),
         *(f"tasks-{learner}" for learner in TASKS), "mnist-sm", "cifar-gens", "live-sm"]


def made_with():
  """What decides the bits besides the code."""
  info = pathlib.Path("/proc/cpuinfo")
  named = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
  return {"jax": jax.__version__, "python": ".".join(platform.python_version_tuple()[:2]),
          "processor": f"{named[1] if named else platform.processor()} {platform.machine()}, {os.cpu_count()} cores",
          "xla_flags": " ".join(sorted({*os.environ["XLA_FLAGS"].split()}))}  # conftest adds its own in each process


def result(path):
  """The numbers of a run, and hashes of its metrics and of the learner's arrays after each stage."""
  summary = alma_jax.load_run(path).summary
  names = ("cer", "final_error", "average_perplexity", "final_perplexity", "average_accuracy", "forgetting")
  text = json.dumps(lines(path, "metrics.jsonl"), sort_keys=True)
  return {name: summary[name] for name in names if name in summary} | {
      "metrics": hashlib.sha256(text.encode()).hexdigest(), "stages": arrays_of_stages(path)}


def compare(request, name, computed):
  """Compares results with those in golden/NAME.json, or writes them there."""
  path, key = ROOT / "tests/slow/golden" / f"{name}.json", made_with()
  if request.config.getoption("--write-golden"):
    path.write_text(json.dumps({"made_with": key} | computed(), indent=1) + "\n")
    return
  golden = json.loads(path.read_text())
  if golden["made_with"] != key:
    pytest.skip(f"golden/{path.name} was made with {golden['made_with']}, and this is {key}.")
  assert computed() == {name: value for name, value in golden.items() if name != "made_with"}


def live_folder(path):
  (path / "stream").mkdir(parents=True)
  for t in range(3):
    x, y = blobs(60, seed=t)
    np.savez(path / "stream" / f"{t}.npz", x=x, y=y)
  (path / "end").touch()
  return path


@pytest.mark.parametrize("name", CASES)
def test_a_run_computes_what_it_did(tmp_path, request, name):
  kind, learner = name.split("-")
  config, flags = f"configs/{kind}.py:{learner}", SHORT
  if learner != "anytime,v1" and kind not in ("tasks", "lm"):
    flags = (*flags, "--config.stream.waiting_time=1")
  if kind == "tasks":
    config, flags = f"{config},digits", (*flags, "--config.stream.num_megabatches=3", "--config.train.epochs=3")
  elif kind == "lm":
    learner, comma, version = learner.partition(",")
    config = f"configs/lm.py:{learner},tiny{comma}{version}"
    flags = (*TEXT, f"--config.dataset.name=text:{request.getfixturevalue('books')}")
  elif kind in ("mnist", "cifar"):
    flags = (*flags, f"--config.dataset.data_dir={request.getfixturevalue('tfds_dir')}", "--config.model.width=2")
  elif kind == "live":
    flags = (*flags, "--config.stream.num_megabatches=0", "--config.dataset.settle_seconds=0",
             f"--config.dataset.name=live:{live_folder(tmp_path / 'live')}")

  def computed():
    done = launch(config, *flags, *OPTIONS.get(name, ()), f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    return result(tmp_path / "run")

  compare(request, name, computed)


def test_experts_trained_apart_are_what_they_were(tmp_path, request, in_process):
  def computed():
    done = alma("apart", "--config=configs/digits.py:hmoe", *SHORT, "--config.stream.waiting_time=1",
                "--config.model.num_experts=2", "--config.devices=1", "--workdir", tmp_path)
    assert done.returncode == 0, done.stderr
    return {path.parent.name: result(path.parent) for path in sorted(tmp_path.glob("*/summary.json"))}

  compare(request, "digits-expert", computed)
