"""What a lower score costs: the Pareto fronts of a study, and the price of compute at which each kind of run is best.

The values of a kind of run are means over its finished runs. At a price λ of compute the best kind is that with the
lowest J = score + λ Comp. J is linear in λ: over all prices the lowest J is the lower envelope of straight lines, and
each kind on the envelope is the best one in one interval of prices.
"""
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from alma_jax.reports import studies
from alma_jax.reports.read import COMP, MEM
from alma_jax.reports.studies import Study

FRONTS = {COMP: "on_compute_front", MEM: "on_memory_front"}  # the columns of `points` for each cost


class Best(NamedTuple):
  """Where a kind of run is the best choice.

  Attributes:
    kind: its index.
    low, high: the prices between which it is best; the last `high` is infinite.
  """
  kind: int
  low: float
  high: float


def points(study: Study) -> pd.DataFrame:
  """A row per kind of run, the lowest score first.

  Returns:
    DataFrame with what studies.means returns for the overall score, COMP and MEM; the number of seeds that `diverged`;
    whether the kind is on each of FRONTS; and the prices `price_low` and `price_high` between which it is the best
    choice (NaN if it is so at no price).
  """
  score = study.scoring.overall
  table = studies.with_diverged(study, studies.means(study, score, COMP, MEM))
  for cost, column in FRONTS.items():
    table[column] = on_front(table[cost], table[score])
  table[["price_low", "price_high"]] = math.nan
  for best in prices(table[COMP], table[score]):
    table.loc[best.kind, ["price_low", "price_high"]] = best.low, best.high
  return table


def front(costs: Iterable[float], scores: Iterable[float]) -> list[tuple[float, float]]:
  """The (cost, score) for which no other is better in both, by ascending cost."""
  corners, best = [], math.inf
  for cost, score in sorted(zip(costs, scores)):
    if score < best:
      corners.append((cost, score))
      best = score
  return corners


def on_front(costs: Sequence[float], scores: Sequence[float]) -> list[bool]:
  """Whether each (cost, score) is on the front of all."""
  corners = set(front(costs, scores))
  return [point in corners for point in zip(costs, scores)]


def prices(costs: Sequence[float], scores: Sequence[float]) -> list[Best]:
  """The kinds with the lowest score + price * cost at some price, by ascending price from 0.

  Of equal kinds the first is named. At the limit of two intervals both kinds are equally good.
  """
  kinds = range(len(costs))
  now, low, choices = min(kinds, key=lambda i: (scores[i], costs[i])), 0.0, []
  while True:
    # The price at which each cheaper kind becomes as good as the present one.
    limits = [((scores[i] - scores[now]) / (costs[now] - costs[i]), costs[i], i)
              for i in kinds if costs[i] < costs[now]]
    high, _, successor = min(limits, default=(math.inf, 0, now))
    choices.append(Best(now, low, high))
    if not limits:
      return choices
    now, low = successor, high
