"""The states of a sweep's jobs, what happens to them, and how long they take. Does not import jax."""
import contextlib
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.messages import duration
from alma_jax.store import run_files
from alma_jax.store.record import SUMMARY, Record
from alma_jax.sweeps.jobs import Job

NEW, BEGUN, RUNNING, FINISHED, FAILED, REFUSED = "new", "begun", "running", "finished", "failed", "refused"
STARTED, DONE, LOST, STOPPED, QUIET = "started", "done", "lost", "stopped", ""  # kinds of events, as FAILED


class Event(NamedTuple):
  """Something that happened to a job.

  Attributes:
    kind: STARTED, DONE, FAILED, LOST (its process ended, and the job will be
      tried again), STOPPED (saved on request), or QUIET.
    job: None for QUIET, which means that nothing happened for a while.
    line: the last line of a job that FAILED or was LOST.
  """
  kind: str
  job: Job | None
  line: str = ""


class State(NamedTuple):
  """The state of a job.

  Attributes:
    kind: NEW, BEGUN (begun and stopped), RUNNING, FINISHED, FAILED, or REFUSED
      (the run folder holds something else).
    done, total: mega-batches; a total of 0: the stream says how many.
    line: the last line of a failed job, or why a run folder is refused.
  """
  kind: str
  done: int
  total: int
  line: str = ""

  @property
  def fraction(self) -> float:
    """The part that is done; 0 if the total is not known."""
    return self.done / self.total if self.total else 0.0

  def __str__(self) -> str:
    if self.line:
      return f"{self.kind}: {self.line}"
    return f"{self.kind}, {self.done} of {self.total} mega-batches" if 0 < self.done < self.total else self.kind


class Taken(NamedTuple):
  """The seconds of a finished run.

  Attributes:
    seconds: from its start to its end.
    compiling: the part that does not depend on its length.
  """
  seconds: float
  compiling: float


def state(job: Job, failures: Mapping[str, str]) -> State:
  """The State of a job, from its run folder and from `failures`, {name: last line} of failed jobs."""
  record, total = Record(job.workdir), job.config.stream.num_megabatches
  try:
    if record.is_begun:
      differ = configs.differences(record.tree, job.config)
      if differ:
        raise BadInput(f"{job.workdir} holds another run, which differs in {', '.join(differ)}; move it away, or give "
                       "another --workdir.")
      if record.is_published if job.clusters else record.is_finished:
        return State(FINISHED, total, total)
  except BadInput as error:
    return State(REFUSED, 0, total, str(error))
  done = record.num_lines
  if job.name in failures:
    return State(FAILED, done, total, failures[job.name])
  return State(BEGUN if record.is_begun else NEW, done, total)


def seconds_taken(jobs: Iterable[Job]) -> dict[str, Taken]:
  """{name: Taken} of the finished runs that have the same kind of device as the newest one."""
  finished = []
  for job in jobs:
    with contextlib.suppress(BadInput, OSError):
      summary = Record(job.workdir).summary
      if summary is not None:
        device = re.sub(r"^\d+ x ", "", str(summary["device"]))
        written = (job.workdir / SUMMARY).stat().st_mtime_ns
        wall, compiling = summary["wall_seconds"], summary["compile_seconds"]
        finished.append((written, device, job.name, Taken(wall, min(compiling, wall))))
  newest = max(finished)[1] if finished else ""
  return {name: taken for _, device, name, taken in finished if device == newest}


def estimate(configs: Mapping[str, schema.RunConfig], taken: Mapping[str, Taken]) -> dict[str, float]:
  """Seconds that runs will take, from their start to their end.

  A run compiles as long as the finished runs on the same data, with the same learner, network and precision, have done
  on average, and it takes as many seconds for a training step as they have taken on average.

  Args:
    configs: {name: config} of all runs.
    taken: {name: Taken} of the finished runs.

  Returns:
    {name: seconds} of the other runs, without those for which no such run has finished.
  """
  steps = {name: config.train.relative_steps(config.stream.shares) for name, config in configs.items()}
  kinds: dict[tuple[object, ...], list[str]] = {}
  for name, config in configs.items():
    kinds.setdefault((config.dataset, config.learner, config.model, config.precision), []).append(name)
  seconds: dict[str, float] = {}
  for names in kinds.values():
    finished = [name for name in names if name in taken]
    if finished:
      compiling = sum(taken[name].compiling for name in finished) / len(finished)
      running = sum(max(taken[name].seconds - taken[name].compiling, 1e-3) for name in finished)
      each = running / sum(steps[name] for name in finished)
      seconds |= {name: compiling + each * steps[name] for name in names if name not in taken}
  return seconds


def time_left(states: Mapping[str, State], seconds: Mapping[str, float], num_workers: int) -> str:
  """The time that unfinished runs will still take together, for people.

  Args:
    states: {name: State} of the runs.
    seconds: {name: seconds} of whole runs, from `estimate`.
    num_workers: how many run at once.

  Returns:
    E.g. "about 40 s"; "at least 40 s" if `seconds` lacks some runs; "" if it lacks all.
  """
  rest = [seconds[name] * (1 - state.fraction) for name, state in states.items() if name in seconds]
  if not rest:
    return ""
  together = max(sum(rest) / max(num_workers, 1), *rest)
  return f"{'about' if len(rest) == len(states) else 'at least'} {duration(together)}"


def read_texts(path: pathlib.Path, advice: str) -> dict[str, str]:
  """{name: text} of a JSON file that a sweep has written; empty if there is no file.

  Raises:
    BadInput: it holds something else; the message ends with `advice`.
  """
  try:
    texts = run_files.read_json(path)
  except BadInput as error:
    raise BadInput(f"{path} is not JSON; {advice}.") from error
  if texts is None:
    return {}
  if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
    raise BadInput(f"{path} should be a JSON object of names and strings; {advice}.")
  return texts
