"""All figures of a stream of tasks, with their captions."""
from matplotlib.figure import Figure

from alma_jax.reports import task_fronts, task_graph, task_matrix, task_memory, task_modules, task_panels
from alma_jax.reports.read import SEED
from alma_jax.reports.studies import Study


def all_of(study: Study) -> dict[str, tuple[str, Figure]]:
  """Every figure that the study has the runs for: {name: (caption, figure)}."""
  found = {}
  labels = [label for label, *_ in task_panels.kinds(study)]
  several, several_tasks = study.runs[SEED].nunique() > 1, len(next(iter(study.tasks.values())).names) > 1
  if len(labels) > 1:
    found["task-pareto"] = (
        "Cumulative error against cost, and average accuracy against memory: mean ± standard deviation over seeds. "
        "Rings and the line show the Pareto front: no other kind of run is better in both. If errors "
        "differ widely, the axes are logarithmic in the error, which for an accuracy A is 1 - A.",
        task_fronts.pareto(study))
  if several_tasks:
    found["task-memory"] = (
        "What is stored after each task: parameters (left) and modules, the parts of networks (right); mean over "
        "seeds, with a band from the lowest to the highest value. Dashes of several colours: lines that coincide.",
        task_memory.over_tasks(study))
  graphs = task_graph.shown(study)
  seed = " Of each kind of run the lowest seed is shown." if several else ""
  if graphs:
    found["task-origins"] = (
        "The graph of origins: an arrow leads from an earlier task to the task whose network was started from it. "
        f"An open circle is a network from scratch.{_families(graphs)}{_never(labels, graphs)}{seed}"
        f"{task_panels.some([label for label, _ in graphs])}", task_graph.origins(study))
  shared = task_modules.shown(study)
  if shared:
    found["task-modules"] = (
        "The module that each task has at each part of the network, from the inputs (bottom) to the head (top). "
        "Cells of a row with the same colour are the same module, which has the number of the task that trained it; "
        f"grey modules belong to one task alone.{seed}{task_panels.some([label for label, _ in shared])}",
        task_modules.modules(study))
  if several_tasks:
    found["task-matrix"] = (
        "The accuracy matrix R: row t, column i is the test accuracy, in percent, on task i after task t; mean over "
        "seeds. A column that changes from row to row shows forgetting, or that the task returns."
        f"{task_panels.some(labels)}",
        task_matrix.matrix(study))
  return found


def _families(graphs: list[tuple[str, task_graph.Graph]]) -> str:
  several = len({family for _, graph in graphs for family in graph.families}) > 1
  return " Colours show the families of the tasks." if several else ""


def _never(labels: list[str], graphs: list[tuple[str, task_graph.Graph]]) -> str:
  """A sentence about the kinds of runs without an arrow, or ""."""
  missing = [label for label in labels if label not in {name for name, _ in graphs}]
  return f" Without any arrow: {', '.join(missing)}." if missing else ""
