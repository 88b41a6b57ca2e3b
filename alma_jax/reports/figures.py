"""Figures of a study, as in the paper."""
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alma_jax.reports import drawing, sizes, studies
from alma_jax.reports.factors import plain, short
from alma_jax.reports.read import LEARNER, WAITING
from alma_jax.reports.studies import Study

EXPERTS = "last_experts"  # a column that `against` adds: the experts of all members at the end of the stream
_COMP, _REPLAY = "cumulative_fwd_macs", "stream.replay"
_MOST_PANELS = 5  # in a row or a column
_COSTS = {_COMP: "cumulative compute (multiply-adds)", "cumulative_params": "cumulative parameters"}


def all_of(study: Study) -> dict[str, tuple[str, Figure]]:
  """Every figure that the study has the runs for: {name: (caption, figure)}."""
  found = {}
  with matplotlib.rc_context(drawing.RC):
    found["stream"] = (
        f"Test {study.metric} over the stream: mean over seeds, with a band from the lowest to the highest value. "
        f"As in the paper's Figures 1, 3 and 9.{_left_out(study)}", over_the_stream(study))
    for column, name in ((_COMP, "compute"), ("cumulative_params", "parameters")):
      size = _size(study)
      joins = f" A line joins the sizes of a learner (numbers: {short(size)})." if size else ""
      found[name] = (
          f"{_title(study)} against {_COSTS[column]}: mean ± standard deviation over seeds.{joins} Rings and the "
          f"dotted line show the Pareto front of all runs{' with the same waiting time' if study.is_language else ''}. "
          f"As in the paper's Figure{' 5' if study.is_language else 's 2 and 7'}.{_left_out(study, rows=False)}",
          against(study, column))
    if study.is_language:
      found["experts"] = ("Average perplexity against the experts of all members at the end of the stream: mean ± "
                          "standard deviation over seeds. As in the paper's Figure 5."
                          f"{_left_out(study, rows=False)}", against(study, EXPERTS))
    if _replay_pairs(study):
      found["replay"] = (f"{_title(study)} against compute without replay (open markers) and with the most replay "
                         f"(filled markers, stream.replay up to {study.runs[_REPLAY].max():g}): means over seeds. "
                         f"As in the paper's Figures 4 and 8.{_without_diverged(study)}", replay(study))
  return found


def over_the_stream(study: Study) -> Figure:
  """Error or perplexity against mega-batches.

  The columns are waiting times. The rows are the values of the factors that all learners have. A factor that only some
  learners have, for example the number of members, gives lines of their own in the learner's colour.
  """
  runs = study.runs
  shared, own = _split_factors(study)
  columns = _levels(runs, WAITING)
  values = sorted(set(map(tuple, runs[shared].itertuples(index=False))),
                  key=lambda row: [(isinstance(value, str), value) for value in row])
  rows = [values[i] for i in _some(len(values))]
  figure = drawing.figure(3.1 * len(columns) + 0.7, 2.5 * len(rows) + 0.5)
  grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
  stream = study.stream.merge(runs[["run", LEARNER, WAITING, *shared, *own]], on="run", suffixes=("", "_"))
  ends = {}
  for axes_row, row in zip(grid, rows):
    for axes, wait in zip(axes_row, columns):
      mine = stream[stream[WAITING] == wait]
      for field, value in zip(shared, row):
        mine = mine[mine[field] == value]
      ends[axes] = _draw_stream(axes, mine, study.metric, own)
      fields = [f"{short(field)} = {plain(value)}" for field, value in zip(shared, row)]
      axes.set_title(", ".join([f"w = {wait}", *fields]))
  for axes in grid[-1]:
    axes.set_xlabel("mega-batches seen")
  for axes in grid[:, 0]:
    axes.set_ylabel(f"test {study.metric}")
  drawing.score_axes(grid.flat)
  for axes, mine in ends.items():  # once the shared limits are final
    drawing.label_ends(axes, mine)
  return figure


