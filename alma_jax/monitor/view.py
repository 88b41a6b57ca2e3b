"""The state of a run, from its folder. Reading changes nothing in it."""
import contextlib
import math
import os
import pathlib
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from alma_jax import config as configs
from alma_jax.config import registry
from alma_jax.errors import BadInput
from alma_jax.messages import duration
from alma_jax.problems import measures
from alma_jax.store import local_copy, run_files
from alma_jax.store.metrics import ACCURACIES, DRIFT_AFTER, Entry, Measure, measure

ALIVE, DEAD, FINISHED, DIVERGED = "alive", "dead", "finished", "diverged"
PUBLISHED = "published"  # the gate of `alma apart`, whose run ends after the first stage without a summary
_COUNTS = {"stream.num_megabatches": 0, "stream.waiting_time": 1, "stream.num_trainings": 0}  # and their least values
_LARGEST = 1e300  # of a value that is shown; sums of larger ones are no finite numbers
_RECENT = 5  # stages whose duration gives the time left


class View(NamedTuple):
  """A run as it is now.

  Attributes:
    path: the folder.
    fields: {"a.b": value} of config.json.
    lines: entries of metrics.jsonl.
    summary: of summary.json, or None.
    state: ALIVE (a process holds the folder, or the lease of its store), DEAD (none does, and the run is not finished),
      FINISHED, DIVERGED or PUBLISHED.
    saved: time of the last checkpoint, seconds since the epoch, or None.
    host: the other machine on which it is ALIVE; "": this one.
    doing: what takes long in a run that is ALIVE, e.g. "reading night-7.npz"; "" if nothing does.
  """
  path: pathlib.Path
  fields: dict[str, Any]
  lines: list[Entry]
  summary: Entry | None
  state: str
  saved: float | None
  host: str = ""
  doing: str = ""

  @property
  def metric(self) -> str:
    """Name of the run's metric, error or perplexity."""
    return "perplexity" if self.fields.get("problem") == registry.TEXT else "error"

  @property
  def measure(self) -> Measure:
    """What the metric is measured on."""
    return measure(self.metric, self.lines)

  @property
  def tested(self) -> list[tuple[int, float]]:
    """[(t, value)] of the metric on a test set; empty without one."""
    return [] if self.measure.is_prequential else self.values(self.metric)

  @property
  def further(self) -> list[str]:
    """The newest values of the metrics of `log.metrics`, as text."""
    return measures.brief(self.lines, self.fields.get("log.metrics") or ())

  @property
  def unit(self) -> str:
    """What the stream consists of, in the plural: mega-batches or tasks."""
    return "tasks" if self.fields.get("problem") == registry.TASKS else "mega-batches"

  @property
  def name(self) -> str:
    """The learner and the data, e.g. "ens on mnist"."""
    learner = self.fields.get("log.label") or self.fields.get("learner.name")
    return f"{learner} on {self.fields.get('dataset.name')}"

  @property
  def num_megabatches(self) -> int:
    """Number of mega-batches of the stream; 0: it is not known."""
    return int(self.fields.get("stream.num_megabatches") or (self.summary or {}).get("num_megabatches") or 0)

  @property
  def stages(self) -> list[Entry]:
    """The lines of the mega-batches after which the learner was trained."""
    return [line for line in self.lines if line.get("updated")]

  def values(self, key: str) -> list[tuple[int, float]]:
    """[(t, value)] of an entry of metrics.jsonl, without the lines that lack it."""
    return [(line["t"], line[key]) for line in self.lines if line.get(key) is not None]


def view(path: str | os.PathLike[str]) -> View:
  """The View of a run folder.

  Raises:
    BadInput: it is none, or its files cannot be read.
  """
  folder = local_copy.readable_folders(path, ())[0] if run_files.is_address(path) else run_files.local(path)
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r}.")
  named = run_files.shown(folder)
  fields = configs.flatten(run_files.read_config(folder))
  try:
    lines = run_files.read_lines(folder / run_files.METRICS) if (folder / run_files.METRICS).exists() else []
    summary = run_files.read_summary(folder / "summary.json")
  except OSError as error:
    raise BadInput(f"{named!r} cannot be read: {error.strerror}.") from error
  except BadInput as error:
    raise BadInput(f"{named!r} cannot be read: {error}") from error
  run = View(folder, fields, lines, summary, "", None)
  _check(run)
  return current(run)


def _check(run: View) -> None:
  """Checks the values that this package shows.

  Raises:
    BadInput: one of them is of another type.
  """
  metrics = run.path / run_files.METRICS
  for field, least in _COUNTS.items():
    value = run.fields.get(field, least)
    if type(value) is not int or value < least:
      raise BadInput(f"{run_files.shown(run.path / run_files.CONFIG)} has {field}={value!r}, which that field cannot "
                     "have.")
  if not all(isinstance(line, dict) and type(line.get("t")) is int for line in run.lines):
    raise BadInput(f"{run_files.shown(metrics)} has a line without a mega-batch t; restore the file.")
  numbers = (run.metric, f"prequential_{run.metric}", "num_params", "seconds", "regret", "training_price")
  for line in run.lines:
    for key in numbers:
      value = line.get(key)
      if value is not None and not (type(value) in (int, float) and abs(value) <= _LARGEST):
        raise BadInput(f"{run_files.shown(metrics)} has a line with {key}={value!r}; restore the file.")
    accuracies = line.get(ACCURACIES, [])
    if not isinstance(accuracies, list) or not all(
        type(each) in (int, float) and abs(each) <= _LARGEST for each in accuracies):
      raise BadInput(f"{run_files.shown(metrics)} has a line with {ACCURACIES}={accuracies!r}; restore the file.")


