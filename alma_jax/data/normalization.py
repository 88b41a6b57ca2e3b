"""Normalisation constants of each channel or column, and when they change (docs/algorithms.md §0). Imports no jax.

The constants come from the training data of the first mega-batch. Every stage compares them with its new training
data. A column that they no longer fit gets new constants, from these data alone; all other columns keep exactly the
same constants. The pixels of a channel share constants, until some of them get constants of their own. A stage's
constants thus depend only on the previous constants and on the stage's data, and a resumed run needs nothing but its
checkpoint.
"""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RATIO = 8.0  # scales with a smaller ratio count as equal; for 0 to 16 and 0 to 255 it is 16
_SHARE = 16  # at most one in 16 values may be farther than RATIO; in any data, at most one in 64 is (Chebyshev)
_LEAST = 32  # examples needed to show that values have come closer together
_TINY = float(np.finfo(np.float32).tiny)  # XLA flushes smaller values to 0
_AT_ONCE = 256  # pixels or columns
_NAMED = 5  # columns that a warning describes

Place = int | tuple[int, ...]  # a column or channel, or a pixel: its row, column and channel


class Normalization(NamedTuple):
  """Values become (x - mean) / std; see problems.classification.normalize for a std of 0.

  Attributes:
    mean: float32 [C] or [D], or [H, W, C] if pixels have constants of their own.
    std: float32 of the same shape; 0 where the values were all equal, so that their scale is unknown.
  """
  mean: np.ndarray
  std: np.ndarray

  @property
  def scale(self) -> np.ndarray:
    """The divisor of differences from the mean: `std`, or 1 where it is 0."""
    return np.where(self.std == 0, np.float32(1), self.std)

  def at(self, name: Place) -> tuple[np.float32, np.float32]:
    """(mean, std) of a column, channel or pixel."""
    index = ((0, 0, name) if isinstance(name, int) else name)[-self.mean.ndim:]
    return self.mean[index], self.std[index]

  def entries(self) -> dict[str, list[Any]]:
    """For JSON."""
    return dict(mean=self.mean.tolist(), std=self.std.tolist())


def of_entries(entries: Mapping[str, Any]) -> Normalization:
  """The Normalization in `entries` from JSON, which may hold others too."""
  return Normalization(*(np.asarray(entries[name], np.float32) for name in Normalization._fields))


def made(x: np.ndarray) -> Normalization:
  """The constants for raw examples [N, H, W, C] or [N, D]. A std that XLA takes for 0 is 0."""
  values = x.reshape(-1, x.shape[-1]).astype(np.float64)
  std = values.std(0)
  return Normalization(values.mean(0).astype(np.float32), np.where(std < _TINY, 0, std).astype(np.float32))


def followed(known: Normalization, x: np.ndarray) -> tuple[Normalization, list[Place]]:
  """The constants of the next stage.

  Args:
    known: the constants of the previous stage.
    x: the new training data of the stage, raw [N, H, W, C] or [N, D].

  Returns:
    (the constants, what gets new ones). A channel gets new ones if they do not fit most of its pixels that vary; else
    the pixels they do not fit get constants of their own.
  """
  shape = x.shape[1:]
  values = x.reshape(len(x), -1, shape[-1])  # [N, P, C], with a single P for columns
  low, high = (edge.astype(np.float64) for edge in (values.min(0), values.max(0)))
  new = [np.broadcast_to(each, shape).reshape(low.shape).copy() for each in known]
  mean, scale = (np.broadcast_to(each, shape).reshape(low.shape).astype(np.float64)
                 for each in (known.mean, known.scale))
  varies = high > low
  is_far = varies & (np.maximum(high - mean, mean - low) > RATIO * scale)
  far_ones = np.argwhere(is_far)
  for start in range(0, len(far_ones), _AT_ONCE):
    place = tuple(far_ones[start:start + _AT_ONCE].T)
    is_far[place] = is_unfit(*far(values[:, *place].astype(np.float64), Normalization(mean[place], scale[place])))
  close = (high.max(0) - low.min(0) < 2 * scale.min(0) / RATIO) & varies.any(0) & (len(x) >= _LEAST)
  changed: list[Place] = []
  pixels: Any
  names: list[Place]
  for channel in np.flatnonzero(is_far.any(0) | close).tolist():
    mine = values[:, :, channel].astype(np.float64)
    is_close = close[channel] and np.abs(mine - mine.mean()).max() * RATIO < scale[:, channel].min()
    pixels = np.flatnonzero(is_far[:, channel])
    if is_close or 2 * len(pixels) > varies[:, channel].sum():
      fresh, pixels, names = made(mine.reshape(-1, 1)), slice(None), [channel]
    elif not len(pixels):
      continue
    else:
      fresh = made(mine[:, pixels])
      names = [(*map(int, np.unravel_index(pixel, shape[:2])), channel) for pixel in pixels]
    if fresh.std.all():
      new[0][pixels, channel], new[1][pixels, channel] = fresh
      changed += names
  if not changed:
    return known, []
  of_channels = known.mean.ndim == 1 and all(isinstance(name, int) for name in changed)
  return Normalization(*(each[0] if of_channels else each.reshape(shape) for each in new)), changed


def far(values: np.ndarray, known: Normalization) -> tuple[Any, Any]:
  """How many of the values [N] or [N, C] are far from the mean, and how many differ from it."""
  distance = np.abs(values - known.mean)
  return (distance > RATIO * known.scale).sum(0), (distance > 0).sum(0)


def is_unfit(num_far: Any, num_other: Any) -> Any:
  """Whether constants do not fit the values that `far` has counted.

  Only values that differ from the mean count, because a column may be constant most of the time.
  """
  return num_far * _SHARE > num_other


def described(before: Normalization, after: Normalization, changed: Sequence[Place], is_image: bool) -> str:
  """A clause about what has new constants."""
  what = "column" if not is_image else "channel" if all(isinstance(name, int) for name in changed) else "pixel"

  def one(name: Place) -> str:
    words = f"{what} {name}" if isinstance(name, int) else f"pixel {name[:2]} of channel {name[2]}"
    mean, std = after.at(name)
    old_mean, old_std = before.at(name)
    old = f"{old_mean:.3g} and {old_std:.3g}" if old_std else f"a constant {old_mean:.3g}"
    return f"{words} has a mean of {mean:.3g} and a standard deviation of {std:.3g}, against {old}"

  more = f"; and {len(changed) - _NAMED} more {what}s" if len(changed) > _NAMED else ""
  return "; ".join(map(one, changed[:_NAMED])) + more
