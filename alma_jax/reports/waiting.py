"""The figure of waiting: how the score of a learner depends on the waiting time."""
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from alma_jax.reports import drawing, panels, scales, sizes, studies
from alma_jax.reports.factors import is_switch, order, plain, short
from alma_jax.reports.read import LEARNER, WAITING
from alma_jax.reports.studies import REPLAY, Study

_LEAST = 3  # waiting times of a figure and of a panel


def sizes_shown(study: Study) -> list[Any]:
  """The sizes of networks with at least three waiting times, ascending; [None] if the size does not vary.

  Empty: there are fewer waiting times, or the score is a mean over the trainings, which are after other
  mega-batches at other waiting times.
  """
  if study.scoring.averages:
    return []
  size, runs = sizes.field(study), _plain(study).runs
  groups = runs.groupby(size) if size else [(None, runs)]
  return sorted((value for value, mine in groups if mine[WAITING].nunique() >= _LEAST), key=order)


def caption(study: Study) -> str:
  """What the figure shows."""
  shown, size = sizes_shown(study), sizes.field(study)
  num = study.runs[size].nunique() if size else 1
  return " ".join([
      f"{study.score_title} against the waiting time w: mean ± standard deviation over seeds. This is the question of "
      "the paper's Figure 3.",
      *(["Runs with replay are not shown."] if REPLAY in study.factors else []),
      *(["Runs with a switch on that other runs of the learner have off are not shown."]
        if len(_plain(study).runs) < len(_waiting(study)) else []),
      *(["Runs of other schedules, which have no waiting time, are not shown."]
        if study.runs[WAITING].isna().any() else []),
      *([f"The figure shows {len(_some(shown))} of {num} values of {short(str(size))}"
         f"{f': those with at least {_LEAST} waiting times' if len(shown) == len(_some(shown)) else ''}."]
        if len(_some(shown)) < num else [])])


@drawing.styled
def waiting(study: Study) -> Figure:
  """The score against the waiting time, with a panel for each of `sizes_shown`, or for as many as fit.

  Runs with replay are left out, and those in which a switch is on that another run of the learner has off.
  """
  shown, size = _some(sizes_shown(study)), sizes.field(study)
  study = _plain(study)
  table = studies.means(study, study.score)
  tables = [table[table[size] == value] if size else table for value in shown]
  lines = panels.Lines(study, tables, [f for f in study.factors if f not in (WAITING, size)], marked=True)
  across = panels.across(len(shown))
  figure = drawing.figure(1.75 * -(-len(shown) // across) + 0.4, lines.keys, panels.width(across), hspace=0.2)
  grid = panels.grid(figure, len(shown), across)
  for axes, mine, value in zip(grid, tables, shown):
    panels.draw_means(axes, lines.of(mine, WAITING), WAITING, study.score)
    axes.set_title(f"{short(size)} = {plain(value)}" if size else "")
  drawing.x_label(figure, "waiting time w (mega-batches)")
  for axes in grid[::across]:
    axes.set_ylabel(study.score_name)
  scales.score_axes(grid)
  for axes in grid:  # once the shared limits are final
    scales.value_axis(axes, study.runs[WAITING], log=True)
  return figure


def _plain(study: Study) -> Study:
  """The study without schedules, replay, and runs of a learner in which a switch is on that others have off."""
  runs = _waiting(study)
  for field in study.factors:
    for _, mine in runs.groupby(LEARNER):
      if mine[field].nunique() > 1 and is_switch(mine[field]):
        runs = runs.drop(mine.index[mine[field].astype(bool)])
  return study._replace(runs=runs)


def _waiting(study: Study) -> pd.DataFrame:
  """The runs with a waiting time and without replay."""
  runs = studies.without_replay(study).runs
  return runs[runs[WAITING].notna()]


def _some(shown: list[Any]) -> list[Any]:
  return [shown[i] for i in panels.some(len(shown))]
