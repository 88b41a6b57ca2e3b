"""Whether runs on data sets of the same name had the same data."""
import pandas as pd

from alma_jax.reports.read import DATA, DRAWN, SEED, TOTAL

# Scores of runs that differ in one of these fields cannot be compared.
COMPARABLE = ("dataset.name", "dataset.test_per_class", "dataset.sources", TOTAL, "stream.untrained_error", "dataset.vocab_size",
              "dataset.tokenizer", "dataset.sequence_length", "dataset.cross_documents", "dataset.eval_tokens")


def apart(runs: pd.DataFrame) -> pd.Series:
  """Labels of the data of each run.

  Runs on data sets of the same name have different labels if their data differ, and the label "" otherwise.
  """
  labels = pd.Series("", index=runs.index)
  for (_, drawn), group in runs.groupby(["dataset.name", DRAWN]):
    if _differs(group, drawn):
      labels[group.index] = group[DATA].str[:8]
  return labels


def _differs(runs: pd.DataFrame, drawn: bool) -> bool:
  """Whether runs on data sets of one name had different data. `drawn`: the seed may change the fingerprint."""
  seeds = runs.groupby(DATA)[SEED].nunique()
  if not drawn or seeds.max() > 1:
    return len(seeds) > 1
  alike = [c for c in (*COMPARABLE, SEED) if c in runs]
  return bool(runs.groupby(alike, dropna=False)[DATA].nunique().max() > 1)
