"""Whether runs on data sets of the same name had the same data, and the same test set.

Early versions wrote no `alma_jax_version` into config.json. Their seed also drew the test set of digits, and of
folders and texts without a test set. For these, seeds with different fingerprints can have the same data.
"""
from typing import Any

import pandas as pd

from alma_jax.reports.read import DATA, PER_CLASS, SEED, TEXT, TOTAL, VERSION

# Scores of runs that differ in one of these fields cannot be compared.
COMPARABLE = ("dataset.name", PER_CLASS, "dataset.sources", TOTAL, "stream.untrained_error", "dataset.vocab_size",
              "dataset.tokenizer", TEXT, "dataset.cross_documents", "dataset.eval_tokens")
_OLD, _NEW = "of earlier versions", "of later versions"


def apart(runs: pd.DataFrame) -> Any:
  """Labels of the data of each run: a Series.

  Runs on data sets of the same name have different labels if their data differ, and the label "" otherwise.
  """
  contents = pd.Series("", index=runs.index)
  for (name, is_tasks), mine in runs.groupby(["dataset.name", _has(runs, PER_CLASS).rename(PER_CLASS)]):
    # The fingerprint of a text also covers the order of its documents and its tokenizer, which depend on the seed. The
    # seed also draws the examples of tasks.
    seeded = is_tasks or _is_drawn(name) or bool(_has(mine, TEXT).all())
    if not _differs(mine, seeded):
      continue
    old = _is_old(mine) & seeded
    parts = [(mine, "")] if old.all() or not old.any() else [(mine[old], _OLD), (mine[~old], _NEW)]
    for part, which in parts:
      contents[part.index] = which if which and not _differs(part, seeded) else part[DATA].str[:8]
  return contents


def notes(runs: pd.DataFrame) -> list[str]:
  """A sentence if the seeds of one study also differ in their test sets."""
  if runs[SEED].nunique() < 2:
    return []
  if _has(runs, PER_CLASS).any():
    return []  # every seed draws the tasks anew, which task_tables.columns says
  if _is_drawn(runs["dataset.name"].iloc[0]) and runs[DATA].nunique() > 1:
    return ["the seeds differ in their test sets, because earlier versions drew the test set by the seed; deviations "
            "over seeds include this difference."]
  if TEXT in runs and _is_old(runs).any():
    return ["the seeds may differ in their test sets, because earlier versions drew the test set by the seed if a "
            "text had none; deviations over seeds would include this difference."]
  return []


def _is_drawn(name: str) -> bool:
  """Whether earlier versions could draw the test set of this image data set by the seed."""
  return name == "digits" or name.startswith("folder:")


def _has(runs: pd.DataFrame, field: str) -> pd.Series:
  """Which runs have a field."""
  return runs[field].notna() if field in runs else pd.Series(False, index=runs.index)


def _is_old(runs: pd.DataFrame) -> Any:
  return runs[VERSION].isna() if VERSION in runs else pd.Series(True, index=runs.index)


def _differs(runs: pd.DataFrame, seeded: bool) -> bool:
  """Whether runs on data sets of one name had different data. `seeded`: the seed may change the fingerprint."""
  seeds = runs.groupby(DATA)[SEED].nunique()
  if not seeded or seeds.max() > 1:
    return len(seeds) > 1
  alike = [c for c in (*COMPARABLE, SEED) if c in runs]
  return bool(runs.groupby(alike, dropna=False)[DATA].nunique().max() > 1)
