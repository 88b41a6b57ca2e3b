"""What runs say about a claim: effects of each seed, tests over seeds, and a verdict.

An effect is the logarithm of a ratio, or a difference, and positive if it supports the claim. A cell is one comparison
of two kinds of runs, for example one learner at one waiting time; it has an effect for each seed that both kinds have.
The effect of a claim is the mean over its cells, and is tested over seeds (two-sided), because runs of one seed are not
independent. Three seeds say little about how a mean varies; how the study's other comparisons vary counts as further
seeds (a moderated t test: Smyth, 2004; see Spread). Whether it is so everywhere is asked of groups of cells, for
example all of one learner: a single cell of three seeds is hardly ever significant once it is corrected for many cells.
All claims of a study, on streams of tasks those about one network, are tested together (Holm, 1979): if there is no
effect in any of them, the mean of one is significant with a probability of at most 5 %, also if the claim compares the
best of several kinds (`best`, `orders`). The groups and the cells of a claim are tested with their own variances, and
corrected for their own number alone.
"""
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

from alma_jax.reports import statistics
from alma_jax.reports.statistics import LEVEL, Estimate, holm

AGREES, DISAGREES, CANNOT_TELL, IN_PART, DEPENDS = "agrees", "disagrees", "cannot tell", "in part", "depends"
NO_DIFFERENCE = "no difference"
OPEN = CANNOT_TELL, NO_DIFFERENCE  # the verdicts that are right if there is no effect
MARGIN = math.log(1.03)  # the equivalence margin: 3 % as a log ratio
FEWEST, MOST_SEEDS = 3, 100  # seeds that a verdict needs; the most that anyone would run
_FEWEST_VARIANCES, _MOST_FREEDOM = 10, 1e3  # of a Spread


class Cell(NamedTuple):
  """One comparison.

  Attributes:
    name: for people.
    effects: {seed: effect}.
    groups: {field: value}, the groups of cells that it belongs to, one for each field.
  """
  name: str
  effects: Mapping[int, float]
  groups: Mapping[str, str] = {}


class Group(NamedTuple):
  """The cells of a claim that have one value of a field.

  Attributes:
    field, value: as in Cell.groups.
    cells: number of its cells.
    positive: number of those that support the claim: by their mean; if the claim is about counts, on all seeds.
    sign: of its mean effect, if that is significant (Holm over all groups of the claim); else 0.
  """
  field: str
  value: str
  cells: int
  positive: int
  sign: int = 0


class Spread(NamedTuple):
  """How effects of a study vary over seeds: the prior distribution of a variance.

  The variance of the mean of n cells is `scale` n^`power` times `freedom` / X, with X of a chi-squared distribution of
  `freedom` degrees of freedom, which count like those of further seeds. If `freedom` is 0, nothing is known beforehand,
  and the test is Student's t test.
  """
  scale: float = 1.0
  power: float = 0.0
  freedom: float = 0.0

  @classmethod
  def of(cls, claims: Iterable[Iterable[Cell]]) -> "Spread":
    """The Spread of the cells of some claims, and of the means over the cells of each.

    A line through the logarithms of their variances, over log n, gives `scale` and `power`. Their scatter around it,
    beyond the scatter that so few seeds cause, gives `freedom` (Smyth, 2004, section 6.2).
    """
    effects = [found.effects for cells in claims if (found := _whole(cells)) and found.effects.shape[1] >= FEWEST]
    sizes_of = lambda rows: [1] * len(rows) + [len(rows)]
    found = [(each.num * each.error**2, size, each.num - 1) for rows in effects
             for size, each in zip(sizes_of(rows), statistics.estimates(
                 np.vstack([rows, rows.mean(0)]) if len(rows) > 1 else rows)) if math.isfinite(each.margin)]
    if len(found) < _FEWEST_VARIANCES:
      return cls()
    variances, sizes, degrees = np.array(found).T
    logs = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    power, level = np.polyfit(np.log(sizes), logs, 1) if len(set(sizes)) > 1 else (0.0, logs.mean())
    rest = logs - level - power * np.log(sizes)
    beyond = rest @ rest / (len(rest) - 2) - special.polygamma(1, degrees / 2).mean()
    more = lambda freedom: special.polygamma(1, freedom / 2) - beyond
    freedom = _MOST_FREEDOM if more(_MOST_FREEDOM) > 0 else optimize.brentq(more, 1e-3, _MOST_FREEDOM)
    return cls(math.exp(level + special.digamma(freedom / 2) - math.log(freedom / 2)), power, freedom)


