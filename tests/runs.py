"""Starting, stopping and comparing runs."""
import contextlib
import errno
import hashlib
import importlib
import io
import json
import logging
import os
import pathlib
import signal
import sys
import types
import warnings
from typing import NamedTuple

import jax
import numpy as np
import pytest
from absl import logging as absl_logging

import alma_jax
from alma_jax import config as configs
from alma_jax import main
from alma_jax.parallel import runtime
from alma_jax.runs import loop, snapshot

ROOT = pathlib.Path(__file__).parents[1]
TOY = {"dataset.vocab_size": 300, "dataset.sequence_length": 16, "model.width": 16, "model.num_layers": 2,
       "model.num_heads": 2, "train.steps": 6, "train.warmup_steps": 2, "train.batch_size": 4, "train.eval_every": 4,
       "train.learning_rate": (0.01,)}
SPOKEN = "the cat sat on a mat and then it ran to see some dog by that old red barn again"


def small_config(learner="sm", **changes):
  """A run of seconds: digits, 4 mega-batches, 2 stages of 2 epochs, one device.

  `changes` are fields with __ for dots: train__epochs=3.
  """
  config = configs.base(learner)
  config.update_from_flattened_dict({
      "stream.num_megabatches": 4, "model.width": 4, "train.epochs": 2, "train.batch_size": 64, "devices": 1,
      "log.progress": False, "log.tensorboard": False})
  if config.stream.schedule == "every":
    config.stream.waiting_time = 2
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return config


def text_config(books, learner="sm", **changes):
  """A run of seconds: 4 mega-batches, 6 steps each of 4 windows of 16 tokens."""
  config = configs.language(learner, "tiny")
  config.update_from_flattened_dict(TOY | {
      "dataset.name": f"text:{books}", "devices": 1, "log.progress": False, "log.tensorboard": False})
  if learner == "gmoe":
    config.model.num_experts, config.learner.add_experts = 2, (1, 2)
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return config


def task_config(learner, **changes):
  """The first tasks of the digits stream, trained shortly; `train__epochs=3` changes a field."""
  c = configs.tasks(learner, "digits")
  c.stream.num_megabatches, c.model.width, c.train.epochs, c.train.batch_size = 5, 8, 12, 32
  c.train.learning_rate, c.train.weight_decay, c.log.progress = (1e-2,), (0.0, 1e-3), False
  c.checkpoint.keep_every, c.train.steps = 1, 60 if learner == "replay" else 0
  for name, value in changes.items():
    section, _, field = name.partition("__")
    c[section][field] = value
  return c


def sentences(seed, num=60, words=()):
  rng = np.random.default_rng(seed)
  return "\n".join(" ".join(rng.choice(words or SPOKEN.split(), 8)) for _ in range(num))


def blobs(num, shape=(6, 6), classes=3, seed=0):
  """Images (uint8 [num, *shape]) of `classes` patterns that are easy to distinguish, and labels."""
  patterns = np.random.default_rng(0).integers(40, 216, (classes, *shape))
  rng = np.random.default_rng(seed)
  labels = np.arange(num) % classes
  return (patterns[labels] + rng.integers(-40, 40, (num, *shape))).astype(np.uint8), labels


def command(config, *flags):
  return [sys.executable, "-m", "alma_jax.main", f"--config={config}", *map(str, flags)]


class Done(NamedTuple):
  """What a command has returned and printed."""
  returncode: int
  stdout: str
  stderr: str


def alma(name, *args, cwd=ROOT):
  """Runs `python -m alma_jax.NAME ARGS` in this process, which saves the start of another one.

  What a command changes in its process is left out or restored: signals, warnings, logs, sys.path, threads of XLA and
  the allocator.
  """
  output, errors, setup, signals = io.StringIO(), io.StringIO(), runtime.setup, (signal.SIGINT, signal.SIGTERM,
                                                                               signal.SIGHUP)
  handlers = {number: signal.getsignal(number) for number in signals}
  verbosity, path, of_asyncio = absl_logging.get_verbosity(), list(sys.path), logging.getLogger("asyncio")
  level = of_asyncio.level
  with (pytest.MonkeyPatch.context() as patched, contextlib.chdir(cwd), warnings.catch_warnings(),
        contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)):
    warnings.simplefilter("always")
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
      warnings.simplefilter("ignore", category)  # as Python does
    patched.setattr(main, "_watch_signals", lambda: (lambda: False, lambda: 143))
    patched.setattr(sys, "unraisablehook", sys.unraisablehook)
    patched.setattr(runtime, "setup", lambda config=None, alone=False: setup(config))
    try:
      code = importlib.import_module(f"alma_jax.{name}").main([str(arg) for arg in args])
    finally:
      for number, handler in handlers.items():
        signal.signal(number, handler)
      absl_logging.set_verbosity(verbosity)
      of_asyncio.setLevel(level)
      sys.path[:] = path
  return Done(code, output.getvalue(), errors.getvalue())


