"""Means over seeds with their confidence intervals and tests, for reports and for the claims in benchmarks/.

Runs with the same seed are not independent, so kinds of runs are compared on the seeds that both have: the differences
of the seeds are tested (Student's t, two-sided). If several alternatives are compared, the confidence level is 95 % for
all of them together (Bonferroni for intervals, Holm for p-values). A mean is significant if its interval does not
contain 0. One value gives no interval, and neither do equal values, because they do not show how the values vary.
"""
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.05
_ROUNDING = 1e-9  # a deviation this many times as large as the values says nothing


class Estimate(NamedTuple):
  """The mean of some values.

  Attributes:
    mean: of the values.
    error: its standard error; NaN for one value.
    margin: half the width of its confidence interval; infinite without an interval.
    p: of the test whether it is 0; NaN without an interval.
    num: number of values.
  """
  mean: float
  error: float
  margin: float
  p: float
  num: int

  @property
  def is_lower(self) -> bool:
    """Whether it is significantly below 0."""
    return self.mean < -self.margin

  @property
  def is_higher(self) -> bool:
    """Whether it is significantly above 0."""
    return self.mean > self.margin


def estimates(rows: np.ndarray, alternatives: int = 1, scale: float = 0.0) -> list[Estimate]:
  """The Estimate of each row.

  Args:
    rows: float [N, S], with a value for each of S seeds.
    alternatives: number of estimates that are made together.
    scale: size of the numbers that the values are differences of; values whose deviation is a rounding error of them,
      or of the values themselves, are equal.
  """
  num = rows.shape[1]
  means = rows.mean(1)
  errors = rows.std(1, ddof=1) / math.sqrt(num) if num > 1 else np.full(len(rows), math.nan)
  vary = errors > _ROUNDING * np.maximum(np.abs(rows).max(1), scale)
  margins, ps = np.full(len(rows), math.inf), np.full(len(rows), math.nan)
  if vary.any():
    result = stats.ttest_1samp(rows[vary], 0, axis=1)
    low, high = result.confidence_interval(1 - LEVEL / alternatives)
    margins[vary], ps[vary] = (high - low) / 2, result.pvalue
  return [Estimate(float(mean), float(error), float(margin), float(p), num)
          for mean, error, margin, p in zip(means, errors, margins, ps)]


def estimate(values: Sequence[float]) -> Estimate:
  """The Estimate of at least one value."""
  return estimates(np.array([values], float))[0]


def compare(first: Mapping[int, float], second: Mapping[int, float], alternatives: int = 1) -> Estimate | None:
  """The first kind minus the second, on the seeds that both have.

  Args:
    first, second: {seed: value} of two kinds.
    alternatives: number of comparisons that are made together.

  Returns:
    Estimate, or None if no seed is shared.
  """
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    return None
  scale = max(abs(value) for values in (first, second) for value in values.values())
  return estimates(np.array([[first[seed] - second[seed] for seed in seeds]]), alternatives, scale)[0]


def holm(ps: Sequence[float]) -> list[float]:
  """p-values adjusted for their number by Holm's step-down procedure. A NaN stays, and does not count."""
  values = np.array(ps, float)
  order = np.argsort(values)[:np.isfinite(values).sum()]  # NaN last
  adjusted = np.full(len(values), math.nan)
  adjusted[order] = np.minimum(1, np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)))
  return adjusted.tolist()
