"""Runs jobs on a SLURM cluster through submitit, as one array.

A job that is preempted or reaches its time limit is queued again, and resumes from its checkpoint.
"""
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import submitit

from alma_jax.errors import BadInput
from alma_jax.store import run_files
from alma_jax.sweeps import states, worker
from alma_jax.sweeps.jobs import Job, Packed
from alma_jax.sweeps.states import DONE, FAILED, QUIET, STARTED, STOPPED, Event

_SECONDS = 5.0  # between two checks of the queue
_MINUTES = 24 * 60  # default time limit of a job
_UNKNOWN_SECONDS = 600.0  # after which a job that SLURM's accounting does not know counts as ended
_FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
          "REVOKED")
_IDS = "jobs.json"


class Task(submitit.helpers.Checkpointable):
  """The function that a node runs. submitit calls it again with the same job after a preemption or a time limit."""

  def __call__(self, packed: Packed) -> None:
    kind, line = worker.attempt(packed)
    if kind != DONE:
      raise RuntimeError(line)


def run(jobs: Sequence[Job], num_workers: int, folder: pathlib.Path, options: Mapping[str, Any],
        should_stop: Callable[[], bool]) -> Iterator[Event]:
  """Submits jobs as one array and watches them. Jobs that an earlier call has queued are only watched.

  Args:
    jobs: their run folders must be on a file system that all nodes share.
    num_workers: how many run at once, at most; 0: no limit.
    folder: for the files of submitit.
    options: parameters of submitit, e.g. slurm_partition, timeout_min,
      gpus_per_node.
    should_stop: if it returns True, watching ends, and the jobs stay queued.

  Yields:
    Event.

  Raises:
    BadInput: this machine has no SLURM, SLURM refuses the options, or `folder`
      cannot be written.
  """
  if shutil.which("sbatch") is None:
    raise BadInput("there is no SLURM here (no sbatch); use --launcher=local.")
  ids = run_files.read_json(folder / _IDS) or {}
  try:
    run_files.write_json(folder / _IDS, ids)  # before any job is submitted, so that no job's number is lost
  except OSError as error:
    raise BadInput(f"{folder / _IDS} cannot be written: {error.strerror}.") from error
  earlier: dict[str, Any] = {job.name: submitit.SlurmJob(folder, ids[job.name]) for job in jobs if job.name in ids}
  submitit.SlurmJob.watcher.update()  # one query for all of them
  queued = {name: job for name, job in earlier.items() if not _ended(job)}
  fresh = [job for job in jobs if job.name not in queued]
  if fresh:
    queued |= _submit(fresh, num_workers, folder, options)
    run_files.write_json(folder / _IDS, ids | {name: job.job_id for name, job in queued.items()})
  yield from _watch(jobs, queued, should_stop)


def _watch(jobs: Sequence[Job], queued: Mapping[str, Any], should_stop: Callable[[], bool]) -> Iterator[Event]:
  """Events of jobs until all have ended; `queued` has submitit's job for each name."""
  left = {job.name: job for job in jobs}
  begun = set()
  while left:
    if should_stop():
      for job in left.values():
        yield Event(STOPPED, job, "it stays in the queue")
      return
    for name, job in list(left.items()):
      if name not in begun and job.workdir.exists():
        begun.add(name)
        yield Event(STARTED, job)
      if _ended(queued[name]):
        del left[name]
        finished = states.state(job, {}).kind == states.FINISHED
        yield Event(DONE, job) if finished else Event(FAILED, job, _last_line(queued[name]))
    yield Event(QUIET, None)
    time.sleep(_SECONDS if left else 0)


def _submit(jobs: Sequence[Job], num_workers: int, folder: pathlib.Path, options: Mapping[str, Any]) -> dict[str, Any]:
  """Submits jobs; {name: submitit's job}."""
  # A run that reaches its time limit resumes from its checkpoint, however often that happens.
  executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=10**6)
  defaults = dict(name="alma_jax", timeout_min=_MINUTES, slurm_array_parallelism=num_workers or len(jobs))
  try:
    executor.update_parameters(**defaults | dict(options))
    submitted = executor.map_array(Task(), [job.packed() for job in jobs])
  except (TypeError, NameError, ValueError, AssertionError, submitit.core.utils.FailedJobError) as error:
    raise BadInput(f"SLURM does not accept these options: {' '.join(str(error).split())}.") from error
  return {job.name: submitted_job for job, submitted_job in zip(jobs, submitted)}


def _ended(job: Any) -> bool:
  """Whether submitit's job has left the queue: it has a result, SLURM calls it ended, or SLURM does not know it."""
  if job.paths.result_pickle.exists():
    return True
  state = job.state.split(" ")[0].rstrip("+")
  if state != "UNKNOWN":
    return state in _FINAL
  submitted = job.paths.submitted_pickle
  return not submitted.exists() or time.time() - submitted.stat().st_mtime > _UNKNOWN_SECONDS


def _last_line(job: Any) -> str:
  """The last line that a failed job of submitit has printed."""
  if job.paths.result_pickle.exists():
    parts = re.split(r"^-{10,}$", str(job.exception() or ""), flags=re.MULTILINE)
    text = parts[1] if len(parts) > 2 else parts[0]  # the traceback is between two such lines
  else:
    text = (job.stderr() or "") if job.paths.stderr.exists() else ""
  lines = [line.removeprefix("RuntimeError: ") for line in text.splitlines() if line.strip()]
  return lines[-1].strip() if lines else f"it ended in the state {job.state} without output; see {job.paths.folder}"
