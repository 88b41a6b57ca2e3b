"""Findings: sentences that answer the paper's practical questions from the runs of a study.

A kind of run is called best, or better, only if it is significantly better than every alternative (see `statistics`);
else the line says so. A run that diverged has no value, which favours its kind: a verdict in favour of a kind with such
seeds ends with "on the seeds that finished", and each line that gives its value also gives their number.
"""
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.messages import brief_number
from alma_jax.reports import statistics, studies
from alma_jax.reports.read import COMP, LEARNER, MEM, SEED, WAITING
from alma_jax.reports.statistics import Estimate
from alma_jax.reports.studies import Kind, Study, label, plain

SLACK, NEAR = 1.05, 0.8  # a budget is not larger up to this ratio, and similar from this ratio on
_BUDGETS = {COMP: "multiply-adds", MEM: "cumulative parameters"}
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
GROWING, FIXED, UNDECIDED = "growing is better", "the fixed learner is better", "undecided"  # verdicts
_UNDECIDED = f"**{UNDECIDED}**"


class Growth(NamedTuple):
  """A Markdown line about a kind that grew, and its verdict; "" if it was compared with nothing."""
  line: str
  verdict: str = ""


class Candidate(NamedTuple):
  """A kind of run that can be compared.

  Attributes:
    kind: with a finished run.
    values: {seed: CER or perplexity}; lower is better.
    costs: {column of _BUDGETS: mean}.
    grew: whether its parameters increased from the first to the last mega-batch.
  """
  kind: Kind
  values: dict[int, float]
  costs: dict[str, float]
  grew: bool

  @property
  def row(self) -> Any:
    """One of its runs."""
    return self.kind.row

  @property
  def mean(self) -> float:
    """Over its seeds."""
    return float(np.mean(list(self.values.values())))

  @property
  def deviation(self) -> float:
    """Over its seeds; NaN for one."""
    return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else math.nan

  @property
  def on_finished(self) -> str:
    """The end of a verdict in its favour if some of its seeds diverged."""
    return " on the seeds that finished" if self.kind.diverged else ""


Pair = tuple[Candidate, Estimate]  # an alternative, and the difference of a candidate from it


def waiting_times(study: Study) -> list[str]:
  """The best waiting time of every learner and size, and within every budget of compute and of memory.

  Returns:
    Markdown lines; empty if all runs have the same waiting time.
  """
  # A run whose schedule does not use a waiting time is no alternative here.
  kinds = [kind for kind in studies.kinds(study) if not _is_missing(kind.row.get(WAITING))]
  if len({kind.row[WAITING] for kind in kinds}) < 2:
    return []
  lines = []
  if study.scoring.averages:
    lines.append(f"- Waiting times are compared by the {study.scoring.overall_name}, because a learner that waits "
                 "longer averages over fewer and later updates.")
  others = [field for field in study.factors if field != WAITING]
  groups: dict[str, list[Kind]] = {}
  for kind in kinds:
    groups.setdefault(label(kind.row, others), []).append(kind)
  for name, group in groups.items():
    if len(group) > 1:
      candidates = candidates_of(study, group, study.scoring.overall)
      texts = [_choice(study, candidates)] if candidates else []
      texts += [f"{_wait(kind.row)}: {kind.divergence}" for kind in group if kind.runs.empty]
      lines.append(f"- {name}: {'; '.join(texts)}.")
  candidates = candidates_of(study, kinds, study.scoring.overall)
  if len({each.row[WAITING] for each in candidates}) > 1:
    lines += [line for column in _BUDGETS for line in _budgets(study, candidates, others, column)]
  return lines


def growth(study: Study) -> list[Growth]:
  """Each kind that grew against fixed learners with the same waiting time, within its compute and memory.

  Of every fixed learner the best kind within the budgets is compared. Growing is called better only if one of the
  fixed kinds had similar budgets. Of a stream of tasks there are none.
  """
  if study.tasks:
    return []
  kinds = studies.kinds(study)
  candidates = candidates_of(study, kinds, study.scoring.score)
  growing = {each.row[LEARNER] for each in candidates if each.grew}
  lost = [kind for kind in kinds if kind.runs.empty and kind.row[LEARNER] in growing]
  return [*(_growth(study, each, candidates) for each in candidates if each.grew),
          *(Growth(f"- {label(kind.row, study.factors)}: {kind.divergence}.") for kind in lost)]


