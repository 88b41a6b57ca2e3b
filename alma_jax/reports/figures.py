"""Figures of a study: those of the paper, and what compute buys."""
import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from alma_jax.reports import (
  drawing,
  fronts,
  growing,
  panels,
  replaying,
  scales,
  sizes,
  studies,
  trade_offs,
  waiting,
)
from alma_jax.reports.factors import plain, short
from alma_jax.reports.read import COMP, LEARNER, MEM, WAITING
from alma_jax.reports.studies import Study

EXPERTS = "last_experts"  # a column that `against` adds: the experts of all members at the end of the stream
_FILLED = 0.75  # the least share of panels with runs in a grid of waiting times and factors


def all_of(study: Study, waits: Collection[float] = ()) -> dict[str, tuple[str, Figure]]:
  """Every figure that the study has the runs for: {name: (caption, figure)}; `waits`: see panels.waits."""
  return {name: (caption, draw()) for name, (caption, draw) in plan(study, waits).items()}


def plan(study: Study, waits: Collection[float] = ()) -> dict[str, tuple[str, Callable[[], Figure]]]:
  """As `all_of`, with functions that draw the figures."""
  found: dict[str, tuple[str, Callable[[], Figure]]] = {}
  band = "mean over seeds, with a band from the lowest to the highest value."
  if len(study.stream):
    found["stream"] = (
        f"{study.measure.name.capitalize()} over the stream: {band} A dot is the last value. As in the paper's "
        f"Figures 1, 3 and 9.{_left_out(study, waits)}", functools.partial(over_the_stream, study, waits))
  if (study.stream[COMP] > 0).any():
    found["stream-compute"] = (
        f"{study.measure.name.capitalize()} at every moment, against the multiply-adds spent until then: {band}"
        f"{_left_out(study, waits)}", functools.partial(over_compute, study, waits))
  if waiting.sizes_shown(study):
    found["waiting"] = (f"{waiting.caption(study)}{_without_diverged(study)}",
                        functools.partial(waiting.waiting, study))
  for column, name in ((COMP, "compute"), (MEM, "parameters")):
    if _varies(study, column):
      found[name] = _against(study, column, waits, study.scoring.source)
  if study.scoring.counts_experts:
    found["experts"] = _against(_with_experts(study), EXPERTS, waits, study.scoring.source)
  if len(studies.means(study, study.overall)) > 1:
    found["pareto"] = (
        f"{study.overall_name[0].upper()}{study.overall_name[1:]} against compute and against memory, of all kinds "
        "of runs: mean ± standard deviation over seeds. Rings and the line show the Pareto front: no other kind is "
        "better in both. A name gives the learner and the fields in which its kinds differ; the names of the other "
        f"kinds, and of those without room, are in pareto.csv.{_without_diverged(study)}",
        functools.partial(fronts.pareto, study))
  if growing.places(study):
    found["growth"] = (f"{growing.caption(study, waits)}{_without_diverged(study)}",
                       functools.partial(growing.growth, study, waits))
  if replaying.places(study):
    found["replay"] = (f"{replaying.caption(study, waits)}{_without_diverged(study)}",
                       functools.partial(replaying.replay, study, waits))
  return found


def _against(study: Study, column: str, waits: Collection[float],
             source: str) -> tuple[str, Callable[[], Figure]]:
  """(caption, function that draws) of the figure `against`; `source`: in the paper."""
  size, rivals = sizes.field(study), " with the same waiting time" if study.scoring.averages else ""
  joins = ""
  if size and _varies(study, column, LEARNER, *(field for field in study.factors if field != size)):
    joins = " A line joins the sizes of a learner" + (
        "." if column == EXPERTS else f" (numbers at one of the lines, where there is room: {short(size)}).")
  what = panels.COSTS.get(column, "the experts of all members at the end of the stream")
  return (f"{study.score_title} against {what}: mean ± standard deviation over seeds.{joins} Rings and the dotted line "
          f"show the Pareto front of all runs{rivals}. As in the paper's {source}."
          f"{_left_out(study, waits, rows=False)}", functools.partial(against, study, column, waits))


def _varies(study: Study, column: str, *by: str) -> bool:
  """Whether kinds of runs, or those with one value of each of `by`, differ by more than 1 % in a cost."""
  table = panels.means(study, column)
  costs = table.groupby([*by], dropna=False)[column] if by else [("", table[column])]
  return any(mine.max() > 1.01 * mine.min() for _, mine in costs)


