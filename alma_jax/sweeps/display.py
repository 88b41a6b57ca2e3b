"""The progress of a sweep for people: a live table on a terminal; elsewhere a line per finished run."""
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alma_jax.messages import duration
from alma_jax.store.record import Record
from alma_jax.sweeps import states
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import Event, State

if TYPE_CHECKING:
  from rich.console import Group
  from rich.live import Live

_BAR = 24  # characters
_MOST_FAILED = 5  # failed jobs that the live table shows; the summary lists all
_OPEN = (states.NEW, states.BEGUN, states.RUNNING)
_AFTER = {states.DONE: states.FINISHED, states.FAILED: states.FAILED, states.LOST: states.BEGUN,
          states.STOPPED: states.BEGUN}  # {kind of an event: the state that it leaves}


class Board:
  """The states of all jobs. A context: inside it a terminal shows the live table."""

  def __init__(self, jobs: Sequence[Job], job_states: Mapping[str, State], num_workers: int) -> None:
    """Shows `jobs` in their states {name: State}; `num_workers` of them run at once."""
    self._jobs, self._states, self._num_workers = {job.name: job for job in jobs}, dict(job_states), num_workers
    self._began: dict[str, float] = {}  # when each job of this session began
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
    if self._live or event.kind == states.DONE:
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
    """One line about all jobs, with the time left once a run like those that are left has finished."""
    seconds = states.estimate({name: job.config for name, job in self._jobs.items()}, self._taken)
    left = states.time_left({name: state for name, state in self._states.items() if state.kind in _OPEN}, seconds,
                            self._num_workers)
    parts = [f"{self._count(kind)} {kind}" for kind in (states.FINISHED, states.RUNNING, states.FAILED)]
    parts.append(f"{self._count(states.NEW) + self._count(states.BEGUN)} waiting")
    return ", ".join([*parts, f"{left} left"] if left else parts)

  def _note(self, job: Job, event: Event) -> None:
    name, old = job.name, self._states[job.name]
    if event.kind == states.STARTED:
      self._began[name] = time.monotonic()
      self._states[name] = old._replace(kind=states.RUNNING)
      return
    done = old.total if event.kind == states.DONE else Record(job.workdir).num_lines
    self._states[name] = old._replace(kind=_AFTER[event.kind], done=done, line=event.line)
    if event.kind == states.LOST:
      self._say(f"{name}: {event.line}; it is tried again.")
    elif event.kind == states.FAILED:
      self._say(f"{name} failed: {event.line}")
    elif event.kind == states.DONE:
      self._taken = states.seconds_taken(self._jobs.values())
      if not self._live:
        took = time.monotonic() - self._began.get(name, time.monotonic())
        self._say(f"{name} finished in {duration(took)}; {self.line()}")

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

  def _table(self) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text
    table = Table.grid(padding=(0, 2))
    for name, state in self._of(states.RUNNING).items():
      full = int(_BAR * state.fraction)
      table.add_row(Text(name), Text("━" * full, style="bold") + Text("─" * (_BAR - full), style="dim"),
                    Text(f"{state.done} of {state.total or 'all'} mega-batches"),
                    Text(duration(time.monotonic() - self._began[name])))
    failed = [Text(f"failed: {name}: {state.line}", style="red", overflow="ellipsis", no_wrap=True)
              for name, state in list(self._of(states.FAILED).items())[-_MOST_FAILED:]]
    return Group(Text(self.line(), style="bold"), table, *failed)
