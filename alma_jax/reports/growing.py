"""The figure of growth: what it costs and gains to grow sooner, later, or by more."""
from collections.abc import Collection

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from alma_jax.reports import drawing, panels, scales, sizes, studies
from alma_jax.reports.factors import order, plain, short
from alma_jax.reports.read import COMP, LEARNER, WAITING
from alma_jax.reports.studies import REPLAY, Study

_GROW = "learner.grow_every"
_SIZES = {"model.width": ("width", "widths"), "model.num_experts": ("number of experts", "numbers of experts")}

_EVERY = "every "  # the label of an interval begins with it
_FAR = 1.5  # scores this many times as high as those of the learners with intervals are not shown


def caption(study: Study, waits: Collection[float] = ()) -> str:
  """What the figure shows; `waits`: see panels.waits."""
  size = sizes.field(study)
  one, several = _SIZES[size] if size else ("", "")
  shown, num = len(panels.shown(places(study), waits)), len(places(study))
  return " ".join([
      f"{study.score_title} against cumulative compute: mean ± standard deviation over seeds. A line joins the growth "
      f"intervals of a learner{f' from the {one} in the title' if size else ''}; its shortest one is named "
      "(“every 2”: before every second stage).",
      f"Learners without an interval are shown in all {several} (numbers) whose {study.score_name} is near theirs, or "
      "lower." if size else "Points are learners without an interval.",
      *(["Runs with replay are not shown."] if REPLAY in study.factors else []),
      *([f"The figure shows {shown} of {num} pairs of waiting time and {one}." if size else
         f"The figure shows {shown} of {num} waiting times."] if shown < num else [])])


def places(study: Study) -> list[panels.Place]:
  """The waiting times and first sizes at which a learner that is otherwise the same grows at several intervals."""
  if _GROW not in study.factors:
    return []
  runs, size = studies.without_replay(study).runs, sizes.field(study)
  others = [field for field in study.factors if field not in (WAITING, size, _GROW)]
  found = {(place[0], place[1] if size else float("nan"))
           for place, mine in runs.groupby([WAITING, size or WAITING, LEARNER, *others], dropna=False)
           if mine[_GROW].nunique() > 1}
  found = {place for place in found if not pd.isna(place[0])} or found  # runs without a waiting time are in all panels
  return sorted(found, key=lambda place: [*map(order, place)])


@drawing.styled
def growth(study: Study, waits: Collection[float] = ()) -> Figure:
  """The score against compute, of learners that grow at several intervals and of the other learners.

  There is a panel for each of `places`, or for as many as fit, with axes of its own: it ends above the scores of the
  learners with intervals, which would else be crowded. A line of a learner with intervals joins these, one of another
  learner its sizes. Runs with replay are left out, because their compute grows with the stream.

  Args:
    study: Study with `places`.
    waits: see panels.waits.
  """
  shown, size = panels.shown(places(study), waits), sizes.field(study)
  study = studies.without_replay(study)
  table = panels.means(study, study.score, COMP)
  has_interval = table[_GROW].notna()
  tables = []
  for wait, initial in shown:
    of_size = (table[size] == initial) | table[size].isna() & pd.isna(initial) if size else True
    tables.append(_near(table[panels.at(table, wait) & (~has_interval | of_size)], study.score))
  lines = panels.Lines(study, tables, [f for f in study.factors if f not in (WAITING, size, _GROW)], marked=True)
  across = 1 if len(shown) < 3 else panels.across(len(shown))
  height = 2.1 * -(-len(shown) // across) + 0.4
  figure = drawing.figure(height, lines.keys, panels.width(across), wspace=0.25, hspace=0.25)
  grid = panels.grid(figure, len(shown), across, shared="none")
  for axes, mine, (wait, initial) in zip(grid, tables, shown):
    panels.draw_means(axes, lines.of(mine, COMP), COMP, study.score)
    its_size = [f"{short(size)} = {plain(initial)}"] if size and not pd.isna(initial) else []
    axes.set_title(", ".join([*panels.title(wait, mine), *its_size]))
    scales.cost_axis(axes, mine[COMP], right=2.8)
  drawing.x_label(figure, panels.COSTS[COMP])
  for axes in grid[::across]:
    axes.set_ylabel(study.score_name)
  scales.score_axes(grid)
  for axes, mine in zip(grid, tables):  # once the shared limits are final
    _label(axes, [*lines.of(mine, COMP)], study, size)
  return figure


def _label(axes: Axes, lines: list[tuple[Line2D, pd.DataFrame]], study: Study, size: str | None) -> None:
  """Writes the shortest interval of the lines that have some, and sizes at the points of the longest other line."""
  numbers = [len(line) if line[_GROW].isna().all() else 0 for _, line in lines]
  longest = numbers.index(max(numbers))
  labels = []
  for i, (key, line) in enumerate(lines):
    if line[_GROW].notna().all():
      texts = [f"{_EVERY}{plain(every)}" if every == line[_GROW].min() else "" for every in line[_GROW]]
    elif size and i == longest and len(line) > 1:
      texts = [plain(value) for value in line[size]]
    else:
      texts = [""] * len(line)
    labels += [(text, x, y, str(key.get_color())) for text, x, y in zip(texts, line[COMP], line[study.score])]
  drawn = [[*zip(line[COMP], line[study.score])] for _, line in lines]
  bars = [bar for _, line in lines for bar in panels.bars(axes, line, COMP, study.score)]
  # Numbers stand below the line of another learner, and intervals above: there they are apart.
  sides = {text: (-1, -1) for text, *_ in labels if not text.startswith(_EVERY)}
  drawing.place_labels(axes, labels, [*drawn, *bars], sides=sides)


def _near(table: pd.DataFrame, score: str) -> pd.DataFrame:
  """The rows of a panel without the learners without intervals that have much higher scores than those with them."""
  highest = table.loc[table[_GROW].notna(), score].max()
  return table[table[_GROW].notna() | (table[score] <= _FAR * highest)]
