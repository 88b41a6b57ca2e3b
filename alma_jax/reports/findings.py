"""Findings: sentences that answer the paper's practical questions from the runs of a study.

A kind of run is called best, or better, only if it is significantly better than every alternative (see `comparisons`);
else the line says so. If some seeds of a kind diverged, a verdict in its favour ends with "on the seeds that finished",
and each line that gives its value also gives the number of seeds that diverged.
"""
import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from alma_jax.reports import comparisons, studies
from alma_jax.reports.comparisons import BUDGETS, NEAR, SLACK, Candidate, Comparison, Pair
from alma_jax.reports.factors import plain
from alma_jax.reports.read import COMP, LEARNER, MEM, SCHEDULE, WAITING
from alma_jax.reports.studies import Study

_BUDGET_NAMES = {COMP: "multiply-adds", MEM: "cumulative parameters"}
HOW = ("- Each value is the mean over all seeds of a kind of run. Each difference is the mean over the seeds that both "
       "kinds share. The ± of a difference is half the width of its confidence interval (CI), not a standard "
       "deviation. The confidence level is 95 % for all alternatives of a line together (paired t-test, Bonferroni). "
       "If a line compares several alternatives, it shows the one that decides the verdict.")
HOW_DIVERGED = ("- A run that diverged has no value and counts in no difference, which favours its kind. Each line "
                "gives the number of seeds that diverged.")
HOW_GROWTH = ("- A learner that grows is compared with fixed learners that have the same waiting time and at most "
              f"{SLACK - 1:.0%} more compute and memory. Of each fixed learner the best size counts. Growing is "
              "better if it is significantly better than all of them, and at least one of them had at least "
              f"{NEAR:.0%} of both budgets.")
_MOST_NAMED = 3  # alternatives in a list
_UNDECIDED, _FINISHED = "**undecided**", " on the seeds that finished"


def waiting_times(study: Study) -> list[str]:
  """The best waiting time of every learner and size, and within every budget of compute and of memory.

  Returns:
    Markdown lines; empty if all runs have the same waiting time.
  """
  # A run whose schedule does not use a waiting time is no alternative here.
  study = study._replace(runs=_waits(study.runs), diverged=_waits(study.diverged))
  lost = studies.lost(study)
  if len({*study.runs[WAITING], *(row[WAITING] for row, _ in lost)}) < 2:
    return []
  lines = []
  if study.scoring.averages:
    study = study._replace(runs=study.runs.assign(**{study.score: study.runs[study.overall]}))
    lines.append(f"- Waiting times are compared by the {study.scoring.overall_name}, because a learner that waits "
                 "longer averages over fewer and later updates.")
  others, every = [f for f in study.factors if f != WAITING], comparisons.candidates(study)
  groups: dict[str, tuple[list[Candidate], list[tuple[Any, int]]]] = {}
  for candidate in every:
    groups.setdefault(studies.label(candidate.row, others), ([], []))[0].append(candidate)
  for row, num in lost:
    groups.setdefault(studies.label(row, others), ([], []))[1].append((row, num))
  for name, (mine, gone) in groups.items():
    if len(mine) + len(gone) > 1:
      texts = [_choice(study, mine)] if mine else []
      texts += [f"w {plain(row[WAITING])}: {studies.diverged_seeds(num, num)}" for row, num in gone]
      lines.append(f"- {name}: {'; '.join(texts)}.")
  if study.runs[WAITING].nunique() < 2:
    return lines
  return lines + [line for column in BUDGETS for line in _budgets(study, every, others, column)]


def growth(study: Study) -> list[str]:
  """Each kind that grew against fixed learners with the same waiting time, within its compute and memory.

  Of every fixed learner the best kind within the budgets is compared. Growing is called better only if one of the
  fixed kinds had similar budgets.

  Returns:
    Markdown lines.
  """
  every = comparisons.candidates(study)
  lines = [_growth(study, candidate, every) for candidate in every if candidate.grew]
  growing = {candidate.row[LEARNER] for candidate in every if candidate.grew}
  return lines + [f"- {studies.label(row, study.factors)}: {studies.diverged_seeds(num, num)}."
                  for row, num in studies.lost(study) if row[LEARNER] in growing]


def _growth(study: Study, mine: Candidate, every: list[Candidate]) -> str:
  """The line about one kind that grew."""
  timing = {field: mine.row[field] for field in (SCHEDULE, WAITING) if not pd.isna(mine.row.get(field))}
  within = [c for c in every if not c.grew and all(c.row.get(field) == value for field, value in timing.items())
            and all(c.costs[column] <= SLACK * mine.costs[column] for column in BUDGETS)]
  pairs, missing = comparisons.with_each(mine, within)
  rivals = comparisons.best_of_each(LEARNER, [c for c, _ in pairs])
  # The confidence level is that of all pairs, because the rivals are chosen from all of them.
  found = [(c, comparison) for c, comparison in pairs if any(c is rival for rival in rivals)]
  text = f"- {studies.label(mine.row, study.factors)}"
  if not found:
    return f"{text}: no fixed learner within its compute and memory has a finished run with one of its seeds."
  similar = any(all(c.costs[column] >= NEAR * mine.costs[column] for column in BUDGETS) for c in within)
  verdict, (rival, difference) = _growth_verdict(mine, found, bool(missing), similar)
  shares = ", ".join(f"{_share(rival.costs[column] / mine.costs[column])} of the {what}"
                     for column, what in ((COMP, "compute"), (MEM, "memory")))
  return (f"{text} ({_value(study, mine)}) against {studies.label(rival.row, study.factors)} "
          f"({_value(study, rival)}; {shares}): {verdict}, {_difference(difference)}"
          f"{_not_compared([studies.label(c.row, study.factors) for c in missing])}.")