@drawing.styled
def over_the_stream(study: Study, waits: Collection[float] = ()) -> Figure:
  """Error or perplexity against mega-batches.

  The columns are waiting times; runs whose schedule has none are in all columns. The rows are the values of the factors
  with panels of their own, see panels.split_factors. If many of these panels had no runs, they are left out, and the
  others stand one after the other. Other factors, for example the number of members, give lines of
  their own in the learner's colour.
  """
  return _curves(study, "t", waits)


@drawing.styled
def over_compute(study: Study, waits: Collection[float] = ()) -> Figure:
  """Error or perplexity against the compute that was spent before, in the panels of `over_the_stream`."""
  return _curves(study, COMP, waits)


def mean_curve(stream: pd.DataFrame, x: str, metric: str) -> pd.DataFrame:
  """Mean, lowest and highest value over runs as a function of x.

  Args:
    stream: rows of the runs' streams.
    x: "t", or COMP: then the value of a run is a step function of its compute. It begins when all runs were trained;
      the last value of a run counts from its end on.
    metric: error or perplexity.

  Returns:
    DataFrame with the index x and the columns mean, min, max.
  """
  stream = stream.dropna(subset=[metric])
  if x == COMP:
    stream = stream[stream[COMP] > 0]
  values = stream.groupby([x, "run"])[metric].last().unstack("run")
  if x == COMP:
    values = values.ffill().dropna()
  return values.agg(["mean", "min", "max"], axis=1)


def _curves(study: Study, x: str, waits: Collection[float]) -> Figure:
  runs = study.runs
  shared, own = panels.split_factors(study)
  columns = panels.waits(study, waits)
  rows, _ = panels.rows(study)
  stream = study.stream.merge(runs[["run", LEARNER, WAITING, *shared, *own]], on="run", suffixes=("", "_"))
  shown = {}
  for row, wait in itertools.product(rows, columns):
    mine = stream[panels.at(stream, wait)]
    for field, value in zip(shared, row):
      mine = mine[mine[field] == value]
    shown[row, wait] = mine
  across = len(columns)
  filled = {key: mine for key, mine in shown.items() if len(mine)}
  if len(filled) < _FILLED * len(shown):
    shown, across = filled, panels.across(len(filled))
  lines = panels.Lines(study, shown.values(), own, marked=False)
  titles = panels.wrapped([[*panels.title(wait, mine),
                            *(f"{short(field)} = {plain(value)}" for field, value in zip(shared, row))]
                           for (row, wait), mine in shown.items()], across)
  above = max(title.count("\n") for title in titles) * drawing.LINE  # the room of further lines
  figure = drawing.figure((1.25 + above) * -(-len(shown) // across) + 0.5, lines.keys, panels.width(across),
                          above=above, hspace=0.28 + above)
  grid = panels.grid(figure, len(shown), across)
  for axes, title, mine in zip(grid, titles, shown.values()):
    _draw_curves(axes, study, mine, x, lines)
    axes.set_title(title)
  drawing.x_label(figure, "mega-batches seen" if x == "t" else "multiply-adds spent")
  for axes in grid[::across]:
    axes.set_ylabel(study.measure.name)
  scales.score_axes(grid)
  for axes in grid if x == COMP else []:
    scales.cost_axis(axes, stream.loc[stream[COMP] > 0, COMP])
  return figure


def _draw_curves(axes: Axes, study: Study, stream: pd.DataFrame, x: str, lines: panels.Lines) -> None:
  """Draws one panel."""
  where: Literal["mid", "post"] = "mid" if x == "t" else "post"
  if stream.empty:
    axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="0.4")
  for key, rows in lines.of(stream):
    table = mean_curve(rows, x, study.metric)
    if table.empty:
      continue
    dot = 2 if x == "t" and len(table) > 1 else 3
    axes.plot(table.index, table["mean"], color=key.get_color(), linewidth=0.9, linestyle=key.get_linestyle(),
              drawstyle=f"steps-{where}", marker="o", markevery=[-1], markersize=dot)
    axes.fill_between(table.index, table["min"], table["max"], color=key.get_color(), alpha=0.2, linewidth=0,
                      step=where)
  if x == "t":
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=(1, 2, 5, 10)))


