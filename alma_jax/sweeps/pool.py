"""Runs jobs in processes on this machine, each with its share of the cores or a GPU of its own.

A process keeps jax, data and compiled programs from job to job. One that dies
is replaced, and its job goes on from its checkpoint.
"""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import time
import traceback
from typing import NamedTuple

from alma_jax import commands
from alma_jax.errors import BadInput, Diverged, InUse, Stopped

_ATTEMPTS = 3  # of a job whose process is killed
_SECONDS, _CLOSING = 0.5, 10.0  # between two looks at the progress; for a process to end
_IN_USE = 60.0  # for another process to leave the run folder
BROKEN = "broken"  # what a worker says after an exception that nobody foresaw: it is replaced
DONE, FAILED, STOPPED, STARTED, LOST = "done", "failed", "stopped", "started", "lost"


class Event(NamedTuple):
  """What has become of a job.

  Attributes:
    kind: STARTED, DONE, FAILED, LOST (its process died, it is tried again) or
      STOPPED (saved, as asked).
    job: jobs.Job; None: nothing has happened for a while.
    line: what was said last, of those that failed or were lost.
  """
  kind: str
  job: object
  line: str = ""


def num_gpus():
  """NVIDIA GPUs that this process may use."""
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is not None:
    return len([part for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")])
  return len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))


def num_cores():
  """CPU cores that this process may use."""
  return len(_cores())


def _cores():
  return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def places(num_workers):
  """What each worker may use: (environment changes, cores).

  GPUs and cores are divided; one serves several workers where there are more of these.
  """
  cores = _cores()
  gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num_gpus())))).split(",")
  part = lambda all_of, i: (all_of[i * len(all_of) // num_workers:(i + 1) * len(all_of) // num_workers]
                            or [all_of[i % len(all_of)]])
  found = []
  for i in range(num_workers):
    mine, environment = part(cores, i), {"CUDA_VISIBLE_DEVICES": ",".join(part(gpus, i))} if num_gpus() else {}
    if num_gpus() and num_workers > num_gpus():  # several on one GPU, whose memory the first would take
      environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    found.append((environment, mine))
  return found


def run(jobs, num_workers, logs, should_stop):
  """Runs jobs in order, as many at once as there are workers.

  Args:
    jobs: list of jobs.Job.
    num_workers: processes, at least 1.
    logs: folder of what each job prints, NAME.log.
    should_stop: () -> bool; True: what runs saves, and no more is begun.

  Yields:
    Event, every half second at least.
  """
  logs = pathlib.Path(logs)
  logs.mkdir(parents=True, exist_ok=True)
  waiting, attempts = list(reversed(jobs)), dict.fromkeys((job.name for job in jobs), 0)
  free, workers, stopping = places(min(num_workers, len(jobs))), [], False
  try:
    while waiting or workers:
      if should_stop() and not stopping:
        stopping, waiting = True, []
        for worker in workers:
          worker.process.terminate()
      while free and waiting:
        workers.append(_Worker(free.pop(0), logs))
        yield workers[-1].begin(waiting.pop())
      ready = multiprocessing.connection.wait([worker.pipe for worker in workers], _SECONDS)
      for worker in [worker for worker in workers if worker.pipe in ready]:
        event = worker.hear()
        if event.kind == STOPPED and not stopping:  # somebody else has stopped it
          worker.close()
          event = Event(LOST, event.job, "its process was told to stop")
        if event.kind == LOST:
          attempts[event.job.name] += 1
          workers.remove(worker)
          free.append(worker.place)
          if stopping:
            event = event._replace(kind=STOPPED)
          elif attempts[event.job.name] < _ATTEMPTS:
            waiting.append(event.job)
          else:
            event = event._replace(kind=FAILED)
          yield event
          continue
        yield event
        if waiting and worker.suits(waiting[-1]):
          yield worker.begin(waiting.pop())
        else:
          workers.remove(worker)
          worker.close()
          free.append(worker.place)
      yield Event("", None)
  finally:
    for worker in workers:
      worker.process.kill()


class _Worker:
  """A process, and the job it has."""

  def __init__(self, place, logs):
    self.place, self._logs, self.job, self._broken = place, logs, None, False
    environment, cores = place
    context = multiprocessing.get_context("spawn")
    self.pipe, theirs = context.Pipe()
    before = dict(os.environ)
    os.environ.update(environment)  # a spawned process has what its parent had then
    try:
      self.process = context.Process(target=_work, args=(theirs, cores, os.getpid()), daemon=True)
      self.process.start()
    finally:
      os.environ.clear()
      os.environ.update(before)
    theirs.close()

  def suits(self, job):
    """Whether this process can run a further job: how it uses its devices is settled by its first."""
    alike = len(self.place[1]) == 1 and not self.place[0]  # one core leaves nothing to settle
    return not self._broken and (alike or _settings(job.config) == _settings(self.job.config))

  def begin(self, job):
    self.job = job
    with contextlib.suppress(OSError):  # it has died: hear() tells
      self.pipe.send((job.packed(), self._logs / f"{job.name}.log"))
    return Event(STARTED, job)

  def hear(self):
    try:
      kind, line = self.pipe.recv()
    except (EOFError, OSError):
      self.process.join()
      code = self.process.exitcode
      how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
      return Event(LOST, self.job, f"its process was {how}" if code < 0 else f"its process {how}")
    self._broken = kind == BROKEN
    return Event(FAILED if self._broken else kind, self.job, line)

  def close(self):
    """Lets the process end; one that does not is killed."""
    self.pipe.close()
    self.process.join(_CLOSING)
    self.process.kill()
    self.process.join()


def _work(pipe, cores, parent):
  """A worker: runs job after job until the pipe is closed."""
  stopping = []
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the parent passes it on
  signal.signal(signal.SIGTERM, lambda *unused: stopping.append(True))
  if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, cores)
  should_stop, last = lambda: bool(stopping) or os.getppid() != parent, None
  while not should_stop():
    try:
      job, log = pipe.recv()
    except (EOFError, OSError):
      return  # there are no more jobs, or no more parent
    if last is not None and _programs(last) != _programs(job):
      import jax
      jax.clear_caches()  # compiled programs that will not be needed again
    last = job
    with _printing_to(log):
      answer = attempt(job, should_stop)
    with contextlib.suppress(OSError):  # nobody is there to hear it
      pipe.send(answer)


