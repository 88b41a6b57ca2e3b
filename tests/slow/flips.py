"""Flips single bits in the files of a stopped run, resumes it, and compares it with an uninterrupted run.

    python benchmarks/torture.py --parts flips

Half of the flips of each config are in checkpoints/ and pool/, half in config.json, metrics.jsonl and train.jsonl. A
file is drawn, in every second flip of the first half by its size, then one of its bits. All runs are in this process.
What a flip may lead to:

    harmless      no message, and all numbers of metrics.jsonl, train.jsonl and summary.json are those without a flip
    repaired      a file was written again from its other copy or from a checkpoint, and the numbers are the same
    fell back     an earlier checkpoint was taken, and the numbers are the same
    refused       one sentence; nothing was changed, and with the bit flipped back the run goes on to the same numbers
    FAILED        anything else: other numbers, another exception, a traceback on stderr
"""
import collections
import contextlib
import os
import pathlib
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from kill import differences

import alma_jax
from alma_jax import commands
from alma_jax import config as configs
from alma_jax.errors import BadInput

_JSON = ("config.json", "metrics.jsonl", "train.jsonl")
_LINES, _DISPATCHES = 3, 2  # a run is stopped so many dispatches after so many mega-batches or tasks
_SMALL = {"model.width": "8", "train.epochs": "3", "train.batch_size": "64", "checkpoint.seconds": "0",
          "log.progress": "false", "log.tensorboard": "false", "devices": "1"}
_STREAMS = {False: {"stream.num_megabatches": "5", "stream.waiting_time": "1"},
            True: {"stream.num_megabatches": "4", "train.learning_rate": "0.01", "train.weight_decay": "0"}}


def flips(name: str, folder: pathlib.Path, num: int, rng: random.Random,
          say: Callable[[str], None] = print) -> collections.Counter[str]:
  """How often each outcome of the module's docstring was seen.

  Args:
    name: of a config, as in "digits:gens".
    folder: empty.
    num: number of flips.
    rng: draws the files and bits.
    say: prints a line for each flip.
  """
  commands.quiet()
  tree = configs.load_file(*name.partition(":")[::2])
  config = configs.parse(configs.overridden(tree, _SMALL | _STREAMS[name.startswith("tasks")]))
  whole, stopped = folder / "whole", folder / "stopped"
  alma_jax.run(config, whole)
  more = iter(range(_DISPATCHES))
  try:
    alma_jax.run(config, stopped, should_stop=lambda: _num_lines(stopped) >= _LINES and next(more, None) is None)
    raise RuntimeError(f"{name} ended before it could be stopped")
  except alma_jax.Stopped:
    pass
  found: collections.Counter[str] = collections.Counter()
  for i in range(num):
    trial = folder / f"trial-{i}"
    shutil.copytree(stopped, trial)
    file, bit = _drawn(trial, i % 2 == 0, i % 4 == 0, rng)
    _flip(file, bit)
    outcome, message = _outcome(config, trial, whole, lambda file=file, bit=bit: _flip(file, bit))
    found[outcome] += 1
    say(f"{file.relative_to(trial)}, bit {bit}: {outcome}{message and ': ' + message}")
    shutil.rmtree(trial)
  return found


def _num_lines(folder: pathlib.Path) -> int:
  path = folder / "metrics.jsonl"
  return path.read_bytes().count(b"\n") if path.exists() else 0


def _drawn(folder: pathlib.Path, in_checkpoints: bool, by_size: bool, rng: random.Random) -> tuple[pathlib.Path, int]:
  """A file of a run folder and the number of one of its bits."""
  files = [folder / name for name in _JSON]
  if in_checkpoints:
    files = sorted(path for part in ("checkpoints", "pool") for path in (folder / part).rglob("*") if path.is_file())
  sizes = [path.stat().st_size for path in files]
  (file,) = rng.choices(files, sizes if by_size else list(map(bool, sizes)))
  return file, rng.randrange(8 * file.stat().st_size)


def _flip(file: pathlib.Path, bit: int) -> None:
  data = bytearray(file.read_bytes())
  data[bit // 8] ^= 1 << bit % 8
  file.write_bytes(bytes(data))


def _outcome(config: Any, trial: pathlib.Path, whole: pathlib.Path, undo: Callable[[], None]) -> tuple[str, str]:
  """(outcome, a line about it) of resuming a run of which a bit was flipped."""
  before, refusal = _contents(trial), ""
  with _captured() as printed:
    try:
      alma_jax.run(config, trial)
    except BadInput as error:
      refusal = str(error)
    except Exception as error:
      return "FAILED", f"{type(error).__name__}: {error}"[:300]
  text = printed[0]
  if "Traceback" in text or "Exception ignored" in text:
    return "FAILED", text[-600:]
  if refusal:
    if _contents(trial) != before:
      return "FAILED", f"refused, but changed: {refusal}"
    undo()
    with _captured():
      alma_jax.run(config, trial)
  wrong = differences(whole, trial)
  if wrong:
    return "FAILED", wrong[0]
  if refusal:
    return "refused", refusal
  for mark, outcome in (("falling back", "fell back"), ("written again", "repaired"), ("warning:", "FAILED")):
    lines = [line for line in text.splitlines() if mark in line]
    if lines:
      return outcome, lines[0]
  return "harmless", ""


def _contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
  """Collects what the process prints to stderr, threads of C++ included; the list has the text afterwards."""
  printed: list[str] = []
  sys.stderr.flush()
  kept = os.dup(2)
  with tempfile.TemporaryFile() as file:
    os.dup2(file.fileno(), 2)
    try:
      yield printed
    finally:
      sys.stderr.flush()
      os.dup2(kept, 2)
      os.close(kept)
      file.seek(0)
      printed.append(file.read().decode(errors="replace"))
