"""What the figures of a stream of tasks show: kinds of runs, families of tasks, and the axis of tasks."""
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alma_jax.reports import drawing, studies
from alma_jax.reports.read import LEARNER, SEED, TaskRun
from alma_jax.reports.studies import Study
from alma_jax.store.record import Graph

MOST = 9  # kinds of runs with a panel of their own
NAMED = 40  # tasks whose names have room
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A3E9D", "#8C6D00", "#A6761D",
            "#1B9E77", "#C8102E", "#34518C")  # of families and of modules
_ACROSS = 6  # families in a row of their legend
_LONGEST = 34  # letters of a task's name


def kinds(study: Study) -> Iterator[tuple[str, Any, list[TaskRun]]]:
  """(label, row of one of its runs, TaskRuns by ascending seed) of each kind, the learners in their order."""
  keys = [LEARNER, *study.factors]
  groups = [mine.sort_values(SEED) for _, mine in study.runs.groupby(keys, sort=False, dropna=False)]
  rows = pd.DataFrame([mine.iloc[0] for mine in groups])
  labels = studies.brief_labels(rows, study.factors)
  order = drawing.in_order(rows[LEARNER].unique())
  for i in sorted(range(len(groups)), key=lambda i: order.index(rows.iloc[i][LEARNER])):
    yield labels[i], rows.iloc[i], [study.tasks[run] for run in groups[i]["run"]]


def graphs(study: Study, has: Callable[[Graph], bool]) -> list[tuple[str, Graph]]:
  """(label, graph of its lowest seed that has one) of each kind of runs whose graph `has` something to show."""
  found = ((label, next((run.graph for run in runs if run.graph), None)) for label, _, runs in kinds(study))
  return [(label, graph) for label, graph in found if graph and has(graph)]


def names(study: Study) -> list[str]:
  """Of the tasks, with their numbers, cut where they are long."""
  listed = next(iter(study.tasks.values())).names
  numbered = [name if name.startswith(f"{t} ") else f"{t} {name}" for t, name in enumerate(listed, 1)]
  return [name if len(name) <= _LONGEST else f"{name[:_LONGEST - 1].rstrip()}…" for name in numbered]


def number(axis: Axis, num: int, first: int = 0, most: int = 12) -> None:
  """Numbers the tasks, which are at `first`, `first` + 1, ... of an axis: all, or about `most`."""
  step = next(step for step in (1, 2, 5, 10, 20, 50, 100, num) if num / step <= most)
  shown = [t for t in range(1, num + 1) if step == 1 or t == 1 or t % step == 0]
  axis.set_ticks([t - 1 + first for t in shown], list(map(str, shown)))


def colours(found: Iterable[Any]) -> dict[Any, str]:
  """{thing: colour}, in the order of their first occurrence; more things than colours begin again."""
  return {each: _COLOURS[i % len(_COLOURS)] for i, each in enumerate(dict.fromkeys(found))}


def some(labels: Sequence[str]) -> str:
  """A sentence for captions about kinds without a panel, or ""."""
  more = len(labels) - MOST
  return f" The first {MOST} of {len(labels)} kinds of runs are shown." if more > 0 else ""


def families_width(found: dict[str, str]) -> float:
  """About the width of the legend of `families` in inches."""
  rows = itertools.zip_longest(*[iter(found)] * _ACROSS, fillvalue="") if len(found) > 1 else []
  return max((sum(drawing.inches([name]) + 0.4 for name in row) for row in rows), default=0)


def families(figure: Figure, found: dict[str, str], bottom: float) -> None:
  """A legend of the families' colours at the lower left of a figure, if there are several; `bottom` in inches."""
  if len(found) > 1:
    handles = [Patch(color=colour, label=name) for name, colour in found.items()]
    figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, bottom / figure.get_figheight()),
                  ncols=min(len(found), _ACROSS), frameon=False, fontsize=8, handlelength=1, columnspacing=1.2)
