"""Experts that are trained apart: what is published, what one expert learns, and what a killed one leaves."""
import json
import shutil

import numpy as np
import pytest
from runs import ROOT, alma, lines, small_config
from stages import Stages, arrays_equal, fit_stage, setting_of, train_stage
from test_environment import setting as jax_setting

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import gate
from alma_jax.runs import mixture, settings
from alma_jax.store import run_files
from alma_jax.sweeps import jobs, states

SMALL = ("--config=configs/digits.py:hmoe", "--config.model.num_experts=3", "--config.model.width=4",
         "--config.stream.num_megabatches=4", "--config.train.epochs=20", "--config.devices=1",
         "--config.log.tensorboard=false")


def weights(folder):
  """The sums of the arrays in the newest checkpoint of a run."""
  opened, _ = alma_jax.load_run(folder).open()
  return opened.meta["sha256"]


@pytest.mark.slow
def test_a_mixture_whose_lost_expert_is_repaired(tmp_path, in_process):
  """With a memory and averaged weights, and repaired from a process with other settings of jax."""
  root = tmp_path / "all"
  flags = (*SMALL, "--config.stream.replay_share=0.3", "--config.learner.average=0.3",
           "--config.learner.expert_widths=(4,6)", "--workdir", root)
  done = alma("apart", *flags)
  assert done.returncode == 0, done.stderr
  assert in_process == ["gate3", "expert0", "expert1", "expert2"]
  made = alma_jax.load_mixture(root)
  dataset = settings.prepare(configs.parse(small_config("sm"))).protocol.source.dataset
  x, error = dataset.x_test, float((made.predict(dataset.x_test).argmax(-1) != dataset.y_test).mean())
  assert error == made.manifest["test_error"] < 0.5
  assert [entry["width"] for entry in made.manifest["experts"]] == [4, 6, 4]
  assert len(lines(root / "expert0", "metrics.jsonl")) == 4  # the whole stream
  assert len(lines(root / "gate3", "metrics.jsonl")) == 2  # the first stage
  before = {name: weights(root / name) for name in ("gate3", "expert0", "expert1", "expert2")}
  manifest = (root / mixture.MANIFEST).read_text()
  files = {path: path.stat().st_mtime_ns for path in root.rglob("*")
           if path.is_file() and "expert1" not in path.parts}
  shutil.rmtree(root / "expert1")
  with pytest.raises(BadInput, match="no run in .*expert1"):
    mixture.Mixture(root).loaded(1)
  in_process.clear()
  with jax_setting(jax_enable_x64=True, jax_default_prng_impl="rbg"):
    assert alma("apart", *flags).returncode == 0
  assert in_process == ["expert1"]
  assert {name: weights(root / name) for name in before} == before
  assert (root / mixture.MANIFEST).read_text() == manifest
  touched = {path.relative_to(root).parts[0] for path, when in files.items() if path.stat().st_mtime_ns != when}
  assert touched <= {mixture.MANIFEST, "failures.json", ".lock"}
  tree = json.loads(manifest)
  tree["gate"]["sha256"] = "0" * 64
  (root / mixture.MANIFEST).write_text(json.dumps(tree))
  with pytest.raises(BadInput, match="is not the gate that .* lists; restore it, or run `alma apart` again"):
    mixture.Mixture(root)
  # Only what is needed is loaded, and another folder than that of the runs will do.
  (root / mixture.MANIFEST).write_text(manifest)
  root = root.rename(tmp_path / "moved")
  moved = alma_jax.load_mixture(root)
  one = moved.predict(x[:1])
  assert moved.loaded.cache_info().currsize == 1
  answers = [alma_jax.load_run(root / entry["folder"]).predict(x[:1]) for entry in moved.manifest["experts"]]
  assert sum(np.array_equal(one, answer) for answer in answers) == 1


def test_the_gate_is_that_of_a_joint_mixture_and_an_expert_learns_from_its_cluster(tmp_path):
  config = configs.parse(small_config("hmoe", model__num_experts=3))
  base = mixture.base_config(config)
  job = jobs.Job("gate3", base, tmp_path / "gate3", str(ROOT / "configs/digits.py"), "hmoe", 3)
  assert states.state(job, {}).kind == states.NEW
  mixture.publish(base, job.workdir, 3)
  assert states.state(job, {}).kind == states.FINISHED
  published, digest = gate.read(job.workdir / run_files.GATE)
  setting = settings.prepare(config)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  np.testing.assert_array_equal(published.prototypes, state.host["prototypes"])
  np.testing.assert_array_equal(published.counts, state.host["counts"])
  assert arrays_equal(published.base, state.frozen[0])
  (job.workdir / run_files.GATE).unlink()  # as if it was killed before it published
  assert states.state(job, {}).kind == states.BEGUN
  mixture.publish(base, job.workdir, 3)
  assert gate.read(job.workdir / run_files.GATE)[1] == digest
  # An expert learns from its cluster alone, and stays as it is in a stage without examples of it.
  config = small_config("expert", learner__gate=str(job.workdir / run_files.GATE), learner__cluster=1)
  joint, setting, host = setting, settings.prepare(configs.parse(config)), state.host
  learner, data = setting.learner, Stages(setting)[0]
  grown, growth = learner.grow(learner.init(), data)
  assert arrays_equal(grown.live, state.frozen[0])
  own, = learner.training(grown, data).examples.own
  features = joint.learner._features(state, data.pool, data.train)
  np.testing.assert_array_equal(own, data.train[cluster.nearest(features, host["prototypes"])[0] == 1])
  after, report, _ = train_stage(setting, learner.init(), 0)
  assert report.samples == 2 * len(own)  # two epochs
  assert growth.macs == (len(data.train) + len(data.val)) * (4 * 4 + 64 * 4)
  others = np.setdiff1d(data.train, own)
  later = data._replace(stage=1, train=others, num_new=len(others))
  result, epochs = fit_stage(learner, learner.grow(after, later)[0], later)
  assert arrays_equal(result.state.live, after.live)
  assert (result.report.samples, epochs) == (0, [])
  assert 0 <= result.report.val < 1


def test_a_gate_that_is_none(tmp_path):
  (tmp_path / "gate").write_bytes(b"none")
  for path in ("", tmp_path / "nowhere", tmp_path / "gate"):
    with pytest.raises(BadInput, match="is not a file that `alma apart` has published"):
      setting_of("expert", learner__gate=str(path))
