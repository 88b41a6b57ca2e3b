"""The size of runs: parameters, and the experts and members of language models."""
import re
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.reports.read import LEARNER
from alma_jax.reports.studies import Kind, Study, kind


class Experts(NamedTuple):
  """The experts of a language model.

  Attributes:
    each: experts of every mixture of a member.
    members: members of the ensemble; None: the learner is a single network.
  """
  each: int
  members: int | None

  @property
  def total(self) -> int:
    """Experts of all members, in one layer."""
    return self.each * (self.members or 1)

  def __str__(self) -> str:
    """As in the paper: "4", or "4@2" for two members."""
    return f"{self.each}" if self.members is None else f"{self.each}@{self.members}"


def field(study: Study) -> str | None:
  """The field that the sizes of a learner's networks differ in, or None."""
  return next((name for name in ("model.width", "model.num_experts") if name in study.factors), None)


def cells(study: Study) -> dict[Kind, dict[str, str]]:
  """{kind: {head: text}} for a table: parameters, and the experts of language models.

  The text gives the smallest number of parameters of all seeds at the start, and the largest one at the end.
  """
  found = {}
  for _, mine in study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False):
    row = mine.iloc[0]
    first, last = number(mine["first_params"].min()), number(mine["last_params"].max())
    texts = {"experts": _span(*map(str, experts(row)))} if study.scoring.counts_experts else {}
    found[kind(row, study.factors)] = texts | {"parameters": _span(first, last)}
  return found


def experts(row: Any) -> tuple[Experts, Experts]:
  """The Experts of a language run in its first and in its last stage, from the fields of its config.

  The fields, not the learner's name, say how a learner grows: `learner.add_experts` are added before the later stages,
  `learner.members_per_stage` members are added by every stage, and `learner.num_members` stay the same.
  """
  num_stages, each = int(row["num_stages"]), int(row["model.num_experts"])
  added = sum(_numbers(row.get("learner.add_experts"))[:num_stages - 1])
  fixed, growing = (_numbers(row.get(f"learner.{field}")) for field in ("num_members", "members_per_stage"))
  first = fixed[0] if fixed else growing[0] if growing else None
  last = growing[0] * num_stages if growing and not fixed else first
  return Experts(each, first), Experts(each + added, last)


def number(value: float) -> str:
  """E.g. "16", "17.3k", "2.63M"."""
  power = next((p for p in (9, 6, 3) if value >= 10**p), 0)
  return f"{value / 10**power:.3g}" + {9: "B", 6: "M", 3: "k", 0: ""}[power]


def _span(first: str, last: str) -> str:
  return first if first == last else f"{first} to {last}"


def _numbers(value: Any) -> list[int]:
  """The whole numbers of a field, e.g. of 3 or "[2, 2, 4]"; empty if the run lacks the field, or it is not a number."""
  if isinstance(value, float) and not pd.isna(value):  # a column of integers that other runs lack
    value = f"{value:g}"
  text = str(value).strip("[]()")
  return [int(part) for part in text.split(",")] if re.fullmatch(r" *\d+( *, *\d+)* *", text) else []
