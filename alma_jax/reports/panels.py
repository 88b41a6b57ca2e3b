"""What the panels and the lines of a figure show: waiting times, factors, and the kinds of runs in them."""
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.typing import FillStyleType

from alma_jax.reports import drawing, studies
from alma_jax.reports.factors import order, plain
from alma_jax.reports.read import LEARNER, WAITING
from alma_jax.reports.studies import Study

MOST = 5  # panels in a row or a column
_DASHES = ("-", "--", ":", "-.")  # of the lines of one learner
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "bottom")  # of their markers
_MOST_LINES = 10  # in a panel, if factors of the study can have panels of their own


def split_factors(study: Study) -> tuple[list[str], list[str]]:
  """(factors whose values have panels of their own, others), without the waiting time.

  The first ones are those that vary for several learners. Further ones join them if a panel had too many lines.
  """
  others = [f for f in study.factors if f != WAITING]
  every = [f for f in others if study.runs[f].notna().all()]
  shared = [f for f in every if (study.runs.groupby(LEARNER)[f].nunique() > 1).sum() > 1]
  for field in every:
    own = [f for f in others if f not in shared]
    if not own or _most_lines(study, shared, own) <= _MOST_LINES:
      break
    shared += [field] if field not in shared else []
  return shared, [f for f in others if f not in shared]


def lines(study: Study, table: pd.DataFrame, own: list[str]) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
  """(name, colour, marker, rows) of every learner, and of every value of the fields `own` that vary for it."""
  for learner in drawing.in_order(table[LEARNER].unique()):
    mine = table[table[LEARNER] == learner]
    varying = [field for field in own if mine[field].nunique(dropna=False) > 1]
    groups = mine.sort_values(varying, key=_ranks).groupby(varying, dropna=False, sort=False) if varying else None
    parts = [mine] if groups is None else [rows for _, rows in groups]
    names = studies.brief_labels(study, pd.DataFrame([rows.iloc[0] for rows in parts]), varying)
    for name, rows in zip(names, parts):
      yield (name, *drawing.style(learner), rows)


def keys(study: Study, tables: Iterable[pd.DataFrame], own: list[str], marked: bool) -> dict[str, Line2D]:
  """{name: entry of a legend} of all lines of panels, in the order of the learners.

  Of one learner each line has other dashes and other markers, as long as they suffice.

  Args:
    study, own: see `lines`.
    tables: of each panel.
    marked: whether lines have the markers of the learners.
  """
  named = {name: (colour, marker) for table in tables for name, colour, marker, _ in lines(study, table, own)}
  found: dict[str, Line2D] = {}
  for learner in drawing.in_order(study.runs[LEARNER].unique()):
    mine = [name for name, style in named.items() if style == drawing.style(learner) and name not in found]
    for i, name in enumerate(sorted(mine, key=lambda name: "," in name)):  # first a name without fields
      colour, marker = named[name]
      found[name] = drawing.key(name, colour, marker if marked else "", _DASHES[i % len(_DASHES)])
      found[name].set_fillstyle(_FILLS[i % len(_FILLS)])
  return found


def waits(runs: pd.DataFrame) -> list[Any]:
  """The waiting times that figures show, ascending; [NaN] if no run has one."""
  values = sorted(runs[WAITING].dropna().unique()) or [np.nan]
  return [values[i] for i in some(len(values))]


def at(table: pd.DataFrame, wait: Any) -> Any:
  """Which rows are in the panel of a waiting time."""
  return (table[WAITING] == wait) | table[WAITING].isna()


def title(wait: Any) -> list[str]:
  return [] if np.isnan(wait) else [f"w = {plain(wait)}"]


def some(num: int) -> list[int]:
  """Which of `num` panels are shown: all, or as many as fit, at equal distances."""
  return np.unique(np.linspace(0, num - 1, min(num, MOST)).round().astype(int)).tolist()


def _most_lines(study: Study, shared: list[str], own: list[str]) -> int:
  """The largest number of lines of a panel."""
  kinds = study.runs[[LEARNER, WAITING, *shared, *own]].drop_duplicates()
  panels = kinds.groupby([WAITING, *shared], dropna=False).size()
  return int(panels.max())


def _ranks(column: pd.Series) -> pd.Series:
  """The places of a factor's values, which may be numbers and text, in their order."""
  places = {value: i for i, value in enumerate(sorted(column.unique(), key=order))}
  return column.map(places)
