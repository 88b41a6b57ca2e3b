"""What studies of streams of tasks have besides: the transfer to the last task, and notes."""
from typing import Any

import numpy as np
import pandas as pd

from alma_jax.reports.read import LEARNER, SEED
from alma_jax.reports.studies import Study

TRANSFER, BASELINE = "transfer", "independent"


def with_transfer(study: Study) -> Study:
  """Adds the column `transfer` to the runs: R[T, T] minus that of the `independent` run of the same seed.

  That run has the same values of all factors but the options of learners. The column is NaN where there is no such run,
  or several.
  """
  shared = [field for field in study.factors if not field.startswith("learner.")]
  key = lambda row: tuple(None if pd.isna(row[field]) else row[field] for field in (SEED, *shared))
  baselines: dict[Any, list[float]] = {}
  for _, row in study.runs[study.runs["learner.name"] == BASELINE].iterrows():
    baselines.setdefault(key(row), []).append(row["last_accuracy"])
  found = []
  for _, row in study.runs.iterrows():
    its = baselines.get(key(row), [])
    found.append(row["last_accuracy"] - its[0] if len(its) == 1 else np.nan)
  return study._replace(runs=study.runs.assign(**{TRANSFER: found}))


def notes(study: Study) -> list[str]:
  """Sentences about runs without a transfer, and about runs whose graph is not drawn; none for other streams."""
  if not study.tasks:
    return []
  sentences = []
  missing = study.runs[study.runs[TRANSFER].isna()]
  if len(missing) == len(study.runs):
    sentences.append(f"there is no finished run of `{BASELINE}`, against which the transfer to the last task (T) is "
                     "measured.")
  elif len(missing):
    seeds = ", ".join(f"{name} (seed {', '.join(map(str, sorted(mine[SEED].unique())))})"
                      for name, mine in missing.groupby(LEARNER))
    sentences.append(f"the transfer to the last task (T) leaves out {seeds}, because there is not exactly one finished "
                     f"run of `{BASELINE}` with the same seed and fields.")
  return sentences + [f"the graph of {run} is not drawn, because {tasks.problem}."
                      for run, tasks in study.tasks.items() if tasks.problem]
