"""The table of the metrics of a stream of tasks: a row per kind of run."""
import pandas as pd

from alma_jax.reports import studies, tables, trade_offs
from alma_jax.reports.parts import Bullets, Table
from alma_jax.reports.read import DATA, FLOPS, LEARNER
from alma_jax.reports.studies import Study
from alma_jax.reports.task_studies import BASELINE, TRANSFER

AVERAGE, FORGETTING, ERROR, MEMORY = "average_accuracy", "forgetting", "cumulative_error", "memory"
LCA = "lca"
COST_FRONT, MEMORY_FRONT = "on_cost_front", "on_memory_front"  # columns of `points`
_COLUMNS = {  # {column: (head, format, what it is)}
    AVERAGE: ("A", ".3f", "average accuracy: mean test accuracy on all tasks after the last one"),
    FORGETTING: ("F", ".3f", "forgetting: mean change of the accuracy on a task from when it was learned to the end; "
                 "negative if accuracies fall, 0 if no stored network changes and no task returns"),
    ERROR: ("E", ".3f", "cumulative error: mean test error on each task when it was learned"),
    FLOPS: ("C", ".3g", "cost: floating-point operations of all trainings, those of every candidate included, and of "
            "searching"),
    TRANSFER: ("T", ".3f", f"transfer: accuracy on the last task minus that of the `{BASELINE}` run of the same seed"),
    MEMORY: ("M", ",.0f", "memory: parameters of everything that is stored at the end, with the statistics of batch "
             "normalisation"),
    "num_modules": ("modules", ".1f", "parts of networks that are stored at the end, each counted once"),
}
_MEASURED = {  # columns of runs in which it was measured
    LCA: ("LCA", ".3f", "area under the learning curve: mean test accuracy after 0, 1, ..., `log.lca` steps of the "
          "training that is kept, over the tasks"),
}


def all_of(study: Study) -> list[Table]:
  """The tables of a study of tasks."""
  return [Table(f"Runs: {tables.MEANS}", overview(study))]


def columns(study: Study) -> Bullets:
  """What the columns of the table mean."""
  num = len(next(iter(study.tasks.values())).names)
  return Bullets("What the columns mean", [
      f"- The stream has {num} task{'s' if num > 1 else ''}. R[t, i] is the test accuracy on task i after task t.",
      *(["- Every seed draws the examples of the tasks anew; deviations over seeds include this difference."]
        if study.runs[DATA].nunique() > 1 else []),
      *(f"- **{head}**, {meaning}." for head, _, meaning in _shown(study).values())])


def points(study: Study) -> pd.DataFrame:
  """A row per kind of run, the highest average accuracy first.

  Returns:
    DataFrame with what studies.means returns for all metrics; the number of seeds with a transfer, `transfer_seeds`;
    the number of seeds that `diverged`; and whether the kind is on the Pareto fronts of (C, E) and of (M, A).
  """
  keys = [LEARNER, *study.factors]
  having = study.runs.groupby(keys, sort=False, dropna=False)[TRANSFER].count().rename("transfer_seeds")
  table = studies.means(study, *_shown(study)).merge(having.reset_index(), on=keys)
  diverged = studies.divergences(study)
  table["diverged"] = [diverged.get(studies.kind(row, study.factors), (0,))[0] for _, row in table.iterrows()]
  for column, cost, loss in ((COST_FRONT, table[FLOPS], table[ERROR]),
                             (MEMORY_FRONT, table[MEMORY], -table[AVERAGE])):
    front = set(trade_offs.front(cost, loss))
    table[column] = [point in front for point in zip(cost, loss)]
  return table.sort_values(AVERAGE, ascending=False, kind="stable", ignore_index=True)


def overview(study: Study) -> str:
  """A row per kind of run, the highest average accuracy first; kinds without a finished run come last."""
  rows = []
  for _, row in points(study).iterrows():
    cells = tables.names(row, study.factors) | {"seeds": tables.seeds(row["seeds"], row["diverged"])}
    for column, (head, form, _) in _shown(study).items():
      cells[head] = _mean(row[column], row[f"{column}_sd"], form)
    if 0 < row["transfer_seeds"] < row["seeds"]:
      cells["T"] += f" ({row['transfer_seeds']})"
    rows.append(cells)
  for row, num in studies.lost(study):
    cells = tables.names(row, study.factors) | {"seeds": tables.seeds(0, num)}
    rows.append(dict.fromkeys(rows[0], "-") | cells)
  return tables.markdown(rows)


def _shown(study: Study) -> dict[str, tuple[str, str, str]]:
  """The columns of a study's table, as _COLUMNS."""
  return _COLUMNS | {key: column for key, column in _MEASURED.items()
                     if key in study.runs and study.runs[key].notna().any()}


def _mean(value: float, deviation: float, form: str) -> str:
  """A cell; counts that are equal on all seeds have no digits behind the point."""
  if form == ".1f" and float(value).is_integer() and (pd.isna(deviation) or deviation == 0):
    form = ".0f"
  text = tables.mean(value, deviation, form)
  return text.replace("-0.000", "0.000")
