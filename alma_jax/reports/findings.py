"""The paper's practical questions, answered from the runs that there are.

Two kinds of runs are compared on the seeds that both have: the mean difference and
its confidence interval (paired, Student's t, 95 % over all comparisons of a
sentence together by Bonferroni). A kind is called best, or better, where that
leaves 0 out against every alternative; else the runs cannot tell. One seed cannot,
and differences that are equal on all seeds say nothing about how they vary.
"""
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from alma_jax.reports import collect
from alma_jax.reports.collect import LEARNER, SEED, WAITING

_BUDGETS = {"cumulative_fwd_macs": "multiply-adds", "cumulative_params": "cumulative parameters"}
_COMP, _MEM = _BUDGETS
_SLACK, _NEAR = 1.05, 0.8  # budgets up to here are no larger; from here on as large
HOW = ("- Values are means over all seeds of a kind of runs; differences over the seeds that both have, ± half of the "
       "confidence interval: 95 % over all alternatives of a line together (paired t, Bonferroni). Of several "
       "alternatives the one that decides is shown.")
HOW_GROWTH = (f"- Against fixed learners that wait as long, with at most {_SLACK - 1:.0%} more compute and memory: of "
              "each the best size. Growing paid where it is better than all of these, and some had at least "
              f"{_NEAR:.0%} of both.")
_MOST_NAMED = 3  # of alternatives
_UNSURE = "**the runs cannot tell**"


class Comparison(NamedTuple):
  """First minus second.

  Attributes:
    mean: of the differences on shared seeds; negative: the first is better.
    margin: half the width of the confidence interval; infinite for one seed,
      and where the differences of all seeds are equal.
    num: shared seeds.
  """
  mean: float
  margin: float
  num: int

  @property
  def sure(self):
    """Whether the interval leaves 0 out."""
    return abs(self.mean) > self.margin

  @property
  def better(self):
    """Whether the first is, surely."""
    return self.sure and self.mean < 0


class Kind(NamedTuple):
  """A kind of run: a learner and its factors.

  Attributes:
    row: of one of its runs.
    values: {seed: CER or perplexity}.
    costs: {column of the runs: mean}, the cumulative ones.
    grew: whether it held more parameters in the end than at first.
  """
  row: object
  values: dict
  costs: dict
  grew: bool

  @property
  def mean(self):
    """Over its seeds."""
    return float(np.mean(list(self.values.values())))


def compare(first, second, alternatives=1):
  """Comparison of two {seed: value}, one of so many that are made; None where they share no seed."""
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


def waiting_times(study):
  """Sentences: the best waiting time of every learner and size, and for every budget of compute.

  Returns:
    List of Markdown lines; empty where all runs wait equally long.
  """
  if study.runs[WAITING].nunique() < 2:
    return []
  lines = []
  if study.is_language:  # an average over fewer updates, and later ones, is no fair judge
    study = study._replace(runs=study.runs.assign(average_perplexity=study.runs["final_perplexity"]))
    lines.append("- Judged by the last perplexity; the average over the updates would leave out what waiting costs.")
  others, kinds = [f for f in study.factors if f != WAITING], _kinds(study)
  groups = {}
  for kind in kinds:
    groups.setdefault(collect.label(kind.row, others), []).append(kind)
  for name, mine in groups.items():
    if len(mine) > 1:
      lines.append(f"- {name}: {_choice(study, mine)}.")
  return lines + [line for column in _BUDGETS for line in _budgets(study, kinds, others, column)]


def growth(study):
  """Sentences: each kind that grew against fixed learners that wait as long, with no more compute and memory.

  Of every fixed learner the best kind within the budgets is compared. "growing
  paid" is said only where some kind had nearly as much of both.

  Returns:
    List of Markdown lines.
  """
  kinds, lines = _kinds(study), []
  for kind in kinds:
    if not kind.grew:
      continue
    within = [k for k in kinds if not k.grew and k.row[WAITING] == kind.row[WAITING]
              and all(k.costs[column] <= _SLACK * kind.costs[column] for column in _BUDGETS)]
    every, missing = _compared(kind, within)
    rivals = _best_of_each(LEARNER, [k for k, _ in every])
    found = [(k, c) for k, c in every if any(k is rival for rival in rivals)]  # chosen of `every`, which all count
    text = f"- {collect.label(kind.row, study.factors)}"
    if not found:
      lines.append(f"{text}: no fixed learner within its compute and memory was run on its seeds.")
      continue
    near = any(all(k.costs[column] >= _NEAR * kind.costs[column] for column in _BUDGETS) for k in within)
    worse = [(k, c) for k, c in found if c.sure and c.mean > 0]
    if worse:
      verdict, shown = "**growing did not pay**", max(worse, key=lambda pair: pair[1].mean - pair[1].margin)
    elif missing or not all(c.better for _, c in found):
      open_ones = [(k, c) for k, c in found if not c.better] or found
      verdict, shown = _UNSURE, max(open_ones, key=lambda pair: pair[1].mean)
    else:
      shown = max(found, key=lambda pair: pair[1].mean + pair[1].margin)
      verdict = "**growing paid**" if near else f"better, but with a larger budget: {_UNSURE} whether growing paid"
    rival, difference = shown
    shares = ", ".join(f"{_share(rival.costs[column] / kind.costs[column])} of the {what}"
                       for column, what in ((_COMP, "compute"), (_MEM, "memory")))
    lines.append(f"{text} ({_value(study, kind)}) against {collect.label(rival.row, study.factors)} "
                 f"({_value(study, rival)}; {shares}): {verdict}, {_difference(difference)}"
                 f"{_left_out([collect.label(k.row, study.factors) for k in missing])}.")
  return lines


