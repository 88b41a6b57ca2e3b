"""The figure of the Pareto fronts of a stream of tasks: error against cost, and accuracy against memory."""
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from alma_jax.reports import drawing, fronts, scales, studies, task_tables
from alma_jax.reports.read import FLOPS, LEARNER
from alma_jax.reports.studies import Study
from alma_jax.reports.task_tables import AVERAGE, COST_FRONT, ERROR, MEMORY, MEMORY_FRONT

_PANELS = ((FLOPS, ERROR, COST_FRONT, "cost C (training flops)", "cumulative error E"),
           (MEMORY, AVERAGE, MEMORY_FRONT, "memory M (stored parameters)", "average accuracy A"))

_WIDELY = 3  # ratio of the largest error to the smallest one from which on an axis is logarithmic
_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)


@drawing.styled
def pareto(study: Study) -> Figure:
  """A panel for (C, E) and a panel for (M, A). Names are written at points where there is room, first on the front."""
  table = task_tables.points(study)
  table["label"] = studies.brief_labels(table, study.factors)
  figure = drawing.figure(3.1, drawing.learner_keys(table[LEARNER].unique()), left=0.75, wspace=0.32)
  panels = figure.subplots(1, 2)
  for axes, (cost, score, column, x, y) in zip(panels, _PANELS):
    fronts.draw(axes, table, cost, score, column)
    axes.margins(y=0.12)
    axes.set(xlabel=x, ylabel=y)
    _scale(axes, score, table[score])
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    first = table.sort_values(column, ascending=False, kind="stable")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    labels = [(row["label"], row[cost], row[score], drawing.style(row[LEARNER])[0]) for _, row in first.iterrows()]
    drawing.place_labels(axes, labels, [fronts.corners(table, cost, score, column)])
  return figure


def _scale(axes: Axes, score: str, values: pd.Series) -> None:
  """Makes the y axis logarithmic in the error, which for an accuracy A is 1 - A, where errors differ widely."""
  errors = np.asarray(values if score == ERROR else 1 - values, float)
  if not 0 < _WIDELY * min(errors) <= max(errors):
    axes.yaxis.set_major_locator(MaxNLocator(5))
  elif score == ERROR:
    scales.score_axes([axes])
  else:
    low, high = 1.12 * max(errors), min(errors) / 1.12
    axes.set_yscale("function", functions=(lambda a: -np.log10(np.maximum(1 - a, 1e-9)), lambda e: 1 - 10.0**-e))
    axes.set_ylim(1 - low * (low / high) ** 0.08, 1 - high * (high / low) ** 0.08)
    inside = [tick for tick in _TICKS if 1 - low <= tick <= 1 - high]
    axes.set_yticks(inside if len(inside) > 2 else MaxNLocator(4).tick_values(1 - low, 1 - high)[1:-1])
