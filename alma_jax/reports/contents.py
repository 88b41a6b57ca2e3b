"""Whether runs on data sets of the same name had the same data."""
from collections.abc import Sequence

import pandas as pd

from alma_jax.reports.read import DATA, SEED, TOTAL

# Scores of runs that differ in one of these fields cannot be compared.
COMPARABLE = ("dataset.name", "dataset.test_per_class", "dataset.sources", TOTAL, "stream.untrained_error",
              "dataset.vocab_size", "dataset.tokenizer", "dataset.sequence_length", "dataset.cross_documents",
              "dataset.eval_tokens")


def apart(runs: pd.DataFrame, drawn: Sequence[bool]) -> pd.Series:
  """Labels of the data of each run.

  Runs on data sets of the same name have different labels if their data differ, and the label "" otherwise.

  Args:
    runs: a row for each, with the fields of its config.
    drawn: for each, whether the fingerprint of its data depends on the seed.
  """
  labels = pd.Series("", index=runs.index)
  for (_, is_drawn), group in runs.groupby(["dataset.name", pd.Series(drawn, runs.index)]):
    if _differs(group, is_drawn):
      labels[group.index] = group[DATA].str[:8]
  return labels


def _differs(runs: pd.DataFrame, is_drawn: bool) -> bool:
  """Whether runs on data sets of one name had different data. `is_drawn`: the seed may change the fingerprint."""
  seeds = runs.groupby(DATA)[SEED].nunique()
  if not is_drawn or seeds.max() > 1:
    return len(seeds) > 1
  alike = [c for c in (*COMPARABLE, SEED) if c in runs]
  return bool(runs.groupby(alike, dropna=False)[DATA].nunique().max() > 1)
