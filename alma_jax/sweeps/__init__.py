"""Many runs of one config: what a sweep file is written with. Imports neither jax nor numpy.

    from alma_jax.sweeps import Sweep, axis, product, zipped

    def get_sweep():
      return Sweep("configs/mnist.py", product(
          axis("learner", ["sm", "ens"]), zipped(axis("width", [4, 32]), axis("epochs", [50, 100])),
          axis("seed", range(3))))

Points are plain lists of dicts: `+` puts lists together, a comprehension leaves
points out. Jobs are run in their order.
"""
import dataclasses
import itertools

from alma_jax.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What a sweep file's get_sweep returns.

  Attributes:
    config: path of a config file.
    points: list of {axis: value}; an axis is `learner` or a field, by its full
      name ("stream.waiting_time") or the end of it ("waiting_time").
    fixed: {field: value} of all points; not part of their names.
  """
  config: str
  points: list[dict]
  fixed: dict = dataclasses.field(default_factory=dict)


def axis(name, values):
  """Points that differ in one field.

  Raises:
    BadInput: `values` is a single one.
  """
  if isinstance(values, str) or not hasattr(values, "__iter__"):
    raise BadInput(f"the axis {name!r} wants a list of values, not {values!r}.")
  return [{name: value} for value in values]


def product(*lists):
  """Every combination of points, one of each list; the last list varies fastest."""
  return [_joined(parts) for parts in itertools.product(*lists)]


def zipped(*lists):
  """The first points of all lists together, the second ones, and so on.

  Raises:
    BadInput: the lists differ in length.
  """
  if len({len(points) for points in lists}) > 1:
    raise BadInput(f"zipped lists should be equally long, not {', '.join(str(len(points)) for points in lists)}.")
  return [_joined(parts) for parts in zip(*lists)]


def _joined(parts):
  point = {}
  for part in parts:
    if not isinstance(part, dict):
      raise BadInput(f"a product or zip wants lists of points as axis() makes them, not of {part!r}.")
    twice = point.keys() & part.keys()
    if twice:
      raise BadInput(f"the axis {min(twice)!r} stands twice in one product or zip.")
    point |= part
  return point