def _draw_stream(axes: Axes, stream: pd.DataFrame, metric: str, own: list[str]) -> list[tuple[Any, ...]]:
  """Draws one panel; returns the ends of its lines."""
  ends = []
  if stream.empty:
    axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="0.4")
  for name, colour, _, lines in _lines(stream, own):
    table = lines.groupby("t")[metric].agg(["mean", "min", "max"]).dropna()
    if table.empty:
      continue
    axes.plot(table.index, table["mean"], color=colour, linewidth=1.4, drawstyle="steps-mid",
              marker="o" if len(table) == 1 else None)
    axes.fill_between(table.index, table["min"], table["max"], color=colour, alpha=0.2, linewidth=0, step="mid")
    ends.append((name, table.index[-1], table["mean"].iloc[-1], colour))
  axes.set_yscale("log")
  axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
  return ends


def against(study: Study, column: str) -> Figure:
  """The score against a cost, or against EXPERTS, with a panel for every waiting time.

  Args:
    study: Study.
    column: cumulative_fwd_macs, cumulative_params, or EXPERTS (language models).
  """
  if column == EXPERTS:
    held = [sizes.experts(row)[1].total for _, row in study.runs.iterrows()]
    study = study._replace(runs=study.runs.assign(**{EXPERTS: held}))
  table, columns = studies.means(study, study.score, column), _levels(study.runs, WAITING)
  table[WAITING] = table[WAITING] if WAITING in table else columns[0]
  across = len(columns) if len(columns) < 3 else 2
  down = -(-len(columns) // across)
  figure = drawing.figure(4.8 * across + 0.7, 3.6 * down + 0.3)
  grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
  for axes in grid.flat[len(columns):]:
    axes.remove()
  panels = dict(zip(columns, grid.flat))
  labels = {}
  for wait, axes in panels.items():
    mine = table[table[WAITING] == wait]
    # The average perplexities of other waiting times are over other mega-batches.
    rivals = mine if study.is_language else table
    _draw_front(axes, mine, drawing.pareto(rivals[column], rivals[study.score]), column, study.score)
    labels[axes] = _draw_costs(axes, mine, study, column)
    axes.set_title(f"w = {wait}")
    if column in _COSTS:
      drawing.cost_axis(axes, table[column])
    axes.set_yscale("log")
    axes.set_xlabel(_COSTS.get(column, "experts of all members at the end"))
    axes.tick_params(labelbottom=True)
  for axes in grid[:, 0]:
    axes.set_ylabel(study.score_name)
  drawing.score_axes(panels.values())
  for axes, (ends, points) in labels.items():  # once the shared limits are final
    drawing.label_ends(axes, ends, beside=True)
    drawing.label_points(axes, points)
  return figure


def _draw_front(axes: Axes, table: pd.DataFrame, front: list[tuple[float, float]], column: str, score: str) -> None:
  """Draws a Pareto front, with rings around the points of the table on it."""
  axes.step(*zip(*front), where="post", color="0.6", linestyle=":", linewidth=1.2, zorder=1)
  on_front = table[[(x, y) in set(front) for x, y in zip(table[column], table[score])]]
  axes.scatter(on_front[column], on_front[score], s=110, facecolors="none", edgecolors="0.35", zorder=3)


def _draw_costs(axes: Axes, table: pd.DataFrame, study: Study, column: str) -> tuple[list[Any], list[Any]]:
  """Draws the lines of one panel; returns (the ends of the lines, labels of the sizes on them)."""
  score, size = study.score, _size(study)
  ends, points = [], []
  for name, colour, marker, line in _lines(table, [f for f in study.factors if f not in (WAITING, size)]):
    line = line.sort_values(column)
    axes.errorbar(line[column], line[score], yerr=line[f"{score}_sd"].fillna(0), color=colour, marker=marker,
                  markersize=5, linewidth=1.2, capsize=2)
    for _, point in line.iterrows() if size and len(line) > 1 else []:
      points.append((plain(point[size]), point[column], point[score], colour))
    ends.append((name, line[column].iloc[-1], line[score].iloc[-1], colour))
  return ends, points


def replay(study: Study) -> Figure:
  """An arrow for each kind of run, from its score and compute without replay to those with its most replay."""
  figure = drawing.figure(6.2, 4.2)
  axes = figure.subplots()
  ends, pairs = [], _replay_pairs(study)
  for row, before, after in pairs:
    colour, marker = drawing.style(row[LEARNER])
    axes.plot(*before, marker, color=colour, markerfacecolor="white", markersize=6)
    axes.plot(*after, marker, color=colour, markersize=6)
    axes.annotate("", after, before, arrowprops=dict(arrowstyle="->", color=colour, shrinkA=4, shrinkB=4))
    ends.append((studies.label(row, [f for f in study.factors if f != _REPLAY]), *after, colour))
  axes.set(xlabel=_COSTS[_COMP], ylabel=study.score_name)
  drawing.cost_axis(axes, [x for _, before, after in pairs for x in (before[0], after[0])])
  drawing.label_ends(axes, ends, beside=True)
  return figure


def _replay_pairs(study: Study) -> list[tuple[Any, tuple[float, float], tuple[float, float]]]:
  """(row, (compute, score) without replay, the same with the most) of kinds that differ only in replay."""
  if _REPLAY not in study.factors:
    return []
  table = studies.means(study, study.score, _COMP)
  others = [f for f in study.factors if f != _REPLAY]
  pairs = []
  for _, mine in table.groupby([LEARNER, *others], dropna=False, sort=False):
    mine = mine.sort_values(_REPLAY)
    if len(mine) > 1 and mine[_REPLAY].iloc[0] == 0:
      before, after = (tuple(mine.iloc[i][[_COMP, study.score]]) for i in (0, -1))
      pairs.append((mine.iloc[0], before, after))
  return pairs


def _lines(table: pd.DataFrame, own: list[str]) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
  """(name, colour, marker, rows) of every learner, and of every value of the fields `own` that vary for it."""
  for learner in drawing.in_order(table[LEARNER].unique()):
    mine = table[table[LEARNER] == learner]
    varying = [field for field in own if mine[field].nunique() > 1]
    for _, rows in mine.groupby(varying, dropna=False) if varying else [(None, mine)]:
      values = "".join(f", {short(field)} {plain(rows[field].iloc[0])}" for field in varying)
      yield (learner + values, *drawing.style(learner), rows)


def _title(study: Study) -> str:
  """The score's name at the beginning of a caption."""
  return study.score_name[0].upper() + study.score_name[1:]


def _size(study: Study) -> str | None:
  """The field that the sizes of a learner differ in, or None."""
  return next((field for field in ("model.width", "model.num_experts") if field in study.factors), None)


def _split_factors(study: Study) -> tuple[list[str], list[str]]:
  """(factors that every run has, factors that only some learners have), without the waiting time."""
  others = [f for f in study.factors if f != WAITING]
  shared = [f for f in others if study.runs[f].notna().all()]
  return shared, [f for f in others if f not in shared]


def _levels(runs: pd.DataFrame, field: str) -> list[Any]:
  """The values of a field that figures show, ascending."""
  values = sorted(runs[field].dropna().unique())
  return [values[i] for i in _some(len(values))]


def _some(num: int) -> list[int]:
  """Which of `num` panels are shown: all, or as many as fit, at equal distances."""
  return np.unique(np.linspace(0, num - 1, min(num, _MOST_PANELS)).round().astype(int)).tolist()


def _without_diverged(study: Study) -> str:
  """A sentence about runs that diverged, or ""."""
  num = len(study.diverged)
  return f" {num} run{'s' if num > 1 else ''} that diverged {'are' if num > 1 else 'is'} not shown." if num else ""


def _left_out(study: Study, rows: bool = True) -> str:
  """Sentences about panels that do not fit and runs that diverged, or "". `rows`: whether factors make rows."""
  shared, _ = _split_factors(study)
  shown = []
  for num, what in ((study.runs[WAITING].nunique(), "waiting times"),
                    (len(study.runs[shared].drop_duplicates()) if shared and rows else 1,
                     f"combinations of {', '.join(map(short, shared))}")):
    if num > _MOST_PANELS:
      shown.append(f"{_MOST_PANELS} of {num} {what}")
  text = f" The figure shows {' and '.join(shown)}; the table shows all." if shown else ""
  return text + _without_diverged(study)
