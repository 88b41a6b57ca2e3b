"""The fields of a config that tell kinds of runs apart, and their short names."""
from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from alma_jax import config as configs
from alma_jax.reports.read import DATA, LEARNER, SEED

# Short names of the fields that studies vary, in the order in which tables show them.
SHORT = {"model.name": "network", "model.width": "width", "model.num_experts": "experts",
         "stream.schedule": "schedule", "train.optimizer": "optimizer", "learner.search": "search",
         "stream.waiting_time": "w", "stream.replay": "replay", "stream.replay_share": "share",
         "stream.memory_size": "memory", "stream.price": "price", "learner.average": "average",
         "learner.num_members": "members", "train.steps_multiplier": "step multiple"}
_FIELDS = (SEED, "precision", "deterministic", DATA)  # fields of a config without a dot in their name
_ALWAYS = ("model.width", "stream.waiting_time", "stream.replay")  # factors if they vary at all


def find(runs: pd.DataFrame) -> tuple[str, ...]:
  """Fields that tell kinds of runs apart.

  A field is a factor if it varies among the runs of a learner. If several fields vary together, only one of them is a
  factor: the first in SHORT, or else the shortest name.
  """
  return tuple(_apart(runs, (), _ALWAYS))


def besides(runs: pd.DataFrame, fields: Sequence[str]) -> list[str]:
  """The fields that tell apart runs of one learner with the same values of `fields`."""
  return _apart(runs, fields, ())[len(fields):]


def identifies(column: str) -> bool:
  """Whether a column of the runs is part of a run's identity: such a field, or the fingerprint of the data."""
  return ("." in column or column in _FIELDS) and not column.startswith(configs.INCIDENTAL)


def short(field: str) -> str:
  """The name of a field in tables and figures, e.g. "w" for "stream.waiting_time"."""
  return SHORT.get(field, field.rsplit(".", 1)[-1])


def is_switch(values: pd.Series) -> bool:
  """Whether all values of a field are True or False."""
  return bool(len(values)) and all(map(pd.api.types.is_bool, values))


def plain(value: Any) -> str:
  """The text of a field's value."""
  return f"{value:g}" if isinstance(value, float) else str(value)


def order(value: Any) -> tuple[int, float, str]:
  """A key by which values of a field are sorted: numbers, then text such as "uniform", then missing values."""
  if value is None or pd.isna(value):
    return 2, 0.0, ""
  try:
    return 0, float(value), ""
  except (TypeError, ValueError):
    return 1, 0.0, str(value)


def _apart(runs: pd.DataFrame, known: Sequence[str], always: Collection[str]) -> list[str]:
  """`known`, and the other fields that tell kinds of runs apart; those of `always` do so if they vary at all."""
  fields = [c for c in runs.columns if identifies(c) and c not in (LEARNER, SEED, DATA, *known)]
  varying = list(known)
  for field in sorted(fields, key=lambda c: (c not in SHORT, list(SHORT).index(c) if c in SHORT else 0, len(c))):
    if field in always and runs[field].nunique() > 1:
      varying.append(field)
      continue
    if not runs.groupby(LEARNER)[field].nunique(dropna=False).gt(1).any():
      continue
    if runs.groupby([LEARNER, *varying], dropna=False)[field].nunique(dropna=False).gt(1).any():
      varying.append(field)
  return varying
