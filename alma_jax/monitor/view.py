"""The state of a run, from its folder. Reading changes nothing in it."""
import contextlib
import math
import os
import pathlib
import time
from collections.abc import Iterable
from typing import NamedTuple

from alma_jax.errors import BadInput
from alma_jax.messages import duration
from alma_jax.problems import measures
from alma_jax.store import local_copy, run_files
from alma_jax.store.metrics import DRIFT_AFTER, Entry
from alma_jax.store.record import LABEL, Record

ALIVE, STOPPED, DEAD, FINISHED, DIVERGED = "alive", "stopped", "dead", "finished", "diverged"
PUBLISHED = "published"  # the gate of `alma apart`, whose run ends after the first stage without a summary
ORDER = (ALIVE, DIVERGED, DEAD, STOPPED, PUBLISHED, FINISHED)  # in lists of runs
NEED_HELP = (DIVERGED, DEAD, STOPPED)
_SCHEDULE = "stream.schedule"  # a field of streams whose stages may have several mega-batches
_RECENT = 5  # stages whose duration gives the time left


class View(NamedTuple):
  """A run as it is now.

  Attributes:
    record: its files.
    state: ALIVE (a process holds the folder, or the lease of its store), STOPPED (on request, after saving), DEAD (none
      of these, and the run is not finished), FINISHED, DIVERGED or PUBLISHED.
    saved: time of the last checkpoint, seconds since the epoch, or None.
    host: the other machine on which it is ALIVE; "": this one.
    doing: what takes long in a run that is ALIVE, e.g. "reading night-7.npz"; "" if nothing does.
  """
  record: Record
  state: str
  saved: float | None
  host: str
  doing: str

  @property
  def learner(self) -> str:
    """The name of the learner, or the label that stands for it."""
    return self.record.fields.get(LABEL) or str(self.record.fields["learner.name"])

  @property
  def name(self) -> str:
    """The learner and the data, e.g. "ens on mnist"."""
    return f"{self.learner} on {self.record.fields['dataset.name']}"

  @property
  def tested(self) -> list[tuple[int, float]]:
    """[(t, value)] of the metric on a test set; empty without one."""
    return [] if self.record.measure.is_prequential else self.record.values(self.record.metric)

  @property
  def prequential(self) -> list[tuple[int, float]]:
    """[(t, value)] of the metric on mega-batches before they are used."""
    return self.record.values(f"prequential_{self.record.metric}")

  @property
  def mean_prequential(self) -> float | None:
    """The mean over the stream so far."""
    values = [value for _, value in self.prequential]
    return sum(values) / len(values) if values else None

  @property
  def score(self) -> tuple[str, float] | None:
    """(name, value) of the score, so far if the run goes on: the CER or a mean; None before the first test."""
    record, result = self.record, self.record.kind.results[0]
    if record.measure.is_prequential:
      name, value = record.measure.name, self.mean_prequential
    elif record.summary is not None:
      name, value = result, record.summary[result]
    elif result == "cer":
      name, value = result, sum(value for _, value in self.tested) if self.tested else None
    else:
      values = record.measure.values(self.stages)
      name, value = result, sum(values) / len(values) if values else None
    return None if value is None else ("CER" if name == "cer" else name.replace("_", " "), value)

  @property
  def compute(self) -> int:
    """Multiply-adds of forward passes in training and growing, so far."""
    return int(sum(value for _, value in self.record.values("fwd_macs")))

  @property
  def stages(self) -> list[Entry]:
    """The lines of the mega-batches after which the learner was trained."""
    return [line for line in self.record.lines if line.get("updated")]

  @property
  def drifts(self) -> list[Entry]:
    """The lines of the mega-batches with a drift alarm."""
    return [line for line in self.record.lines if line.get(DRIFT_AFTER) is not None]

  @property
  def memory(self) -> list[str]:
    """What the last training replayed, e.g. ["leaves out 30 of 33 old mega-batches"]; [] if it has no weights."""
    weights = next(filter(None, reversed(self.record.replayed)), [])
    return [f"leaves out {sum(each < 0.5 for each in weights)} of {len(weights)} old mega-batches"] if weights else []

  @property
  def arrivals(self) -> list[str]:
    """What needs a look in the folder of a live stream, e.g. ["2 entries set aside (rejected.jsonl)"]."""
    aside, noticed = len(self.record.set_aside), len(self.record.notices)
    return [*([f"{aside} entr{'y' if aside == 1 else 'ies'} set aside (rejected.jsonl)"] if aside else []),
            *([f"{noticed} notice{'s' * (noticed > 1)} about used entries (notices.jsonl)"] if noticed else [])]

  @property
  def num_stages(self) -> int:
    """Number of stages of the whole stream; 0: it is not known."""
    record, fields = self.record, self.record.fields
    if record.summary is not None:
      return int(record.summary["num_stages"])
    if fields.get(_SCHEDULE, "every") == "every" and record.total:
      return math.ceil(record.total / fields.get("stream.waiting_time", 1))
    return int(fields.get("stream.num_trainings", 0))

  @property
  def seconds_left(self) -> float | None:
    """Seconds that a live run will still take, by its last stages; None if that is not known."""
    stages, total, done = self.stages, self.record.total, len(self.record.lines)
    if self.state != ALIVE or not stages or not total or done >= total:
      return None
    recent = stages[-_RECENT:] if len(stages) <= 1 else stages[1:][-_RECENT:]  # the first stage compiles
    each = sum(stage.get("seconds") or 0.0 for stage in recent) / len(recent)
    left = self.num_stages - len(stages) if self.num_stages else (total - done) * len(stages) / done
    return max(left, 0) * each or None