def current(run: View) -> View:
  """The View with its present `state` and `saved`; its other files are not read again."""
  host = ""
  if run.summary is not None:
    state = FINISHED
  elif is_alive(run.path) or (host := local_copy.holder(run.path) or ""):
    state = ALIVE
  elif (run.path / run_files.GATE).exists():
    state = PUBLISHED
  else:
    state = DIVERGED if (run.path / run_files.DIVERGED).exists() else DEAD
  doing = _doing(run.path) if state == ALIVE and not host else ""
  return run._replace(state=state, saved=_saved(run.path), host=host, doing=doing)


def find(paths: Iterable[str | os.PathLike[str]]) -> list[pathlib.Path]:
  """Run folders: those that are given, and those below folders that are given.

  Raises:
    BadInput: a folder does not exist, or holds no run.
  """
  folders: dict[pathlib.Path, pathlib.Path] = {}
  for given in paths:
    folders |= {folder.resolve(): folder for folder in local_copy.readable_folders(given, ["config.json"])}
  return list(folders.values())


def is_alive(folder: pathlib.Path) -> bool:
  """Whether a process on this machine holds the lock of a run folder."""
  import fcntl  # macOS and Linux, as the package says
  try:
    file = os.open(folder / ".lock", os.O_RDONLY)
  except OSError:
    return False
  try:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except OSError:
    return True
  finally:
    os.close(file)  # releases the lock
  return False


def line(run: View, now: float | None = None) -> str:
  """One line about a run: state, stage, error, prequential error, time left, last checkpoint.

  Args:
    run: the View.
    now: seconds since the epoch; None: the present.
  """
  stages, total, metric = run.stages, run.num_megabatches, run.metric
  of = lambda number: f" of {number}" if number else ""
  who = f"{run_files.shown(run.path)}: {run.state}{f' on {run.host}' if run.host else ''}"
  who += f" ({run.doing})" if run.doing else ""
  if run.unit == "tasks":
    accuracies = run.lines[-1][ACCURACIES] if run.lines else []
    parts = [f"{who}, {run.name}", f"task {len(run.lines)}{of(total)}",
             *([f"average accuracy {sum(accuracies) / len(accuracies):.4g}"] if accuracies else [])]
  else:
    parts = [f"{who}, {run.name}",
             f"stage {len(stages)}{of(num_stages(run))}, mega-batch {len(run.lines)}{of(total)}"]
  last, before_use = run.tested, [value for _, value in run.values(f"prequential_{metric}")]
  if stages and last:
    parts.append(f"{metric}{' on the last task' if run.unit == 'tasks' else ''} {last[-1][1]:.4g}")
  if before_use:
    parts.append(f"prequential {metric} {sum(before_use) / len(before_use):.4g}")
  parts += run.further
  drifts = [each["t"] for each in run.lines if each.get(DRIFT_AFTER) is not None]
  if drifts:
    parts.append(f"{len(drifts)} drift alarm{'s' * (len(drifts) > 1)}, the last at mega-batch {drifts[-1]}")
  left = seconds_left(run)
  if left:
    parts.append(f"about {duration(left)} left")
  if run.state not in (FINISHED, PUBLISHED):
    now = time.time() if now is None else now
    parts.append(f"saved {duration(max(now - run.saved, 0))} ago" if run.saved is not None else
                 "nothing saved" if run.state != ALIVE else f"not saved yet{_every(run)}")
  return ", ".join(parts)


def num_stages(run: View) -> int:
  """Number of stages of the whole stream; 0: it is not known."""
  fields = run.fields
  if run.summary is not None:
    return int(run.summary["num_stages"])
  if fields.get("stream.schedule", "every") == "every" and run.num_megabatches:
    return math.ceil(run.num_megabatches / fields.get("stream.waiting_time", 1))  # of tasks 1
  return int(fields.get("stream.num_trainings") or 0) if fields.get("stream.schedule") == "power" else 0


def seconds_left(run: View) -> float | None:
  """Seconds that a live run will still take, by its last stages; None if that is not known."""
  stages, total, done = run.stages, run.num_megabatches, len(run.lines)
  if run.state != ALIVE or not stages or not total or done >= total:
    return None
  recent = stages[-_RECENT:] if len(stages) <= 1 else stages[1:][-_RECENT:]  # the first stage compiles
  each = sum(stage.get("seconds") or 0.0 for stage in recent) / len(recent)
  num = num_stages(run)
  left = num - len(stages) if num else (total - done) * len(stages) / done
  return max(left, 0) * each or None


def _every(run: View) -> str:
  """How often a run saves."""
  seconds = run.fields.get("checkpoint.seconds")
  if not isinstance(seconds, int | float) or not 0 < seconds < _LARGEST:
    return ""
  return f" (it saves every {duration(seconds)})"


def _doing(folder: pathlib.Path) -> str:
  """What takes long in a run, and for how long, as its process has noted; "" if nothing does."""
  try:
    note = run_files.read_json(folder / run_files.DOING)
    return f"{note['activity']} for {duration(max(time.time() - note['since'], 0))}"
  except (BadInput, LookupError, TypeError):  # there is no note, or it is damaged
    return ""


def _saved(folder: pathlib.Path) -> float | None:
  """When the newest checkpoint was written; in a folder that was fetched, when its store was brought up to date."""
  if (fetched := local_copy.saved(folder)) is not None:
    return fetched
  times = []
  with contextlib.suppress(OSError):
    for entry in os.scandir(folder / "checkpoints"):
      if entry.name.isdecimal():  # others are being written
        with contextlib.suppress(OSError):
          times.append(entry.stat().st_mtime)
  return max(times, default=None)
