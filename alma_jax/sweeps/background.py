"""Predicts the costs of jobs in a process of lower priority, while workers run them."""
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection

from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps import timing, worker
from alma_jax.sweeps.jobs import Job, Packed

_NICE = 5  # at 10 the process made no progress while workers used every core


class Costs:
  """Predicted costs of jobs, once the process has found them."""

  def __init__(self, jobs: Sequence[Job]) -> None:
    """Starts to predict the costs of `jobs`; without jobs it starts nothing."""
    self._found: dict[str, timing.Prediction] | None = None
    self._pipe: Connection | None = None
    if jobs:
      context = multiprocessing.get_context("spawn")
      self._pipe, theirs = context.Pipe(duplex=False)
      packed = {job.name: job.packed() for job in jobs}
      self._process = context.Process(target=_predict, args=(packed, theirs), daemon=True)
      worker.start(self._process)
      theirs.close()

  def get(self) -> dict[str, timing.Prediction] | None:
    """{name: Prediction} of the jobs that can run; None until the process has found them."""
    if self._pipe is not None and self._pipe.poll():
      try:
        self._found = self._pipe.recv()
      except (EOFError, OSError):
        self._found = None  # the process failed; the runs themselves will fail with a message
      self.close()
    return self._found

  def close(self) -> None:
    """Ends the process if it still runs."""
    if self._pipe is not None:
      self._pipe.close()
      self._process.kill()
      self._process.join()
      self._pipe = None


def _predict(jobs: dict[str, Packed], pipe: Connection) -> None:
  worker.leave_signals_to_parent()
  os.nice(_NICE)
  os.environ["JAX_PLATFORMS"] = "cpu"
  with open(os.devnull, "w") as nowhere:
    os.dup2(nowhere.fileno(), 1)
    os.dup2(nowhere.fileno(), 2)
  from alma_jax.sweeps import prediction  # imports jax
  configs = [sweep_jobs.unpacked(job)[0] for job in jobs.values()]
  found = dict(zip(jobs, prediction.predict(configs)))
  pipe.send({name: cost for name, cost in found.items() if isinstance(cost, timing.Prediction)})
