"""The plan of a sweep, and its run: starts the jobs, shows the board, and writes failures.json."""
import contextlib
import dataclasses
import pathlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import filelock

from alma_jax import commands, messages
from alma_jax.errors import BadInput
from alma_jax.parallel.machine import num_cores, num_gpus
from alma_jax.store import run_files
from alma_jax.sweeps import display, pool, states
from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import Event, State

LOCAL, SLURM = LAUNCHERS = ("local", "slurm")
_FAILURES = "failures.json"  # {name: last line} of failed jobs
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


def read(path: str, root: str | pathlib.Path, overrides: Mapping[str, str | None], retry: bool,
         seeds: Sequence[int] = ()) -> Plan:
  """The plan of a sweep file.

  Args:
    path: of the sweep file.
    root: folder of the run folders.
    overrides: {field: text} for all jobs.
    retry: whether failed jobs are run again.
    seeds: those of the jobs, instead of the sweep file's; none: as in the file.

  Raises:
    BadInput: the sweep is not valid, or `root` cannot be read.
  """
  root = run_files.local(root)
  with _folder_problems(root):
    if root.exists() and not root.is_dir():
      raise BadInput(f"{root} is a file; --workdir should be a folder.")
  sweep = sweep_jobs.load(path)
  return of_jobs(sweep_jobs.make(sweep_jobs.with_seeds(sweep, seeds) if seeds else sweep, root, overrides), root, retry)


def of_jobs(jobs: list[Job], root: pathlib.Path, retry: bool) -> Plan:
  """The plan of some jobs, with the states that earlier sessions have left in `root`; see `read`."""
  with _folder_problems(root):
    failures = {} if retry else states.read_texts(
        root / _FAILURES, "delete it, or give --retry, which runs the failed jobs again")
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
  with contextlib.closing(display.Board(plan.jobs, plan.states, launcher.workers_for(plan.to_do))) as shown:
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
          problem = (f"{plan.root / _FAILURES} cannot be written: {error.strerror or error}; the same command will run "
                     "the failed jobs again.")
  with contextlib.suppress(OSError):  # the terminal was closed, or the disk is full
    print(shown.summary(), flush=True)
  commands.warn([problem] if problem else [])
  if signals:
    messages.say("stopped; the same command resumes the sweep.")
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
