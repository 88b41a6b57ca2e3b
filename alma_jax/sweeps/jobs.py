"""Turns a sweep file into jobs. Each job has a checked config and its own run folder."""
import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from alma_jax import config as configs
from alma_jax import files, sweeps
from alma_jax.config import layout, schema
from alma_jax.config.fields import listed, text_of
from alma_jax.config.registry import meant
from alma_jax.errors import BadInput

_MOST = 10_000  # points of a sweep
_LONGEST = 200  # characters in a folder's name; file systems allow 255 bytes

Packed = dict[str, Any]  # a job as plain data


class Job(NamedTuple):
  """One run of a sweep.

  Attributes:
    name: of the run folder, e.g. "sm-width4-seed0".
    config: RunConfig.
    workdir: run folder.
    file: path of the config file.
    arg: the argument of its get_config; None: its default.
    clusters: if above 0, the run ends after its first stage and publishes its features with this many clusters
      (runs/mixture.py).
  """
  name: str
  config: schema.RunConfig
  workdir: pathlib.Path
  file: str
  arg: str | None
  clusters: int = 0

  def packed(self) -> Packed:
    """The job as plain data, for another process."""
    return dict(config=configs.to_dict(self.config), workdir=str(self.workdir), file=str(self.file), arg=self.arg,
                clusters=self.clusters)


def unpacked(packed: Packed) -> tuple[schema.RunConfig, pathlib.Path]:
  """(RunConfig, run folder) of a packed job. Runs the config file, which may register a learner."""
  configs.load_file(packed["file"], packed["arg"])
  return configs.parse(packed["config"]), pathlib.Path(packed["workdir"])


def load(given: str | pathlib.Path) -> sweeps.Sweep:
  """The Sweep of a sweep file.

  Args:
    given: path of the file, or "PATH:ARG", where ARG is the argument of its get_sweep.

  Raises:
    BadInput: the file does not exist, takes no argument, or returns no Sweep.
  """
  path, _, arg = str(given).partition(":")
  file = configs.find(path)
  if file is None:
    names = listed(name for name in configs.packaged() if name.startswith("sweeps/"))
    raise BadInput(f"{path!r} is not a sweep file in {pathlib.Path.cwd()}, nor one of the package's: {names}; "
                   "give one of these, or your own file.")
  made = configs.run_file(file, "get_sweep", *filter(None, [arg]))
  if not isinstance(made, sweeps.Sweep):
    raise BadInput(f"get_sweep of {path} returned {type(made).__name__}; it should return an alma_jax.sweeps.Sweep.")
  if not made.points:
    raise BadInput(f"the sweep of {path} has no points; give it at least one.")
  return made


def with_seeds(sweep: sweeps.Sweep, seeds: Sequence[int]) -> sweeps.Sweep:
  """The sweep with these seeds instead of its own, one seed after the other; without seeds, the sweep as it is.

  Raises:
    BadInput: a point has no axis "seed", or a seed is given twice.
  """
  if not seeds:
    return sweep
  if not all("seed" in point for point in sweep.points):
    raise BadInput("--seeds needs a sweep whose points have the axis 'seed'; for this sweep, give --config.seed=SEED.")
  if len(set(seeds)) < len(seeds):
    raise BadInput(f"--seeds={','.join(map(str, seeds))} names a seed twice; name each once.")
  # The order of the axes, which gives the names of the run folders, stays.
  kinds = {repr(kind): kind for kind in (point | {"seed": None} for point in sweep.points)}
  return dataclasses.replace(sweep, points=[kind | {"seed": seed} for seed in seeds for kind in kinds.values()])


