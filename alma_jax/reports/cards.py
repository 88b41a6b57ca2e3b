"""What a reader wants to know first: the headline of a study, and cards with short answers from its runs."""
import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.messages import brief_number, duration
from alma_jax.reports import findings, studies, tables
from alma_jax.reports.collect import BASELINE, TRANSFER
from alma_jax.reports.findings import Candidate
from alma_jax.reports.read import COMP, FLOPS, LEARNER, MEMORY, SEED, WAITING
from alma_jax.reports.studies import Study, plain, short

_NEAR = 0.1  # the share of the best score within which a cheaper kind is as good
_POINT = 0.01  # the accuracy within which a kind of run on tasks is as good, and forgets
_ROUNDING = 1e-6  # a smaller deviation, relative to the mean, is rounding
_PLURALS = {"stream.waiting_time": "waiting times", "model.width": "widths", "model.num_experts": "numbers of experts"}


class Card(NamedTuple):
  """A question with its answer.

  Attributes:
    question: e.g. "Best".
    answer: e.g. "ens, w = 1".
    value: e.g. "CER 1.80 ± 0.15"; "" for none.
    details: text without a full stop.
    learner: whose colour the answer has; "" for none.
  """
  question: str
  answer: str
  value: str
  details: str
  learner: str = ""

  @property
  def line(self) -> str:
    """A Markdown list item."""
    colon = "" if self.question.endswith("?") else ":"
    return f"- **{self.question}{colon}** {self.answer}{self.value and f', {self.value}'} ({self.details})."


def headline(study: Study, alone: bool = True) -> str:
  """E.g. "digits: 8 runs, 2 learners, 2 waiting times"; the name of the stream is whole if it is not `alone`."""
  learners = study.runs[LEARNER].unique()
  runs = _several(len(study.runs), "run")
  parts = [runs, _several(len(learners), "learner")] if len(learners) > 1 else [f"{runs} of {learners[0]}"]
  parts += [f"{num} {_PLURALS[field]}" for field in study.factors
            if field in _PLURALS and (num := study.runs[field].nunique()) > 1]
  return f"{study.name.split(', ')[0] if alone else study.name}: {', '.join(parts)}"


def about(study: Study) -> str:
  """What the headline leaves out, e.g. "20 mega-batches · 2 seeds · 10.6 G multiply-adds and 14 s in all"."""
  stream, cost, seeds = study.name.split(", ")[1:], FLOPS if study.tasks else COMP, study.runs[SEED].nunique()
  varied = [f"{study.runs[field].nunique(dropna=False)} values of {short(field)}" for field in study.factors
            if field not in _PLURALS]
  spent = [f"{brief_number(study.runs[cost].sum())} {'floating-point operations' if study.tasks else 'multiply-adds'}"]
  if "wall_seconds" in study.runs:
    spent.append(duration(study.runs["wall_seconds"].sum()))
  return " · ".join([*stream, *varied, *([f"{seeds} seeds"] if seeds > 1 else []), f"{' and '.join(spent)} in all"])


def of(study: Study, growth: Sequence[findings.Growth]) -> list[Card]:
  """The cards that the study has the runs for; `growth` comes from findings.growth."""
  if study.tasks:
    return _of_tasks(study)
  every = findings.candidates_of(study, studies.kinds(study), study.scoring.overall)
  best, *others = findings.ranked(every)
  if not others:
    return _of_one(study, best)
  value = f"{study.scoring.overall_name} {_spread(best)}"
  cards = [Card("Best", _name(study, best.row), value, _lead(study, best, others), best.row[LEARNER])]
  return [*cards, *filter(None, (_cheaper(study, best, others), _waiting(study, every), _growth(growth)))]


def _of_one(study: Study, only: Candidate) -> list[Card]:
  """The cards of a single kind of run."""
  (score, value), *further = ((head, tables.mean(study.runs[column].mean(), study.runs[column].std(), form))
                              for column, (head, form) in study.scoring.columns.items())
  details = " · ".join(map(" ".join, further)) or "lower is better"
  return [Card(score, value, "", details, only.row[LEARNER]),
          Card("Cost", brief_number(only.costs[COMP]), "", "multiply-adds of the forward passes in training"),
          Card("Size", brief_number(study.runs["last_params"].max()), "", "parameters at the end of the stream")]


def _lead(study: Study, best: Candidate, others: list[Candidate]) -> str:
  """Whether the best kind is significantly better than the others."""
  pairs, missing = findings.with_each(best, others)
  closest, num = min(others, key=lambda each: each.mean), len(others)
  if not missing and all(difference.is_lower for _, difference in pairs):
    lead = f"the lead is significant{best.on_finished}"
  elif all(difference.num == 1 for _, difference in pairs):
    lead = "one seed cannot show whether the lead is significant"
  else:
    lead = f"no significant lead ({len(best.values)} seeds, {_several(num, 'comparison')})"
  return f"next {_name(study, closest.row)} with {_spread(closest)}; {lead}"


def _cheaper(study: Study, best: Candidate, others: list[Candidate]) -> Card | None:
  """The cheapest kind that is nearly as good as the best; if there is none, the best one that is cheaper."""
  cost = best.costs[COMP]
  cheaper = [each for each in others if each.costs[COMP] < 0.95 * cost]
  near = [each for each in cheaper if each.mean <= (1 + _NEAR) * best.mean]
  if not cheaper or not best.mean:
    return None
  choice = min(near, key=lambda each: each.costs[COMP]) if near else min(cheaper, key=lambda each: each.mean)
  spent = f"{brief_number(choice.costs[COMP])} instead of {brief_number(cost)} multiply-adds"
  return Card(f"Cheapest within {100 * _NEAR:.0f} % of the best" if near else "Next best for less compute",
              _name(study, choice.row), f"{study.scoring.overall_name} {_spread(choice)}",
              f"{100 * (choice.mean / best.mean - 1):+.0f} %, for {spent}", choice.row[LEARNER])


