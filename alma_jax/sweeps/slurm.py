"""Runs jobs on a SLURM cluster through submitit: one array, requeued after preemption and resumed from checkpoints."""
import re
import shutil
import time

import submitit

from alma_jax import writers
from alma_jax.errors import BadInput
from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps import pool

_SECONDS = 5.0  # between two looks at the queue
_MINUTES = 24 * 60  # time limit of a job, unless told otherwise
_UNKNOWN_SECONDS = 600.0  # for SLURM's accounting to learn of a job
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
          "REVOKED")
_IDS = "jobs.json"


class Task(submitit.helpers.Checkpointable):
  """What a node runs; submitit calls it again with the same job after a preemption or a time limit."""

  def __call__(self, packed):
    kind, line = pool.attempt(packed)
    if kind != pool.DONE:
      raise RuntimeError(line)


def run(jobs, num_workers, folder, options, should_stop):
  """Submits jobs as one array and watches it; those still queued by an earlier call are only watched.

  Args:
    jobs: list of jobs.Job; workdirs are seen by all nodes.
    num_workers: how many run at once, at most; 0: all, as the cluster lets.
    folder: of submitit's files.
    options: dict of submitit's parameters, e.g. slurm_partition, timeout_min,
      gpus_per_node.
    should_stop: () -> bool; True: watching ends, the jobs stay in the queue.

  Yields:
    pool.Event.

  Raises:
    BadInput: there is no SLURM here, or it refuses the options.
  """
  if shutil.which("sbatch") is None:
    raise BadInput("there is no SLURM here (no sbatch); use --launcher=local.")
  ids = writers.read_json(folder / _IDS) or {}
  earlier = {job.name: submitit.SlurmJob(folder, ids[job.name]) for job in jobs if job.name in ids}
  submitit.SlurmJob.watcher.update()  # once for all of them
  queued = {name: job for name, job in earlier.items() if not _ended(job)}
  fresh = [job for job in jobs if job.name not in queued]
  if fresh:
    queued |= _submit(fresh, num_workers, folder, options)
    writers.write_json(folder / _IDS, ids | {name: job.job_id for name, job in queued.items()})
  left, begun = {job.name: job for job in jobs}, set()
  while left:
    if should_stop():
      for job in left.values():
        yield pool.Event(pool.STOPPED, job, "it stays in the queue")
      return
    for name, job in list(left.items()):
      if name not in begun and job.workdir.exists():
        begun.add(name)
        yield pool.Event(pool.STARTED, job)
      if _ended(queued[name]):
        del left[name]
        finished = sweep_jobs.state(job, {})[0] == sweep_jobs.FINISHED
        yield pool.Event(pool.DONE, job) if finished else pool.Event(pool.FAILED, job, _last_line(queued[name]))
    yield pool.Event("", None)
    time.sleep(_SECONDS if left else 0)


def _submit(jobs, num_workers, folder, options):
  # A run that reaches its time limit goes on from its checkpoint, as often as it takes.
  executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=10**6)
  try:
    executor.update_parameters(**(dict(name="alma_jax", timeout_min=_MINUTES, slurm_array_parallelism=num_workers or
                                       len(jobs)) | options))
    submitted = executor.map_array(Task(), [job.packed() for job in jobs])
  except (TypeError, NameError, ValueError, AssertionError, submitit.core.utils.FailedJobError) as error:
    raise BadInput(f"SLURM does not take these options: {' '.join(str(error).split())}.") from error
  return {job.name: submitted_job for job, submitted_job in zip(jobs, submitted)}


def _ended(job):
  """Whether it is no longer in the queue: it left a result, SLURM calls it ended, or does not know it any more."""
  if job.paths.result_pickle.exists():
    return True
  state = job.state.split(" ")[0].rstrip("+")
  if state != "UNKNOWN":
    return state in _FINAL
  submitted = job.paths.submitted_pickle
  return not submitted.exists() or time.time() - submitted.stat().st_mtime > _UNKNOWN_SECONDS


def _last_line(job):
  """Of what a failed job said."""
  if job.paths.result_pickle.exists():
    parts = re.split(r"^-{10,}$", str(job.exception() or ""), flags=re.MULTILINE)
    text = parts[1] if len(parts) > 2 else parts[0]  # the traceback stands between two such lines
  else:
    text = (job.stderr() or "") if job.paths.stderr.exists() else ""
  lines = [line.removeprefix("RuntimeError: ") for line in text.splitlines() if line.strip()]
  return lines[-1].strip() if lines else f"it ended in the state {job.state} without a word; see {job.paths.folder}"