def _kinds(study):
  groups = study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False)
  return [Kind(mine.iloc[0], dict(zip(mine[SEED], mine[study.judged])),
               {column: mine[column].mean() for column in _BUDGETS},
               bool((mine["last_params"] > mine["first_params"]).any())) for _, mine in groups]


def _compared(kind, others):
  """([(other, Comparison of `kind` with it)], others that share no seed with it)."""
  pairs = [(other, compare(kind.values, other.values, len(others))) for other in others]
  return ([pair for pair in pairs if pair[1] is not None], [other for other, found in pairs if found is None])


def _ranked(kinds):
  """Kinds, first the one to which the fewest others are superior in the mean on the seeds that both have."""
  def loses(kind, other):
    """Also where they share none."""
    seeds = kind.values.keys() & other.values.keys()
    return not seeds or sum(kind.values[seed] - other.values[seed] for seed in seeds) > 0

  return sorted(kinds, key=lambda kind: (sum(loses(kind, k) for k in kinds if k is not kind), kind.mean))


def _best_of_each(field, kinds):
  """The best kind for each value of a field."""
  groups = {}
  for kind in kinds:
    groups.setdefault(kind.row[field], []).append(kind)
  return [_ranked(mine)[0] for mine in groups.values()]


def _choice(study, kinds):
  """Which of kinds that differ in waiting time alone is best, or between which the runs cannot tell."""
  best, *rest = _ranked(kinds)
  name = lambda kind: f"w {kind.row[WAITING]}"
  text = f"{', '.join(f'{name(kind)} {_value(study, kind)}' for kind in (best, *rest))}: "
  found, missing = _compared(best, rest)
  unsure = [(k, c) for k, c in found if not c.better]
  if not found:
    return f"{text}{_UNSURE}{_left_out(map(name, missing))}"
  if unsure:
    verdict = f"**the runs cannot tell {name(best)} from {', '.join(name(k) for k, _ in unsure)}**"
  else:
    verdict = _UNSURE if missing else f"**{name(best)} is best**"
  return f"{text}{verdict}, {_difference(_closest(unsure or found)[1])}{_left_out(map(name, missing))}"


def _budgets(study, kinds, others, column):
  """The best kind of run within each power of ten of a cost, against the best of every other waiting time."""
  costs, lines, before = [kind.costs[column] for kind in kinds if kind.costs[column] > 0], [], []
  powers = range(math.ceil(math.log10(min(costs))), math.ceil(math.log10(max(costs))) + 1) if costs else ()
  for power in powers:
    within = [kind for kind in kinds if kind.costs[column] <= 10.0**power]
    if len(within) == len(before):
      continue  # what a smaller budget allows
    before, best = within, _ranked(within)[0]
    rivals = _best_of_each(WAITING, [kind for kind in within if kind.row[WAITING] != best.row[WAITING]])
    text = f"w {best.row[WAITING]}, {collect.label(best.row, others)} ({_value(study, best)})"
    found, missing = _compared(best, rivals)
    if found:
      unsure = [(k, c) for k, c in found if not c.better]
      rival, difference = _closest(unsure or found)
      text += (f"; against the best at w {rival.row[WAITING]}: {collect.label(rival.row, others)} "
               f"({_value(study, rival)}), {_difference(difference)}; "
               f"{_UNSURE if unsure or missing else f'**w {best.row[WAITING]} is best**'}")
    elif missing:
      text += f"; {_UNSURE}"
    text += _left_out([f"w {k.row[WAITING]}, {collect.label(k.row, others)}" for k in missing])
    if not lines or not lines[-1].endswith(f": {text}."):  # nor is it said twice
      lines.append(f"- within 1e{power} {_BUDGETS[column]}: {text}.")
  return lines


def _closest(pairs):
  """The (kind, Comparison) of those worse in the mean that can be told apart least."""
  return max(pairs, key=lambda pair: (pair[1].mean + pair[1].margin, pair[1].mean))


def _left_out(names):
  """What shares no seed with what it would be compared with."""
  names = list(names)
  more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
  return f"; not compared for want of shared seeds: {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _share(value):
  return f"{value:.0%}" if value >= 0.01 else "below 1%"


def _difference(difference):
  if difference.num == 1:
    return f"difference {difference.mean:+.3g} on one seed"
  if math.isinf(difference.margin):
    return f"difference {difference.mean:+.3g}, the same on all {difference.num} seeds"
  margin = f"{difference.margin:{'.2g' if difference.margin < 99.5 else '.0f'}}"
  return f"difference {difference.mean:+.3g} ± {margin} on {difference.num} seeds"


def _value(study, kind):
  return f"{'perplexity' if study.is_language else 'CER'} {kind.mean:.4g}"
