"""Whether runs on data sets of the same name had the same data."""
import pandas as pd

from alma_jax.reports.read import DATA, PER_CLASS, SEED, TEXT, TOTAL

# Scores of runs that differ in one of these fields cannot be compared.
COMPARABLE = ("dataset.name", PER_CLASS, "dataset.sources", TOTAL, "stream.untrained_error", "dataset.vocab_size",
              "dataset.tokenizer", TEXT, "dataset.cross_documents", "dataset.eval_tokens")


def apart(runs: pd.DataFrame) -> pd.Series:
  """Labels of the data of each run.

  Runs on data sets of the same name have different labels if their data differ, and the label "" otherwise.
  """
  labels = pd.Series("", index=runs.index)
  for (_, is_tasks), group in runs.groupby(["dataset.name", _has(runs, PER_CLASS).rename(PER_CLASS)]):
    # The fingerprint of a text also covers the order of its documents and its tokenizer, which depend on the seed. The
    # seed also draws the examples of tasks.
    if _differs(group, seeded=is_tasks or bool(_has(group, TEXT).all())):
      labels[group.index] = group[DATA].str[:8]
  return labels


def _has(runs: pd.DataFrame, field: str) -> pd.Series:
  """Which runs have a field."""
  return runs[field].notna() if field in runs else pd.Series(False, index=runs.index)


def _differs(runs: pd.DataFrame, seeded: bool) -> bool:
  """Whether runs on data sets of one name had different data. `seeded`: the seed may change the fingerprint."""
  seeds = runs.groupby(DATA)[SEED].nunique()
  if not seeded or seeds.max() > 1:
    return len(seeds) > 1
  alike = [c for c in (*COMPARABLE, SEED) if c in runs]
  return bool(runs.groupby(alike, dropna=False)[DATA].nunique().max() > 1)
