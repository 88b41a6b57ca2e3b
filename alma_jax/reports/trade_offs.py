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
    DataFrame with what studies.means returns for study.overall, COMP and MEM; the number of seeds that `diverged`;
    whether the kind is on each of FRONTS; and the prices `price_low` and `price_high` between which it is the best
    choice (NaN if it is so at no price).
  """
  table = studies.means(study, study.overall, COMP, MEM)
  diverged = studies.divergences(study)
  table["diverged"] = [diverged.get(studies.kind(row, study.factors), (0,))[0] for _, row in table.iterrows()]
  for cost, column in FRONTS.items():
    on_front = set(front(table[cost], table[study.overall]))
    table[column] = [point in on_front for point in zip(table[cost], table[study.overall])]
  table[["price_low", "price_high"]] = math.nan
  for best in prices(table[COMP], table[study.overall]):
    table.loc[best.kind, ["price_low", "price_high"]] = best.low, best.high
  return table


def front(costs: Iterable[float], scores: Iterable[float]) -> list[tuple[float, float]]:
  """The (cost, score) for which no other is better in both, by ascending cost."""
  found, best = [], math.inf
  for cost, score in sorted(zip(costs, scores)):
    if score < best:
      found.append((cost, score))
      best = score
  return found


def prices(costs: Sequence[float], scores: Sequence[float]) -> list[Best]:
  """The kinds with the lowest score + price * cost at some price, by ascending price from 0.

  Of equal kinds the first is named. At the limit of two intervals both kinds are equally good.
  """
  kinds = range(len(costs))
  now, low, found = min(kinds, key=lambda i: (scores[i], costs[i])), 0.0, []
  while True:
    cheaper = [i for i in kinds if costs[i] < costs[now]]
    # The price at which each of these becomes as good as the present one.
    limits = [((scores[i] - scores[now]) / (costs[now] - costs[i]), costs[i], i) for i in cheaper]
    high, _, successor = min(limits, default=(math.inf, 0, now))
    found.append(Best(now, low, high))
    if not limits:
      return found
    now, low = successor, high
