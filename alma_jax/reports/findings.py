"""The paper's practical questions, answered from the runs that there are.

Kinds of runs are compared on seeds that they share: the mean difference and its
confidence interval (paired, Student's t, 95 % over all alternatives together by
Bonferroni). Where that holds 0, or there is one seed, the runs cannot tell.
"""
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from alma_jax.reports import collect
from alma_jax.reports.collect import LEARNER, SEED, WAITING

HOW = ("- Differences are means over the seeds that both have, ± half of the confidence interval: 95 % over all "
       "alternatives of a line together (paired t, Bonferroni).")
GROWING = ("gens", "bagging", "boosting", "gmoe", "ff")
FIXED = ("sm", "ens", "umix", "moe")
_MEM, _COMP = "cumulative_params", "cumulative_fwd_macs"
_SLACK, _NEAR = 1.05, 0.8  # budgets up to here are no larger; from here on as large
_UNSURE = "**the runs cannot tell**"


class Comparison(NamedTuple):
  """First minus second.

  Attributes:
    mean: of the differences on shared seeds; negative: the first is better.
    margin: half the width of the confidence interval; infinite for one seed.
    num: shared seeds.
  """
  mean: float
  margin: float
  num: int

  @property
  def sure(self):
    """Whether the interval leaves 0 out."""
    return abs(self.mean) > self.margin


class Kind(NamedTuple):
  """A kind of run: a learner and its factors.

  Attributes:
    row: of one of its runs.
    values: {seed: CER or perplexity}.
    comp, mem: means of the cumulative costs.
  """
  row: object
  values: dict
  comp: float
  mem: float

  def mean(self, seeds):
    """Over some of its seeds."""
    return float(np.mean([self.values[seed] for seed in seeds]))


def compare(first, second, alternatives=1):
  """Comparison of two {seed: value}, one of so many that are made; None where they share no seed."""
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    return None
  differences = np.array([first[seed] - second[seed] for seed in seeds])
  if len(seeds) == 1:
    return Comparison(float(differences[0]), math.inf, 1)
  error = differences.std(ddof=1) / math.sqrt(len(seeds))
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
      lines.append(f"- {name}: {_choice(study, mine)}")
  return lines + _budgets(study, kinds, others)


def growth(study):
  """Sentences: each growing learner against the best fixed one that waits as long, with no more compute and memory.

  "growing paid" is said only where that one has nearly as much of both.
  """
  kinds, lines = _kinds(study), []
  for kind in kinds:
    if kind.row[LEARNER] not in GROWING:
      continue
    name = collect.label(kind.row, study.factors)
    rivals = [k for k in kinds if k.row[LEARNER] in FIXED and k.row[WAITING] == kind.row[WAITING]
              and k.comp <= _SLACK * kind.comp and k.mem <= _SLACK * kind.mem]
    within = rivals
    seeds, (_, *rivals) = _comparable([kind, *rivals], kind)
    if not rivals:
      lines.append(f"- {name}: no fixed learner within its compute and memory was run on its seeds.")
      continue
    best = min(rivals, key=lambda k: k.mean(seeds))
    difference = compare(kind.values, best.values, len(rivals))
    near = best.comp >= _NEAR * kind.comp and best.mem >= _NEAR * kind.mem
    if difference.sure and difference.mean > 0:
      verdict = "**growing did not pay**"
    elif difference.sure and near:
      verdict = "**growing paid**"
    elif difference.sure:
      verdict = f"better, but with a larger budget: {_UNSURE} whether growing paid"
    else:
      verdict = _UNSURE
    missing = [collect.label(k.row, study.factors) for k in within if not any(k is r for r in rivals)]
    lines.append(f"- {name} ({_value(study, kind.mean(seeds))}) against {collect.label(best.row, study.factors)} "
                 f"({_value(study, best.mean(seeds))}; {_share(best.comp / kind.comp)} of the compute, "
                 f"{_share(best.mem / kind.mem)} of the memory): {verdict}, {_difference(difference)}"
                 + _left_out(missing) + ".")
  return lines


def _kinds(study):
  groups = study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False)
  return [Kind(mine.iloc[0], dict(zip(mine[SEED], mine[study.judged])), mine[_COMP].mean(), mine[_MEM].mean())
          for _, mine in groups]


def _comparable(kinds, wanted=None):
  """(seeds, kinds that have all of them): those of `wanted`, or of the kind that has most; else those all share."""
  most = (wanted or max(kinds, key=lambda kind: len(kind.values))).values.keys()
  complete = [kind for kind in kinds if kind.values.keys() >= most]
  if len(complete) > 1 or len(kinds) == 1:
    return sorted(most), complete
  shared = set.intersection(*(set(kind.values) for kind in kinds))
  return (sorted(shared), kinds) if shared else (sorted(most), complete)


def _choice(study, kinds):
  """Which of kinds that differ in waiting time alone is best, and whether the runs can tell it from the next."""
  every = kinds
  seeds, kinds = _comparable(kinds)
  if len(kinds) < 2:
    return f"{_UNSURE}, no seed in common."
  ranked = sorted(kinds, key=lambda kind: kind.mean(seeds))
  best, second = ranked[:2]
  told = ", ".join(f"w {kind.row[WAITING]} {_value(study, kind.mean(seeds))}" for kind in ranked)
  difference = compare(best.values, second.values, len(kinds) - 1)
  w, other = best.row[WAITING], second.row[WAITING]
  verdict = f"**w {w} is best**" if difference.sure else f"**the runs cannot tell w {w} from w {other}**"
  missing = [f"w {kind.row[WAITING]}" for kind in every if not any(kind is k for k in kinds)]
  return f"{told}: {verdict}, {_difference(difference)}{_left_out(missing)}."


def _budgets(study, kinds, others):
  """The best kind of run within each power of ten of compute, against the best that waits otherwise."""
  comps, lines = [kind.comp for kind in kinds], []
  for power in range(math.ceil(math.log10(min(comps))), math.ceil(math.log10(max(comps))) + 1):
    within = [kind for kind in kinds if kind.comp <= 10.0**power]
    if not within:
      continue
    every = len(within)
    seeds, within = _comparable(within)
    best, *rest = sorted(within, key=lambda kind: kind.mean(seeds))
    rivals = [kind for kind in rest if kind.row[WAITING] != best.row[WAITING]]
    text = (f"- within 1e{power} multiply-adds: w {best.row[WAITING]}, {collect.label(best.row, others)} "
            f"({_value(study, best.mean(seeds))})")
    if rivals:
      difference = compare(best.values, rivals[0].values, len(rivals))
      text += (f"; the best that waits otherwise: w {rivals[0].row[WAITING]}, {collect.label(rivals[0].row, others)} "
               f"({_value(study, rivals[0].mean(seeds))}), {_difference(difference)}"
               f"{'' if difference.sure else '; ' + _UNSURE}")
    missing = every - len(within)
    lines.append(text + _left_out([f"{missing} other kinds of runs"] if missing else []) + ".")
  return lines


def _left_out(names):
  """What lacks some of the seeds that the others have."""
  return f"; not compared for want of seeds: {', '.join(names)}" if names else ""


def _share(value):
  return f"{value:.0%}" if value >= 0.01 else "below 1%"


def _difference(difference):
  if difference.num == 1:
    return f"difference {difference.mean:+.3g} on one seed"
  return f"difference {difference.mean:+.3g} ± {difference.margin:.2g} on {difference.num} seeds"


def _value(study, mean):
  return f"{'perplexity' if study.is_language else 'CER'} {mean:.4g}"
