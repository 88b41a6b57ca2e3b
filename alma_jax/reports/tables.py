"""The tables of a study: means and standard deviations over seeds."""
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.messages import brief_number
from alma_jax.reports import studies, trade_offs
from alma_jax.reports.collect import BASELINE, TRANSFER
from alma_jax.reports.read import COMP, DATA, FLOPS, LEARNER, MEM, MEMORY, REGRET, SEED, WAITING, Columns, Values
from alma_jax.reports.studies import Study, plain, short

MEANS = "mean ± standard deviation over seeds"  # the meaning of ± in a table, for captions
_COSTS = {MEM: ("Mem", "brief"), COMP: ("Comp", "brief"), "wall_seconds": ("seconds", "3")}
_MOST_CLASSES = 12  # of a table
_SHORT = 8  # rows that a page shows at once
_PREFIX = "further "  # of columns, so that a class may be called as a column of runs
AVERAGE, ERROR = "average_accuracy", "cumulative_error"
COST_FRONT, MEMORY_FRONT = "on_cost_front", "on_memory_front"  # columns of `task_points`
_TASKS = {  # {column: (head, format, what it is)}
    AVERAGE: ("A", ".3f", "average accuracy: mean test accuracy on all tasks after the last one"),
    "forgetting": ("F", ".3f", "forgetting: mean change of the accuracy on a task from when it was learned to the end; "
                   "negative if accuracies fall, 0 if no stored network changes and no task returns"),
    ERROR: ("E", ".3f", "cumulative error: mean test error on each task when it was learned"),
    FLOPS: ("C", "brief", "cost: floating-point operations of all trainings, those of every candidate included, and of "
            "searching"),
    TRANSFER: ("T", ".3f", f"transfer: accuracy on the last task minus that of the `{BASELINE}` run of the same seed"),
    MEMORY: ("M", "brief", "memory: parameters of everything that is stored at the end, with the statistics of batch "
             "normalisation"),
    "num_modules": ("modules", ".1f", "parts of networks that are stored at the end, each counted once"),
    "lca": ("LCA", ".3f", "area under the learning curve: mean test accuracy after 0, 1, ..., `log.lca` steps of the "
            "training that is kept, over the tasks"),  # of runs that measured it
}


class Table(NamedTuple):
  """A Markdown table under a heading."""
  heading: str
  markdown: str


def all_of(study: Study) -> list[Table]:
  """The tables that the study has the runs for."""
  if study.tasks:
    return [Table(f"Runs: {MEANS}", task_overview(study)), *further(study)]
  unit = study.scoring.metric if study.scoring.averages else f"{study.scoring.metric} × mega-batches"
  tables = {"Runs": overview(study),
            "Training on k mega-batches one after the other (sequential) and on all k at once (iid)": iid(study),
            f"Best choice at each price λ of compute (lowest {study.scoring.overall_name} + λ Comp; λ in {unit} per "
            "multiply-add)": prices(study)}
  return [*(Table(f"{heading}: {MEANS}", table) for heading, table in tables.items() if table), *further(study)]


def summary(runs: Table) -> Table | None:
  """Of a long table of runs the best one of each learner; None of a short one."""
  head, rule, *rows = runs.markdown.splitlines()
  if len(rows) <= _SHORT:
    return None
  best: dict[str, str] = {}
  for row in rows:
    best.setdefault(row.split(" | ")[0], row)
  return Table(f"The best of each learner: {MEANS}", "\n".join([head, rule, *best.values()]))


def overview(study: Study) -> str:
  """A row per kind of run, the best first. For language models this is the paper's Table 2.

  Mem is the sum of the parameters over the stream. Comp is the number of multiply-adds of the forward passes in
  training. Kinds without a finished run come last.
  """
  regret = {REGRET: ("regret", study.scoring.forms[0])} if REGRET in study.runs else {}
  columns = study.scoring.columns | regret | _COSTS
  if study.scoring.averages:
    study, updates = _with_updates(study)
    columns = updates | columns
  rows = []
  for kind in sorted(studies.kinds(study), key=lambda kind: (kind.runs.empty, kind.runs[study.scoring.overall].mean())):
    cells = names(kind.row, study.factors)
    sizes = studies.size_cells(study, kind) if len(kind.runs) else {}
    rows.append(cells | sizes | {"seeds": seeds(kind.runs[SEED].nunique(), kind.diverged)}
                | {head: mean(kind.runs[column].mean(), kind.runs[column].std(), form)
                   for column, (head, form) in columns.items()})
  return markdown([dict.fromkeys(rows[0], "-") | row for row in rows])