NOTHING = Spread()  # nothing is known beforehand


class Evidence(NamedTuple):
  """The effect of a claim.

  Attributes:
    mean, low, high: the mean effect and its 95 % interval, which is infinite without a test. If `exact`, the lowest
      and the highest effect of all cells and seeds instead of the interval.
    p: of the test; NaN if there are fewer than FEWEST seeds, or nothing is known of the variation over seeds.
    seeds: number of seeds.
    cells, positive: number of cells, and of those whose mean supports the claim; if `exact`, on all seeds.
    supporting, opposing: number of cells that are significantly for and against the claim (Holm over the cells; if
      `exact`, with effects of this sign on all seeds).
    range: the lowest, the median and the highest of the cells' mean effects.
    groups: of its cells, of the fields with several values.
    left_out: number of cells that lack one of the seeds.
    exact: whether the effects are counts, which are not tested.
    freedom: degrees of freedom of the test.
    p_equivalent: p of the equivalence test, small if the mean effect is within the margin around 0; NaN: not tested.
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
  range: tuple[float, float, float]
  groups: Sequence[Group] = ()
  left_out: int = 0
  exact: bool = False
  freedom: float = math.nan
  p_equivalent: float = math.nan

  def signs(self) -> set[int]:
    """1 if a cell or a group is significantly for the claim, -1 if one is significantly against it."""
    return ({1} if self.supporting else set()) | ({-1} if self.opposing else set()) | {
        group.sign for group in self.groups if group.sign}

  def conditions(self) -> list[Group]:
    """The groups of the field that tells best where the claim is supported; empty if no field has several values."""
    best: list[Group] = []
    for field in dict.fromkeys(group.field for group in self.groups):
      mine = [group for group in self.groups if group.field == field]
      if not best or _purity(mine) > _purity(best):
        best = mine
    return sorted(best, key=_in_order)


class _Whole(NamedTuple):
  """The cells that have all seeds that count, their effects [N, S], and how many others there are."""
  cells: list[Cell]
  effects: np.ndarray
  left_out: int


def _whole(cells: Iterable[Cell]) -> _Whole | None:
  """The cells that have all seeds that count, those of at least half of the cells; None if no cell has all of them."""
  there = [cell for cell in cells if cell.effects]
  every = sorted({seed for cell in there for seed in cell.effects})
  seeds = [seed for seed in every if 2 * sum(seed in cell.effects for cell in there) >= len(there)]
  whole = [cell for cell in there if all(seed in cell.effects for seed in seeds)]
  if not seeds or not whole:
    return None
  return _Whole(whole, np.array([[cell.effects[seed] for seed in seeds] for cell in whole]), len(there) - len(whole))


def weigh(cells: Iterable[Cell], exact: bool = False, spread: Spread = NOTHING, margin: float = 0.0) -> Evidence | None:
  """The Evidence of cells, or None if no cell has an effect.

  The seeds are those that at least half of the cells have. Cells that lack one of them are left out. `margin` is for
  the equivalence test (two one-sided t tests; 0: no test).
  """
  if not (there := _whole(cells)):
    return None
  whole, effects, left_out = there
  means = effects.mean(1)
  span = float(means.min()), float(np.median(means)), float(means.max())
  mean, seeds = float(effects.mean()), effects.shape[1]
  if exact:
    signs = [np.unique(np.sign(row)).tolist() for row in effects]
    supporting, opposing = signs.count([1.0]), signs.count([-1.0])
    groups = _groups(whole, [sign == [1.0] for sign in signs])
    return Evidence(mean, float(effects.min()), float(effects.max()), math.nan, seeds, len(whole), supporting,
                    supporting, opposing, span, [group for group, _ in groups], left_out, True)
  groups = _groups(whole, (means > 0).tolist())
  alone, *parts = estimated(np.stack([effects.mean(0), *effects, *(effects[places].mean(0) for _, places in groups)]))
  of_all, of_cells, of_groups = moderated(alone, len(whole), spread), parts[:len(whole)], parts[len(whole):]
  significant = [np.sign(each.mean) for each, p in zip(of_cells, holm([each.p for each in of_cells])) if p < LEVEL]
  signed = [group._replace(sign=int(np.sign(each.mean)) if p < LEVEL else 0)
            for (group, _), each, p in zip(groups, of_groups, holm([each.p for each in of_groups]))]
  freedom = spread.freedom + seeds - 1
  is_tested = margin and not math.isnan(of_all.p)
  within = float(stats.t.sf((margin - abs(mean)) / of_all.error, freedom)) if is_tested else math.nan
  return Evidence(mean, mean - of_all.margin, mean + of_all.margin, of_all.p, seeds, len(whole),
                  int((means > 0).sum()), significant.count(1), significant.count(-1), span, signed, left_out,
                  freedom=freedom, p_equivalent=within)


def _groups(cells: Sequence[Cell], positive: Sequence[bool]) -> list[tuple[Group, list[int]]]:
  """(Group, places of its cells), of the fields that all cells have, with several values; in the order of the cells."""
  found = []
  for field in cells[0].groups:
    if not all(field in cell.groups for cell in cells):
      continue
    values = list(dict.fromkeys(cell.groups[field] for cell in cells))
    for value in values if len(values) > 1 else []:
      places = [i for i, cell in enumerate(cells) if cell.groups[field] == value]
      found.append((Group(field, value, len(places), sum(positive[i] for i in places)), places))
  return found


def _purity(groups: Sequence[Group]) -> float:
  """How well groups tell the cells for a claim from those against it: the sum of their Gini purities.

  A field with one group more must tell half a cell more, because small groups are pure by chance.
  """
  return sum((group.positive**2 + (group.cells - group.positive)**2) / group.cells - 0.5 for group in groups)


def _in_order(group: Group) -> tuple[list[float], str]:
  """Sorts groups by the numbers in their names, then by name."""
  return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", group.value)], group.value


def estimated(rows: np.ndarray) -> list[Estimate]:
  """The Estimate of each row of one value per seed [N, S]; without an interval if there are fewer than FEWEST seeds."""
  found = statistics.estimates(rows)
  return found if rows.shape[1] >= FEWEST else [each._replace(margin=math.inf, p=math.nan) for each in found]


def moderated(found: Estimate, size: int, spread: Spread) -> Estimate:
  """The Estimate of a mean over so many cells, with what is known beforehand about its variance."""
  if found.num < FEWEST or not spread.freedom:
    return found
  freedom = spread.freedom + found.num - 1
  own = (found.num - 1) * found.num * found.error**2
  error = math.sqrt((spread.freedom * spread.scale * size**spread.power + own) / freedom / found.num)
  return found._replace(error=error, margin=float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error,
                        p=2 * float(stats.t.sf(abs(found.mean) / error, freedom)))


def verdict(found: Evidence, adjusted: float) -> str:
  """The verdict on a claim, from its Evidence and its p-value, which is corrected (`holm`), as is `found.p_equivalent`.

  A claim agrees with the runs if the mean effect is significantly for it and no cell or group of cells is
  significantly against it. It disagrees if the mean effect is significantly against it and none is significantly for
  it. It depends if the mean effect is significant and some are significantly of the other sign, or if some are
  significantly for it and others significantly against it. There is no difference if neither the mean, a group nor a
  cell is significant, and the equivalence test shows that the mean is within the margin. Of counts a claim agrees
  with the runs if all cells are for it on all seeds, disagrees if none is, and else agrees in part. Fewer than FEWEST
  seeds have no verdict.
  """
  if found.seeds < FEWEST:
    return CANNOT_TELL
  if found.exact:
    return AGREES if found.supporting == found.cells else IN_PART if found.supporting else DISAGREES
  signs = found.signs()
  if not adjusted < LEVEL:
    is_small = found.p_equivalent < LEVEL and not signs
    return DEPENDS if len(signs) == 2 else NO_DIFFERENCE if is_small else CANNOT_TELL
  if found.mean < 0:
    return DEPENDS if 1 in signs else DISAGREES
  return DEPENDS if -1 in signs else AGREES


def basis(found: Evidence, adjusted: float) -> str:
  """What a number rests on, e.g. "5 seeds; p = 0.03"."""
  said = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
  return said if math.isnan(adjusted) else f"{said}; p = {adjusted:.2g}"


def seeds_to_decide(found: Evidence, adjusted: float) -> int | None:
  """How many seeds would make the mean effect significant, if it and its standard deviation did not change.

  Assumes that the correction multiplies p by the same factor as now, and that the other comparisons still count as the
  same number of seeds. None if the effect is already significant, is not tested, or needs more than MOST_SEEDS.
  """
  if not (math.isfinite(found.high) and found.p > 0 and adjusted >= LEVEL):
    return None
  num = np.arange(found.seeds + 1, MOST_SEEDS + 1)
  error = (found.high - found.low) / 2 / stats.t.ppf(1 - LEVEL / 2, found.freedom) * np.sqrt(found.seeds / num)
  freedom = found.freedom + num - found.seeds
  decided = 2 * stats.t.sf(abs(found.mean) / error, freedom) * adjusted / found.p < LEVEL
  return int(num[decided.argmax()]) if decided.any() else None


def orders(seeds: Collection[int]) -> list[dict[int, int]]:
  """Labels of the seeds, {seed: label}, for all cyclic orders, in which `best` chooses differently.

  A claim is tested in each, and its largest p counts (`weakest`). So the verdict does not depend on how seeds are
  numbered. In one order alone up to 10 % of the tests at 5 % were significant without an effect, if one of several
  kinds is better than the others of its side; with the largest p these are less than 4 % (a test).

  Above five seeds there would be too many; then the orders are those in which seeds follow at a fixed distance.
  """
  first, *others = sorted(seeds)
  num = len(others) + 1
  found = (itertools.permutations(others) if num <= 5 else
           ([sorted(seeds)[k * i % num] for i in range(1, num)] for k in range(1, num) if math.gcd(k, num) == 1))
  return [{seed: place for place, seed in enumerate((first, *order))} for order in found]


def weakest(found: Sequence[Evidence]) -> tuple[int, Evidence]:
  """(place of the Evidence with the largest p, that Evidence), of the same claim in several orders of the seeds.

  A group or a cell counts as significant only if it is in all of them. The equivalence tests' largest p counts.
  """
  place = max(range(len(found)), key=lambda i: math.inf if math.isnan(found[i].p) else found[i].p)
  signs = [{(group.field, group.value): group.sign for group in each.groups} for each in found]
  groups = [group._replace(sign=group.sign if all(its.get((group.field, group.value)) == group.sign for its in signs)
                           else 0) for group in found[place].groups]
  return place, found[place]._replace(groups=groups, supporting=min(each.supporting for each in found),
                                      opposing=min(each.opposing for each in found),
                                      p_equivalent=float(np.max([each.p_equivalent for each in found])))


def log_ratio(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
  """{seed: log(value / base)} of the seeds of both, where both are above 0."""
  return {seed: math.log(values[seed] / base[seed]) for seed in sorted(values.keys() & base.keys())
          if values[seed] > 0 and base[seed] > 0}


def best(kinds: Sequence[Mapping[int, float]], seeds: Collection[int] = ()) -> dict[int, float]:
  """{seed: value} of the best of several kinds; the kind is chosen by the next seed, for the last one by the first.

  If it were chosen by the same seed, the lowest of several equal kinds would seem better than each of them. If it were
  chosen by all other seeds, the values of the seeds would not be independent, because each pair of seeds would choose
  for each other; of sides of four equal kinds on three seeds 10 % would differ significantly at 5 %, on five 13 %. The
  next seed depends on the order of the seeds, which means nothing: see `orders`.

  Args:
    kinds: {seed: value} of each; lower values are better.
    seeds: kinds that lack one of them are ignored.

  Returns:
    The values of the only kind if there is one; else those of the seeds that all kinds have, if these are at least two.
  """
  kinds = [values for values in kinds if values.keys() >= set(seeds)]
  if len(kinds) == 1:
    return dict(kinds[0])
  common = sorted(set.intersection(*map(set, kinds))) if kinds else []
  if len(common) < 2:
    return {}
  following = dict(zip(common, [*common[1:], common[0]]))
  return {seed: min(kinds, key=lambda values: values[following[seed]])[seed] for seed in common}
