"""What the panels and the lines of a figure show: waiting times, factors, and the kinds of runs in them."""
import collections
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from alma_jax.errors import BadInput
from alma_jax.reports import drawing, studies
from alma_jax.reports.factors import order, plain, short
from alma_jax.reports.read import COMP, LEARNER, MEM, TOTAL, WAITING
from alma_jax.reports.studies import Study

COSTS = {COMP: "cumulative compute (multiply-adds)", MEM: "cumulative parameters"}  # names of axes
MOST = 5  # panels in a row or a column
Place = tuple[Any, Any]  # (waiting time, size of the networks, of those that grow at first); NaN: the runs have none
Corners = list[tuple[float, float]]  # (x, y) of those of a line
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

  There is a line for every learner, and for every value of the fields that vary for it within a panel. If one field
  varies for several learners, its values are dashes and fillings of markers, which the legend explains once for all
  learners, unless it is longer then.

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
    kinds = {}
    for learner in drawing.in_order(rows[LEARNER].unique()):
      parts = [table[table[LEARNER] == learner] for table in found]
      fields = [field for field in own if any(part[field].nunique(dropna=False) > 1 for part in parts)]
      self._fields[learner] = fields
      its = rows[rows[LEARNER] == learner].drop_duplicates(fields or [LEARNER])
      kinds[learner] = its.sort_values(fields, key=_ranks) if fields else its
    common = self._common(kinds, rows)
    self.keys = self._explained(study, kinds, common, marked) if common else self._one_by_one(study, kinds, marked)

  def _one_by_one(self, study: Study, kinds: Mapping[str, pd.DataFrame], marked: bool) -> list[Line2D]:
    """Gives each kind of run a key and an entry of the legend."""
    looks = collections.Counter[tuple[str, str]]()  # so far; learners of other packages may share theirs
    for learner, its in kinds.items():
      fields, look = self._fields[learner], drawing.style(learner)
      named = zip(studies.brief_labels(its.reset_index(), fields), its.iloc)
      for name, row in sorted(named, key=lambda item: "," in item[0]):  # first one without fields
        self._keys[studies.kind(row, fields)] = drawing.line_key(name, learner, looks[look], marked)
        looks[look] += 1
    return [*self._keys.values()]

  def _explained(self, study: Study, kinds: Mapping[str, pd.DataFrame], common: str, marked: bool) -> list[Line2D]:
    """Gives each kind of run a key; the legend has entries without the field `common`, and those of its values."""
    values, keys = _values(kinds.values(), common), list[Line2D]()
    for learner, its in kinds.items():
      fields = self._fields[learner]
      others = [field for field in fields if field != common]
      groups = [mine for _, mine in its.groupby(others, dropna=False, sort=False)] if others else [its]
      names = studies.brief_labels(pd.DataFrame([mine.iloc[0] for mine in groups]).reset_index(), others)
      for i, (name, mine) in enumerate(zip(names, groups)):
        keys.append(drawing.line_key(name, learner, drawing.NUM_LOOKS * i, marked))
        for _, row in mine.iterrows():
          look = values.index(row[common]) if common in fields else 0
          key = drawing.line_key(name, learner, drawing.NUM_LOOKS * i + look, marked)
          self._keys[studies.kind(row, fields)] = key
    names = [f"{short(common)} {plain(value)}" for value in values]
    return keys + drawing.look_keys(names, kinds, marked)

  def _common(self, kinds: Mapping[str, pd.DataFrame], rows: pd.DataFrame) -> str | None:
    """The field whose values the legend explains for all learners, or None."""
    if len(set(map(drawing.style, kinds))) < len(kinds):
      return None
    for field in dict.fromkeys(itertools.chain.from_iterable(self._fields.values())):
      have = [learner for learner, fields in self._fields.items() if field in fields]
      values = _values(kinds.values(), field)
      num = len(values)
      for learner, its in kinds.items():
        others = [other for other in self._fields[learner] if other != field]
        num += len(its[others].drop_duplicates()) if others else 1
      rest = rows.loc[~rows[LEARNER].isin(have), field].dropna()  # of learners that are drawn with the first look
      if (len(have) > 1 and 1 < len(values) <= drawing.NUM_LOOKS and num <= sum(map(len, kinds.values()))
          and all(kinds[learner][field].notna().all() for learner in have) and rest.isin(values[:1]).all()):
        return field
    return None

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
                  markersize=drawing.MARKER, linewidth=0.9, elinewidth=0.7, linestyle=key.get_linestyle(),
                  fillstyle=key.get_fillstyle(), capsize=1.2, capthick=0.7)


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


