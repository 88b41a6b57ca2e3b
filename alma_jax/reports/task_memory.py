"""The figure of what a stream of tasks stores: parameters and modules after each task."""
import collections

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from alma_jax.reports import drawing, task_panels
from alma_jax.reports.read import LEARNER, TaskRun
from alma_jax.reports.studies import Study

_PANELS = (("num_params", "stored parameters"), ("num_modules", "stored modules"))
_DASH = 4.0  # length of a dash, in line widths, where several lines coincide


@drawing.styled
def over_tasks(study: Study) -> Figure:
  """A panel for parameters and one for modules, with a line for each kind of run: the mean over its seeds.

  The stream has at least two tasks. Lines that coincide are drawn as one line of dashes in the colours of all.
  """
  found: list[tuple[str, str, list[TaskRun]]] = []
  looks = collections.Counter[str]()  # so far; learners of other packages may share theirs
  for label, row, runs in task_panels.kinds(study):
    colour = drawing.style(row[LEARNER])[0]
    found.append((label, drawing.shade(colour, looks[colour]), runs))
    looks[colour] += 1
  figure = drawing.figure(2.6, [drawing.key(label, colour) for label, colour, _ in found], wspace=0.28)
  for axes, (name, title) in zip(figure.subplots(1, 2), _PANELS):
    lines = {}
    for label, colour, runs in found:
      values = np.stack([getattr(run, name) for run in runs])
      lines[label] = (colour, values.mean(0), values.min(0), values.max(0))
    num = len(next(iter(lines.values()))[1])
    axes.set(ylabel=title, xlabel="tasks seen", xlim=(1 - 0.05 * (num - 1), num + 0.05 * (num - 1)))
    axes.set_ylim(0, 1.05 * max(high.max() for *_, high in lines.values()))
    task_panels.number(axes.xaxis, num, first=1, most=6)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    _draw(axes, lines)
  return figure


def _draw(axes: Axes, lines: dict[str, tuple[str, np.ndarray, np.ndarray, np.ndarray]]) -> None:
  """Draws {label: (colour, mean, lowest, highest)}."""
  for label, (colour, mean, low, high) in lines.items():
    twins = [other for other, (_, its, *_) in lines.items() if np.allclose(its, mean)]
    i, tasks = twins.index(label), np.arange(1, len(mean) + 1)
    dashes = "-" if len(twins) == 1 else (i * _DASH, (_DASH, _DASH * (len(twins) - 1)))
    axes.plot(tasks, mean, color=colour, linewidth=1.8, linestyle=dashes, dash_capstyle="butt")
    axes.fill_between(tasks, low, high, color=colour, alpha=0.2, linewidth=0)