def task_overview(study: Study) -> str:
  """A row per kind of run on tasks, the highest average accuracy first; kinds without a finished run come last."""
  rows = []
  for _, row in task_points(study).iterrows():
    cells = names(row, study.factors) | {"seeds": seeds(row["seeds"], row["diverged"])}
    for column, (head, form, _) in _task_columns(study).items():
      value, deviation = row[column], row[f"{column}_sd"]
      if form == ".1f" and float(value).is_integer() and (pd.isna(deviation) or deviation == 0):
        form = ".0f"  # counts that are equal on all seeds
      cells[head] = mean(value, deviation, form).replace("-0.000", "0.000")
    if 0 < row["transfer_seeds"] < row["seeds"]:
      cells["T"] += f" ({row['transfer_seeds']})"
    rows.append(cells)
  for kind in studies.kinds(study):
    if kind.runs.empty:
      rows.append(dict.fromkeys(rows[0], "-") | names(kind.row, study.factors) | {"seeds": seeds(0, kind.diverged)})
  return markdown(rows)


def task_points(study: Study) -> pd.DataFrame:
  """A row per kind of run, the highest average accuracy first.

  Returns:
    DataFrame with what studies.means returns for all metrics; the number of seeds with a transfer, `transfer_seeds`;
    the number of seeds that `diverged`; and whether the kind is on the Pareto fronts of (C, E) and of (M, A).
  """
  keys = [LEARNER, *study.factors]
  counts = study.runs.groupby(keys, sort=False, dropna=False)[TRANSFER].count().rename("transfer_seeds")
  table = studies.means(study, *_task_columns(study)).merge(counts.reset_index(), on=keys)
  table = studies.with_diverged(study, table).assign(**{
      COST_FRONT: trade_offs.on_front(table[FLOPS], table[ERROR]),
      MEMORY_FRONT: trade_offs.on_front(table[MEMORY], -table[AVERAGE])})
  return table.sort_values(AVERAGE, ascending=False, kind="stable", ignore_index=True)


def task_columns(study: Study) -> list[str]:
  """Markdown lines that say what the columns of the table of tasks mean."""
  num = len(next(iter(study.tasks.values())).names)
  return [
      f"- The stream has {num} task{'s' if num > 1 else ''}. R[t, i] is the test accuracy on task i after task t.",
      *(["- Every seed draws the examples of the tasks anew; deviations over seeds include this difference."]
        if study.runs[DATA].nunique() > 1 else []),
      *(f"- **{head}**, {meaning}." for head, _, meaning in _task_columns(study).values())]


def iid(study: Study) -> str | None:
  """Training on k mega-batches one after the other (sequential) against training on all k at once (iid).

  This is the paper's Table 1. A run that waits for k mega-batches has its value after the first k, where its only
  training until then ended; a run that does not wait has its value at the same t. Learners that grow are left out,
  because they are larger after more stages. Each row uses the seeds that both runs have, and counts the others that
  diverged in one or both. None if the study has no such pairs.
  """
  others = [f for f in study.factors if f not in (WAITING, "train.steps_multiplier")]
  values = study.stream.set_index(["run", "t"])[study.scoring.metric]
  form, rows = study.scoring.forms[1], []

  def comparable(runs: pd.DataFrame, wait: int) -> pd.DataFrame:
    """The runs that wait for so many mega-batches; of language models those with the same number of updates."""
    if runs.empty:
      return runs
    updates = runs["train.steps_multiplier"] == wait if study.scoring.averages else True
    return runs[(runs[WAITING] == wait) & updates]

  for _, runs in study.runs.groupby([LEARNER, *others], sort=False, dropna=False):
    if (runs["last_params"] > runs["first_params"]).any():
      continue
    for k in sorted(int(wait) for wait in study.runs[WAITING].dropna().unique() if wait > 1):
      sides = [comparable(runs, wait) for wait in (1, k)]
      scores = pd.concat([pd.Series([values[run, k] for run in side["run"]], side[SEED], float) for side in sides],
                         axis=1, keys=["sequential", "iid"], join="inner")
      if len(scores):
        diverged = {row[SEED] for wait in (1, k) for _, row in comparable(study.diverged, wait).iterrows()
                    if studies.key(row, others) == studies.key(runs.iloc[0], others)}
        rows.append(names(runs.iloc[0], others) | {"k": str(k), "seeds": seeds(len(scores), len(diverged.difference(
            scores.index)))} | {name: mean(scores[name].mean(), scores[name].std(), form) for name in scores})
  return markdown(rows) if rows else None


def prices(study: Study) -> str | None:
  """A row for each interval of prices of compute, with the kind of run that is the best choice in it.

  Learners that are the best choice at no price come last. None if all kinds cost the same.
  """
  table = trade_offs.points(study)
  if table[COMP].nunique() < 2:
    return None
  best = table.dropna(subset=["price_low"]).sort_values("price_low")
  columns, rows = {study.scoring.overall: (study.scoring.overall_name, study.scoring.forms[0]),
                   COMP: ("Comp", "brief")}, []
  for _, row in best.iterrows():
    limits = {f"price {name}": "∞" if math.isinf(row[column]) else f"{row[column]:.3g}"
              for name, column in (("from", "price_low"), ("to", "price_high"))}
    rows.append(limits | names(row, study.factors) | {"seeds": seeds(row["seeds"], row["diverged"])}
                | means_of(row, columns))
  never = sorted({*table[LEARNER]} - {*best[LEARNER]})
  return markdown([*rows, *({"price from": "never", "learner": learner} for learner in never)])