def candidates_of(study: Study, kinds: Iterable[Kind], score: str) -> list[Candidate]:
  """The candidates of the kinds with a finished run."""
  return [Candidate(kind, dict(zip(kind.runs[SEED], kind.runs[score])),
                    {column: kind.runs[column].mean() for column in _BUDGETS},
                    bool((kind.runs["last_params"] > kind.runs["first_params"]).any()))
          for kind in kinds if len(kind.runs)]


# ------------------------------------------------------------------------------------------------------------ lines

def _growth(study: Study, grown: Candidate, every: list[Candidate]) -> Growth:
  """The line about one kind that grew."""
  timing = [field for field in ("stream.schedule", WAITING) if not _is_missing(grown.row.get(field))]
  within = [c for c in every if not c.grew and all(c.row.get(field) == grown.row[field] for field in timing)
            and all(c.costs[column] <= SLACK * grown.costs[column] for column in _BUDGETS)]
  pairs, missing = with_each(grown, within)
  rivals = _best_of_each(LEARNER, [c for c, _ in pairs])
  # The confidence level is that of all pairs, because the rivals are chosen from all of them.
  pairs = [pair for pair in pairs if any(pair[0] is rival for rival in rivals)]
  text = f"- {label(grown.row, study.factors)}"
  if not pairs:
    return Growth(f"{text}: no fixed learner within its compute and memory has a finished run with one of its seeds.")
  similar = any(all(c.costs[column] >= NEAR * grown.costs[column] for column in _BUDGETS) for c in within)
  verdict, told, (rival, difference) = _growth_verdict(grown, pairs, bool(missing), similar)
  shares = ", ".join(f"{_share(rival.costs[column] / grown.costs[column])} of the {what}"
                     for column, what in ((COMP, "compute"), (MEM, "memory")))
  return Growth(f"{text} ({_value(study, grown)}) against {label(rival.row, study.factors)} ({_value(study, rival)}; "
                f"{shares}): {told}, {_difference(difference)}"
                f"{_not_compared(label(c.row, study.factors) for c in missing)}.", verdict)


def _growth_verdict(grown: Candidate, pairs: list[Pair], missing: bool, similar: bool
                    ) -> tuple[str, str, Pair]:
  """(verdict, the same in Markdown, the pair that decides it).

  Args:
    grown: the kind that grew.
    pairs: its comparisons with fixed kinds, at least one.
    missing: whether a fixed kind within its budgets shares no seed with it.
    similar: whether a fixed kind has similar budgets.
  """
  worse = [pair for pair in pairs if pair[1].is_higher]
  worse = [pair for pair in worse if not pair[0].kind.diverged] or worse  # prefer rivals without a diverged seed
  if worse:
    pair = max(worse, key=lambda pair: pair[1].mean - pair[1].margin)
    return FIXED, f"**{FIXED}{pair[0].on_finished}**", pair
  not_better = [pair for pair in pairs if not pair[1].is_lower]
  if missing or not_better:
    return UNDECIDED, _UNDECIDED, max(not_better or pairs, key=lambda pair: pair[1].mean)
  told, pair = f"{GROWING}{grown.on_finished}", _closest(pairs)
  if similar:
    return GROWING, f"**{told}**", pair
  return UNDECIDED, f"{told}, but has a larger budget: {_UNDECIDED}", pair


