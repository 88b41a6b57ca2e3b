"""What the panels and the lines of a figure show: waiting times, factors, and the kinds of runs in them."""
import collections
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from alma_jax.errors import BadInput
from alma_jax.reports import drawing, studies
from alma_jax.reports.factors import order, plain
from alma_jax.reports.read import COMP, LEARNER, MEM, TOTAL, WAITING
from alma_jax.reports.studies import Study

COSTS = {COMP: "cumulative compute (multiply-adds)", MEM: "cumulative parameters"}  # names of axes
MOST = 5  # panels in a row or a column
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


class Lines:
  """The lines of all panels of a figure. A kind of run has the same name and the same look in every panel.

  There is a line for every learner, and for every value of the fields that vary for it within a panel.

  Attributes:
    keys: the entries of the legend, in the order of the learners.
  """

  def __init__(self, study: Study, tables: Iterable[pd.DataFrame], own: list[str], marked: bool):
    """Names the lines.

    Args:
      study: Study.
      tables: the rows of each panel.
      own: fields that have no panels of their own.
      marked: whether lines have the markers of the learners.
    """
    found = list(tables)
    rows = pd.concat(found)
    self._fields: dict[str, list[str]] = {}
    self._keys: dict[studies.Kind, Line2D] = {}
    looks = collections.Counter[tuple[str, str]]()  # so far; learners of other packages may share theirs
    for learner in drawing.in_order(rows[LEARNER].unique()):
      parts = [table[table[LEARNER] == learner] for table in found]
      fields = [field for field in own if any(part[field].nunique(dropna=False) > 1 for part in parts)]
      self._fields[learner] = fields
      kinds = rows[rows[LEARNER] == learner].drop_duplicates(fields or [LEARNER])
      kinds = kinds.sort_values(fields, key=_ranks) if fields else kinds
      named = zip(studies.brief_labels(study, kinds.reset_index(), fields), kinds.iloc)
      for name, row in sorted(named, key=lambda item: "," in item[0]):  # first one without fields
        look = drawing.style(learner)
        self._keys[studies.kind(row, fields)] = drawing.line_key(name, learner, looks[look], marked)
        looks[look] += 1
    self.keys = [*self._keys.values()]

  def of(self, table: pd.DataFrame, by: str = "") -> Iterator[tuple[Line2D, pd.DataFrame]]:
    """(entry of the legend, rows) of each line of a panel; the rows ascend by the column `by`, if it is given."""
    for learner in drawing.in_order(table[LEARNER].unique()):
      mine, fields = table[table[LEARNER] == learner], self._fields[learner]
      for _, rows in mine.groupby([LEARNER, *fields], dropna=False, sort=False):
        yield self._keys[studies.kind(rows.iloc[0], fields)], rows.sort_values(by) if by else rows


def means(study: Study, *columns: str) -> pd.DataFrame:
  """studies.means with the waiting time in every row, also if it does not vary."""
  table = studies.means(study, *columns)
  return table if WAITING in table else table.assign(**{WAITING: waits(study)[0]})


def draw_means(axes: Axes, lines: Iterable[tuple[Line2D, pd.DataFrame]], x: str, y: str) -> None:
  """Draws lines of `means` with their deviations."""
  for key, line in lines:
    axes.errorbar(line[x], line[y], yerr=line[f"{y}_sd"].fillna(0), color=key.get_color(), marker=key.get_marker(),
                  markersize=5, linewidth=1, linestyle=key.get_linestyle(), fillstyle=key.get_fillstyle(),
                  capsize=1.5)


def waits(study: Study, chosen: Collection[float] = ()) -> list[Any]:
  """The waiting times that figures show, ascending; [NaN] if no run has one.

  Args:
    study: Study.
    chosen: those of which the study has runs are shown; empty: all, or as many as fit. Those that do not fit are first
      the whole stream, because its only training ends it.
  """
  values = sorted(study.runs[WAITING].dropna().unique()) or [np.nan]
  if any(value in chosen for value in values):
    return [value for value in values if value in chosen]
  if len(values) > MOST:
    values = [value for value in values if value < study.runs[TOTAL].max()]
  return [values[i] for i in some(len(values))]


def check(chosen: Collection[float], found: Iterable[Study]) -> None:
  """Raises BadInput if a chosen waiting time is in none of some studies, or if they are too many for a figure."""
  there = sorted({wait for study in found if not study.tasks for wait in study.runs[WAITING].dropna()})
  for wait in chosen:
    if wait not in there:
      its = f"those of the runs are {', '.join(map(plain, there))}" if there else "no run has one"
      raise BadInput(f"--waiting_times: no run has the waiting time {plain(wait)}; {its}.")
  if len(set(chosen)) > MOST:
    raise BadInput(f"--waiting_times names {len(set(chosen))} panels in a row; name at most {MOST}.")


def at(table: pd.DataFrame, wait: Any) -> Any:
  """Which rows are in the panel of a waiting time."""
  return (table[WAITING] == wait) | table[WAITING].isna()


def title(wait: Any) -> list[str]:
  return [] if np.isnan(wait) else [f"w = {plain(wait)}"]


def across(num: int) -> int:
  """The number of panels in a row of a figure of `num` panels."""
  return 2 if num == 4 else min(num, 3)


def grid(figure: Figure, num: int, columns: int) -> list[Axes]:
  """`num` panels that share their axes, in rows of `columns`; the last row may be shorter."""
  made = figure.subplots(-(-num // columns), columns, sharex=True, sharey=True, squeeze=False)
  for axes in made.flat[num:]:
    axes.remove()
  found = list(made.flat[:num])
  for place, axes in enumerate(found):
    axes.tick_params(labelbottom=place + columns >= num)
  return found


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
