"""Runs a sweep: starts its jobs, shows the board, and writes the last lines of failed jobs to failures.json."""
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import filelock

from alma_jax import commands, messages
from alma_jax.errors import BadInput
from alma_jax.store import run_files
from alma_jax.sweeps import display, pool, states
from alma_jax.sweeps.plan import FAILURES, SLURM, Launcher, Plan, folder_problems
from alma_jax.sweeps.states import Event

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    with folder_problems(plan.root):
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
  with display.Board(plan.jobs, plan.states, launcher.workers_for(plan.to_do)) as shown:
    for event in started:
      shown.update(event)
      if event.job is not None and event.kind in (states.DONE, states.FAILED):
        failures.pop(event.job.name, None)
        if event.kind == states.FAILED:
          failures[event.job.name] = event.line
        try:
          run_files.write_json(plan.root / FAILURES, failures)
          problem = ""
        except OSError as error:
          problem = (f"{plan.root / FAILURES} cannot be written: {error.strerror or error}; the same command will run "
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