def make(sweep: sweeps.Sweep, root: str | pathlib.Path, overrides: Mapping[str, str | None] | None = None) -> list[Job]:
  """The jobs of a sweep, in order.

  Args:
    sweep: Sweep.
    root: folder of the run folders.
    overrides: {field: text} from the command line, for all jobs.

  Raises:
    BadInput: an axis is not a field, a value is not allowed, or two points are the same run.
  """
  made: list[Job] = []
  template = functools.cache(functools.partial(configs.load_file, sweep.config))  # by the learner
  fields = functools.cache(_fields)
  seen: dict[str, sweeps.Point] = {}
  if len(sweep.points) > _MOST:
    raise BadInput(f"the sweep has {len(sweep.points):,} points; at most {_MOST:,} are allowed.")
  if ":" in str(sweep.config):
    raise BadInput(f"the sweep's config {sweep.config!r} should be only the path of a config file; name the learners "
                   "in an axis 'learner'.")
  for point in sweep.points:
    named = {**sweep.fixed, **point}
    learner = named.get("learner")
    if "learner" in named and (not isinstance(learner, str) or not learner):
      raise BadInput(f"the axis 'learner' needs names of learners, not {learner!r}.")
    name = "-".join(_label(axis, value) for axis, value in point.items()) or "run"
    tree = template(learner)
    config = _config(sweep, tree, fields(tree["problem"]), point, overrides or {})
    if len(name) > _LONGEST:
      raise BadInput(f"the run folder {name[:40]}... of the sweep has a name of {len(name)} characters; at most "
                     f"{_LONGEST} are allowed.")
    identity = json.dumps(configs.identity(config), sort_keys=True)
    for key, what in ((identity, "are the same run"), (name, "would have the same run folder")):
      if key in seen:
        raise BadInput(f"the points {seen[key]} and {point} of the sweep {what}; remove one of them.")
      seen[key] = point
    made.append(Job(name, config, files.usable(pathlib.Path(root, name)), sweep.config, learner))
  return made


def _config(sweep: sweeps.Sweep, tree: dict[str, Any], fields: Sequence[str], point: sweeps.Point,
            overrides: Mapping[str, str | None]) -> schema.RunConfig:
  """The config of a point; `tree` is the config of the sweep's config file with the point's learner."""
  axes: dict[str, str] = {}  # the axis of each field of the point
  changes: dict[str, Any] = {}
  for axis, value in [*sweep.fixed.items(), *point.items()]:
    if axis != "learner":
      path = _field(axis, fields, sweep.config)
      changes[path] = value
      if axis in point and axes.setdefault(path, axis) != axis:
        raise BadInput(f"the axes {min(axis, axes[path])!r} and {max(axis, axes[path])!r} of the sweep are the same "
                       "field; keep one.")
  for path in overrides:
    if path in axes:
      advice = "give --seeds" if path == "seed" else "change its values in the sweep file"
      raise BadInput(f"--config.{path} would change an axis of the sweep; {advice}.")
  tree = configs.overridden(configs.nested(configs.changed(configs.flatten(tree), changes)), overrides)
  gone = [axis for path, axis in axes.items() if path not in configs.flatten(tree)]
  if gone:
    raise BadInput(f"the axis {gone[0]!r} of the sweep is not a field of the configs that "
                   f"--config.{', --config.'.join(overrides)} makes; leave that out, or change the sweep file.")
  return configs.parse(tree)


def _field(axis: str, fields: Sequence[str], file: str) -> str:
  """The full name of the field that an axis means; `fields` are the full names of all that it may be."""
  paths = [path for path in fields if path == axis] or [path for path in fields if path.endswith(f".{axis}")]
  if len(paths) != 1:
    hint = meant(axis, [name for path in fields for name in (path, path.rpartition(".")[2])])
    problem = f"could be {' or '.join(paths)}" if paths else f"is not a field{hint}"
    raise BadInput(f"the axis {axis!r} {problem} of {file}; an axis is learner, or a field that `alma fields` lists.")
  return paths[0]


def _fields(problem: str) -> list[str]:
  """The full names of all fields that configs for a problem can have, except those that are fixed."""
  return sorted({path for part in layout.alternatives(problem).values() for path in part} - configs.FIXED.keys())


def _label(axis: str, value: Any) -> str:
  """The part of a run folder's name that shows one axis."""
  name = "" if axis == "learner" else axis.rsplit(".", 1)[-1]
  text = text_of(value.tolist() if hasattr(value, "tolist") else value)  # numpy's
  return re.sub(r"[^A-Za-z0-9.]+", "_", f"{name}{text}").strip("_")
