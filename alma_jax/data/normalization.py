"""Normalisation constants of each channel or column, and when they change (docs/algorithms.md §0). Imports no jax.

The constants come from the training data of the first mega-batch. Every stage compares them with its new training
data. A column that they no longer fit gets new constants, from these data alone; all other columns keep exactly the
same constants. A stage's constants thus depend only on the previous constants and on the stage's data, and a resumed
run needs nothing but its checkpoint.
"""
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

RATIO = 8.0  # scales with a smaller ratio count as equal; for 0 to 16 and 0 to 255 it is 16
_SHARE = 16  # at most one in 16 values may be farther than RATIO; in any data, at most one in 64 is (Chebyshev)
_LEAST = 32  # examples needed to show that values have come closer together
_TINY = float(np.finfo(np.float32).tiny)  # XLA flushes smaller values to 0
_NAMED = 5  # columns that a warning describes


class Normalization(NamedTuple):
  """Values become (x - mean) / std; see tasks.classification.normalize for a std of 0.

  Attributes:
    mean: float32 [C] or [D].
    std: float32 [C] or [D]; 0 where the values were all equal, so that their scale is unknown.
  """
  mean: np.ndarray
  std: np.ndarray

  @property
  def scale(self) -> np.ndarray:
    """The divisor of differences from the mean: `std`, or 1 where it is 0."""
    return np.where(self.std == 0, np.float32(1), self.std)

  def entries(self) -> dict[str, list[float]]:
    """For JSON."""
    return dict(mean=self.mean.tolist(), std=self.std.tolist())


def of_entries(entries: Mapping[str, Any]) -> Normalization:
  """The Normalization in `entries` from JSON, which may hold others too."""
  return Normalization(*(np.asarray(entries[name], np.float32) for name in Normalization._fields))


def made(x: np.ndarray) -> Normalization:
  """The constants for raw examples [N, H, W, C] or [N, D]. A std that XLA takes for 0 is 0."""
  values = _flat(x).astype(np.float64)
  std = values.std(0)
  return Normalization(values.mean(0).astype(np.float32), np.where(std < _TINY, 0, std).astype(np.float32))


def followed(known: Normalization, x: np.ndarray) -> tuple[Normalization, list[int]]:
  """The constants of the next stage.

  Args:
    known: the constants of the previous stage.
    x: the new training data of the stage, raw [N, H, W, C] or [N, D].

  Returns:
    (the constants, the columns or channels that get new ones).
  """
  values = _flat(x)
  low, high = (edge.astype(np.float64) for edge in (values.min(0), values.max(0)))
  mean, scale = (each.astype(np.float64) for each in (known.mean, known.scale))
  is_wide = np.maximum(high - mean, mean - low) > RATIO * scale
  close = (high - low < 2 * scale / RATIO) & (len(x) >= _LEAST)
  changed, constants = [], known
  for column in np.flatnonzero((high > low) & (is_wide | close)).tolist():
    mine = values[:, column].astype(np.float64)
    is_far = is_unfit(*far(mine, Normalization(mean[column], scale[column])))
    is_close = close[column] and np.abs(mine - mine.mean()).max() * RATIO < scale[column]
    fresh = made(mine[:, None])
    if (is_far or is_close) and fresh.std > 0:
      if constants is known:
        constants = Normalization(known.mean.copy(), known.std.copy())
      constants.mean[column], constants.std[column] = fresh.mean[0], fresh.std[0]
      changed.append(column)
  return constants, changed


def far(values: np.ndarray, known: Normalization) -> tuple[Any, Any]:
  """How many of the values [N] or [N, C] are far from the mean, and how many differ from it."""
  distance = np.abs(values - known.mean)
  return (distance > RATIO * known.scale).sum(0), (distance > 0).sum(0)


def is_unfit(num_far: Any, num_other: Any) -> Any:
  """Whether constants do not fit the values that `far` has counted.

  Only values that differ from the mean count, because a column may be constant most of the time.
  """
  return num_far * _SHARE > num_other


def described(before: Normalization, after: Normalization, changed: list[int], is_image: bool) -> str:
  """A clause about columns or channels with new constants."""
  what = "channel" if is_image else "column"
  one = lambda column: (
      f"{what} {column} has a mean of {after.mean[column]:.3g} and a standard deviation of {after.std[column]:.3g}, "
      f"against {_scale(before, column)}")
  more = f"; and {len(changed) - _NAMED} more {what}s" if len(changed) > _NAMED else ""
  return "; ".join(map(one, changed[:_NAMED])) + more


def _scale(known: Normalization, column: int) -> str:
  if known.std[column] == 0:
    return f"a constant {known.mean[column]:.3g}"
  return f"{known.mean[column]:.3g} and {known.std[column]:.3g}"


def _flat(x: np.ndarray) -> np.ndarray:
  """[N, ..., C] -> [M, C]."""
  return x.reshape(-1, x.shape[-1])
