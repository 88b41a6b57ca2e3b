"""The fields of a config that tell kinds of runs apart, and their short names."""
from typing import Any

import pandas as pd

from alma_jax import config as configs
from alma_jax.reports.read import DATA, LEARNER, SEED

# Short names of the fields that studies vary, in the order in which tables show them.
SHORT = {"model.width": "width", "model.num_experts": "experts", "stream.waiting_time": "w", "stream.replay": "replay"}
_FIELDS = (SEED, "precision", "deterministic", DATA)  # fields of a config without a dot in their name
_ALWAYS = ("model.width", "stream.waiting_time", "stream.replay")  # factors if they vary at all


def find(runs: pd.DataFrame) -> tuple[str, ...]:
  """Fields that tell kinds of runs apart.

  If several fields vary together, only one of them is a factor: the first in SHORT, or else the shortest name.
  """
  fields = [c for c in runs.columns if identifies(c) and c not in (LEARNER, SEED, DATA)]
  varying: list[str] = []
  for field in sorted(fields, key=lambda c: (c not in SHORT, list(SHORT).index(c) if c in SHORT else 0, len(c))):
    if field in _ALWAYS and runs[field].nunique() > 1:
      varying.append(field)
      continue
    if not runs.groupby(LEARNER)[field].nunique(dropna=False).gt(1).any():
      continue
    known = [LEARNER, *varying]
    if runs.groupby(known, dropna=False)[field].nunique(dropna=False).gt(1).any():
      varying.append(field)
  return tuple(varying)


def identifies(column: str) -> bool:
  """Whether a column of the runs is part of a run's identity: such a field, or the fingerprint of the data."""
  return ("." in column or column in _FIELDS) and not column.startswith(configs.INCIDENTAL)


def short(field: str) -> str:
  """The name of a field in tables and figures, e.g. "w" for "stream.waiting_time"."""
  return SHORT.get(field, field.rsplit(".", 1)[-1])


def plain(value: Any) -> str:
  """The text of a field's value."""
  return f"{value:g}" if isinstance(value, float) else str(value)
