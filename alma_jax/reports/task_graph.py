"""The figure of the origins: which earlier task each task's network was started from."""
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path

from alma_jax.reports import drawing, task_panels
from alma_jax.reports.studies import Study
from alma_jax.store.record import Graph

_WIDTH = 1.05  # inches of a panel


def shown(study: Study) -> list[tuple[str, Graph]]:
  """`task_panels.graphs` in which a task comes from another."""
  return task_panels.graphs(study, lambda graph: any(origin is not None for origin in graph.origins))


@drawing.styled
def origins(study: Study) -> Figure:
  """A panel for each kind of run of `shown`: the tasks from top to bottom, and arrows from their origins."""
  found = shown(study)[:task_panels.MOST]
  names, num = task_panels.names(study), len(found[0][1].origins)
  named = num <= task_panels.NAMED
  left = drawing.inches(names) + 0.25 if named else 0.7
  colours = task_panels.colours(family for _, graph in found for family in graph.families)
  legend = 0.35 if len(colours) > 1 else 0
  titles = [drawing.wrapped(label, _WIDTH) for label, _ in found]
  across = min(len(found), max(1, int((drawing.WIDTH - left - 0.1) / (_WIDTH + 0.1))))
  down, above = -(-len(found) // across), 0.15 * max(title.count("\n") + 1 for title in titles) + 0.15
  wide = left + 0.1 + (_WIDTH + 0.1) * across
  width, panel = max(wide, task_panels.families_width(colours)), min(max(0.19 * num, 1.2), 7.5)
  height = (panel + above) * down + 0.1 + legend
  figure = drawing.figure(height, width=width)
  figure.subplots_adjust(left=left / width, right=(wide - 0.1) / width, bottom=(0.1 + legend) / height,
                         top=1 - above / height, wspace=0.1, hspace=above / panel)
  grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
  for axes, title, (_, graph) in zip(grid.flat, titles, found):
    _draw(axes, graph, colours)
    axes.set_title(title, loc="left")
  for axes in grid.flat[len(found):]:
    axes.remove()
  if named:
    grid[0, 0].set_yticks(range(num), names)
  else:
    task_panels.number(grid[0, 0].yaxis, num)
  for axes in grid[:, 0] if not named else []:
    axes.set_ylabel("task")
  task_panels.families(figure, colours, 0.02)
  return figure


def _draw(axes: Axes, graph: Graph, colours: dict[str, str]) -> None:
  """Draws one panel. An arrow has the colour of the family that it comes from; longer ones go farther out."""
  num = len(graph.origins)
  axes.set(xlim=(-0.12, 1), ylim=(num - 0.5, -0.5), xticks=[])
  axes.spines[:].set_visible(False)
  axes.tick_params(length=0)
  small = num > task_panels.NAMED
  longest = max(num - 1, 1)
  for t, origin in enumerate(graph.origins):
    if origin is not None:
      far = 0.15 + 0.8 * (t - origin) / longest  # of the middle of the curve; its control points lie farther out
      curve = Path([(0, origin), (far * 4 / 3, origin), (far * 4 / 3, t), (0 if small else 0.07, t)], [1, 4, 4, 4])
      axes.add_patch(FancyArrowPatch(
          path=curve, arrowstyle="-|>",
          mutation_scale=4 if small else 9, shrinkA=0, shrinkB=0, linewidth=0.7 if small else 1.1,
          color=colours[graph.families[origin]], clip_on=False))
  for t, (family, origin) in enumerate(zip(graph.families, graph.origins)):
    axes.plot(0, t, "o", color=colours[family], markersize=3 if small else 6,
              markerfacecolor=colours[family] if origin is not None else "white", markeredgewidth=1, zorder=4)
