"""Whether errors and inputs have changed: the tests by which `dual` notices changes and judges old data."""
import jax.numpy as jnp
import numpy as np

from alma_jax.types import Array

BETTER = 2.0  # deviations by which one network has significantly fewer errors than the other
UNEVEN = 3.0  # deviations by which the errors of a span and its neighbours differ significantly
CUT, SLOPE = 2.5, 2.0  # of the logistic function of z, the standard errors by which an old span has more errors
ALIKE, SHARP = 0.75, 40.0  # the same of the share of nearest neighbours from the same side; alike data have 1/2
SIDE = 8  # pixels a side of the images that are compared


def surpasses(one: np.ndarray, other: np.ndarray) -> bool:
  """Whether a network errs significantly less than another one on the same examples, bool [n], by McNemar's test."""
  return bool(other.sum() - one.sum() > BETTER * np.sqrt((one != other).sum()))


def window(wrong: np.ndarray, own: np.ndarray, i: int, reach: int) -> np.ndarray:
  """The examples that decide about span i, its own and those of neighbours, as indices, int [n].

  These are 2 `reach` neighbours: those before it, on both sides or behind it, whichever differ least. If even these
  differ significantly, the labels have changed among them, and fewer neighbours decide.

  Args:
    wrong: bool [N], whether the fast network errs.
    own: int [N], the span of each example.
    i: a span.
    reach: half the most neighbours.
  """
  last = own.max(initial=0)
  for half in range(reach, 0, -1):
    starts = np.clip((i - half, i - 2 * half, i), 0, max(last - 2 * half, 0))
    near = min((np.flatnonzero((own >= start) & (own <= start + 2 * half)) for start in starts),
               key=lambda each: uneven(wrong[each], own[each]))
    if uneven(wrong[near], own[near]) < UNEVEN:
      return near
  return np.flatnonzero(own == i)


def uneven(wrong: np.ndarray, own: np.ndarray) -> float:
  """By how many deviations the chi-squared statistic of the spans' error rates is above the mean of equal rates."""
  if not 0 < wrong.sum() < len(wrong):
    return 0.0
  _, place, sizes = np.unique(own, return_inverse=True, return_counts=True)
  rate, free = wrong.mean(), max(len(sizes) - 1, 1)
  rates = np.bincount(place, wrong) / sizes
  statistic = (sizes * (rates - rate) ** 2).sum() / (rate * (1 - rate))
  return float((statistic - free) / np.sqrt(2 * free))


def deviations(one: np.ndarray, other: np.ndarray, least: float = 0.0) -> float:
  """The standard errors by which the error rate of `one`, less `least`, exceeds that of `other`, both bool [n]."""
  pooled = np.concatenate([one, other]).mean()
  spread = np.sqrt(max(pooled * (1 - pooled), 1e-3) * (1 / len(one) + 1 / len(other)))
  return float((one.mean() - least - other.mean()) / spread)


def contradicts(old: np.ndarray, new: np.ndarray) -> float:
  """From 0 to 1: whether errors on old examples are more frequent than on new ones, both bool [n], by a z-test."""
  return float(1 / (1 + np.exp(-SLOPE * (deviations(old, new) - CUT))))


def risen(now: np.ndarray, before: np.ndarray) -> bool:
  """Whether errors have become more frequent, bool [n]; corrected for few examples (Yates, 1934)."""
  return deviations(now, before, (1 / len(now) + 1 / len(before)) / 2) > CUT


def alike(old: np.ndarray, new: np.ndarray) -> float:
  """From 0 to 1: whether two sets of examples, [n, D] and [m, D], may have one distribution.

  By the share of examples whose nearest neighbour is of their own set (Schilling, 1986).
  """
  both = np.concatenate([old, new]).astype(np.float64)
  squares = (both**2).sum(1)
  distance = squares[:, None] + squares - 2 * both @ both.T
  np.fill_diagonal(distance, np.inf)
  side = np.arange(len(both)) < len(old)
  own = (side[distance.argmin(1)] == side).mean()
  return float(1 / (1 + np.exp(SHARP * (own - ALIKE))))


def small(x: Array) -> Array:
  """Examples [B, ...] as float32 [B, D]: of images, at most SIDE x SIDE means of each channel."""
  if x.ndim == 4:
    step = -(-min(x.shape[1:3]) // SIDE)
    height, width = (side // step * step for side in x.shape[1:3])
    x = x[:, :height, :width].reshape(len(x), height // step, step, width // step, step, -1).mean((2, 4))
  return x.reshape(len(x), -1).astype(jnp.float32)
