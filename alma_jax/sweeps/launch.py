"""The plan of a sweep, and its run: starts the jobs, shows their progress, and writes failures.json."""
import contextlib
import dataclasses
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import filelock
from tqdm import tqdm

from alma_jax import commands, messages
from alma_jax.errors import BadInput
from alma_jax.messages import UNSEEN, duration
from alma_jax.parallel.machine import num_cores, num_gpus
from alma_jax.store import run_files
from alma_jax.store.record import Record
from alma_jax.sweeps import pool, states
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import Event, State

LOCAL, SLURM = LAUNCHERS = ("local", "slurm")
_FAILURES = "failures.json"  # {name: last line} of failed jobs
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OPEN = (states.NEW, states.BEGUN, states.RUNNING)
_AFTER = {states.STARTED: states.RUNNING, states.DONE: states.FINISHED, states.FAILED: states.FAILED,
          states.LOST: states.BEGUN, states.STOPPED: states.BEGUN}  # {kind of an event: the state that it leaves}


@dataclasses.dataclass(frozen=True)
class Launcher:
  """How the jobs of a sweep are started.

  Attributes:
    name: LOCAL or SLURM.
    num_workers: how many run at once; 0: one for each GPU, or else for each
      core; with SLURM no limit.
    options: parameters of submitit, with SLURM.
  """
  name: str = LOCAL
  num_workers: int = 0
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def workers_for(self, jobs: Sequence[Job]) -> int:
    """How many of these jobs run at once, at least 1."""
    default = len(jobs) if self.name == SLURM else num_gpus() or num_cores()
    return max(1, min(self.num_workers or default, len(jobs)))


class Plan(NamedTuple):
  """A sweep.

  Attributes:
    root: folder of the run folders.
    jobs: all of them, in order.
    states: {name: State}.
    failures: {name: last line} of the jobs that failed in an earlier session.
  """
  root: pathlib.Path
  jobs: list[Job]
  states: dict[str, State]
  failures: dict[str, str]

  @property
  def to_do(self) -> list[Job]:
    """The jobs that will be run."""
    return [job for job in self.jobs if self.states[job.name].kind in (states.NEW, states.BEGUN)]


class Board:
  """The states of all jobs: a bar on a terminal, and a line for each run that has ended."""

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


def plan(jobs: list[Job], root: pathlib.Path, retry: bool) -> Plan:
  """The plan of some jobs, with the states that earlier sessions have left.

  Args:
    jobs: of the sweep.
    root: folder of the run folders.
    retry: whether failed jobs are run again.

  Raises:
    BadInput: `root` cannot be read.
  """
  with _folder_problems(root):
    if root.exists() and not root.is_dir():
      raise BadInput(f"{root} is a file; --workdir should be a folder.")
    failures = {} if retry else run_files.read_json(root / _FAILURES) or {}
    return Plan(root, jobs, {job.name: states.state(job, failures) for job in jobs}, failures)


def run(plan: Plan, launcher: Launcher) -> int:
  """Runs the jobs of a plan that are left, until all have ended or a signal stops the sweep.

  Returns:
    The exit code: 0 all finished, 1 some failed, 128 plus the number of a
    signal.

  Raises:
    BadInput: another process runs a sweep in the folder, or the folder cannot
      be written.
  """
  with contextlib.ExitStack() as locked:
    with _folder_problems(plan.root):
      for name in ("logs", *(["slurm"] if launcher.name == SLURM else [])):
        (plan.root / name).mkdir(parents=True, exist_ok=True)
      try:
        locked.enter_context(filelock.FileLock(plan.root / ".lock", timeout=0))
      except filelock.Timeout as error:
        raise BadInput(f"another process runs a sweep in {plan.root}.") from error
    return _run(plan, launcher)


def _run(plan: Plan, launcher: Launcher) -> int:
  signals = _watch_signals()
  failures, problem = dict(plan.failures), ""
  started = _start(plan, launcher, lambda: bool(signals))
  with contextlib.closing(Board(plan.jobs, plan.states, launcher.workers_for(plan.to_do))) as shown:
    for event in started:
      shown.update(event)
      if event.job is not None and event.kind in (states.DONE, states.FAILED):
        failures.pop(event.job.name, None)
        if event.kind == states.FAILED:
          failures[event.job.name] = event.line
        try:
          run_files.write_json(plan.root / _FAILURES, failures)
          problem = ""
        except OSError as error:
          problem = (f"{plan.root / _FAILURES} cannot be written: {error.strerror or error}; run the command again, "
                     "and it runs the failed jobs again.")
  with contextlib.suppress(OSError):  # the terminal was closed, or the disk is full
    print(shown.summary(), flush=True)
  commands.warn([problem] if problem else [])
  if signals:
    messages.say("stopped; run the command again, and the sweep continues.")
    return 128 + signals[0]
  return 0 if shown.all_finished() else 1


def _start(plan: Plan, launcher: Launcher, should_stop: Callable[[], bool]) -> Iterator[Event]:
  """Events of the jobs that are left."""
  if launcher.name == SLURM:
    from alma_jax.sweeps import slurm  # submitit is slow to import
    return slurm.run(plan.to_do, launcher.num_workers, plan.root / "slurm", launcher.options, should_stop)
  return pool.run(plan.to_do, launcher.workers_for(plan.to_do), plan.root / "logs", should_stop)


def _watch_signals() -> list[int]:
  """A list to which signals are added; a second signal of the same kind ends this process."""
  signals: list[int] = []

  def stop(number: int, frame: Any) -> None:
    del frame
    signals.append(number)
    signal.signal(number, signal.SIG_DFL)

  for number in _SIGNALS:
    if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
      signal.signal(number, stop)
  return signals


@contextlib.contextmanager
def _folder_problems(root: pathlib.Path) -> Iterator[None]:
  """Raises BadInput if the disk or the permissions of a folder cause an OSError."""
  try:
    yield
  except OSError as error:
    raise BadInput(f"the folder {root} cannot be made, read or written: {error.strerror or error}.") from error
