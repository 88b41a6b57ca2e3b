"""The states of a sweep's jobs, read from their run folders."""
import contextlib
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.store import run_files
from alma_jax.store.record import SUMMARY, Record
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.timing import Taken

NEW, BEGUN, RUNNING, FINISHED, FAILED, REFUSED = "new", "begun", "running", "finished", "failed", "refused"


class State(NamedTuple):
  """The state of a job.

  Attributes:
    kind: NEW, BEGUN (begun and stopped), RUNNING, FINISHED, FAILED, or REFUSED
      (the run folder holds something else).
    done, total: mega-batches; a total of 0: the stream says how many.
    line: the last line of a failed job, or why a run folder is refused.
  """
  kind: str
  done: int
  total: int
  line: str = ""

  @property
  def fraction(self) -> float:
    """The part that is done; 0 if the total is not known."""
    return self.done / self.total if self.total else 0.0

  def __str__(self) -> str:
    if self.line:
      return f"{self.kind}: {self.line}"
    return f"{self.kind}, {self.done} of {self.total} mega-batches" if 0 < self.done < self.total else self.kind


def state(job: Job, failures: Mapping[str, str]) -> State:
  """The State of a job, from its run folder and from `failures`, {name: last line} of failed jobs."""
  record, total = Record(job.workdir), job.config.stream.num_megabatches
  try:
    if record.is_begun:
      differ = configs.differences(record.tree, job.config)
      if differ:
        raise BadInput(f"{job.workdir} holds another run, which differs in {', '.join(differ)}; move it away, or give "
                       "another --workdir.")
      if record.is_published if job.clusters else record.is_finished:
        return State(FINISHED, total, total)
  except BadInput as error:
    return State(REFUSED, 0, total, str(error))
  done = record.num_lines
  if job.name in failures:
    return State(FAILED, done, total, failures[job.name])
  return State(BEGUN if record.is_begun else NEW, done, total)


def seconds_taken(jobs: Iterable[Job]) -> dict[str, Taken]:
  """{name: Taken} of the finished runs that have the same kind of device as the newest one."""
  finished = []
  for job in jobs:
    with contextlib.suppress(BadInput, OSError):
      summary = Record(job.workdir).summary
      if summary is not None:
        device = re.sub(r"^\d+ x ", "", str(summary["device"]))
        written = (job.workdir / SUMMARY).stat().st_mtime_ns
        wall, compiling = summary["wall_seconds"], summary["compile_seconds"]
        finished.append((written, device, job.name, Taken(wall, min(compiling, wall))))
  newest = max(finished)[1] if finished else ""
  return {name: taken for _, device, name, taken in finished if device == newest}


def read_texts(path: pathlib.Path, advice: str) -> dict[str, str]:
  """{name: text} of a JSON file that a sweep has written; empty if there is no file.

  Raises:
    BadInput: it holds something else; the message ends with `advice`.
  """
  try:
    texts = run_files.read_json(path)
  except BadInput as error:
    raise BadInput(f"{path} is not JSON; {advice}.") from error
  if texts is None:
    return {}
  if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
    raise BadInput(f"{path} should be a JSON object of names and strings; {advice}.")
  return texts
