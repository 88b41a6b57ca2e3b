"""From a sweep file to jobs: each a checked config with a run folder of its own."""
import json
import pathlib
import re
import runpy
from typing import NamedTuple

from alma_jax import config as configs
from alma_jax import fields, sweeps, writers
from alma_jax.errors import BadInput

_LONGEST = 200  # letters of a folder's name; file systems take 255 bytes
NEW, BEGUN, RUNNING, FINISHED, FAILED, REFUSED = "new", "begun", "running", "finished", "failed", "refused"


class State(NamedTuple):
  """Where a job stands.

  Attributes:
    kind: NEW, BEGUN (and stopped), RUNNING, FINISHED, FAILED, or REFUSED
      (its folder holds something else).
    done, total: mega-batches.
    line: what a failed one said last, or why a folder is refused.
  """
  kind: str
  done: int
  total: int
  line: str = ""

  def __str__(self):
    if self.line:
      return f"{self.kind}: {self.line}"
    return f"{self.kind}, {self.done} of {self.total} mega-batches" if 0 < self.done < self.total else self.kind


class Job(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: of the folder, e.g. "sm-width4-seed0".
    config: RunConfig.
    workdir: run folder.
    file, arg: config file that `config` came from, and what its get_config was called with.
  """
  name: str
  config: fields.RunConfig
  workdir: pathlib.Path
  file: str
  arg: str | None

  def packed(self):
    """As plain data, for another process."""
    return dict(config=configs.to_dict(self.config), workdir=str(self.workdir), file=str(self.file), arg=self.arg)


def load(path):
  """The Sweep of a sweep file.

  Raises:
    BadInput: there is no such file, or it makes no Sweep.
  """
  if not pathlib.Path(path).is_file():
    raise BadInput(f"there is no sweep file {str(path)!r} below {pathlib.Path.cwd()}.")
  try:
    get_sweep = runpy.run_path(str(path)).get("get_sweep")
  except SyntaxError as error:
    raise BadInput(f"{path} is no Python: {error}.") from error
  made = get_sweep() if get_sweep is not None else None
  if not isinstance(made, sweeps.Sweep):
    raise BadInput(f"{path} has no function get_sweep that returns an alma_jax.sweeps.Sweep.")
  if not made.points:
    raise BadInput(f"the sweep of {path} has no points.")
  return made


def make(sweep, root, overrides=()):
  """Jobs of a sweep, in order.

  Args:
    sweep: sweeps.Sweep.
    root: folder of the run folders.
    overrides: {field: text} from the command line, for all jobs.

  Raises:
    BadInput: an axis is no field, a value cannot be, or two points are one run.
  """
  made, seen, overrides = [], {}, dict(overrides)
  if ":" in str(sweep.config):
    raise BadInput(f"the sweep's config {sweep.config!r} should be the path of a config file alone; the learner is an "
                   "axis.")
  for point in sweep.points:
    point = _checked(point)
    name = "-".join(_label(axis, value) for axis, value in point.items()) or "run"
    config = _config(sweep, point, overrides)
    if len(name) > _LONGEST:
      raise BadInput(f"the run folder {name[:40]}... of the sweep has a name of {len(name)} letters, over {_LONGEST}.")
    identity = json.dumps(configs.identity(config), sort_keys=True)
    for key, what in ((identity, "are the same run"), (name, "would have the same run folder")):
      if key in seen:
        raise BadInput(f"the points {seen[key]} and {point} of the sweep {what}; leave one of them out.")
      seen[key] = point
    made.append(Job(name, config, pathlib.Path(root).expanduser() / name, sweep.config,
                    point.get("learner")))
  return made


def _checked(point):
  """A point of plain values; those of numpy are converted."""
  if not isinstance(point, dict) or not all(isinstance(axis, str) for axis in point):
    raise BadInput(f"the sweep's point {point!r} should be a dict of axes (texts) and values.")
  point = {axis: value.tolist() if hasattr(value, "tolist") else value for axis, value in point.items()}
  for axis, value in point.items():
    try:
      json.dumps(value)
    except TypeError:
      raise BadInput(f"the axis {axis!r} has the value {value!r}, which no field can have.") from None
  if not isinstance(point.get("learner", "sm"), str) or point.get("learner") == "":
    raise BadInput(f"the axis 'learner' wants the names of learners, not {point['learner']!r}.")
  return point


def unpacked(packed):
  """(RunConfig, run folder) of what `Job.packed` returned; runs the config file, which may register a learner."""
  configs.load_file(packed["file"], packed["arg"])
  return configs.parse(packed["config"]), pathlib.Path(packed["workdir"])


def state(job, failures):
  """State of a job: as its folder tells, or as `failures` does, {name: last line} of those that failed."""
  total = job.config.stream.num_megabatches
  try:
    stored = writers.read_json(job.workdir / "config.json")
  except BadInput as error:
    return State(REFUSED, 0, total, str(error))
  if stored is not None:
    if not isinstance(stored, dict) or "data_fingerprint" not in stored:
      return State(REFUSED, 0, total, f"{job.workdir} holds a config.json that is of no run; move it away.")
    differ = configs.differences(stored, job.config)
    if differ:
      return State(REFUSED, 0, total, f"{job.workdir} holds another run, which differs in {', '.join(differ)}; move it "
                                      "away, or give another --workdir.")
    if (job.workdir / "summary.json").exists():
      return State(FINISHED, total, total)
  done = num_done(job)
  if job.name in failures:
    return State(FAILED, done, total, failures[job.name])
  return State(NEW if stored is None else BEGUN, done, total)


def num_done(job):
  """Mega-batches that a run has told of so far."""
  try:
    with open(job.workdir / writers.METRICS, "rb") as file:
      return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 16), b""))
  except OSError:
    return 0


def _config(sweep, point, overrides):
  learner = point.get("learner")
  tree = configs.load_file(sweep.config, learner)
  axes = {}
  for axis in point.keys() - {"learner"}:
    other = axes.setdefault(_field(axis, tree, sweep.config), axis)
    if other != axis:
      raise BadInput(f"the axes {min(axis, other)!r} and {max(axis, other)!r} of the sweep are one field.")
  for axis, value in [*sweep.fixed.items(), *((axis, v) for axis, v in point.items() if axis != "learner")]:
    configs.set_field(tree, _field(axis, tree, sweep.config), value)
  for field, text in overrides.items():
    if field in axes:
      raise BadInput(f"--config.{field} would change an axis of the sweep; change its values in the sweep file.")
    configs.check_field(field, text, tree)
    configs.set_field(tree, field, configs.read_value(field, text, tree))
  return configs.parse(tree)


def _field(axis, tree, file):
  """The full name of the field that an axis means."""
  flat = configs.flatten(tree)
  found = [field for field in flat if field == axis] or [field for field in flat if field.endswith(f".{axis}")]
  if len(found) != 1 or axis in ("name", "learner.name"):
    problem = f"could be {' or '.join(found)}" if len(found) > 1 else "is no field"
    there = ", ".join(field for field in flat if field != "learner.name")
    raise BadInput(f"the axis {axis!r} {problem} of {file} with learner {tree['learner']['name']!r}; there are "
                   f"learner, {there}.")
  return found[0]


def _label(axis, value):
  """Part of a folder's name."""
  name = "" if axis == "learner" else axis.rsplit(".", 1)[-1]
  text = value if isinstance(value, str) else json.dumps(value)
  return re.sub(r"[^A-Za-z0-9.]+", "_", f"{name}{text}").strip("_")
