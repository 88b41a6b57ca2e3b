"""Figures of a study: those of the paper, and what compute buys."""
import itertools
from typing import Any, Literal

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from alma_jax.reports import drawing, fronts, panels, sizes, studies, trade_offs
from alma_jax.reports.factors import order, plain, short
from alma_jax.reports.read import COMP, LEARNER, MEM, WAITING
from alma_jax.reports.studies import Study

EXPERTS = "last_experts"  # a column that `against` adds: the experts of all members at the end of the stream
_REPLAY = "stream.replay"
_DASHES = ("-", "--", ":", "-.")  # of the lines of one learner in a panel
_COSTS = {COMP: "cumulative compute (multiply-adds)", MEM: "cumulative parameters"}


def all_of(study: Study) -> dict[str, tuple[str, Figure]]:
  """Every figure that the study has the runs for: {name: (caption, figure)}."""
  found = {}
  with matplotlib.rc_context(drawing.RC):
    found["stream"] = (
        f"Test {study.metric} over the stream: mean over seeds, with a band from the lowest to the highest value. "
        f"As in the paper's Figures 1, 3 and 9.{_left_out(study)}", over_the_stream(study))
    if (study.stream[COMP] > 0).any():
      found["stream-compute"] = (
          f"Test {study.metric} at every moment, against the multiply-adds spent until then: mean over seeds, with a "
          f"band from the lowest to the highest value.{_left_out(study)}", over_compute(study))
    for column, name in ((COMP, "compute"), (MEM, "parameters")):
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
    if len(studies.means(study, study.overall)) > 1:
      found["pareto"] = (
          f"{study.overall_name[0].upper()}{study.overall_name[1:]} against compute and against memory, of all kinds "
          "of runs: mean ± standard deviation over seeds. Rings and the line show the Pareto front: no other kind is "
          "better in both. A name gives the learner and the fields in which its kinds differ; names for which there "
          f"is no room are in pareto.csv.{_without_diverged(study)}", fronts.pareto(study))
    if _replay_pairs(study):
      found["replay"] = (f"{_title(study)} against compute without replay (open markers) and with the most replay "
                         f"(filled markers, stream.replay up to {study.runs[_REPLAY].max():g}): means over seeds. "
                         f"As in the paper's Figures 4 and 8.{_without_diverged(study)}", replay(study))
  return found


def over_the_stream(study: Study) -> Figure:
  """Error or perplexity against mega-batches.

  The columns are waiting times; runs whose schedule has none are in all columns. The rows are the values of the factors
  with panels of their own, see panels.split_factors. Other factors, for example the number of members, give lines of
  their own in the learner's colour.
  """
  return _curves(study, "t")


def over_compute(study: Study) -> Figure:
  """Error or perplexity against the compute that was spent before, in the panels of `over_the_stream`."""
  return _curves(study, COMP)


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


def _curves(study: Study, x: str) -> Figure:
  runs = study.runs
  shared, own = panels.split_factors(study)
  columns = panels.waits(runs)
  values = sorted(set(map(tuple, runs[shared].itertuples(index=False))), key=lambda row: [*map(order, row)])
  rows = [values[i] for i in panels.some(len(values))]
  stream = study.stream.merge(runs[["run", LEARNER, WAITING, *shared, *own]], on="run", suffixes=("", "_"))
  shown = {}
  for row, wait in itertools.product(rows, columns):
    mine = stream[panels.at(stream, wait)]
    for field, value in zip(shared, row):
      mine = mine[mine[field] == value]
    shown[row, wait] = mine
  names = [line[0] for mine in shown.values() for line in panels.lines(study, mine, own)]
  room = max(0.75, drawing.inches(names) + 0.15)
  across = len(columns)
  figure = drawing.figure((2.3 + room) * across + 0.7, 2.5 * len(rows) + 0.5, right=room, wspace=room / 2.2)
  grid = figure.subplots(len(rows), across, sharex=True, sharey=True, squeeze=False)
  ends = {}
  for axes, ((row, wait), mine) in zip(grid.flat, shown.items()):
    ends[axes] = _draw_curves(axes, study, mine, x, own)
    fields = [f"{short(field)} = {plain(value)}" for field, value in zip(shared, row)]
    axes.set_title(", ".join([*panels.title(wait), *fields]))
  for axes in grid[-1]:
    axes.set_xlabel("mega-batches seen" if x == "t" else "multiply-adds spent")
  for axes in grid[:, 0]:
    axes.set_ylabel(f"test {study.metric}")
  drawing.score_axes(grid.flat)
  for axes in grid.flat if x == COMP else []:
    drawing.cost_axis(axes, stream.loc[stream[COMP] > 0, COMP], room=False)
  for axes, mine in ends.items():  # once the shared limits are final
    drawing.label_ends(axes, mine, leaders=x == COMP)
  return figure