@drawing.styled
def against(study: Study, column: str, waits: Collection[float] = ()) -> Figure:
  """The score against a cost, or against EXPERTS, with a panel for every waiting time.

  Args:
    study: Study.
    column: cumulative_fwd_macs, cumulative_params, or EXPERTS (language models).
    waits: see panels.waits.
  """
  study = _with_experts(study) if column == EXPERTS else study
  table, columns = panels.means(study, study.score, column), panels.waits(study, waits)
  across = panels.across(len(columns))
  size = sizes.field(study)
  own = [field for field in study.factors if field not in (WAITING, size)]
  tables = {wait: table[panels.at(table, wait)] for wait in columns}
  lines = panels.Lines(study, tables.values(), own, marked=True)
  figure = drawing.figure(1.7 * -(-len(columns) // across) + 0.4, lines.keys, panels.width(across), hspace=0.22)
  grid = panels.grid(figure, len(columns), across)
  shown = dict(zip(columns, grid))
  for wait, axes in shown.items():
    mine = tables[wait]
    # The average perplexities of other waiting times are over other mega-batches.
    rivals = mine if study.scoring.averages else table
    _draw_front(axes, mine, trade_offs.front(rivals[column], rivals[study.score]), column, study.score)
    panels.draw_means(axes, lines.of(mine, column), column, study.score)
    axes.set_title("".join(panels.title(wait, mine)))
    if column in panels.COSTS:
      scales.cost_axis(axes, table[column])
  drawing.x_label(figure, panels.COSTS.get(column, "experts of all members at the end"))
  for axes in grid[::across]:
    axes.set_ylabel(study.score_name)
  scales.score_axes(grid)
  for wait, axes in shown.items():  # once the shared limits are final
    if column == EXPERTS:  # the axis has the numbers
      scales.value_axis(axes, table[column], log=False)
    elif size:
      rivals = tables[wait] if study.scoring.averages else table
      front = trade_offs.front(rivals[column], rivals[study.score])
      _number_sizes(axes, lines.of(tables[wait], column), study, column, str(size), fronts.steps(front))
  return figure


def _with_experts(study: Study) -> Study:
  """The study with the column EXPERTS."""
  held = [sizes.experts(row)[1].total for _, row in study.runs.iterrows()]
  return study._replace(runs=study.runs.assign(**{EXPERTS: held}))


def _number_sizes(axes: Axes, lines: Iterable[tuple[Line2D, pd.DataFrame]], study: Study, column: str,
                  size: str, front: panels.Corners) -> None:
  """Writes the sizes of networks at the points of the first line that has them, where there is room."""
  labels, drawn, said = [], [front], set[tuple[str, ...]]()
  for key, line in lines:
    points = [*zip(line[column], line[study.score])]
    texts = tuple(map(plain, line[size]))
    lies_apart = line[column].max() > 1.01 * line[column].min()
    is_new = lies_apart and tuple(sorted(texts)) not in said
    said.update({tuple(sorted(texts))} if lies_apart else ())
    labels += [(text if is_new else "", x, y, str(key.get_color())) for text, (x, y) in zip(texts, points)]
    drawn += [points, *panels.bars(axes, line, column, study.score)]
  drawing.place_labels(axes, labels, drawn, joined=False)


def _draw_front(axes: Axes, table: pd.DataFrame, front: list[tuple[float, float]], column: str, score: str) -> None:
  """Draws a Pareto front, with rings around the points of the table on it."""
  axes.step(*zip(*front), where="post", color="0.6", linestyle=":", linewidth=1, zorder=1)
  on_front = table[[(x, y) in set(front) for x, y in zip(table[column], table[score])]]
  axes.scatter(on_front[column], on_front[score], s=drawing.RING, facecolors="none", edgecolors="0.35",
               linewidths=0.8, zorder=3)


def _without_diverged(study: Study) -> str:
  """A sentence about runs that diverged, or ""."""
  num = len(study.diverged)
  return f" {num} run{'s' if num > 1 else ''} that diverged {'are' if num > 1 else 'is'} not shown." if num else ""


def _left_out(study: Study, waits: Collection[float], rows: bool = True) -> str:
  """Sentences about panels that are left out and runs that diverged, or "". `rows`: whether factors make rows."""
  shared, _ = panels.split_factors(study)
  shown_rows, num_rows = panels.rows(study)
  its = study.runs[WAITING]
  shown, fields = [], ", ".join(map(short, shared))
  for shown_num, num, what in ((len(panels.waits(study, waits)), its.nunique(), "waiting times"),
                               (len(shown_rows), num_rows if rows else 0,
                                f"{'combinations' if len(shared) > 1 else 'values'} of {fields}")):
    if num > shown_num:
      shown.append(f"{shown_num} of {num} {what}")
  mixed = its.isna().any() and its.notna().any()
  anywhere = " Runs whose schedule has no waiting time are in every panel." if mixed else ""
  text = anywhere + (f" The figure shows {' and '.join(shown)}; the table shows all." if shown else "")
  return text + _without_diverged(study)