def _choice(study: Study, candidates: list[Candidate]) -> str:
  """The best of candidates that differ only in their waiting time, or a note that none is significantly better."""
  best, *rest = ranked(candidates)
  text = ", ".join(f"{_wait(c.row)} {_value(study, c)}" for c in (best, *rest))
  if not rest:
    return text
  pairs, missing = with_each(best, rest)
  not_compared = _not_compared(_wait(c.row) for c in missing)
  if not pairs:
    return f"{text}: {_UNDECIDED}{not_compared}"
  not_better = [pair for pair in pairs if not pair[1].is_lower]
  if not_better:
    rivals = ", ".join(_wait(c.row) for c, _ in not_better)
    verdict = f"**{_wait(best.row)} is not significantly better than {rivals}**"
  else:
    verdict = _UNDECIDED if missing else _is_best(best)
  return f"{text}: {verdict}, {_difference(_closest(not_better or pairs)[1])}{not_compared}"


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
    before, best = within, ranked(within)[0]
    rivals = _best_of_each(WAITING, [c for c in within if c.row[WAITING] != best.row[WAITING]])
    text = f"{_wait(best.row)}, {label(best.row, others)} ({_value(study, best)})"
    pairs, missing = with_each(best, rivals)
    if pairs:
      not_better = [pair for pair in pairs if not pair[1].is_lower]
      rival, difference = _closest(not_better or pairs)
      text += (f"; against the best at {_wait(rival.row)}: {label(rival.row, others)} ({_value(study, rival)}), "
               f"{_difference(difference)}; {_UNDECIDED if not_better or missing else _is_best(best)}")
    elif missing:
      text += f"; {_UNDECIDED}"
    text += _not_compared(f"{_wait(c.row)}, {label(c.row, others)}" for c in missing)
    if not lines or not lines[-1].endswith(f": {text}."):  # a larger budget may have the same answer
      lines.append(f"- within {brief_number(10.0**power)} {_BUDGETS[column]}: {text}.")
  return lines


# ------------------------------------------------------------------------------------------------------ comparisons

def with_each(candidate: Candidate, others: Sequence[Candidate]) -> tuple[list[Pair], list[Candidate]]:
  """(a Pair for each of `others` that shares a seed with a candidate, those that share none)."""
  compared = [(other, statistics.compare(candidate.values, other.values, len(others))) for other in others]
  return ([(other, difference) for other, difference in compared if difference],
          [other for other, difference in compared if not difference])


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
  """Candidates, ordered by the number of others that have a lower mean on the shared seeds."""
  def loses(candidate: Candidate, other: Candidate) -> bool:
    """Whether `other` has the lower mean on shared seeds; also True if no seed is shared."""
    seeds = candidate.values.keys() & other.values.keys()
    return not seeds or sum(candidate.values[seed] - other.values[seed] for seed in seeds) > 0

  return sorted(candidates, key=lambda c: (sum(loses(c, other) for other in candidates if other is not c), c.mean))


def _best_of_each(field: str, candidates: Iterable[Candidate]) -> list[Candidate]:
  """The best candidate for each value of a field."""
  groups: dict[Any, list[Candidate]] = {}
  for candidate in candidates:
    groups.setdefault(candidate.row[field], []).append(candidate)
  return [ranked(group)[0] for group in groups.values()]


def _closest(pairs: list[Pair]) -> Pair:
  """The pair with the highest upper end of the interval: its alternative comes closest to the first kind."""
  return max(pairs, key=lambda pair: (pair[1].mean + pair[1].margin, pair[1].mean))


# ------------------------------------------------------------------------------------------------------------- text

def _is_best(candidate: Candidate) -> str:
  return f"**{_wait(candidate.row)} is best{candidate.on_finished}**"


def _wait(row: Any) -> str:
  return f"w {plain(row[WAITING])}"


def _is_missing(value: Any) -> bool:
  return value is None or value != value  # None or NaN


def _not_compared(names: Iterable[str]) -> str:
  """A clause about alternatives that share no seed with the kind of the line, or ""."""
  names = list(names)
  more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
  return f"; not compared, because no seed is shared: {', '.join(names[:_MOST_NAMED])}{more}" if names else ""


def _share(value: float) -> str:
  return f"{value:.0%}" if value >= 0.01 else "below 1%"


def _difference(difference: Estimate) -> str:
  if difference.num == 1:
    return f"difference {difference.mean:+.3g} on one seed"
  if math.isinf(difference.margin):
    return f"difference {difference.mean:+.3g}, equal on all {difference.num} seeds"
  margin = f"{difference.margin:{'.2g' if difference.margin < 99.5 else '.0f'}}"
  return f"difference {difference.mean:+.3g} ± {margin} (95 % CI) on {difference.num} seeds"


def _value(study: Study, candidate: Candidate) -> str:
  """E.g. "CER 0.624", with the number of seeds that diverged if there are any."""
  diverged = f" with {candidate.kind.divergence}" if candidate.kind.diverged else ""
  return f"{study.scoring.brief} {candidate.mean:.4g}{diverged}"
