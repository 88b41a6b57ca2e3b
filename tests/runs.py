"""Starting, stopping and comparing runs."""
import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

import alma_jax
from alma_jax.runs import session

ROOT = pathlib.Path(__file__).parents[1]
FOUNDATION = ["sm", "ens", "umix", "gens"]


def command(config, *flags):
  return [sys.executable, "-m", "alma_jax.main", f"--config={config}", *map(str, flags)]


def launch(config, *flags):
  return subprocess.run(command(config, *flags), cwd=ROOT, capture_output=True, text=True, check=False)


def lines(path, name):
  """Entries of a .jsonl file without what depends on the clock."""
  entries = [json.loads(line) for line in (pathlib.Path(path) / name).read_text().splitlines()]
  return [{k: v for k, v in entry.items() if not k.endswith("seconds")} for entry in entries]


def assert_same_run(first, second):
  assert lines(first, "metrics.jsonl") == lines(second, "metrics.jsonl")
  assert lines(first, "train.jsonl") == lines(second, "train.jsonl")
  summaries = [json.loads((pathlib.Path(p) / "summary.json").read_text()) for p in (first, second)]
  clean = [{k: v for k, v in s.items() if not k.endswith("seconds")} for s in summaries]
  assert clean[0] == clean[1]


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
  monkeypatch.setattr(session, "_TARGET_SECONDS", 1e-9)
  monkeypatch.setattr(session, "_FIRST_ROWS", 1)


def slow(*values):
  """Parameters of a test that runs only with `-m slow`."""
  return pytest.param(*values, marks=pytest.mark.slow)
