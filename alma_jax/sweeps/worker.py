"""A worker process of a sweep: it runs job after job, and keeps jax, data and compiled programs."""
import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from alma_jax import commands, messages
from alma_jax.errors import BadInput, Diverged, InUse, Stopped
from alma_jax.sweeps.jobs import Packed, unpacked
from alma_jax.sweeps.states import DONE, FAILED, STOPPED

BROKEN = "broken"  # the answer after an unexpected exception; the worker is then replaced
_IN_USE = 60.0  # seconds to wait until another process leaves the run folder
_FROM_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # a terminal sends them to all processes of a command


class Place(NamedTuple):
  """What one worker may use.

  Attributes:
    environment: variables that select its GPUs; empty without GPUs.
    cores: numbers of its CPU cores.
  """
  environment: dict[str, str]
  cores: list[int]


def start(process: BaseProcess) -> None:
  """Starts a process in which signals of the terminal wait until it calls `leave_signals_to_parent`."""
  multiprocessing.resource_tracker.ensure_running()  # its start would unblock the signals
  signal.pthread_sigmask(signal.SIG_BLOCK, _FROM_TERMINAL)
  try:
    process.start()
  finally:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FROM_TERMINAL)


def leave_signals_to_parent() -> None:
  """Ignores signals of the terminal in a process that `start` has started; the parent reacts to them."""
  for number in _FROM_TERMINAL:
    signal.signal(number, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, _FROM_TERMINAL)


def work(pipe: Connection, place: Place, parent: int) -> None:
  """Runs jobs until the pipe is closed; the body of a worker process.

  Args:
    pipe: gives (packed job, path of its log), and takes (kind, last line).
    place: what the process may use.
    parent: number of the parent process; if it ends, the worker ends.
  """
  stopping = []
  os.environ.update(place.environment)  # jax is imported later
  signal.signal(signal.SIGTERM, lambda *unused: stopping.append(True))
  leave_signals_to_parent()
  if sys.platform.startswith("linux"):
    # Progress bars and TensorBoard files use semaphores. With "fork" a semaphore is unlinked at once; with "spawn" it
    # is unlinked when the process ends, and a process that is killed would leave it behind.
    multiprocessing.set_start_method("fork", force=True)
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, place.cores)
  should_stop, last = lambda: bool(stopping) or os.getppid() != parent, None
  while not should_stop():
    try:
      job, log = pipe.recv()
    except (EOFError, OSError):
      return  # there are no more jobs, or the parent has ended
    if last is not None and _programs(last) != _programs(job):
      import jax
      jax.clear_caches()  # the compiled programs will not be needed again
    last = job
    _print_to(log)
    answer = attempt(job, should_stop)
    with contextlib.suppress(OSError):  # the parent has ended
      pipe.send(answer)


def attempt(job: Packed, should_stop: Callable[[], bool] | None = None) -> tuple[str, str]:
  """Runs a packed job, or resumes it.

  Returns:
    (DONE, FAILED, BROKEN or STOPPED, the last line).
  """
  commands.quiet()
  try:
    _run(job, should_stop)
  except Stopped as stopped:
    return STOPPED, str(stopped)
  except (BadInput, Diverged) as error:
    messages.say(f"error: {error}")
    return FAILED, str(error)
  except Exception as error:  # any failure: the other jobs go on
    with contextlib.suppress(OSError):
      traceback.print_exc()
    return BROKEN, " ".join(f"{type(error).__name__}: {error}".split())
  return DONE, ""


def _run(job: Packed, should_stop: Callable[[], bool] | None) -> None:
  """Runs a job. If another process uses the run folder, it waits: a worker of a killed sweep saves before it ends."""
  from alma_jax.parallel import runtime
  from alma_jax.runs import experiment, mixture
  config, workdir = unpacked(job)
  runtime.setup(config, alone=True)
  patience = time.monotonic() + _IN_USE
  while True:
    try:
      if job["clusters"]:
        mixture.publish(config, workdir, job["clusters"], should_stop)
      else:
        experiment.run(config, workdir, should_stop=should_stop)
      return
    except InUse:
      if should_stop is not None and should_stop():
        raise Stopped("stopped before it could begin.") from None
      if time.monotonic() > patience:
        raise
      time.sleep(1)


def _programs(job: Packed) -> list[Any]:
  """The sections of a config that decide which programs a run compiles."""
  return [job["config"][section] for section in ("dataset", "learner", "model", "train", "precision")]


def _print_to(path: str | pathlib.Path) -> None:
  """Appends the output of this process and its libraries to a file; if it cannot be opened, the output is lost."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError):
      stream.flush()
  try:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
  except OSError:
    file = os.open(os.devnull, os.O_WRONLY)
  os.dup2(file, 1)
  os.dup2(file, 2)
  os.close(file)
