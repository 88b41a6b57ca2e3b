"""The states of a sweep's jobs, what happens to them, and how long they take. Does not import jax."""
import collections
import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.messages import duration
from alma_jax.store.record import Record
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


def estimate(jobs: Sequence[Job]) -> dict[str, float]:
  """Seconds of whole runs, {name: seconds}.

  A run that is not finished is assumed to take as long as the finished runs did on average that have the same data,
  learner, network, training and precision. Without such a run, it has no estimate.
  """
  kind = lambda config: (config.dataset, config.learner, config.model, config.train, config.precision)
  seconds: dict[str, float] = {}
  measured = collections.defaultdict(list)
  for job in jobs:
    with contextlib.suppress(BadInput, OSError):
      if summary := Record(job.workdir).summary:
        seconds[job.name] = summary["wall_seconds"]
        measured[kind(job.config)].append(summary["wall_seconds"])
  for job in jobs:
    if runs := measured.get(kind(job.config)):
      seconds.setdefault(job.name, sum(runs) / len(runs))
  return seconds


def time_left(states: Mapping[str, State], seconds: Mapping[str, float], num_workers: int) -> str:
  """The time that unfinished runs will still take together, for people.

  Args:
    states: {name: State} of the runs.
    seconds: {name: seconds} of whole runs, from `estimate`.
    num_workers: how many run at once.

  Returns:
    E.g. "about 40 s"; "roughly 40 s" if `seconds` lacks some runs, for which the mean counts; "" if it is empty.
  """
  if not seconds or not states:
    return ""
  mean = sum(seconds.values()) / len(seconds)
  rest = [seconds.get(name, mean) * (1 - state.fraction) for name, state in states.items()]
  together = max(sum(rest) / max(num_workers, 1), *rest)
  return f"{'about' if states.keys() <= seconds.keys() else 'roughly'} {duration(together)}"
