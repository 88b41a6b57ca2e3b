"""The figure of growth: what it costs and gains to grow sooner, later, or by more."""
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from alma_jax.reports import drawing, panels, sizes, studies
from alma_jax.reports.factors import plain, short
from alma_jax.reports.read import COMP, LEARNER, WAITING
from alma_jax.reports.studies import Study

_GROW, _REPLAY = "learner.grow_every", "stream.replay"


def caption(study: Study) -> str:
  """What the figure shows."""
  size = sizes.field(study)
  of_size, joins = (f" from the {short(size)} in the title", " (numbers)") if size else ("", "")
  replay = " Runs with replay are not shown." if _REPLAY in study.factors else ""
  return (f"{study.score_name[0].upper()}{study.score_name[1:]} against cumulative compute: mean ± standard deviation "
          f"over seeds. A line joins the intervals of a learner that grows (“every 2”: before every second "
          f"stage){of_size}, or the {f'{short(size)}s' if size else 'runs'} of another learner{joins}.{replay}")


def places(study: Study) -> list[tuple[Any, Any]]:
  """[(waiting time, size of the networks at first or None)] at which a learner grows at several intervals."""
  if _GROW not in study.factors:
    return []
  size = sizes.field(study)
  groups = _least_replay(study).runs.groupby([WAITING, size or WAITING, LEARNER])[_GROW].nunique()
  return sorted({(wait, first if size else None) for (wait, first, _), num in groups.items() if num > 1})[:panels.MOST]


@drawing.styled
def growth(study: Study) -> Figure:
  """The score against compute, of learners that grow at several intervals and of the other learners.

  There is a panel for each of `places`. A line of a learner with intervals joins these, one of another learner its
  sizes. Runs with more replay than the least are left out, because their compute grows with the stream.
  """
  found, size = places(study), sizes.field(study)
  study = _least_replay(study)
  table = studies.means(study, study.score, COMP)
  table = table if WAITING in table else table.assign(**{WAITING: found[0][0]})
  grows = table[_GROW].notna()
  tables = [table[panels.at(table, wait) & (~grows | (table[size] == first if size else True))]
            for wait, first in found]
  lines = panels.Lines(study, tables, [f for f in study.factors if f not in (WAITING, size, _GROW)], marked=True)
  across = panels.across(len(found))
  figure = drawing.figure(2.4 * -(-len(found) // across) + 0.5, lines.keys)
  grid = panels.grid(figure, len(found), across)
  for axes, mine, (wait, first) in zip(grid, tables, found):
    for key, line in lines.of(mine):
      line = line.sort_values(COMP)
      axes.errorbar(line[COMP], line[study.score], yerr=line[f"{study.score}_sd"].fillna(0), color=key.get_color(),
                    marker=key.get_marker(), markersize=4, linewidth=1, linestyle=key.get_linestyle(),
                    fillstyle=key.get_fillstyle(), capsize=1.5)
    axes.set_title(", ".join([*panels.title(wait), *([f"{short(size)} {plain(first)}"] if size else [])]))
    drawing.cost_axis(axes, table.loc[table.index.isin([i for its in tables for i in its.index]), COMP])
  drawing.x_label(figure, "cumulative compute (multiply-adds)")
  for axes in grid[::across]:
    axes.set_ylabel(study.score_name)
  drawing.score_axes(grid)
  for axes, mine in zip(grid, tables):  # once the shared limits are final
    _label(axes, [*lines.of(mine)], study, size)
  return figure


def _label(axes: Axes, lines: list[tuple[Line2D, pd.DataFrame]], study: Study, size: str | None) -> None:
  """Writes intervals at the ends of the lines that have them, and sizes at the points of the longest other line."""
  lines = [(key, line.sort_values(COMP)) for key, line in lines]
  longest = max((len(line) for _, line in lines if line[_GROW].isna().all()), default=0)
  labels = []
  for key, line in lines:
    if line[_GROW].notna().all():
      texts = [f"every {plain(interval)}" for interval in line[_GROW]]
      texts[1:-1] = [""] * len(texts[1:-1])
    else:
      texts = [plain(value) for value in line[size]] if size and len(line) == longest > 1 else [""] * len(line)
    labels += [(text, x, y, str(key.get_color())) for text, x, y in zip(texts, line[COMP], line[study.score])]
  drawing.place_labels(axes, labels, [[*zip(line[COMP], line[study.score])] for _, line in lines])


def _least_replay(study: Study) -> Study:
  """With the runs of the least replay."""
  runs = study.runs
  return study._replace(runs=runs[runs[_REPLAY] == runs[_REPLAY].min()]) if _REPLAY in study.factors else study
