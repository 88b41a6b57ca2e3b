"""Markdown tables of a study: means and standard deviations over seeds."""
import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from alma_jax.reports import sizes, studies, trade_offs
from alma_jax.reports.factors import plain, short
from alma_jax.reports.parts import Table
from alma_jax.reports.read import COMP, LEARNER, MEM, SEED, WAITING
from alma_jax.reports.scoring import Columns
from alma_jax.reports.studies import Study

MEANS = "mean ± standard deviation over seeds"  # the meaning of ± in a table, for captions
_COSTS = {MEM: ("Mem", ".3g"), COMP: ("Comp", ".3g"), "wall_seconds": ("seconds", "3")}


def all_of(study: Study) -> list[Table]:
  """The tables that the study has the runs for."""
  found = [("Runs", overview(study)),
           ("Training on k mega-batches one after the other (sequential) and on all k at once (iid)", iid(study))]
  unit = study.metric if study.scoring.averages else f"{study.metric} × mega-batches"
  found.append((f"Best choice at each price λ of compute (lowest {study.overall_name} + λ Comp; λ in {unit} per "
                "multiply-add)", prices(study)))
  return [Table(f"{heading}: {MEANS}", table) for heading, table in found if table]


def overview(study: Study) -> str:
  """A row per kind of run, the best first. For language models this is the paper's Table 2.

  Mem is the sum of the parameters over the stream. Comp is the number of multiply-adds of the forward passes in
  training. Kinds without a finished run come last.
  """
  study, updates = _with_updates(study) if study.scoring.averages else (study, {})
  shown = updates | study.scoring.columns | _COSTS
  table = studies.means(study, study.score, *(column for column in shown if column != study.score))
  size_of, diverged = sizes.cells(study), studies.divergences(study)
  rows = []
  for _, row in table.iterrows():
    key = studies.kind(row, study.factors)
    cells = names(row, study.factors) | size_of[key] | {"seeds": seeds(row["seeds"], diverged.get(key, (0,))[0])}
    for column, (head, form) in shown.items():
      cells[head if column in _COSTS else study.measure.named(head)] = mean(row[column], row[f"{column}_sd"], form)
    rows.append(cells)
  for row, num in studies.lost(study):
    cells = names(row, study.factors) | {"seeds": seeds(0, num)}
    rows.append(dict.fromkeys(rows[0], "-") | cells)
  return markdown(rows)


def iid(study: Study) -> str | None:
  """Training on k mega-batches one after the other (sequential) against training on all k at once (iid).

  This is the paper's Table 1. A run that waits for k mega-batches has its value after the first k, where its only
  training until then ended; a run that does not wait has its value at the same t. Learners that grow are left out,
  because they are larger after more stages. Each row uses the seeds that both runs have, and counts the others that
  diverged in one or both. None if the study has no such pairs.
  """
  ks = sorted(int(wait) for wait in study.runs[WAITING].dropna().unique() if wait > 1)
  others = [f for f in study.factors if f != WAITING and f != "train.steps_multiplier"]
  values = study.stream.set_index(["run", "t"])[study.metric]
  rows = []
  for _, mine in study.runs.groupby([LEARNER, *others], sort=False, dropna=False):
    for k in ks if not (mine["last_params"] > mine["first_params"]).any() else ():
      both = {}
      for wait, name in ((1, "sequential"), (k, "iid")):
        runs = mine[mine[WAITING] == wait]
        if study.scoring.averages:  # only runs with the same number of updates
          runs = runs[runs["train.steps_multiplier"] == wait]
        both[name] = pd.Series({seed: values[run, k] for seed, run in zip(runs[SEED], runs["run"])}, dtype=float)
      shared = both["sequential"].index.intersection(both["iid"].index)
      if len(shared):
        form = study.scoring.forms[1]
        cells = {name: mean(each[shared].mean(), each[shared].std(), form) for name, each in both.items()}
        lost = _diverged_seeds(study, k, others).get(studies.kind(mine.iloc[0], others), set())
        rows.append(names(mine.iloc[0], others) | {"k": str(k), "seeds": seeds(len(shared), len(lost - set(shared)))}
                    | cells)
  return markdown(rows) if rows else None


def prices(study: Study) -> str | None:
  """A row for each interval of prices of compute, with the kind of run that is the best choice in it.

  Learners that are the best choice at no price come last. None if all kinds cost the same.
  """
  table = trade_offs.points(study)
  if table[COMP].nunique() < 2:
    return None
  best = table.dropna(subset=["price_low"]).sort_values("price_low")
  form = study.scoring.forms[0]
  rows = []
  for _, row in best.iterrows():
    limits = {f"price {name}": "∞" if math.isinf(row[column]) else f"{row[column]:.3g}"
              for name, column in (("from", "price_low"), ("to", "price_high"))}
    score = {study.overall_name: mean(row[study.overall], row[f"{study.overall}_sd"], form)}
    comp = {"Comp": mean(row[COMP], row[f"{COMP}_sd"], ".3g")}
    rows.append(limits | names(row, study.factors) | {"seeds": seeds(row["seeds"], row["diverged"])} | score | comp)
  never = sorted({*table[LEARNER]} - {*best[LEARNER]})
  return markdown([*rows, *({"price from": "never", "learner": learner} for learner in never)])


def _diverged_seeds(study: Study, k: int, others: list[str]) -> dict[studies.Kind, set[int]]:
  """{kind: seeds that diverged} of the runs that wait for 1 or k mega-batches; `others` are the kinds' factors."""
  found: dict[studies.Kind, set[int]] = {}
  for _, row in study.diverged.iterrows():
    same_updates = not study.scoring.averages or row["train.steps_multiplier"] == row[WAITING]
    if row[WAITING] in (1, k) and same_updates:
      found.setdefault(studies.kind(row, others), set()).add(row[SEED])
  return found


def markdown(rows: list[dict[str, str]]) -> str:
  """Markdown of rows {head: text}. A cell that a row lacks stays empty."""
  heads = list(dict.fromkeys(head for row in rows for head in row))
  left = {"learner", "run", "setting"}
  lines = [heads, ["---" if head in left else "---:" for head in heads],
           *([row.get(head, "") for head in heads] for row in rows)]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _with_updates(study: Study) -> tuple[Study, Columns]:
  """(the study with the metric after each update in columns of `runs`, these columns)."""
  wide = study.stream.pivot(index="run", columns="t", values=study.metric).dropna(axis=1, how="all")
  wide.columns = [f"t={t}" for t in wide.columns]
  joined = study._replace(runs=study.runs.merge(wide, left_on="run", right_index=True))
  return joined, {name: (name, study.scoring.forms[1]) for name in wide.columns}


def names(row: Any, factors: Iterable[str]) -> dict[str, str]:
  """Cells of a kind's learner and factors."""
  return {"learner": row[LEARNER]} | {short(field): _cell(row.get(field)) for field in factors}


def seeds(num: int, diverged: int) -> str:
  """E.g. "2 (1 diverged)"."""
  return f"{num} ({diverged} diverged)" if diverged else str(num)


def _cell(value: Any) -> str:
  return "" if pd.isna(value) else plain(value)


def mean(value: float, deviation: float, form: str) -> str:
  """E.g. "3.11 ± 0.07"; for one seed only the mean. A `form` of one digit: so many digits, of a number that varies."""
  if pd.isna(value):
    return "-"
  if form.isdigit():
    form = f".{max(0, int(form) - 1 - math.floor(math.log10(value))) if value > 0 else 0}f"
  return f"{value:{form}}" if pd.isna(deviation) else f"{value:{form}} ± {deviation:{form}}"
