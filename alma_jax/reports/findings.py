"""The paper's practical questions, answered from the runs that there are.

Kinds of runs are compared on the seeds they share: the mean difference and its
95 % confidence interval (paired, Student's t). Where that holds 0, or there is one
seed, the runs cannot tell.
"""
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from alma_jax.reports import collect
from alma_jax.reports.collect import LEARNER, SEED, WAITING

GROWING = ("gens", "bagging", "boosting", "gmoe", "ff")
_FIXED = ("sm", "ens", "umix", "moe")
_MEM, _COMP = "cumulative_params", "cumulative_fwd_macs"
_SLACK = 1.05  # budgets that differ by less are equal


class Comparison(NamedTuple):
  """First minus second.

  Attributes:
    mean: of the differences on shared seeds; negative: the first is better.
    margin: half the width of the 95 % confidence interval; infinite for one seed.
    num: shared seeds.
  """
  mean: float
  margin: float
  num: int

  @property
  def sure(self):
    """Whether the interval leaves 0 out."""
    return abs(self.mean) > self.margin


def compare(first, second):
  """Comparison of two {seed: value}; None where they share no seed."""
  seeds = sorted(first.keys() & second.keys())
  if not seeds:
    return None
  differences = np.array([first[seed] - second[seed] for seed in seeds])
  if len(seeds) == 1:
    return Comparison(float(differences[0]), math.inf, 1)
  error = differences.std(ddof=1) / math.sqrt(len(seeds))
  return Comparison(float(differences.mean()), float(stats.t.ppf(0.975, len(seeds) - 1) * error), len(seeds))


def waiting_times(study):
  """Sentences: the best waiting time of every learner and size, and for every budget of compute.

  Returns:
    List of Markdown lines; empty where all runs wait equally long.
  """
  if study.runs[WAITING].nunique() < 2:
    return []
  others, lines = [f for f in study.factors if f != WAITING], []
  if study.is_language:  # an average over fewer updates, and later ones, is no fair judge
    study = study._replace(runs=study.runs.assign(average_perplexity=study.runs["final_perplexity"]))
    lines.append("- Judged by the last perplexity; the average over the updates would leave out what waiting costs.")
  for key, mine in _groups(study, others):
    waits = {wait: _values(study, runs) for wait, runs in mine.groupby(WAITING)}
    if len(waits) > 1:
      lines.append(f"- {collect.label(key, others)}: " + _choice(study, {f"w {w}": v for w, v in waits.items()}))
  return lines + _budgets(study)


def growth(study):
  """Sentences: each growing learner against the best fixed one that waits as long, with no more compute and memory."""
  kinds = _kinds(study)
  lines = []
  for kind in kinds:
    if kind.row[LEARNER] not in GROWING:
      continue
    rivals = [k for k in kinds if k.row[LEARNER] in _FIXED and k.row[WAITING] == kind.row[WAITING]
              and k.comp <= _SLACK * kind.comp and k.mem <= _SLACK * kind.mem and kind.values.keys() & k.values.keys()]
    name = collect.label(kind.row, study.factors)
    if not rivals:
      lines.append(f"- {name}: no fixed learner within its compute and memory was run.")
      continue
    best = min(rivals, key=lambda k: np.mean(list(k.values.values())))
    difference = compare(kind.values, best.values)
    verdict = _verdict(difference, "growing paid", "growing did not pay", "the runs cannot tell")
    lines.append(f"- {name} ({_mean(study, kind.values)}) against {collect.label(best.row, study.factors)} "
                 f"({_mean(study, best.values)}; {best.comp / kind.comp:.0%} of the compute, "
                 f"{best.mem / kind.mem:.0%} of the memory): **{verdict}**, {_difference(difference)}.")
  return lines


class _Kind(NamedTuple):
  row: object
  values: dict
  comp: float
  mem: float


def _kinds(study):
  return [_Kind(row, _values(study, mine), mine[_COMP].mean(), mine[_MEM].mean())
          for row, mine in _groups(study, list(study.factors))]


def _groups(study, factors):
  """(first row, runs) of all kinds of runs, told apart by these factors."""
  return [(mine.iloc[0], mine) for _, mine in study.runs.groupby([LEARNER, *factors], sort=False, dropna=False)]


def _values(study, runs):
  """{seed: CER or average perplexity}."""
  return dict(zip(runs[SEED], runs[study.judged]))


def _budgets(study):
  """The best kind of run within each power of ten of compute, against the best that waits otherwise."""
  kinds = _kinds(study)
  comps = [kind.comp for kind in kinds]
  lines = []
  for power in range(math.ceil(math.log10(min(comps))), math.ceil(math.log10(max(comps))) + 1):
    within = sorted((k for k in kinds if k.comp <= 10.0**power), key=lambda k: np.mean(list(k.values.values())))
    if not within:
      continue
    best = within[0]
    rival = next((k for k in within if k.row[WAITING] != best.row[WAITING]), None)
    text = (f"- within 1e{power} multiply-adds: w {best.row[WAITING]}, {collect.label(best.row, _but_waiting(study))} "
            f"({_mean(study, best.values)})")
    if rival is not None:
      difference = compare(best.values, rival.values)
      told = _difference(difference) if difference else "no seed in common"
      sure = "" if difference and difference.sure else "; **the runs cannot tell**"
      text += (f"; the best that waits otherwise: w {rival.row[WAITING]}, "
               f"{collect.label(rival.row, _but_waiting(study))} ({_mean(study, rival.values)}), {told}{sure}")
    lines.append(text + ".")
  return lines


def _but_waiting(study):
  return [f for f in study.factors if f != WAITING]


def _choice(study, options):
  """Which of {name: {seed: value}} is best, and whether the runs can tell it from the next."""
  names = sorted(options, key=lambda name: np.mean(list(options[name].values())))
  best, second = names[:2]
  difference = compare(options[best], options[second])
  told = ", ".join(f"{name} {_mean(study, options[name])}" for name in names)
  if difference is None:
    return f"{told}: **the runs cannot tell**, no seed in common."
  verdict = f"**{best} is best**" if difference.sure else f"**the runs cannot tell {best} from {second}**"
  return f"{told}: {verdict}, {_difference(difference)}."


def _verdict(difference, better, worse, unsure):
  if not difference.sure:
    return unsure
  return better if difference.mean < 0 else worse


def _difference(difference):
  if difference.num == 1:
    return f"difference {difference.mean:+.3g} on one seed"
  return f"difference {difference.mean:+.3g} ± {difference.margin:.2g} on {difference.num} seeds"


def _mean(study, values):
  name = "perplexity" if study.is_language else "CER"
  return f"{name} {np.mean(list(values.values())):.4g}"
