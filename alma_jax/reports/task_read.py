"""Reads what a run on a stream of tasks holds besides the files of every run, and checks it."""
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports.protocols import FLOPS
from alma_jax.store import run_files

_GRAPH = "graph.json"
_COUNTS = ("num_params", "num_modules", "train_flops")


class Graph(NamedTuple):
  """What was started from what; tasks and modules are counted from 0.

  Attributes:
    families: of the tasks.
    origins: for each task the earlier one that its network comes from, or None.
    parts: names of the parts of a network, from the inputs to the head.
    made: for each module the task that trained it.
    paths: for each task the module of each part.
  """
  families: tuple[str, ...]
  origins: tuple[int | None, ...]
  parts: tuple[str, ...]
  made: tuple[int, ...]
  paths: tuple[tuple[int, ...], ...]

  @property
  def shares(self) -> bool:
    """Whether tasks share a module."""
    used = [module for path in self.paths for module in set(path)]
    return len(used) > len(set(used))


class TaskRun(NamedTuple):
  """The results of a run on a stream of T tasks.

  Attributes:
    names: of the tasks.
    accuracies: float [T, T], R[t, i], the test accuracy on task i after task t; NaN for i > t.
    num_params, num_modules: float [T], parameters and modules that are stored after each task.
    train_flops: float [T], spent on each task.
    graph: None if it cannot be read; then `problem` says why.
    problem: a clause, or "".
  """
  names: tuple[str, ...]
  accuracies: np.ndarray
  num_params: np.ndarray
  num_modules: np.ndarray
  train_flops: np.ndarray
  graph: Graph | None
  problem: str


def read(folder: pathlib.Path, lines: list[dict[str, Any]]) -> TaskRun:
  """The TaskRun of a finished run with these lines of metrics.jsonl.

  Raises:
    BadInput: a line is not that of a task.
  """
  accuracies = np.full((len(lines), len(lines)), np.nan)
  for t, line in enumerate(lines):
    found = line.get("accuracies")
    if not isinstance(found, list) or len(found) != t + 1 or not all(_is_number(value, 1) for value in found):
      raise BadInput(f"line {t + 1} of its {run_files.METRICS} should have `accuracies`, a list of {t + 1} numbers "
                     "from 0 to 1.")
    accuracies[t, :t + 1] = found
    if not isinstance(line.get("task"), str):
      raise BadInput(f"line {t + 1} of its {run_files.METRICS} lacks the name of the task.")
    for key in _COUNTS:
      if not _is_number(line.get(key)):
        raise BadInput(f"line {t + 1} of its {run_files.METRICS} should have {key!r}, a number of at least 0.")
  num_params, num_modules, flops = (np.array([line[key] for line in lines], float) for key in _COUNTS)
  graph, problem = None, ""
  try:
    graph = _graph(_tree(folder / _GRAPH), len(lines))
  except BadInput as error:
    problem = f"{error}; the run's own command writes it again"
  return TaskRun(tuple(line["task"] for line in lines), accuracies, num_params, num_modules, flops, graph,
                 problem)


def with_columns(stream: pd.DataFrame, tasks: TaskRun) -> pd.DataFrame:
  """Adds the columns task, accuracy (on the newest task), num_params, num_modules and cumulative_train_flops."""
  return stream.assign(task=tasks.names, accuracy=np.diag(tasks.accuracies), num_params=tasks.num_params,
                       num_modules=tasks.num_modules, **{FLOPS: np.cumsum(tasks.train_flops)})


def _tree(path: pathlib.Path) -> Any:
  """The contents of a graph.json; the message of BadInput is a clause."""
  try:
    return run_files.read_json(path)
  except BadInput as error:
    raise BadInput(f"its {_GRAPH} is not JSON") from error


def _graph(tree: Any, num: int) -> Graph:
  """The Graph of a graph.json.

  Raises:
    BadInput: it is not the graph of `num` tasks; the message is a clause.
  """
  if tree is None:
    raise BadInput(f"it has no {_GRAPH}")
  try:
    parts, modules = tuple(map(str, tree["parts"])), tree["modules"]
    made = tuple(module["task"] for module in modules)
    families, origins, paths = zip(*((str(task["family"]), task["origin"], tuple(task["path"]))
                                     for task in tree["tasks"]))
    where = [parts.index(module["part"]) for module in modules]
    fits = (len(families) == num and all(type(task) is int and 0 <= task < num for task in made)
            and all(origin is None or (type(origin) is int and 0 <= origin < t) for t, origin in enumerate(origins))
            and all([where[module] for module in path] == [*range(len(parts))] and min(path, default=0) >= 0
                    and all(made[module] <= t for module in path) for t, path in enumerate(paths)))
  except (IndexError, KeyError, TypeError, ValueError):
    fits = False
  if not fits:
    raise BadInput(f"its {_GRAPH} is not the graph of {num} tasks")
  return Graph(families, origins, parts, made, paths)


def _is_number(value: Any, most: float = math.inf) -> bool:
  return type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most
