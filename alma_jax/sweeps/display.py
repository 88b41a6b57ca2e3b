"""The progress of a sweep for people: a bar on a terminal, and a line for each run that has ended."""
import sys
import time
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from alma_jax.messages import UNSEEN, duration
from alma_jax.store.record import Record
from alma_jax.sweeps import states
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import Event, State

_OPEN = (states.NEW, states.BEGUN, states.RUNNING)
_AFTER = {states.STARTED: states.RUNNING, states.DONE: states.FINISHED, states.FAILED: states.FAILED,
          states.LOST: states.BEGUN, states.STOPPED: states.BEGUN}  # {kind of an event: the state that it leaves}


class Board:
  """The states of all jobs."""

  def __init__(self, jobs: Sequence[Job], job_states: Mapping[str, State], num_workers: int) -> None:
    """Shows `jobs` in their states {name: State}; `num_workers` of them run at once."""
    self._jobs, self._states, self._num_workers = {job.name: job for job in jobs}, dict(job_states), num_workers
    self._began: dict[str, float] = {}  # when each job of this session began
    self._seconds = states.estimate(jobs)
    self._bar = tqdm(total=len(jobs), bar_format="{bar:24} {desc}", leave=False, disable=not sys.stderr.isatty())

  def update(self, event: Event) -> None:
    """Updates the states with an Event, and shows them."""
    if event.job is not None:
      self._note(event.job, event)
    if not self._bar.disable:
      with UNSEEN:  # the terminal was closed
        self._bar.n = self._count(states.FINISHED)
        self._bar.set_description_str(self.line())

  def close(self) -> None:
    """Takes the bar away."""
    with UNSEEN:
      self._bar.close()

  def summary(self) -> str:
    """The number of finished runs, and the last line of each failed one."""
    lines = [f"{self._count(states.FINISHED)} of {len(self._jobs)} runs are finished."]
    for kind in (states.REFUSED, states.FAILED):
      lines += [f"{kind}: {name}: {state.line}" for name, state in self._states.items() if state.kind == kind]
    return "\n".join([*lines, "--retry runs the failed ones again."] if self._count(states.FAILED) else lines)

  def all_finished(self) -> bool:
    """Whether all jobs are finished."""
    return self._count(states.FINISHED) == len(self._jobs)

  def line(self) -> str:
    """One line about all jobs, with the time left once a run like those that are left has finished."""
    left = {name: state._replace(done=Record(self._jobs[name].workdir).num_lines)
            for name, state in self._states.items() if state.kind in _OPEN}
    time_left = states.time_left(left, self._seconds, self._num_workers)
    parts = [f"{self._count(kind)} {kind}" for kind in (states.FINISHED, states.RUNNING, states.FAILED)]
    parts.append(f"{self._count(states.NEW) + self._count(states.BEGUN)} waiting")
    return ", ".join([*parts, f"{time_left} left"] if time_left else parts)

  def _note(self, job: Job, event: Event) -> None:
    self._states[job.name] = self._states[job.name]._replace(kind=_AFTER[event.kind], line=event.line)
    if event.kind == states.STARTED:
      self._began[job.name] = time.monotonic()
    elif event.kind == states.LOST:
      self._say(f"{job.name}: {event.line}; it is tried again.")
    elif event.kind == states.FAILED:
      self._say(f"{job.name} failed: {event.line}")
    elif event.kind == states.DONE:
      self._seconds = states.estimate(list(self._jobs.values()))
      took = time.monotonic() - self._began.get(job.name, time.monotonic())
      self._say(f"{job.name} finished in {duration(took)}; {self.line()}")

  def _say(self, text: str) -> None:
    with UNSEEN:
      self._bar.write(text, file=sys.stderr)

  def _count(self, kind: str) -> int:
    return sum(state.kind == kind for state in self._states.values())
