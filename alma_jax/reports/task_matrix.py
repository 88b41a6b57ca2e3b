"""The accuracy matrix R of each kind of run, as a picture."""
import itertools

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from alma_jax.reports import drawing, task_panels
from alma_jax.reports.studies import Study

_NUMBERED = 12  # tasks up to which a cell has room for its number
_SIDE = 1.58  # inches of a panel
_ACROSS = 3
_COLOURS = "cividis"


@drawing.styled
def matrix(study: Study) -> Figure:
  """A panel for each kind of run with the mean over its seeds; row t, column i: the accuracy on task i after task t."""
  found = [*task_panels.kinds(study)][:task_panels.MOST]
  mean = [np.mean([run.accuracies for run in runs], axis=0) for _, _, runs in found]
  across = min(_ACROSS, len(found))
  down = -(-len(found) // across)
  size = across * (_SIDE + 0.35) + 1.2, down * (_SIDE + 0.5) + 0.5
  figure = drawing.figure(size[1], width=size[0], right=0.8, wspace=0.12)
  figure.subplots_adjust(hspace=0.24)
  grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
  low = min(0.95, *(float(np.nanmin(each)) for each in mean))
  num = len(mean[0])
  norm = Normalize(low, 1)
  for axes, (label, _, _), each in zip(grid.flat, found, mean):
    axes.imshow(each, norm=norm, cmap=_COLOURS, aspect="equal", interpolation="nearest")
    axes.set_title(label)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0 if num <= _NUMBERED else 3)
    for i, t in itertools.combinations_with_replacement(range(num), 2) if num <= _NUMBERED else []:
      light = norm(each[t, i]) > 0.5
      axes.text(i, t, f"{100 * each[t, i]:.0f}", ha="center", va="center", fontsize=6,
                color="black" if light else "white")
  for axes in grid.flat[len(found):]:
    axes.remove()
  for axis in (grid[0, 0].xaxis, grid[0, 0].yaxis):
    task_panels.number(axis, num, most=12 if num <= _NUMBERED else 6)
  for place, axes in enumerate(grid.flat[:len(found)]):
    lowest, first = place + across >= len(found), place % across == 0
    axes.tick_params(labelbottom=lowest, labelleft=first)
    axes.set(xlabel="task i" if lowest else "", ylabel="after task t" if first else "")
  box = grid[0, -1].get_position()
  bar = figure.add_axes((1 - 0.68 / size[0], box.y0, 0.12 / size[0], box.height))
  figure.colorbar(ScalarMappable(norm, _COLOURS), cax=bar)
  bar.set_title("accuracy", fontsize=8, loc="left")
  bar.tick_params(labelsize=8)
  return figure