def _waiting(study: Study, every: list[Candidate]) -> Card | None:
  """The waiting time that is best for most kinds that differ in it alone."""
  alike: dict[studies.Key, list[Candidate]] = {}
  for each in every:
    if not pd.isna(each.row.get(WAITING)):
      alike.setdefault(studies.key(each.row, [f for f in study.factors if f != WAITING]), []).append(each)
  groups = [group for group in alike.values() if len(group) > 1]
  if not groups:
    return None
  ranked = [findings.ranked(group) for group in groups]
  waits = collections.Counter(plain(first.row[WAITING]) for first, *_ in ranked).most_common()
  if len(ranked) == 1:
    first, *rest = ranked[0]
    value, details = f"{study.scoring.overall_name} {_spread(first)}", _lead(study, first, rest)
  else:
    what = "learner" if len(groups) == study.runs[LEARNER].nunique() else "setting"
    others = "".join(f", w\xa0=\xa0{wait} for {num}" for wait, num in waits[1:4])
    value, details = "", f"lowest {study.scoring.overall_name} for {waits[0][1]} of {len(groups)} {what}s{others}"
  answer = " or ".join(f"w = {wait}" for wait, num in waits if num == waits[0][1])
  return Card("Which waiting time?", answer, value, details)


def _growth(found: Sequence[findings.Growth]) -> Card | None:
  """In how many comparisons growing paid."""
  verdicts = [each.verdict for each in found if each.verdict]
  if not verdicts:
    return None
  better, worse, undecided = map(verdicts.count, (findings.GROWING, findings.FIXED, findings.UNDECIDED))
  answer = f"In {better or 'none'} of {_several(len(verdicts), 'case')}"
  if better == len(verdicts):
    answer = f"Yes, in all {better} cases" if better > 1 else "Yes, in the only case"
  return Card("Did growing pay?", answer, "", f"a fixed learner of equal compute and memory won {worse}; {undecided} "
              "undecided")


def _of_tasks(study: Study) -> list[Card]:
  points = tables.task_points(study)
  best, spread = points.iloc[0], lambda row, column: tables.mean(row[column], row[f"{column}_sd"], ".3f")
  accuracy = lambda row: f"accuracy {spread(row, tables.AVERAGE)}"
  cards = [Card("Best" if len(points) > 1 else "Accuracy", _name(study, best), accuracy(best),
                "mean over all tasks after the last one", best[LEARNER])]
  near = points[points[tables.AVERAGE] >= best[tables.AVERAGE] - _POINT]
  for what, column, unit in (("Cheapest", FLOPS, "floating-point operations"), ("Smallest", MEMORY, "parameters")):
    row = near.loc[near[column].idxmin()]
    if row[column] < 0.95 * best[column]:
      cards.append(Card(f"{what} within a point of the best", _name(study, row), accuracy(row),
                        f"for {brief_number(row[column])} instead of {brief_number(best[column])} {unit}",
                        row[LEARNER]))
  forgets = points[points["forgetting"] < -_POINT].sort_values("forgetting")
  cards.append(Card("Who forgets?", f"{len(forgets)} of {len(points)}" if len(forgets) else "No one", "", ", ".join(
      f"{_name(study, row)} {spread(row, 'forgetting')}" for _, row in forgets.head(4).iterrows())
      or "no accuracy falls by more than a point after its task"))
  helped = points[(points[LEARNER] != BASELINE) & points[TRANSFER].notna()]
  if len(helped):
    row = helped.loc[helped[TRANSFER].idxmax()]
    cards.append(Card("Most transfer to the last task", _name(study, row), f"{row[TRANSFER]:+.3f} accuracy",
                      f"against {BASELINE}, which learns each task alone", row[LEARNER]))
  return cards


def _name(study: Study, row: Any) -> str:
  """E.g. "ens, width = 32, w = 10": the learner, and the fields in which its kinds differ."""
  mine, parts = study.runs[study.runs[LEARNER] == row[LEARNER]], [row[LEARNER]]
  for field in study.factors:
    if mine[field].nunique(dropna=False) < 2 or pd.isna(row[field]):
      continue
    if studies.is_switch(mine[field]):
      parts += [short(field)] if row[field] else []
    else:
      parts.append(f"{short(field)}\xa0=\xa0{plain(row[field])}")
  return ", ".join(parts)


def _spread(candidate: Candidate) -> str:
  """E.g. "1.80 ± 0.15 (1 of 3 seeds diverged)": two digits of the deviation, or three of a value without one."""
  deviation = candidate.deviation if candidate.deviation > _ROUNDING * abs(candidate.mean) else math.nan
  size = abs(candidate.mean) if math.isnan(deviation) else 10 * deviation
  digits = max(0, 2 - math.floor(math.log10(size))) if size else 0
  diverged = f" ({candidate.kind.divergence})" if candidate.kind.diverged else ""
  return tables.mean(candidate.mean, deviation, f".{digits}f") + diverged


def _several(num: int, what: str) -> str:
  return f"{num} {what}{'s' * (num != 1)}"