def _draw_curves(axes: Axes, study: Study, stream: pd.DataFrame, x: str, own: list[str]) -> list[tuple[Any, ...]]:
  """Draws one panel; returns the ends of its lines."""
  ends: list[tuple[Any, ...]] = []
  where: Literal["mid", "post"] = "mid" if x == "t" else "post"
  if stream.empty:
    axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color="0.4")
  for name, colour, _, lines in panels.lines(study, stream, own):
    table = mean_curve(lines, x, study.metric)
    if table.empty:
      continue
    dashes = _DASHES[sum(end[3] == colour for end in ends) % len(_DASHES)]
    axes.plot(table.index, table["mean"], color=colour, linewidth=1.4, linestyle=dashes, drawstyle=f"steps-{where}",
              marker="o" if len(table) == 1 or x == COMP else None, markevery=[-1], markersize=4)
    axes.fill_between(table.index, table["min"], table["max"], color=colour, alpha=0.2, linewidth=0, step=where)
    ends.append((name, table.index[-1], table["mean"].iloc[-1], colour))
  axes.set_yscale("log")
  if x == "t":
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
  table, columns = studies.means(study, study.score, column), panels.waits(study.runs)
  table[WAITING] = table[WAITING] if WAITING in table else columns[0]
  across = len(columns) if len(columns) < 3 else 2
  down = -(-len(columns) // across)
  figure = drawing.figure(4.8 * across + 0.7, 3.6 * down + 0.3)
  grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
  for axes in grid.flat[len(columns):]:
    axes.remove()
  shown = dict(zip(columns, grid.flat))
  labels = {}
  for wait, axes in shown.items():
    mine = table[panels.at(table, wait)]
    # The average perplexities of other waiting times are over other mega-batches.
    rivals = mine if study.is_language else table
    _draw_front(axes, mine, trade_offs.front(rivals[column], rivals[study.score]), column, study.score)
    labels[axes] = _draw_costs(axes, mine, study, column)
    axes.set_title("".join(panels.title(wait)))
    if column in _COSTS:
      drawing.cost_axis(axes, table[column])
    axes.set_yscale("log")
    axes.set_xlabel(_COSTS.get(column, "experts of all members at the end"))
    axes.tick_params(labelbottom=True)
  for axes in grid[:, 0]:
    axes.set_ylabel(study.score_name)
  drawing.score_axes(shown.values())
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
  own = [field for field in study.factors if field not in (WAITING, size)]
  for name, colour, marker, line in panels.lines(study, table, own):
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
  axes.set(xlabel=_COSTS[COMP], ylabel=study.score_name)
  drawing.cost_axis(axes, [x for _, before, after in pairs for x in (before[0], after[0])])
  drawing.label_ends(axes, ends, beside=True)
  return figure


def _replay_pairs(study: Study) -> list[tuple[Any, tuple[float, float], tuple[float, float]]]:
  """(row, (compute, score) without replay, the same with the most) of kinds that differ only in replay."""
  if _REPLAY not in study.factors:
    return []
  table = studies.means(study, study.score, COMP)
  others = [f for f in study.factors if f != _REPLAY]
  pairs = []
  for _, mine in table.groupby([LEARNER, *others], dropna=False, sort=False):
    mine = mine.sort_values(_REPLAY)
    if len(mine) > 1 and mine[_REPLAY].iloc[0] == 0:
      before, after = (tuple(mine.iloc[i][[COMP, study.score]]) for i in (0, -1))
      pairs.append((mine.iloc[0], before, after))
  return pairs


def _title(study: Study) -> str:
  """The score's name at the beginning of a caption."""
  return study.score_name[0].upper() + study.score_name[1:]


def _size(study: Study) -> str | None:
  """The field that the sizes of a learner differ in, or None."""
  return next((field for field in ("model.width", "model.num_experts") if field in study.factors), None)


def _without_diverged(study: Study) -> str:
  """A sentence about runs that diverged, or ""."""
  num = len(study.diverged)
  return f" {num} run{'s' if num > 1 else ''} that diverged {'are' if num > 1 else 'is'} not shown." if num else ""


def _left_out(study: Study, rows: bool = True) -> str:
  """Sentences about panels that do not fit and runs that diverged, or "". `rows`: whether factors make rows."""
  shared, _ = panels.split_factors(study)
  shown = []
  for num, what in ((study.runs[WAITING].nunique(), "waiting times"),
                    (len(study.runs[shared].drop_duplicates()) if shared and rows else 1,
                     f"combinations of {', '.join(map(short, shared))}")):
    if num > panels.MOST:
      shown.append(f"{panels.MOST} of {num} {what}")
  waits = study.runs[WAITING]
  mixed = waits.isna().any() and waits.notna().any()
  anywhere = " Runs whose schedule has no waiting time are in every panel." if mixed else ""
  text = anywhere + (f" The figure shows {' and '.join(shown)}; the table shows all." if shown else "")
  return text + _without_diverged(study)
