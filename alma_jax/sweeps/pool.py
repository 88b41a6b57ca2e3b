"""Runs jobs in worker processes on this machine, each with its share of the cores or a GPU of its own.

A worker that ends unexpectedly is replaced, and its job resumes from its checkpoint.
"""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.parallel.machine import num_gpus, usable_cores
from alma_jax.sweeps import worker
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import FAILED, LOST, QUIET, STARTED, STOPPED, Event

_ATTEMPTS = 3  # of a job whose process is killed
_SETTINGS = ("model.name", "model.width", "model.num_experts", "train.batch_size", "learner.name", "devices",
             "deterministic")
_SECONDS, _CLOSING = 0.5, 10.0  # between two checks of the workers; for a process to end
T = TypeVar("T")


def run(jobs: Sequence[Job], num_workers: int, logs: pathlib.Path, should_stop: Callable[[], bool]) -> Iterator[Event]:
  """Runs jobs in order, as many at once as there are workers.

  Args:
    jobs: to be run.
    num_workers: processes, at least 1.
    logs: folder for the output of each job, NAME.log.
    should_stop: called twice a second; if it returns True, running jobs save and
      stop, and no other job begins.

  Yields:
    An Event at least every half second.
  """
  logs.mkdir(parents=True, exist_ok=True)
  waiting, attempts = list(reversed(jobs)), dict.fromkeys((job.name for job in jobs), 0)
  free, workers, stopping = places(min(num_workers, len(jobs))), list[_Worker](), False
  try:
    while waiting or workers:
      if should_stop() and not stopping:
        stopping, waiting = True, []
        for one in workers:
          one.process.terminate()
      while free and waiting:
        workers.append(_Worker(free.pop(0), logs))
        yield workers[-1].begin(waiting.pop())
      ready = multiprocessing.connection.wait([one.pipe for one in workers], _SECONDS)
      for one in [one for one in workers if one.pipe in ready]:
        event = one.hear()
        job, goes_on = one.job, event.kind not in (LOST, STOPPED)
        if event.kind == STOPPED and not stopping:  # the signal did not come from this process
          event = Event(LOST, job, "its process received a signal to stop")
        if event.kind == LOST:
          attempts[job.name] += 1
          if stopping:
            event = event._replace(kind=STOPPED)
          elif attempts[job.name] < _ATTEMPTS:
            waiting.append(job)
          else:
            event = event._replace(kind=FAILED)
        yield event
        if goes_on and waiting and one.suits(waiting[-1]):
          yield one.begin(waiting.pop())
        else:
          workers.remove(one)
          one.close()
          free.append(one.place)
      yield Event(QUIET, None)
  finally:
    for one in workers:
      one.process.kill()


def places(num_workers: int) -> list[worker.Place]:
  """A Place for each worker. If there are more workers than cores or GPUs, several workers share one."""
  cores, num = usable_cores(), num_gpus()
  gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num)))).split(",")
  shares = []
  for i in range(num_workers):
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(_share(gpus, i, num_workers))} if num else {}
    if num and num_workers > num:  # several workers on a GPU, whose memory the first one would take
      environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    shares.append(worker.Place(environment, _share(cores, i, num_workers)))
  return shares


class _Worker:
  """A worker process and its present job.

  Attributes:
    place: the cores and GPUs that the process uses.
    pipe: connection to the process.
    process: the process.
    job: the present job, once `begin` was called.
  """
  job: Job

  def __init__(self, place: worker.Place, logs: pathlib.Path) -> None:
    self.place, self._logs, self._broken = place, logs, False
    context = multiprocessing.get_context("spawn")
    self.pipe, theirs = context.Pipe()
    self.process = context.Process(target=worker.work, args=(theirs, place, os.getpid()), daemon=True)
    worker.start(self.process)
    theirs.close()

  def suits(self, job: Job) -> bool:
    """Whether this process can run a further job: its first job has decided how it uses its devices."""
    same = len(self.place.cores) == 1 and not self.place.environment  # with one core there is nothing to decide
    return not self._broken and (same or _settings(job.config) == _settings(self.job.config))

  def begin(self, job: Job) -> Event:
    """Starts a job."""
    self.job = job
    with contextlib.suppress(OSError):  # the process has ended; `hear` returns that
      self.pipe.send((job.packed(), self._logs / f"{job.name}.log"))
    return Event(STARTED, job)

  def hear(self) -> Event:
    """The answer of the process, or LOST if it has ended."""
    try:
      kind, line = self.pipe.recv()
    except (EOFError, OSError):
      self.process.join()
      code = self.process.exitcode or 0
      how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
      return Event(LOST, self.job, f"its process {how}")
    self._broken = kind == worker.BROKEN
    return Event(FAILED if self._broken else kind, self.job, line)

  def close(self) -> None:
    """Closes the pipe, after which the process ends; kills it if it does not."""
    self.pipe.close()
    self.process.join(_CLOSING)
    self.process.kill()
    self.process.join()


def _settings(config: schema.RunConfig) -> tuple[Any, ...]:
  """The fields by which runtime.setup sets up a whole process."""
  fields = configs.flatten(configs.to_dict(config))
  return (*(fields[name] for name in _SETTINGS), config.learner.num_trained)


def _share(every: Sequence[T], i: int, num: int) -> list[T]:
  """The i-th of `num` equal parts; at least one item."""
  return list(every[i * len(every) // num:(i + 1) * len(every) // num]) or [every[i % len(every)]]