def view(path: str | os.PathLike[str]) -> View:
  """The View of a run folder.

  Raises:
    BadInput: it is none, or its files cannot be read.
  """
  folder = local_copy.readable_folders(path, ())[0] if run_files.is_address(path) else run_files.local(path)
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r}.")
  record = Record(folder)
  record.lines, record.set_aside, record.notices  # noqa: B018 (a damaged file is refused now)
  return current(record)


def current(record: Record) -> View:
  """The View of files that were read before; what it says about the present is new."""
  host, folder = "", record.path
  if record.is_finished:
    state = FINISHED
  elif is_alive(folder) or (host := local_copy.holder(folder) or ""):
    state = ALIVE
  elif record.is_published:
    state = PUBLISHED
  elif record.divergence is not None:
    state = DIVERGED
  else:
    state = STOPPED if (folder / run_files.STOPPED).exists() else DEAD
  return View(record, state, _saved(folder), host, _doing(folder) if state == ALIVE and not host else "")


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


def cells(run: View) -> dict[str, str]:
  """A row of `alma status`, {column: text}. `error` is the metric after the last training, `before use` the mean of
  what was measured before training.
  """
  record, of = run.record, lambda number: f" of {number}" if number else ""
  error = f"{run.tested[-1][1]:.4g}" if run.stages and run.tested else ""
  notes = [f"on {run.host}"] if run.host else []
  notes += [run.doing] if run.doing else []
  if record.accuracies is not None:
    error = error and f"{error} on the last task"
    notes.append(f"average accuracy {record.accuracies[-1].mean():.4g}")
  notes += [*measures.brief(record.further), *run.memory, *run.arrivals]
  if run.drifts:
    notes.append(f"{len(run.drifts)} drift alarm{'s' * (len(run.drifts) > 1)}, the last at mega-batch "
                 f"{run.drifts[-1]['t']}")
  if run.seconds_left:
    notes.append(f"about {duration(run.seconds_left)} left")
  if run.state not in (FINISHED, PUBLISHED):
    notes.append("nothing saved" if run.saved is None else f"saved {duration(max(time.time() - run.saved, 0))} ago")
  return {"run": run_files.shown(record.path), "state": run.state, "learner": run.name,
          "seen": f"{len(record.lines)}{of(record.total)}",
          "trainings": f"{len(run.stages)}{of(run.num_stages)}" if _SCHEDULE in record.fields else "", "error": error,
          "before use": "" if run.mean_prequential is None else f"{run.mean_prequential:.4g}",
          "notes": ", ".join(notes)}


def table(runs: Iterable[View]) -> str:
  """The rows of `alma status` under their heads, in columns: runs that are alive first, then those that need help."""
  rows = [cells(run) for run in sorted(runs, key=lambda run: ORDER.index(run.state))]
  heads = [head for head in rows[0] if any(row[head] for row in rows)]
  widths = {head: max(len(head), *(len(row[head]) for row in rows)) for head in heads}
  return "\n".join("  ".join(row[head].ljust(widths[head]) for head in heads).rstrip()
                   for row in [{head: head for head in heads}, *rows])


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
  for entry in (folder / "checkpoints").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # it is deleted now
      times += [entry.stat().st_mtime] if entry.name.isdecimal() else []  # others are being written
  return max(times, default=None)