def further(study: Study) -> list[Table]:
  """The tables of the metrics of `log.metrics`, their newest values for each kind of run.

  There is a table of the numbers, and for each metric with a value for each class a table with a column for each class.
  """
  numbers: dict[str, Values] = {}  # by run
  of_classes: dict[str, dict[str, Values]] = {}  # by metric and run
  for run, values in study.further.items():
    for key, value in values.items():
      if isinstance(value, dict):
        of_classes.setdefault(key, {})[run] = value
      else:
        numbers.setdefault(run, {})[key] = value
  tables = {"Further metrics, the last values": pd.DataFrame.from_dict(numbers, "index")} if numbers else {}
  for key, classes in of_classes.items():
    table = pd.DataFrame.from_dict(classes, "index")
    worst = table.mean().sort_values(ascending=False, kind="stable").index[:_MOST_CLASSES]
    which = (f", the {_MOST_CLASSES} of {len(table.columns)} classes with the largest"
             if len(table.columns) > _MOST_CLASSES else "")
    tables[f"{key}, the last values{which}"] = table[[c for c in table if c in worst]]
  return [Table(f"{heading}: {MEANS}", _further(study, values)) for heading, values in tables.items()]


def _further(study: Study, values: pd.DataFrame) -> str:
  """A row for each kind of run with values, which have a row for each run."""
  columns = {f"{_PREFIX}{column}": (column, ".4f") for column in values}
  runs = study.runs.merge(values.add_prefix(_PREFIX), left_on="run", right_index=True)
  return markdown([names(row, study.factors) | {"seeds": str(row["seeds"])} | means_of(row, columns)
                   for _, row in studies.means(study._replace(runs=runs), *columns).iterrows()])


def _task_columns(study: Study) -> dict[str, tuple[str, str, str]]:
  """The columns of a study's table, as _TASKS."""
  return {key: column for key, column in _TASKS.items()
          if key != "lca" or (key in study.runs and study.runs[key].notna().any())}


def _with_updates(study: Study) -> tuple[Study, Columns]:
  """(the study with the metric after each update in columns of `runs`, these columns)."""
  wide = study.stream.pivot(index="run", columns="t", values=study.scoring.metric).dropna(axis=1, how="all")
  wide.columns = [f"t={t}" for t in wide.columns]
  joined = study._replace(runs=study.runs.merge(wide, left_on="run", right_index=True))
  return joined, {name: (name, study.scoring.forms[1]) for name in wide.columns}


# ----------------------------------------------------------------------------------------------------------- cells

def markdown(rows: list[dict[str, str]]) -> str:
  """Markdown of rows {head: text}. A cell that a row lacks stays empty."""
  heads = list(dict.fromkeys(head for row in rows for head in row))
  left = {"learner", "run", "setting"}
  lines = [heads, ["---" if head in left else "---:" for head in heads],
           *([row.get(head, "") for head in heads] for row in rows)]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def names(row: Any, factors: Iterable[str]) -> dict[str, str]:
  """Cells of a kind's learner and factors."""
  return {"learner": row[LEARNER]} | {
      short(field): "" if pd.isna(row.get(field)) else plain(row[field]) for field in factors}


def seeds(num: int, diverged: int) -> str:
  """E.g. "2 (1 diverged)"."""
  return f"{num} ({diverged} diverged)" if diverged else str(num)


def means_of(row: Any, columns: Columns) -> dict[str, str]:
  """Cells of columns of a row of studies.means."""
  return {head: mean(row[column], row[f"{column}_sd"], form) for column, (head, form) in columns.items()}


def mean(value: float, deviation: float, form: str) -> str:
  """E.g. "3.11 ± 0.07"; only the mean for one seed, and for values that are equal in the digits shown.

  Args:
    value, deviation: over seeds; NaN for none.
    form: a format; "brief": of counts, as "2.2 G ± 31 M"; one digit: so many digits, of a number that varies.
  """
  if pd.isna(value):
    return "-"
  if form.isdigit():
    form = f".{max(0, int(form) - 1 - math.floor(math.log10(value))) if value > 0 else 0}f"
  shown, spread = ("" if pd.isna(number) else brief_number(round(number)) if form == "brief" else f"{number:{form}}"
                   for number in (value, deviation))
  return f"{shown} ± {spread}" if spread.strip("0.") else shown
