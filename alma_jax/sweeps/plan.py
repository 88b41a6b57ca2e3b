"""The plan of a sweep: its jobs, their states, and how they are started."""
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import filelock

from alma_jax.errors import BadInput
from alma_jax.parallel.machine import num_cores
from alma_jax.store import run_files
from alma_jax.sweeps import jobs as sweep_jobs
from alma_jax.sweeps import places, states
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.states import State

LOCAL, SLURM = LAUNCHERS = ("local", "slurm")
FAILURES = "failures.json"


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
    default = len(jobs) if self.name == SLURM else places.num_gpus() or num_cores()
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


def read(path: str, root: str | pathlib.Path, overrides: Mapping[str, str], retry: bool,
         seeds: Sequence[int] = ()) -> Plan:
  """The plan of a sweep file, with the states that earlier sessions have left.

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
  with folder_problems(root):
    if root.exists() and not root.is_dir():
      raise BadInput(f"{root} is a file; --workdir should be a folder.")
  sweep = sweep_jobs.load(path)
  made = sweep_jobs.make(sweep_jobs.with_seeds(sweep, seeds) if seeds else sweep, root, overrides)
  with folder_problems(root):
    failures = {} if retry else states.read_texts(
        root / FAILURES, "delete it, or give --retry, which runs the failed jobs again")
    return Plan(root, made, {job.name: states.state(job, failures) for job in made}, failures)


@contextlib.contextmanager
def folder_problems(root: pathlib.Path) -> Iterator[None]:
  """Raises BadInput if the disk or the permissions of a folder cause an OSError."""
  try:
    yield
  except filelock.Timeout:
    raise
  except OSError as error:
    raise BadInput(f"the folder {root} cannot be made, read or written: {error.strerror or error}.") from error
