"""Compares two kinds of runs on the seeds that both have.

A comparison is the mean of the differences per seed, with its confidence interval (paired, Student's t). If several
alternatives are compared, the confidence level is 95 % for all of them together (Bonferroni). A difference is
significant if its interval does not contain 0. One seed gives no interval, and neither do equal differences on all
seeds, because they do not show how the difference varies.

A run that diverged has no value. This favours its kind, because only the other seeds count.
"""
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from alma_jax.reports import studies
from alma_jax.reports.read import COMP, LEARNER, MEM, SEED
from alma_jax.reports.studies import Study

BUDGETS = (COMP, MEM)
SLACK, NEAR = 1.05, 0.8  # a budget is not larger up to this ratio, and similar from this ratio on


class Comparison(NamedTuple):
  """The first kind minus the second; lower values are better.

  Attributes:
    mean: of the differences on shared seeds.
    margin: half the width of the confidence interval; infinite without an interval.
    num: shared seeds.
  """
  mean: float
  margin: float
  num: int

  @property
  def significant(self) -> bool:
    """Whether the interval does not contain 0."""
    return abs(self.mean) > self.margin

  @property
  def better(self) -> bool:
    """Whether the first kind is significantly better."""
    return self.significant and self.mean < 0

  @property
  def worse(self) -> bool:
    """Whether the first kind is significantly worse."""
    return self.significant and self.mean > 0


class Candidate(NamedTuple):
  """A kind of run that can be compared.

  Attributes:
    row: of one of its runs.
    values: {seed: CER or perplexity}.
    costs: {column of BUDGETS: mean}.
    grew: whether its parameters increased from the first to the last mega-batch.
    diverged: number of its seeds that diverged, which have no value.
  """
  row: Any
  values: dict[int, float]
  costs: dict[str, float]
  grew: bool
  diverged: int = 0

  @property
  def mean(self) -> float:
    """Over its seeds."""
    return float(np.mean(list(self.values.values())))


Pair = tuple[Candidate, Comparison]  # an alternative, and the comparison of a candidate with it


def candidates(study: Study) -> list[Candidate]:
  """The kinds of runs of a study that have a finished run."""
  groups = study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False)
  diverged = studies.divergences(study)
  return [Candidate(mine.iloc[0], dict(zip(mine[SEED], mine[study.score])),
                    {column: mine[column].mean() for column in BUDGETS},
                    bool((mine["last_params"] > mine["first_params"]).any()),
                    diverged.get(studies.kind(mine.iloc[0], study.factors), (0,))[0]) for _, mine in groups]


def compare(first: dict[int, float], second: dict[int, float], alternatives: int = 1) -> Comparison | None:
  """Compares two {seed: value}.

  Args:
    first, second: values of two kinds.
    alternatives: number of comparisons that are made together.

  Returns:
    Comparison, or None if no seed is shared.
  """
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    return None
  differences = np.array([first[seed] - second[seed] for seed in seeds])
  if len(seeds) == 1:
    return Comparison(float(differences[0]), math.inf, 1)
  error = differences.std(ddof=1) / math.sqrt(len(seeds))
  if error <= 1e-9 * max(abs(value) for values in (first, second) for value in values.values()):  # rounding
    return Comparison(float(differences.mean()), math.inf, len(seeds))
  quantile = stats.t.ppf(1 - 0.025 / alternatives, len(seeds) - 1)
  return Comparison(float(differences.mean()), float(quantile * error), len(seeds))


def with_each(candidate: Candidate, others: Sequence[Candidate]) -> tuple[list[Pair], list[Candidate]]:
  """Compares a candidate with others.

  Returns:
    (a Pair for each of `others` that shares a seed with it, those that share
    none).
  """
  pairs: list[Pair] = []
  missing = []
  for other in others:
    found = compare(candidate.values, other.values, len(others))
    if found is None:
      missing.append(other)
    else:
      pairs.append((other, found))
  return pairs, missing


def ranked(found: Iterable[Candidate]) -> list[Candidate]:
  """Candidates, ordered by the number of others that have a lower mean on the shared seeds."""
  every = list(found)

  def loses(candidate: Candidate, other: Candidate) -> bool:
    """Whether `other` has the lower mean on shared seeds; also True if no seed is shared."""
    seeds = candidate.values.keys() & other.values.keys()
    return not seeds or sum(candidate.values[seed] - other.values[seed] for seed in seeds) > 0

  return sorted(every, key=lambda c: (sum(loses(c, other) for other in every if other is not c), c.mean))


def best_of_each(field: str, found: Iterable[Candidate]) -> list[Candidate]:
  """The best candidate for each value of a field."""
  groups: dict[Any, list[Candidate]] = {}
  for candidate in found:
    groups.setdefault(candidate.row[field], []).append(candidate)
  return [ranked(mine)[0] for mine in groups.values()]
