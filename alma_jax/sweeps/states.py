"""The states of a sweep's jobs, read from their run folders."""
import contextlib
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.runs import run_files
from alma_jax.sweeps.jobs import Job
from alma_jax.sweeps.timing import Taken

NEW, BEGUN, RUNNING, FINISHED, FAILED, REFUSED = "new", "begun", "running", "finished", "failed", "refused"
_SCORES = ("cer", "average_perplexity")  # every summary.json has one of them


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
  total = job.config.stream.num_megabatches
  try:
    stored = run_files.find_config(job.workdir)
  except BadInput as error:
    return State(REFUSED, 0, total, str(error))
  if stored is not None:
    differ = configs.differences(stored, job.config)
    if differ:
      return State(REFUSED, 0, total, f"{job.workdir} holds another run, which differs in {', '.join(differ)}; move it "
                                      "away, or give another --workdir.")
    try:
      ended = summary(job) is not None if not job.clusters else (job.workdir / run_files.GATE).exists()
    except BadInput as error:
      return State(REFUSED, 0, total, str(error))
    if ended:
      return State(FINISHED, total, total)
  done = num_done(job)
  if job.name in failures:
    return State(FAILED, done, total, failures[job.name])
  return State(NEW if stored is None else BEGUN, done, total)


def summary(job: Job) -> dict[str, Any] | None:
  """The summary.json of a finished run, or None.

  Raises:
    BadInput: a run does not write such a file.
  """
  path = job.workdir / "summary.json"
  advice = "delete it, and the run resumes from its last checkpoint"
  try:
    found = run_files.read_json(path)
  except BadInput as error:
    raise BadInput(f"{path} is not JSON; {advice}.") from error
  if found is not None and not (isinstance(found, dict) and any(_is_number(found.get(key)) for key in _SCORES)):
    raise BadInput(f"{path} should be a JSON object with a number for {' or '.join(_SCORES)}; {advice}.")
  return found


def seconds_taken(jobs: Iterable[Job]) -> dict[str, Taken]:
  """{name: Taken} of the finished runs that have the same kind of device as the newest one."""
  found = []
  for job in jobs:
    with contextlib.suppress(BadInput, OSError):
      ended = summary(job) or {}
      wall, compiling = ended.get("wall_seconds"), ended.get("compile_seconds")
      if _is_number(wall) and _is_number(compiling):
        device = re.sub(r"^\d+ x ", "", str(ended.get("device")))
        written = (job.workdir / "summary.json").stat().st_mtime_ns
        found.append((written, device, job.name, Taken(wall, min(compiling, wall))))
  newest = max(found)[1] if found else ""
  return {name: taken for _, device, name, taken in found if device == newest}


def read_texts(path: pathlib.Path, advice: str) -> dict[str, str]:
  """{name: text} of a JSON file that a sweep has written; empty if there is no file.

  Raises:
    BadInput: it holds something else; the message ends with `advice`.
  """
  try:
    found = run_files.read_json(path)
  except BadInput as error:
    raise BadInput(f"{path} is not JSON; {advice}.") from error
  if found is None:
    return {}
  if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
    raise BadInput(f"{path} should be a JSON object of names and strings; {advice}.")
  return found


def num_done(job: Job) -> int:
  """The number of mega-batches in the metrics.jsonl of a run."""
  try:
    with open(job.workdir / run_files.METRICS, "rb") as file:
      return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 16), b""))
  except OSError:
    return 0


def _is_number(value: Any) -> TypeGuard[float]:
  return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
