"""The progress of a sweep for people: a live table on a terminal; elsewhere a line per finished run."""
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alma_jax.messages import duration
from alma_jax.store.record import Record
from alma_jax.sweeps import events, states, timing
from alma_jax.sweeps.events import Event
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import State

if TYPE_CHECKING:
  from rich.console import Group
  from rich.live import Live

_BAR = 24  # characters
_MOST_FAILED = 5  # failed jobs that the live table shows; the summary lists all
_OPEN = (states.NEW, states.BEGUN, states.RUNNING)


class Board:
  """The states of all jobs. A context: inside it a terminal shows the live table."""

  def __init__(self, jobs: Sequence[Job], job_states: Mapping[str, State], num_workers: int) -> None:
    """Shows `jobs` in their states {name: State}; `num_workers` of them run at once."""
    self._jobs, self._states, self._num_workers = {job.name: job for job in jobs}, dict(job_states), num_workers
    self._began: dict[str, float] = {}  # when each job of this session began
    self._measured: dict[str, float] = {}  # seconds of the jobs that this session has run from start to end
    self._resumed: set[str] = set()
    self._taken = states.seconds_taken(jobs)
    self._live: Live | None = None

  def __enter__(self) -> "Board":
    if sys.stderr.isatty():
      from rich.console import Console
      from rich.live import Live
      self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
      self._live.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    with self._shown():
      if self._live:
        self._live.stop()

  def update(self, event: Event) -> None:
    """Updates the states with an Event, and shows them."""
    if self._live or event.kind == events.DONE:
      for name, state in self._of(states.RUNNING).items():
        self._states[name] = state._replace(done=Record(self._jobs[name].workdir).num_lines)
    if event.job is not None:
      self._note(event.job, event)
    if self._live:
      with self._shown():
        self._live.update(self._table(), refresh=True)

  def summary(self) -> str:
    """The number of finished runs, and the last line of each failed one."""
    lines = [f"{self._count(states.FINISHED)} of {len(self._jobs)} runs are finished."]
    for kind in (states.REFUSED, states.FAILED):
      lines += [f"{kind}: {name}: {state.line}" for name, state in self._of(kind).items()]
    return "\n".join([*lines, "--retry runs the failed ones again."] if self._of(states.FAILED) else lines)

  def all_finished(self) -> bool:
    """Whether all jobs are finished."""
    return self._count(states.FINISHED) == len(self._jobs)

  def line(self) -> str:
    """One line about all jobs."""
    waiting, left = self._count(states.NEW) + self._count(states.BEGUN), self._time_left()
    parts = [f"{self._count(kind)} {kind}" for kind in (states.FINISHED, states.RUNNING, states.FAILED)]
    return ", ".join([*parts, f"{waiting} waiting", *([f"{left} left"] if left else [])])

  def _note(self, job: Job, event: Event) -> None:
    name, old = job.name, self._states[job.name]
    if event.kind == events.STARTED:
      self._began[name] = time.monotonic()
      if old.done:
        self._resumed.add(name)
      self._states[name] = old._replace(kind=states.RUNNING)
      return
    took = time.monotonic() - self._began.get(name, time.monotonic())
    kind = {events.DONE: states.FINISHED, events.FAILED: states.FAILED}.get(event.kind, states.BEGUN)
    done = old.total if event.kind == events.DONE else Record(job.workdir).num_lines
    self._states[name] = old._replace(kind=kind, done=done, line=event.line)
    if event.kind == events.DONE:
      self._measure(name, took)
    if event.kind == events.LOST:
      self._say(f"{name}: {event.line}; it is tried again.")
    elif event.kind == events.FAILED:
      self._say(f"{name} failed: {event.line}")
    elif event.kind == events.DONE:
      if event.line:
        self._say(f"{name}: {event.line}")
      if not self._live:
        self._say(f"{name} finished in {duration(took)}; {self.line()}")

  def _measure(self, name: str, took: float) -> None:
    """Updates the seconds of finished runs; those of this session include the start of their process."""
    if name in self._began and name not in self._resumed:
      self._measured[name] = took
    self._taken = states.seconds_taken(self._jobs.values())
    for measured, longer in self._measured.items():
      inside = self._taken.get(measured, timing.Taken(longer, 0.0))
      self._taken[measured] = timing.Taken(longer, max(longer - inside.running, 0.0))

  def _say(self, text: str) -> None:
    with self._shown():
      if self._live:
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
      else:
        print(text, file=sys.stderr, flush=True)

  @contextlib.contextmanager
  def _shown(self) -> Iterator[None]:
    """If the terminal was closed, or the disk behind stderr is full, the sweep goes on without a table."""
    try:
      yield
    except OSError:
      self._live = None

  def _of(self, kind: str) -> dict[str, State]:
    return {name: state for name, state in self._states.items() if state.kind == kind}

  def _count(self, kind: str) -> int:
    return len(self._of(kind))

  def _time_left(self) -> str:
    """The time that the sweep will still take, e.g. "about 40 s"; "" until a run like those that are left finishes."""
    seconds = timing.estimate({name: job.config for name, job in self._jobs.items()}, self._taken)
    left = {name: state for name, state in self._states.items() if state.kind in _OPEN}
    return time_left(left, seconds, self._num_workers)

  def _table(self) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text
    table = Table.grid(padding=(0, 2))
    for name, state in self._states.items():
      if state.kind == states.RUNNING:
        full = int(_BAR * state.fraction)
        table.add_row(Text(name), Text("━" * full, style="bold") + Text("─" * (_BAR - full), style="dim"),
                      Text(f"{state.done} of {state.total or 'all'} mega-batches"),
                      Text(duration(time.monotonic() - self._began[name])))
    failed = [Text(f"failed: {name}: {state.line}", style="red", overflow="ellipsis", no_wrap=True)
              for name, state in list(self._of(states.FAILED).items())[-_MOST_FAILED:]]
    return Group(Text(self.line(), style="bold"), table, *failed)


def time_left(job_states: Mapping[str, State], seconds: Mapping[str, float], num_workers: int) -> str:
  """The time that unfinished runs will still take together, for people.

  Args:
    job_states: {name: State} of the runs.
    seconds: {name: seconds} of whole runs, from timing.estimate.
    num_workers: how many run at once.

  Returns:
    E.g. "about 40 s"; "at least 40 s" if `seconds` lacks some runs; "" if it lacks all.
  """
  rest = [seconds[name] * (1 - state.fraction) for name, state in job_states.items() if name in seconds]
  if not rest:
    return ""
  return f"{'about' if len(rest) == len(job_states) else 'at least'} {duration(timing.total(rest, num_workers))}"