def rows(study: Study) -> tuple[list[tuple[Any, ...]], int]:
  """(values of the factors with panels of their own, for each row of panels that is shown; number of all rows).

  If there are more than fit, those of a single learner are left out first: they compare nothing.
  """
  shared, _ = split_factors(study)
  learners = collections.defaultdict[tuple[Any, ...], set[str]](set)
  for *values, learner in study.runs[[*shared, LEARNER]].itertuples(index=False):
    learners[tuple(values)].add(learner)
  every = sorted(learners, key=lambda values: [*map(order, values)])
  compared = [values for values in every if len(learners[values]) > 1]
  found = compared if compared and len(every) > MOST else every
  return [found[i] for i in some(len(found))], len(every)


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


def title(wait: Any, table: pd.DataFrame) -> list[str]:
  """The part of a panel's title that names the waiting time; `table`: what the panel shows."""
  if np.isnan(wait):
    return []
  return [f"w = {plain(wait)}{', other schedules' if table[WAITING].isna().any() else ''}"]


def wrapped(titles: Iterable[Sequence[str]], across: int) -> list[str]:
  """The titles of panels from their parts, in lines that are not wider than a panel of a figure of `across` columns.

  A line ends between two parts.
  """
  room = (width(across) - drawing.LEFT - drawing.RIGHT) / across
  return [drawing.wrapped(", ".join(part.replace(" ", "\xa0") for part in parts), room).replace("\xa0", " ")
          for parts in titles]


def bars(axes: Axes, line: pd.DataFrame, x: str, y: str) -> list[Corners]:
  """The ends of the bars of `draw_means`, as far as the axes reach."""
  lowest, deviations = axes.get_ylim()[0], line[f"{y}_sd"].fillna(0)
  return [[(at, max(middle - half, lowest)), (at, middle + half)]
          for at, middle, half in zip(line[x], line[y], deviations)]


def across(num: int) -> int:
  """The number of panels in a row of a figure of `num` panels."""
  return 2 if num == 4 else min(num, 3)


def width(across: int) -> float:
  """The width in inches of a figure with so many panels in a row: at most two have room in a column of a paper."""
  return drawing.COLUMN if across < 3 else drawing.WIDTH


def grid(figure: Figure, num: int, columns: int, shared: Literal["all", "row", "none"] = "all") -> list[Axes]:
  """`num` panels in rows of `columns`; the last row may be shorter. `shared`: which panels share their axes.

  If it is "row", they share the x axes of all, and the y axes of each row.
  """
  made = figure.subplots(-(-num // columns), columns, sharex=shared != "none", sharey=shared, squeeze=False)
  for axes in made.flat[num:]:
    axes.remove()
  found = list(made.flat[:num])
  for place, axes in enumerate(found):
    axes.tick_params(labelbottom=shared == "none" or place + columns >= num)
  return found


def shown(places: Sequence[Place], waits: Collection[float]) -> list[Place]:
  """The places that have panels: those of some waiting times, or all if there are none of these; as many as fit."""
  found = [place for place in places if place[0] in waits] or places
  return [found[i] for i in some(len(found))]


def some(num: int) -> list[int]:
  """Which of `num` panels are shown: all, or as many as fit, at equal distances."""
  return np.unique(np.linspace(0, num - 1, min(num, MOST)).round().astype(int)).tolist()


def _values(tables: Iterable[pd.DataFrame], field: str) -> list[Any]:
  """The values of a field, in their order."""
  return sorted(pd.concat([table[field] for table in tables]).dropna().unique(), key=order)


def _most_lines(study: Study, shared: list[str], own: list[str]) -> int:
  """The largest number of lines of a panel."""
  kinds = study.runs[[LEARNER, WAITING, *shared, *own]].drop_duplicates()
  panels = kinds.groupby([WAITING, *shared], dropna=False).size()
  return int(panels.max())


def _ranks(column: pd.Series) -> pd.Series:
  """The places of a factor's values, which may be numbers and text, in their order."""
  places = {value: i for i, value in enumerate(sorted(column.unique(), key=order))}
  return column.map(places)
