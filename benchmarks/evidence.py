"""What runs say about a claim: effects of each seed, tests over seeds, and a verdict.

An effect is the logarithm of a ratio, or a difference, and positive if it supports the claim. A cell is one comparison
of two kinds of runs, for example one learner at one waiting time; it has an effect for each seed that both kinds have.
The effect of a claim is the mean over its cells, and is tested over seeds (Student's t, two-sided), because runs of one
seed are not independent. All claims of a study, on streams of tasks those about one network, are tested together
(Holm, 1979): if there is no effect in any of them, a test is significant for or against one with a probability of at
most 5 %, unless the claim compares the best of several kinds.
`best` chooses it by the other seeds, so that the effects of the seeds are not quite independent: in simulations of
equal kinds on three seeds a single test at 5 % is then significant in 6 to 9 %.
"""
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

AGREES, DISAGREES, CANNOT_TELL, IN_PART = "agrees", "disagrees", "cannot tell", "in part"
LEVEL = 0.05
FEWEST = 3  # seeds of a verdict


class Cell(NamedTuple):
  """One comparison: {seed: effect}. `wait` is the waiting time of its runs; NaN if they do not have the same."""
  name: str
  effects: Mapping[int, float]
  wait: float = math.nan


class Evidence(NamedTuple):
  """The effect of a claim.

  Attributes:
    mean, low, high: the mean effect and its 95 % interval, which is NaN without a test. If `exact`, the lowest and the
      highest effect of all cells and seeds instead of the interval.
    p: of the test; NaN if there are fewer than FEWEST seeds, or no variation over seeds.
    seeds: number of seeds.
    cells, positive: number of cells, and of those whose mean supports the claim.
    supporting, opposing: number of cells that are significantly for and against the claim (Holm over the cells; if
      `exact`, with effects of this sign on all seeds).
    left_out: number of cells that lack one of the seeds.
    exact: whether the effects are counts without noise, which need no test.
    waits: if `exact`, {waiting time: (number of supporting cells, number of cells)}.
  """
  mean: float
  low: float
  high: float
  p: float
  seeds: int
  cells: int
  positive: int
  supporting: int
  opposing: int
  left_out: int = 0
  exact: bool = False
  waits: Mapping[float, tuple[int, int]] = {}


def weigh(cells: Iterable[Cell], exact: bool = False) -> Evidence | None:
  """The Evidence of cells, or None if no cell has an effect.

  The seeds are those that at least half of the cells have. Cells that lack one of them are left out.
  """
  there = [cell for cell in cells if cell.effects]
  if not there:
    return None
  every = sorted({seed for cell in there for seed in cell.effects})
  seeds = [seed for seed in every if 2 * sum(seed in cell.effects for cell in there) >= len(there)]
  whole = [cell for cell in there if all(seed in cell.effects for seed in seeds)]
  if not seeds or not whole:
    return None
  effects = np.array([[cell.effects[seed] for seed in seeds] for cell in whole])
  counts = len(seeds), len(whole), int((effects.mean(1) > 0).sum())
  mean, left_out = float(effects.mean()), len(there) - len(whole)
  if exact:
    signs = [np.unique(np.sign(row)).tolist() for row in effects]
    waits = {wait: [sign == [1.0] for cell, sign in zip(whole, signs) if cell.wait == wait]
             for wait in sorted({cell.wait for cell in whole if not math.isnan(cell.wait)})}
    return Evidence(mean, float(effects.min()), float(effects.max()), math.nan, *counts, signs.count([1.0]),
                    signs.count([-1.0]), left_out, True, {wait: (sum(each), len(each)) for wait, each in waits.items()})
  p, margin = tested(effects.mean(0))
  adjusted = holm([tested(row)[0] for row in effects])
  signs = [np.sign(row.mean()) for row, each in zip(effects, adjusted) if each < LEVEL]
  return Evidence(mean, mean - margin, mean + margin, p, *counts, signs.count(1), signs.count(-1), left_out)


def tested(values: np.ndarray) -> tuple[float, float]:
  """(p, half the width of the 95 % interval) of the mean of one value per seed, for the hypothesis that it is 0.

  Both are NaN for fewer than FEWEST values, and for values without variation.
  """
  error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) >= FEWEST else 0.0
  if error <= 1e-9 * np.abs(values).max():
    return math.nan, math.nan
  freedom = len(values) - 1
  return (float(2 * special.stdtr(freedom, -abs(values.mean()) / error)),
          float(special.stdtrit(freedom, 0.975) * error))


def holm(ps: Sequence[float]) -> list[float]:
  """p-values adjusted for their number by Holm's step-down procedure. A NaN stays, and does not count."""
  found = [math.nan] * len(ps)
  order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
  highest = 0.0
  for place, i in enumerate(order):
    highest = max(highest, min(1.0, (len(order) - place) * ps[i]))
    found[i] = highest
  return found


def verdict(found: Evidence, adjusted: float) -> str:
  """The verdict on a claim, from its Evidence and its p-value after `holm`.

  A claim agrees with the runs if the mean effect is significantly for it and no cell is significantly against it. It
  disagrees if the mean effect is significantly against it and no cell is significantly for it. Counts without noise
  are significant as they are: they agree if all cells are for the claim, and disagree if none of their effects is.
  """
  if found.exact:
    return AGREES if found.supporting == found.cells else IN_PART if found.high > 0 else DISAGREES
  if not adjusted < LEVEL:
    return CANNOT_TELL
  if found.mean < 0:
    return CANNOT_TELL if found.supporting else DISAGREES
  return CANNOT_TELL if found.opposing else AGREES


def log_ratio(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
  """{seed: log(value / base)} of the seeds of both, where both are above 0."""
  return {seed: math.log(values[seed] / base[seed]) for seed in sorted(values.keys() & base.keys())
          if values[seed] > 0 and base[seed] > 0}


def best(kinds: Sequence[Mapping[int, float]], seeds: Collection[int] = ()) -> dict[int, float]:
  """{seed: value} of the best of several kinds, where the kind is chosen by the other seeds.

  If it were chosen by the same seed, the lowest of several equal kinds would seem better than each of them.

  Args:
    kinds: {seed: value} of each; lower values are better.
    seeds: kinds that lack one of them are ignored.

  Returns:
    The values of the only kind if there is one; else those of the seeds that all kinds have, if these are at least two.
  """
  kinds = [values for values in kinds if values.keys() >= set(seeds)]
  if len(kinds) == 1:
    return dict(kinds[0])
  table = pd.DataFrame([dict(values) for values in kinds]).dropna(axis=1)
  if table.shape[1] < 2:
    return {}
  return {seed: float(table.loc[table.drop(columns=seed).mean(axis=1).idxmin(), seed]) for seed in table}
