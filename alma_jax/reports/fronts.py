"""The figure of the Pareto fronts: score against compute and against memory, with all kinds of runs of a study."""
import itertools

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alma_jax.reports import drawing, scales, studies, trade_offs
from alma_jax.reports.read import COMP, LEARNER, MEM
from alma_jax.reports.studies import Study

_COSTS = {COMP: "cumulative compute (multiply-adds)", MEM: "cumulative parameters"}


@drawing.styled
def pareto(study: Study) -> Figure:
  """A panel for compute and a panel for memory. Names are written at the points on the front, where there is room."""
  table = trade_offs.points(study)
  table["label"] = studies.brief_labels(table, study.factors)
  learners = table[LEARNER].unique()
  figure = drawing.figure(3.2, drawing.learner_keys(learners) if len(learners) > 1 else [])
  panels = dict(zip(trade_offs.FRONTS, figure.subplots(1, 2, sharey=True)))
  for cost, axes in panels.items():
    draw(axes, table, cost, study.overall, trade_offs.FRONTS[cost])
    axes.set_xlabel(_COSTS[cost])
  panels[COMP].set_ylabel(study.overall_name)
  scales.score_axes(panels.values())
  for cost, axes in panels.items():  # once the shared limits are final
    front = trade_offs.FRONTS[cost]
    labels = [(row["label"] if row[front] else "", row[cost], row[study.overall], drawing.style(row[LEARNER])[0])
              for _, row in table.iterrows()]
    drawing.place_labels(axes, labels, [corners(table, cost, study.overall, front)])
  return figure


def draw(axes: Axes, table: pd.DataFrame, cost: str, score: str, column: str) -> None:
  """Draws kinds of runs as points, and their front.

  Args:
    axes: of the panel; its x axis becomes that of the cost.
    table: with the columns `cost` and `score`, and their deviations (name and "_sd").
    column: of the table; it says which points are on the front.
  """
  front = table[table[column]]
  axes.plot(*zip(*corners(table, cost, score, column)), color="0.6", linewidth=1.2, zorder=1)
  for learner, mine in table.groupby(LEARNER):
    colour, marker = drawing.style(str(learner))
    axes.errorbar(mine[cost], mine[score], yerr=mine[f"{score}_sd"].fillna(0), color=colour, linestyle="",
                  elinewidth=0.8, alpha=0.4, zorder=1)
    axes.plot(mine[cost], mine[score], color=colour, marker=marker, markersize=drawing.MARKER, linestyle="", zorder=2)
  axes.scatter(front[cost], front[score], s=drawing.RING, facecolors="none", edgecolors="0.35", zorder=3)
  scales.cost_axis(axes, table[cost])


def corners(table: pd.DataFrame, cost: str, score: str, column: str) -> list[tuple[float, float]]:
  """The corners of the line along a front: at every cost the best score that it buys. See `draw`."""
  front = table[table[column]].sort_values(cost)
  return steps([*zip(front[cost], front[score])])


def steps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
  """The corners of a line of steps through points, by ascending x."""
  return points[:1] + [corner for (_, before), (x, y) in itertools.pairwise(points) for corner in ((x, before), (x, y))]
