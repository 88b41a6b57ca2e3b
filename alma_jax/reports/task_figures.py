"""Figures of a stream of tasks: what learners cost, store and forget, and what each task was started from."""
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib.colors
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Patch

from alma_jax.reports import drawing, figures, studies, tables, trade_offs
from alma_jax.reports.drawing import Grid, Line, Panel, Plot
from alma_jax.reports.read import FLOPS, LEARNER, MEMORY, SEED, TaskRun
from alma_jax.reports.studies import Study
from alma_jax.store.record import Graph

TITLES = {"task-pareto": "What compute and memory buy", "task-memory": "What is stored",
          "task-origins": "Who started from whom", "task-modules": "Which modules tasks share",
          "task-matrix": "What is remembered"}
MOST = 9  # kinds of runs with a panel of their own
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A3E9D", "#8C6D00", "#A6761D",
            "#1B9E77", "#C8102E", "#34518C")  # of families and of modules
_LONE = "0.88"  # the colour of modules of a single task
_NAMED, _LONGEST = 40, 34  # tasks whose names have room, and letters of a name
_NUMBERED, _WIDE = 12, 24  # columns up to which the cells of a matrix, and those of modules, have room for numbers
_DASH = 6.0  # length of a dash, in line widths, where several lines coincide


def plots(study: Study) -> dict[str, Plot]:
  """Every figure that the study has the runs for, by name."""
  several_tasks = len(_runs(study).names) > 1
  every = {
      "task-pareto": pareto(study),
      "task-memory": memory(study) if several_tasks else None,
      "task-origins": origins(study),
      "task-modules": modules(study),
      "task-matrix": matrix(study) if several_tasks else None}
  return {name: plot for name, plot in every.items() if plot}


def pareto(study: Study) -> Plot | None:
  """(C, E) and (M, 1 - A) of the kinds of runs. Names are written where there is room, first on the front."""
  table = tables.task_points(study).assign(error=lambda table: 1 - table[tables.AVERAGE])
  if len(table) < 2:
    return None
  table["error_sd"] = table[f"{tables.AVERAGE}_sd"]
  table["label"] = studies.brief_labels(table, study.factors)
  keys = {learner: drawing.key(learner, learner, joined=False) for learner in drawing.in_order(table[LEARNER].unique())}
  panels = [Panel("", [figures.line_of(keys[learner], part, cost, score, part["label"])
                       for learner, part in table.sort_values(column, ascending=False, kind="stable").groupby(
                           LEARNER, sort=False)],
                  trade_offs.front(table[cost], table[score]), x=x, y=y)
            for cost, score, column, x, y in (
                (FLOPS, tables.ERROR, tables.COST_FRONT, "cost C (training flops)", "cumulative error E"),
                (MEMORY, "error", tables.MEMORY_FRONT, "memory M (stored parameters)", "average error 1 - A"))]
  return Plot("Cumulative error against cost, and average error 1 - A, where A is the average accuracy, against "
              "memory: mean ± standard deviation over seeds. Rings and the line show the Pareto front: no other kind "
              "of run is better in both.", panels, [*keys.values()], 2, (drawing.WIDTH / 2, 2.8), shared="none")


def memory(study: Study) -> Plot:
  """Parameters and modules after each task, with a line for each kind of run; the stream has at least two tasks.

  Lines that coincide are drawn as one line of dashes in the colours of all.
  """
  kinds, panels = _kinds(study), []
  looks: list[str] = [row[LEARNER] for _, row, _ in kinds]
  keys = [drawing.key(label, row[LEARNER], 4 * looks[:i].count(row[LEARNER]), marked=False)
          for i, (label, row, _) in enumerate(kinds)]
  for name in ("num_params", "num_modules"):
    values = [np.stack([getattr(run, name) for run in runs]) for _, _, runs in kinds]
    means = [each.mean(0) for each in values]
    lines = []
    for i, (key, each, mean) in enumerate(zip(keys, values, means)):
      twins = [j for j, other in enumerate(means) if np.allclose(other, mean)]
      dashes = (twins.index(i) * _DASH, (_DASH, _DASH * (len(twins) - 1))) if len(twins) > 1 else None
      lines.append(Line(key, np.arange(1, len(mean) + 1), mean, each.min(0), each.max(0), "curve", dashes=dashes))
    panels.append(Panel("", lines, x="tasks seen", y=name.replace("num_params", "stored parameters").replace(
        "num_modules", "stored modules")))
  return Plot("What is stored after each task: parameters (left) and modules, the parts of networks (right); mean "
              "over seeds, with a band from the lowest to the highest value. Dashes of several colours: lines that "
              "coincide.",
              panels, keys, 2, (drawing.WIDTH / 2, 2.2), (False, False), "none")


def origins(study: Study) -> Plot | None:
  """The tasks from top to bottom, and arrows from their origins; an arrow has the colour of the family it begins at."""
  graphs = _graphs(study, lambda graph: any(origin is not None for origin in graph.origins))
  if not graphs:
    return None
  num = len(_runs(study).names)
  names = _names(study) if num <= _NAMED else [str(t) for t in range(1, num + 1)]
  families = _coloured(family for _, graph in graphs for family in graph.families)
  panels = [Panel(drawing.wrapped(label, 1.05), grid=Grid(
      names, nodes=[(families[family], origin is not None) for family, origin in zip(graph.families, graph.origins)],
      arrows=[(origin, t, families[graph.families[origin]]) for t, origin in enumerate(graph.origins)
              if origin is not None])) for label, graph in graphs[:MOST]]
  labels = [label for label, *_ in _kinds(study)]
  without = [label for label in labels if label not in dict(graphs)]
  keys = [Patch(color=colour, label=family) for family, colour in families.items()] if len(families) > 1 else []
  across = min(len(panels), 4)
  return Plot("The graph of origins: an arrow leads from an earlier task to the task whose network was started from "
              "it. An open circle is a network from scratch."
              + (" Colours show the families of the tasks." if keys else "")
              + (f" Without any arrow: {', '.join(without)}." if without else "") + _seed(study) + _some(graphs),
              panels, keys, across, (1.2 + drawing.text_inches(names) / across, min(max(0.19 * num, 1.2), 7.5) + 0.2))