def _growth_verdict(mine: Candidate, found: list[Pair], missing: bool, similar: bool) -> tuple[str, Pair]:
  """(verdict, the pair that decides it).

  Args:
    mine: the kind that grew.
    found: its comparisons with fixed kinds, at least one.
    missing: whether a fixed kind within its budgets shares no seed with it.
    similar: whether a fixed kind has similar budgets.
  """
  worse = [pair for pair in found if pair[1].worse]
  worse = [pair for pair in worse if not pair[0].diverged] or worse  # prefer rivals without a diverged seed
  if worse:
    pair = max(worse, key=lambda pair: pair[1].mean - pair[1].margin)
    return f"**the fixed learner is better{_if_diverged(pair[0])}**", pair
  if missing or not all(comparison.better for _, comparison in found):
    not_better = [pair for pair in found if not pair[1].better] or found
    return _UNDECIDED, max(not_better, key=lambda pair: pair[1].mean)
  pair = max(found, key=lambda pair: pair[1].mean + pair[1].margin)
  if similar:
    return f"**growing is better{_if_diverged(mine)}**", pair
  return f"growing is better{_if_diverged(mine)}, but has a larger budget: {_UNDECIDED}", pair


def _choice(study: Study, every: list[Candidate]) -> str:
  """The best of candidates that differ only in their waiting time, or a note that none is significantly better."""
  best, *rest = comparisons.ranked(every)
  text = ", ".join(f"{_wait(c)} {_value(study, c)}" for c in (best, *rest))
  if not rest:
    return text
  text += ": "
  found, missing = comparisons.with_each(best, rest)
  not_better = [pair for pair in found if not pair[1].better]
  if not found:
    return f"{text}{_UNDECIDED}{_not_compared(map(_wait, missing))}"
  if not_better:
    verdict = f"**{_wait(best)} is not significantly better than {', '.join(_wait(c) for c, _ in not_better)}**"
  else:
    verdict = _UNDECIDED if missing else f"**{_wait(best)} is best{_if_diverged(best)}**"
  return f"{text}{verdict}, {_difference(_closest(not_better or found)[1])}{_not_compared(map(_wait, missing))}"


def _budgets(study: Study, every: list[Candidate], others: list[str], column: str) -> list[str]:
  """The best kind within each power of ten of a cost, against the best kind of every other waiting time."""
  costs = [c.costs[column] for c in every if c.costs[column] > 0]
  lines: list[str] = []
  before: list[Candidate] = []
  powers = range(math.ceil(math.log10(min(costs))), math.ceil(math.log10(max(costs))) + 1) if costs else range(0)
  for power in powers:
    within = [c for c in every if c.costs[column] <= 10.0**power]
    if len(within) == len(before):
      continue  # the smaller budget allows the same kinds
    before, best = within, comparisons.ranked(within)[0]
    rivals = comparisons.best_of_each(WAITING, [c for c in within if c.row[WAITING] != best.row[WAITING]])
    text = f"{_wait(best)}, {studies.label(best.row, others)} ({_value(study, best)})"
    found, missing = comparisons.with_each(best, rivals)
    if found:
      not_better = [pair for pair in found if not pair[1].better]
      rival, difference = _closest(not_better or found)
      verdict = _UNDECIDED if not_better or missing else f"**{_wait(best)} is best{_if_diverged(best)}**"
      text += (f"; against the best at {_wait(rival)}: {studies.label(rival.row, others)} "
               f"({_value(study, rival)}), {_difference(difference)}; {verdict}")
    elif missing:
      text += f"; {_UNDECIDED}"
    text += _not_compared([f"{_wait(c)}, {studies.label(c.row, others)}" for c in missing])
    if not lines or not lines[-1].endswith(f": {text}."):  # a larger budget may have the same answer
      lines.append(f"- within 1e{power} {_BUDGET_NAMES[column]}: {text}.")
  return lines


def _closest(pairs: list[Pair]) -> Pair:
  """The pair with the highest upper end of the interval: its alternative comes closest to the first kind."""
  return max(pairs, key=lambda pair: (pair[1].mean + pair[1].margin, pair[1].mean))


def _waits(rows: pd.DataFrame) -> pd.DataFrame:
  """The rows that have a waiting time."""
  return rows.dropna(subset=[WAITING]) if WAITING in rows else rows.iloc[:0]


def _wait(candidate: Candidate) -> str:
  return f"w {plain(candidate.row[WAITING])}"


def _not_compared(names: Iterable[str]) -> str:
  """A clause about alternatives that share no seed with the kind of the line, or ""."""
  names = list(names)
  more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
  return f"; not compared, because no seed is shared: {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _if_diverged(candidate: Candidate) -> str:
  """The end of a verdict in favour of a kind of which some seeds diverged."""
  return _FINISHED if candidate.diverged else ""


def _share(value: float) -> str:
  return f"{value:.0%}" if value >= 0.01 else "below 1%"


def _difference(difference: Comparison) -> str:
  if difference.num == 1:
    return f"difference {difference.mean:+.3g} on one seed"
  if math.isinf(difference.margin):
    return f"difference {difference.mean:+.3g}, equal on all {difference.num} seeds"
  margin = f"{difference.margin:{'.2g' if difference.margin < 99.5 else '.0f'}}"
  return f"difference {difference.mean:+.3g} ± {margin} (95 % CI) on {difference.num} seeds"


def _value(study: Study, candidate: Candidate) -> str:
  """E.g. "CER 0.624", with the number of seeds that diverged if there are any."""
  total = candidate.diverged + len(candidate.values)
  diverged = f" with {studies.diverged_seeds(candidate.diverged, total)}" if candidate.diverged else ""
  return f"{study.measure.named(study.scoring.brief)} {candidate.mean:.4g}{diverged}"
