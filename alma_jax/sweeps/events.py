"""What happens to the jobs of a sweep."""
from typing import NamedTuple

from alma_jax.sweeps.jobs import Job

STARTED, DONE, FAILED, LOST, STOPPED, QUIET = "started", "done", "failed", "lost", "stopped", ""


class Event(NamedTuple):
  """Something that happened to a job.

  Attributes:
    kind: STARTED, DONE, FAILED, LOST (its process ended, and the job will be
      tried again), STOPPED (saved on request), or QUIET.
    job: None for QUIET, which means that nothing happened for a while.
    line: the last line of a job that FAILED or was LOST; a remark on one that
      is DONE.
  """
  kind: str
  job: Job | None
  line: str = ""
