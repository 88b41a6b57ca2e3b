"""The adaptive schedule, which decides after every mega-batch whether to train, from what was observed up to then.

It fits a power law to the errors of the deployed models, and trains when waiting has cost as much
as a training costs. It knows neither the length of the stream nor the test set.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_EXPONENTS = np.arange(1, 31) * 0.05  # the exponents that fit() compares
_EXPONENT, _EXPONENT_STD = 0.5, 0.25  # prior of the exponent
_FLOOR_STD = 0.5  # prior of the floor, as a share of the mean error; it counts while few trainings are known
_EXPLORE = 4  # a training is considered at the latest at _EXPLORE times the last one, whatever the law says


class Law(NamedTuple):
  """The error after n mega-batches, floor + scale n^-exponent; it never rises with n."""
  floor: float
  scale: float
  exponent: float

  def error(self, n: Any) -> Any:
    """The error of a model that was trained after mega-batch n, a number or an array of numbers."""
    return self.floor + self.scale * np.asarray(n, np.float64) ** -self.exponent


class Decision(NamedTuple):
  """Whether to train now, and why.

  Attributes:
    train: whether to train after this mega-batch.
    law: the law of the errors so far; None if no error is known or needed.
    regret: Σ_{u=last+1}^{t} (ê(last) - ê(u)), the error that trainings at every mega-batch since the last training
      would have saved; None without a law.
    price: price of a training, in the units of the regret.
  """
  train: bool
  law: Law | None
  regret: float | None
  price: float

  @property
  def notes(self) -> dict[str, Any]:
    """What metrics.jsonl says about the decision."""
    floor, scale, exponent = self.law or (None, None, None)
    return dict(law_floor=floor, law_scale=scale, law_exponent=exponent, regret=self.regret, training_price=self.price)


def decide(ends: Sequence[int], errors: Sequence[float | None], sizes: Sequence[int], *, price_per_mac: float,
           macs: float) -> Decision:
  """Decides whether to train after mega-batch t = len(errors).

  The first training is at t = 1. Later ones are due when the regret since the last training reaches the price of a
  training. Where e' is the slope of the error and P the price, trainings at a distance d cost e' (d - 1) / 2 + P / d a
  mega-batch. This is least at the first d with e' d (d + 1) / 2 >= P, and that sum is the regret.

  A law can be wrong: it is flat if the errors did not fall at first, by noise or because a network learns nothing
  from little data, and nothing would correct it if training stopped. So training is also due at 4 times the last
  training, if the regret would reach the price under an optimistic law, which falls from the present error to 0 with
  exponent 1/2. These are at most log_4(B) trainings, and none if the error is 0 or too small to be worth a training.

  Args:
    ends: the mega-batches after which the learner was trained, ascending, all before t.
    errors: the metric of every mega-batch, measured by the deployed model before training on it: an error rate,
      a perplexity or any other number >= 0 that falls with better models. None before the first training, and
      where it is infinite.
    sizes: number of examples of every mega-batch, at least 1.
    price_per_mac: λ, metric times mega-batches that a multiply-add is worth.
    macs: C, multiply-adds of a training now.
  """
  t, price = len(errors), float(price_per_mac * macs)
  if not ends or price <= 0:
    return Decision(True, None, None, price)
  last = ends[-1]
  n, error, weight = _measurements(ends, errors, sizes)
  if not len(n):  # the deployed models diverged
    return Decision(t >= _EXPLORE * last, None, None, price)
  law = fit(n, error, weight)
  regret = _regret(law, last, t)
  train = regret >= price
  if not train and t >= _EXPLORE * last:
    optimistic = Law(0.0, float(law.error(last)) * last ** _EXPONENT, _EXPONENT)
    train = _regret(optimistic, last, t) >= price
  return Decision(train, law, regret, price)


def fit(n: np.ndarray, error: np.ndarray, weight: np.ndarray) -> Law:
  """The power law of some measured errors, by weighted least squares with weak priors.

  The variance of a measurement is taken to be error / weight, as that of a count. For every exponent of a grid, the
  floor and the scale that are >= 0 and fit best have a closed form. Few measurements do not tell a floor, a scale and
  an exponent apart, so the floor has a normal prior about 0, and the exponent one about 1/2. From one measurement
  follows floor 0 and exponent 1/2.

  Args:
    n: [S], numbers of mega-batches that the models had seen, at least 1.
    error: [S], mean errors of these models, at least 0.
    weight: [S], numbers of examples that these are means of, above 0.
  """
  mean = error @ weight / weight.sum()
  if mean == 0:
    return Law(0.0, 0.0, _EXPONENT)
  # An error of 0 in few examples does not mean that its variance is 0, so one measurement of the mean error is added.
  few = weight.min()
  w = weight * (weight + few) / (error * weight + mean * few)
  x_GS = np.exp(-_EXPONENTS[:, None] * np.log(n))  # G exponents, S measurements
  wx_GS = w * x_GS
  ridge = (_FLOOR_STD * mean) ** -2
  s, sy, syy = w.sum() + ridge, w @ error, w @ (error * error)
  sx_G, sxx_G, sxy_G = wx_GS.sum(1), np.einsum("gs,gs->g", wx_GS, x_GS), wx_GS @ error
  det_G = s * sxx_G - sx_G ** 2
  solvable_G = det_G > 1e-9 * s * sxx_G  # otherwise all x are alike, and the floor is 0
  det_G = np.where(solvable_G, det_G, 1)
  floor_G = (sxx_G * sy - sx_G * sxy_G) / det_G
  scale_G = (s * sxy_G - sx_G * sy) / det_G
  # The minimum of a convex quadratic over floor, scale >= 0 is on the side that the free minimum lies beyond.
  flat_G = solvable_G & (scale_G < 0)
  to_zero_G = ~solvable_G | (floor_G < 0)
  floor_G = np.where(flat_G, sy / s, np.where(to_zero_G, 0, floor_G))
  scale_G = np.where(flat_G, 0, np.where(to_zero_G, sxy_G / sxx_G, scale_G))
  loss_G = (syy - 2 * (floor_G * sy + scale_G * sxy_G) + floor_G ** 2 * s + 2 * floor_G * scale_G * sx_G
            + scale_G ** 2 * sxx_G + ((_EXPONENTS - _EXPONENT) / _EXPONENT_STD) ** 2)
  best = int(loss_G.argmin())
  return Law(float(floor_G[best]), float(scale_G[best]), float(_EXPONENTS[best]))


def _measurements(ends: Sequence[int], errors: Sequence[float | None],
                  sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(n, error, weight) of every training whose model has a finite error on a later mega-batch."""
  n = np.array(ends, np.float64)
  error = np.array(errors[ends[0]:], np.float64)
  size = np.array(sizes[ends[0]:], np.float64)
  finite = np.isfinite(error)
  error, size = np.where(finite, error, 0), np.where(finite, size, 0)
  starts = np.array(ends) - ends[0]  # the model of training t_i is deployed on the mega-batches t_i + 1 to t_{i+1}
  weight = np.add.reduceat(size, starts)
  known = weight > 0
  return n[known], np.add.reduceat(error * size, starts)[known] / weight[known], weight[known]


def _regret(law: Law, last: int, t: int) -> float:
  """Σ_{u=last+1}^{t} (ê(last) - ê(u))."""
  return float(np.sum(law.error(last) - law.error(np.arange(last + 1, t + 1))))
