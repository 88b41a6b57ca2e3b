"""Sweeps: many runs of one config. This module has what a sweep file needs; it imports neither jax nor numpy.

    from alma_jax.sweeps import Sweep, axis, product, zipped

    def get_sweep():
      return Sweep("configs/mnist.py", product(
          axis("learner", ["sm", "ens"]), zipped(axis("width", [4, 32]), axis("epochs", [50, 100])),
          axis("seed", range(3))))

Points are plain lists of dicts: `+` joins lists, and a comprehension leaves points out. The runs start in the order of
the points.

The other modules:
  jobs        a sweep file -> jobs, each with a checked config and a run folder
  states      the state of each job, from its run folder; events; seconds of runs, estimated from finished runs
  dry_run     the table of --dry_run, with costs computed from the configs (imports jax)
  worker      a worker process: it runs job after job
  pool        starts jobs in workers on this machine
  slurm       starts jobs on a SLURM cluster
  launch      the plan of a sweep (its jobs with their states), its run and its progress
"""
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.messages import brief

Point = dict[str, Any]  # {axis: value}


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The return value of a sweep file's get_sweep.

  Attributes:
    config: path of a config file.
    points: list of {axis: value}; an axis is `learner` or a field, by its full
      name ("stream.waiting_time") or the end of it ("waiting_time").
    fixed: {field: value} of all points, also the learner; the names of the runs do not show it.

  Raises:
    BadInput: the points are not a list of such dicts, or `fixed` is none.
  """
  config: str
  points: list[Point]
  fixed: Point = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    if not isinstance(self.points, (list, tuple)):
      raise BadInput(f"the points of a Sweep should be a list, as axis() and product() make, not {brief(self.points)}.")
    for point in (*self.points, self.fixed):
      if not isinstance(point, dict) or not all(isinstance(axis, str) for axis in point):
        raise BadInput(f"the points and the fixed fields of a Sweep should be dicts {{axis: value}}, not "
                       f"{brief(point)}.")


def axis(name: str, values: Iterable[Any]) -> list[Point]:
  """Points that differ in one field.

  Raises:
    BadInput: `values` is a single value.
  """
  if isinstance(values, str) or not hasattr(values, "__iter__"):
    raise BadInput(f"the axis {name!r} needs a list of values, not {values!r}.")
  return [{name: value} for value in values]


def product(*lists: list[Point]) -> list[Point]:
  """Every combination of points, one of each list; the last list varies fastest."""
  return [_joined(parts) for parts in itertools.product(*lists)]


def zipped(*lists: list[Point]) -> list[Point]:
  """The first points of all lists joined, then the second points, and so on.

  Raises:
    BadInput: the lists differ in length.
  """
  if len({len(points) for points in lists}) > 1:
    raise BadInput(f"zipped lists should be equally long, not {', '.join(str(len(points)) for points in lists)}.")
  return [_joined(parts) for parts in zip(*lists)]


def _joined(parts: Iterable[Point]) -> Point:
  point: Point = {}
  for part in parts:
    if not isinstance(part, dict):
      raise BadInput(f"product and zipped need lists of points, as axis() makes them, not {part!r}.")
    twice = point.keys() & part.keys()
    if twice:
      raise BadInput(f"the axis {min(twice)!r} is given twice in one product or zipped.")
    point |= part
  return point
