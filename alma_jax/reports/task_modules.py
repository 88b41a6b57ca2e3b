"""The figure of the modules: which module each task's network has at each of its parts."""
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from alma_jax.reports import drawing, task_panels
from alma_jax.reports.studies import Study
from alma_jax.store.record import Graph

_NUMBERED = 24  # tasks up to which a cell has room for a number
_LONE = "0.88"  # the colour of modules of a single task


def shown(study: Study) -> list[tuple[str, Graph]]:
  """`task_panels.graphs` whose tasks share modules."""
  return task_panels.graphs(study, lambda graph: graph.shares)


@drawing.styled
def modules(study: Study) -> Figure:
  """A panel for each kind of run of `shown`: parts of the network as rows, from the inputs up, tasks as columns."""
  found = shown(study)[:task_panels.MOST]
  num = len(found[0][1].origins)
  left = drawing.inches(part for _, graph in found for part in graph.parts) + 0.25
  wide = min(max(0.32 * num, 2.6), 7.2)
  heights = [max(0.24 * len(graph.parts), 0.5) for _, graph in found]
  titles = [drawing.wrapped(f"{label}: {len(graph.made)} modules", wide) for label, graph in found]
  above = 0.15 * max(title.count("\n") + 1 for title in titles) + 0.25
  width, height = left + wide + 0.15, sum(heights) + above * len(found) + 0.5
  figure = drawing.figure(height, width=width)
  figure.subplots_adjust(left=left / width, right=1 - 0.15 / width, bottom=0.5 / height,
                         top=1 - (above - 0.08) / height, hspace=above * len(found) / sum(heights))
  grid = figure.subplots(len(found), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
  for axes, title, (_, graph) in zip(grid, titles, found):
    _draw(axes, graph)
    axes.set_title(title, loc="left")
  task_panels.number(grid[-1].xaxis, num)
  grid[-1].set_xlabel("task")
  return figure


def _draw(axes: Axes, graph: Graph) -> None:
  """Draws one panel. A module has the colour of the task that trained it."""
  num, depth = len(graph.paths), len(graph.parts)
  users = [sum(module in path for path in graph.paths) for module in range(len(graph.made))]
  colours = task_panels.colours(sorted({task for task, count in zip(graph.made, users) if count > 1}))
  for t, path in enumerate(graph.paths):
    for part, module in enumerate(path):
      made, shared = graph.made[module], users[module] > 1
      axes.add_patch(Rectangle((t - 0.5, part - 0.5), 1, 1, facecolor=colours[made] if shared else _LONE,
                               edgecolor="white", linewidth=1 if num <= _NUMBERED else 0.3,
                               alpha=0.55 if shared else 1))
      if num <= _NUMBERED:
        axes.text(t, part, str(made + 1), ha="center", va="center", fontsize=7,
                  color="black" if shared else "0.4", fontweight="bold" if made == t and shared else "normal")
  axes.set(xlim=(-0.5, num - 0.5), ylim=(-0.5, depth - 0.5))
  axes.set_yticks(range(depth), graph.parts, fontsize=8)
  axes.spines[:].set_visible(False)
  axes.tick_params(length=0)