def launch(config, *flags):
  """A run on one device, in this process."""
  return alma("main", f"--config={config}", "--config.devices=1", *flags)


def lines(path, name):
  """Entries of a .jsonl file without what depends on the clock."""
  entries = [json.loads(line) for line in (pathlib.Path(path) / name).read_text().splitlines()]
  return [{k: v for k, v in entry.items() if not k.endswith("seconds")} for entry in entries]


def scalars(folder):
  """{(tag, step): value} of the files of TensorBoard in a folder."""
  from tensorboardX.proto.event_pb2 import Event
  from tensorboardX.record_writer import RecordWriter  # noqa: F401 (the format below is its)
  found = {}
  for file in sorted(folder.iterdir()):
    data, at = file.read_bytes(), 0
    while at < len(data):
      size = int.from_bytes(data[at:at + 8], "little")
      event = Event.FromString(data[at + 12:at + 12 + size])
      at += 16 + size
      for value in event.summary.value:
        found[value.tag, event.step] = value.simple_value
  return found


def assert_same_run(first, second):
  assert lines(first, "metrics.jsonl") == lines(second, "metrics.jsonl")
  assert lines(first, "train.jsonl") == lines(second, "train.jsonl")
  summaries = [json.loads((pathlib.Path(p) / "summary.json").read_text()) for p in (first, second)]
  clean = [{k: v for k, v in s.items() if not k.endswith("seconds")} for s in summaries]
  assert clean[0] == clean[1]


def arrays_of_stages(path):
  """{stage: SHA-256 of the learner's arrays} of the stages that a run has kept; their names and order do not count."""
  run, sums = alma_jax.load_run(path), {}
  for stage in run.stages():
    opened, learner = run.open(stage)
    state = snapshot.restore_learner(learner, opened)
    trees = state.live, state.frozen, state.opt, state.average, state.host
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(trees) if isinstance(leaf, (np.ndarray, jax.Array))]
    each = sorted(f"{leaf.dtype} {leaf.shape} {hashlib.sha256(leaf.tobytes()).hexdigest()}" for leaf in leaves)
    sums[str(stage)] = hashlib.sha256("\n".join(each).encode()).hexdigest()
  return sums


class Closed:
  """A stream whose terminal or pipe was closed."""

  encoding = "utf-8"

  def __init__(self, number=errno.EPIPE, is_terminal=False):
    self._number, self._is_terminal = number, is_terminal

  def isatty(self):
    return self._is_terminal

  def write(self, text):
    raise OSError(self._number, os.strerror(self._number))  # BrokenPipeError of EPIPE

  def flush(self):
    self.write("")


def interrupted(config, workdir, dispatches, **options):
  """Runs until `dispatches` dispatches were made, saves and stops."""
  left = [dispatches]

  def should_stop():
    left[0] -= 1
    return left[0] < 0

  try:
    alma_jax.run(config, workdir, should_stop=should_stop, **options)
  except alma_jax.Stopped:
    return True
  return False


def one_step_a_dispatch(monkeypatch):
  monkeypatch.setattr(loop, "_TARGET_SECONDS", 1e-9)
  monkeypatch.setattr(loop, "_FIRST_ROWS", 1)


def without_program(known, size):
  """A predictor of images without a program, which takes batches of `size`; `known` is its Description."""
  from alma_jax.predictors.predictor import ImagePredictor
  made = object.__new__(ImagePredictor)
  made.known, made.program = known, types.SimpleNamespace(batch_size=size)
  return made


def slow(*values):
  """Parameters of a test that runs only with `-m slow`."""
  return pytest.param(*values, marks=pytest.mark.slow)