def modules(study: Study) -> Plot | None:
  """Parts of the network as rows, tasks as columns; a module has the colour of the task that trained it."""
  graphs = _graphs(study, lambda graph: graph.shares)
  if not graphs:
    return None
  panels, num = [], len(_runs(study).names)
  for label, graph in graphs[:MOST]:
    users = [sum(module in path for path in graph.paths) for module in range(len(graph.made))]
    colours = _coloured(sorted({task for task, count in zip(graph.made, users) if count > 1}))
    cells = [[path[part] for path in graph.paths] for part in reversed(range(len(graph.parts)))]
    rgb = np.array([[matplotlib.colors.to_rgb(colours[graph.made[module]] if users[module] > 1 else _LONE)
                     for module in row] for row in cells])
    texts = [[str(graph.made[module] + 1) for module in row] for row in cells] if num <= _WIDE else []
    panels.append(Panel(f"{label}: {len(graph.made)} modules", grid=Grid(
        graph.parts[::-1], [str(t) for t in range(1, num + 1)], 0.45 + 0.55 * rgb, texts), x="task"))
  depth = max(len(graph.parts) for _, graph in graphs)
  return Plot("The module that each task has at each part of the network, from the inputs (bottom) to the head (top). "
              "Cells of a row with the same colour are the same module, which has the number of the task that trained "
              f"it; grey modules belong to one task alone.{_seed(study)}{_some(graphs)}",
              panels, size=(min(max(0.32 * num, 2.6), 6.4), 0.22 * depth + 0.4), shared="none")


def matrix(study: Study) -> Plot:
  """The accuracy matrix R of each kind of run; row t, column i: the accuracy on task i after task t."""
  kinds = _kinds(study)
  means = [np.mean([run.accuracies for run in runs], axis=0) for _, _, runs in kinds[:MOST]]
  num = len(means[0])
  low = min(0.95, *(float(np.nanmin(mean)) for mean in means))
  colours = ScalarMappable(matplotlib.colors.Normalize(low, 1), "cividis")
  numbers, across = [str(t) for t in range(1, num + 1)], min(3, len(means))
  panels = [Panel(label, grid=Grid(
      numbers, numbers, np.where(np.isnan(mean)[..., None], 1, colours.to_rgba(mean)),
      [[f"{100 * value:.0f}" if value == value else "" for value in row] for row in mean] if num <= _NUMBERED else []),
      x="task i", y="after task t") for (label, *_), mean in zip(kinds, means)]
  return Plot("The accuracy matrix R: row t, column i is the test accuracy, in percent, on task i after task t; mean "
              "over seeds. A column that changes from row to row shows forgetting, or that the task returns."
              f"{_some(kinds)}", panels, across=across, size=(2.1, 1.8), bar=(colours, "accuracy"))


def _kinds(study: Study) -> list[tuple[str, Any, list[TaskRun]]]:
  """(label, row of one of its runs, TaskRuns by ascending seed) of each kind, the learners in their order."""
  kinds = [kind for kind in studies.kinds(study) if len(kind.runs)]
  rows = pd.DataFrame([kind.row for kind in kinds])
  order = drawing.in_order(rows[LEARNER].unique())
  listed = [(label, kind.row, [study.tasks[run] for run in kind.runs.sort_values(SEED)["run"]])
            for label, kind in zip(studies.brief_labels(rows, study.factors), kinds)]
  return sorted(listed, key=lambda kind: order.index(kind[1][LEARNER]))


def _graphs(study: Study, has: Callable[[Graph], bool]) -> list[tuple[str, Graph]]:
  """(label, graph of its lowest seed that has one) of each kind of runs whose graph `has` something to show."""
  graphs = ((label, next((run.graph for run in runs if run.graph), None)) for label, _, runs in _kinds(study))
  return [(label, graph) for label, graph in graphs if graph and has(graph)]


def _runs(study: Study) -> TaskRun:
  """One of the runs."""
  return next(iter(study.tasks.values()))


def _names(study: Study) -> list[str]:
  """Of the tasks, with their numbers, cut where they are long."""
  numbered = [name if name.startswith(f"{t} ") else f"{t} {name}" for t, name in enumerate(_runs(study).names, 1)]
  return [name if len(name) <= _LONGEST else f"{name[:_LONGEST - 1].rstrip()}…" for name in numbered]


def _coloured(things: Iterable[Any]) -> dict[Any, str]:
  """{thing: colour}, in the order of their first occurrence; more things than colours begin again."""
  return dict(zip(dict.fromkeys(things), itertools.cycle(_COLOURS)))


def _seed(study: Study) -> str:
  return " Of each kind of run the lowest seed is shown." if study.runs[SEED].nunique() > 1 else ""


def _some(kinds: Sequence[Any]) -> str:
  """A sentence for captions about kinds without a panel, or ""."""
  return f" The first {MOST} of {len(kinds)} kinds of runs are shown." if len(kinds) > MOST else ""