def _settings(config):
  """What runtime.setup settles for a whole process."""
  return (config.model.name, config.model.width, config.model.num_experts, config.train.batch_size,
          config.learner.name, config.learner.num_trained, config.devices, config.deterministic)


def _programs(job):
  """What decides which programs a run needs, all but their sizes."""
  return [job["config"][section] for section in ("dataset", "learner", "model", "train", "precision")]


def attempt(job, should_stop=None):
  """Runs a packed job, or goes on with it; (DONE, FAILED, BROKEN or STOPPED, the last line)."""
  from alma_jax import experiment, runtime
  from alma_jax.sweeps import jobs
  commands.quiet()
  try:
    config, workdir = jobs.unpacked(job)
    runtime.setup(config, alone=True)
    patience = time.monotonic() + _IN_USE
    while True:
      try:
        experiment.run(config, workdir, should_stop=should_stop)
        break
      except InUse:  # a worker of a sweep that was killed saves and goes
        if should_stop is not None and should_stop():
          raise Stopped("stopped before it could begin.") from None
        if time.monotonic() > patience:
          raise
        time.sleep(1)
  except Stopped as stopped:
    return STOPPED, str(stopped)
  except (BadInput, Diverged) as error:
    print(f"error: {error}", file=sys.stderr)
    return FAILED, str(error)
  except Exception as error:  # whatever it is, the other jobs go on
    traceback.print_exc()
    return BROKEN, " ".join(f"{type(error).__name__}: {error}".split())
  return DONE, ""


@contextlib.contextmanager
def _printing_to(path):
  """Adds what this process prints, and what it is made of prints, to a file."""
  sys.stdout.flush()
  sys.stderr.flush()
  kept = [os.dup(number) for number in (1, 2)]
  with open(path, "ab") as file:
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  try:
    yield
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, old in zip((1, 2), kept):
      os.dup2(old, number)
      os.close(old)
