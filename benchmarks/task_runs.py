"""The runs on streams of tasks that docs/results/tasks tells of: one line each, from run folders or a CSV file."""
import pathlib
from collections.abc import Iterable

import numpy as np
import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import collect, read
from alma_jax.reports.collect import TRANSFER
from alma_jax.reports.read import LEARNER, SEED, TaskRun
from alma_jax.reports.studies import Study
from alma_jax.store import run_files
from alma_jax.store.record import Graph

STUDY, NETWORK = "study", "network"  # the name of a stream and its number of tasks; e.g. "vgg of width 8"
RESULTS = ["average_accuracy", "forgetting", "cumulative_error", "cumulative_train_flops", TRANSFER, "last_accuracy",
           "memory", "num_modules", "lca", "cumulative_fwd_macs", "wall_seconds"]
ORIGINS = ["from_scratch", "mean_depth", "max_depth", "deeper", "top_origins"]
COLUMNS = [STUDY, NETWORK, "run", LEARNER, SEED, "num_tasks", "num_parts", *RESULTS, *ORIGINS, "visits_apart"]
HUBS = 3  # origins that `top_origins` counts


def collected(paths: Iterable[pathlib.Path]) -> list[Study]:
  """The studies of folders of runs, on streams of tasks; those of one folder have one network.

  Raises:
    BadInput: a folder has no finished run, or its runs on a stream differ in more than the learner and the seed.
  """
  studies = [study for path in paths for study in collect.collect([path])[0] if study.tasks]
  for study in studies:
    if study.factors:
      raise BadInput(f"the runs on {study.name} differ in {', '.join(study.factors)}; give the folder of one sweep, "
                     "whose runs of a stream differ in the learner and the seed alone.")
  if not studies:
    raise BadInput("there is no finished run on a stream of tasks.")
  return studies


def table(studies: Iterable[Study]) -> pd.DataFrame:
  """A row with COLUMNS for each run."""
  rows = []
  for study in studies:
    for _, row in study.runs.iterrows():
      found = study.tasks[row["run"]]
      rows.append({**{column: row[column] for column in COLUMNS if column in row}, **_facts(found), STUDY: study.name,
                   NETWORK: f"{row['model.name']} of width {row['model.width']}",
                   "visits_apart": _keeps_visits_apart(pathlib.Path(row["run"])),
                   "run": pathlib.Path(row["run"]).name, "wall_seconds": round(row["wall_seconds"], 1)})
  return pd.DataFrame(rows, columns=COLUMNS)


def study_of(mine: pd.DataFrame, name: str) -> Study:
  """The Study of those rows of `table` that belong to it; it has no stream and no figures."""
  mine = mine.reset_index(drop=True)
  # The tables of reports ask for the number of tasks, and for nothing else of a TaskRun.
  num, none = int(mine["num_tasks"][0]), np.zeros(0)
  tasks = {run: TaskRun(("",) * num, none, none, none, none, None, "") for run in mine["run"]}
  return Study(name, read.ACCURACY, mine, pd.DataFrame(), (), pd.DataFrame(), tasks)


def depths(graph: Graph) -> list[int]:
  """For each task the number of arrows on the way to it from a network that was trained from scratch."""
  found: list[int] = []
  for origin in graph.origins:
    found.append(0 if origin is None else found[origin] + 1)
  return found


def random_depth(num_tasks: int) -> float:
  """The expected mean depth if every task but the first started from an earlier one that is drawn at random.

  The t-th task has depth 1/1 + 1/2 + ... + 1/(t - 1).
  """
  return float(np.mean([sum(1 / i for i in range(1, t)) for t in range(1, num_tasks + 1)]))


def _keeps_visits_apart(folder: pathlib.Path) -> bool:
  """Whether a task of a run returns, and an earlier version began the run, which kept the visits of a task apart."""
  tasks = (run_files.read_json(folder / "graph.json") or {"tasks": []})["tasks"]
  return any(task["name"].endswith(" again") for task in tasks) and not any("returns" in task for task in tasks)


def _facts(run: TaskRun) -> dict[str, float]:
  """What the graph of a run says; NaN if it has none."""
  num = len(run.names)
  if run.graph is None:
    return {"num_tasks": num}
  depth, origins = depths(run.graph), [origin for origin in run.graph.origins if origin is not None]
  used = sorted((origins.count(origin) for origin in set(origins)), reverse=True)
  return dict(num_tasks=num, num_parts=len(run.graph.parts), from_scratch=num - len(origins),
              mean_depth=round(float(np.mean(depth)), 4), max_depth=max(depth), deeper=sum(each > 1 for each in depth),
              top_origins=sum(used[:HUBS]))
