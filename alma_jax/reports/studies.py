"""A study is a set of finished runs that can be compared. It has kinds of runs.

A kind of run is a learner with one value of every factor (for example its width and its waiting time). The runs of a
kind differ in their seeds alone. A factor is a field of the config that tells kinds apart.
"""
import re
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from alma_jax import config as configs
from alma_jax.messages import brief_number
from alma_jax.reports.read import DATA, LEARNER, REPLAY, SEED, Scoring, TaskRun

# Short names of the fields that studies vary, in the order in which tables show them.
SHORT = {"model.name": "network", "model.width": "width", "model.num_experts": "experts",
         "stream.schedule": "schedule", "stream.memory_policy": "policy", "train.optimizer": "optimizer",
         "learner.search": "search", "stream.waiting_time": "w", "stream.replay": "replay",
         "stream.replay_share": "share", "stream.memory_size": "memory", "stream.price": "price",
         "learner.average": "average", "learner.num_members": "members", "train.steps_multiplier": "step multiple"}
_FIELDS = (SEED, "precision", "deterministic", DATA)  # fields of a config without a dot in their name
_ALWAYS = ("model.width", "stream.waiting_time", "stream.replay")  # factors if they vary at all

Key = tuple[Any, ...]  # of a kind: the learner's name and the values of the factors, None for those that it lacks


class Study(NamedTuple):
  """Finished runs on one data set with one number of mega-batches, or on one stream of tasks.

  Attributes:
    name: of the data, for people, e.g. "mnist, 500 mega-batches".
    scoring: how its runs are scored.
    runs: a row per run: `run` (its folder), every field of its config under its
      name ("model.width"), the entries of summary.json, first_params and
      last_params, the parameters after the first and the last mega-batch, and
      last_predict_macs, the multiply-adds of a prediction at the end.
    stream: a row per run and mega-batch: run, t, stage, updated, and error or
      perplexity (NaN before the first update), also prequential.
    factors: the fields that tell kinds of runs apart, without the learner's
      name and the seed. Waiting time, width and replay are factors if they
      vary; every other field is one if it varies among the runs of one learner.
    diverged: a row per run that diverged: `run` and the fields of its config.
      The other tables do not have these runs.
    tasks: {run: TaskRun} of the runs of a stream of tasks; empty for others.
    further: {run: {key: newest value}} of the metrics of `log.metrics`, see measures.newest.
    replayed: {run: weights of old mega-batches} of the runs that have some, see Record.replayed.
  """
  name: str
  scoring: Scoring
  runs: pd.DataFrame
  stream: pd.DataFrame
  factors: tuple[str, ...]
  diverged: pd.DataFrame
  tasks: Mapping[str, TaskRun] = types.MappingProxyType({})
  further: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})
  replayed: Mapping[str, Sequence[Sequence[float]]] = types.MappingProxyType({})


class Kind(NamedTuple):
  """A kind of run.

  Attributes:
    row: one of its runs.
    runs: its finished runs, which may be none.
    diverged: number of its runs that diverged, which have no result.
  """
  row: Any
  runs: pd.DataFrame
  diverged: int

  @property
  def divergence(self) -> str:
    """E.g. "1 of 3 seeds diverged"; "" if none did."""
    total = len(self.runs) + self.diverged
    if not self.diverged:
      return ""
    if len(self.runs):
      return f"{self.diverged} of {total} seeds diverged"
    return {1: "its only seed diverged", 2: "both seeds diverged"}.get(total, f"all {total} seeds diverged")


def kinds(study: Study) -> list[Kind]:
  """The kinds of runs, first those with a finished run, in the order of `runs`."""
  groups = [rows for _, rows in study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False)]
  diverged = _diverged(study)
  finished = [Kind(rows.iloc[0], rows, len(diverged.pop(key(rows.iloc[0], study.factors), ()))) for rows in groups]
  return finished + [Kind(rows[0], study.runs.iloc[:0], len(rows)) for rows in diverged.values()]


def key(row: Any, fields: Iterable[str]) -> Key:
  """The learner and the values of some fields of a row; None in the place of a field that the row lacks."""
  values = [row.get(field) for field in (LEARNER, *fields)]
  return tuple(None if pd.isna(value) else value for value in values)


def means(study: Study, *columns: str) -> pd.DataFrame:
  """One row per kind of run: means over its finished runs, and deviations.

  Args:
    study: Study.
    columns: of study.runs.

  Returns:
    DataFrame with the learner's name, study.factors, the mean of each column,
    its sample deviation (column name and "_sd"; NaN for one run), and the
    number of `seeds`. The rows ascend by the first column.
  """
  groups = study.runs.groupby([LEARNER, *study.factors], sort=False, dropna=False)
  table = groups[list(columns)].mean()
  for column in columns:
    table[f"{column}_sd"] = groups[column].std()
  table["seeds"] = groups[SEED].nunique()
  return table.reset_index().sort_values(columns[0], kind="stable", ignore_index=True)


def with_diverged(study: Study, table: pd.DataFrame) -> pd.DataFrame:
  """A table of `means` with the number of runs of each kind that `diverged`."""
  diverged = _diverged(study)
  return table.assign(diverged=[len(diverged.get(key(row, study.factors), ())) for _, row in table.iterrows()])


def _diverged(study: Study) -> dict[Key, list[Any]]:
  """{key of a kind: the rows of its runs that diverged}."""
  rows: dict[Key, list[Any]] = {}
  for _, row in study.diverged.iterrows():
    rows.setdefault(key(row, study.factors), []).append(row)
  return rows


def without_replay(study: Study) -> Study:
  """The study with only its runs without replay, if it varies."""
  runs = study.runs
  return study._replace(runs=runs[runs[REPLAY] == 0]) if REPLAY in study.factors else study


# --------------------------------------------------------------------------------------------------------- factors

def factors(runs: pd.DataFrame) -> tuple[str, ...]:
  """Fields that tell kinds of runs apart.

  A field is a factor if it varies among the runs of a learner. If several fields vary together, only one of them is a
  factor: the first in SHORT, or else the shortest name.
  """
  return tuple(_apart(runs, (), _ALWAYS))


def further_factors(runs: pd.DataFrame, fields: Sequence[str]) -> list[str]:
  """The fields that tell apart runs of one learner with the same values of `fields`."""
  return _apart(runs, fields, ())[len(fields):]


def identifies(column: str) -> bool:
  """Whether a column of the runs is part of a run's identity: such a field, or the fingerprint of the data."""
  return ("." in column or column in _FIELDS) and not column.startswith(configs.INCIDENTAL)


def _apart(runs: pd.DataFrame, first: Sequence[str], always: Collection[str]) -> list[str]:
  """`first`, and the other fields that tell kinds of runs apart; those of `always` do so if they vary at all."""
  fields = [c for c in runs.columns if identifies(c) and c not in (LEARNER, SEED, DATA, *first)]
  varying = list(first)
  for field in sorted(fields, key=lambda c: (c not in SHORT, list(SHORT).index(c) if c in SHORT else 0, len(c))):
    if (field in always and runs[field].nunique() > 1) or (
        runs.groupby(LEARNER)[field].nunique(dropna=False).gt(1).any()
          and runs.groupby([LEARNER, *varying], dropna=False)[field].nunique(dropna=False).gt(1).any()):
      varying.append(field)
  return varying


# ----------------------------------------------------------------------------------------------------------- names

def short(field: str) -> str:
  """The name of a field in tables and figures, e.g. "w" for "stream.waiting_time"."""
  return SHORT.get(field, field.rsplit(".", 1)[-1])


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


def is_switch(values: pd.Series) -> bool:
  """Whether all values of a field are True or False."""
  return bool(len(values)) and all(map(pd.api.types.is_bool, values))


def label(row: Any, fields: Iterable[str], switches: Collection[str] = ()) -> str:
  """E.g. "ens, width 32, w 10" of a row with these fields; one of `switches` is named alone if it is on, else not."""
  there = [field for field in fields if not pd.isna(row.get(field)) and (field not in switches or row[field])]
  parts = [short(field) if field in switches else f"{short(field)} {plain(row[field])}" for field in there]
  return ", ".join([row[LEARNER], *parts])


def brief_labels(table: pd.DataFrame, fields: Iterable[str]) -> list[str]:
  """A label for each row, with those of the fields that vary among the rows of its learner; 0 is not named."""
  fields = list(fields)
  labels: dict[Any, str] = {}
  for _, rows in table.groupby(LEARNER):
    varying = [field for field in fields if rows[field].nunique(dropna=False) > 1]
    switches = [field for field in varying if is_switch(rows[field])]
    for index, row in rows.iterrows():
      labels[index] = label(row, [field for field in varying if row[field] is False or row[field] != 0], switches)
  return [labels[index] for index in table.index]


# ----------------------------------------------------------------------------------------------------------- sizes

class Experts(NamedTuple):
  """The experts of a language model.

  Attributes:
    each: experts of every mixture of a member.
    members: members of the ensemble; None: the learner is a single network.
  """
  each: int
  members: int | None

  @property
  def total(self) -> int:
    """Experts of all members, in one layer."""
    return self.each * (self.members or 1)

  def __str__(self) -> str:
    """As in the paper: "4", or "4@2" for two members."""
    return f"{self.each}" if self.members is None else f"{self.each}@{self.members}"


def size_field(study: Study) -> str | None:
  """The field that the sizes of a learner's networks differ in, or None."""
  return next((name for name in ("model.width", "model.num_experts") if name in study.factors), None)


def size_cells(study: Study, kind: Kind) -> dict[str, str]:
  """{head: text} for a table: the parameters of a kind with finished runs, and the experts of language models.

  The text gives the smallest number of parameters of all seeds at the start, and the largest one at the end.
  """
  spans = {"experts": map(str, experts(kind.row))} if study.scoring.counts_experts else {}
  spans["parameters"] = map(brief_number, (kind.runs["first_params"].min(), kind.runs["last_params"].max()))
  return {head: " to ".join(dict.fromkeys(span)) for head, span in spans.items()}


def experts(row: Any) -> tuple[Experts, Experts]:
  """The Experts of a language run in its first and in its last stage, from the fields of its config.

  The fields, not the learner's name, say how a learner grows: `learner.add_experts` are added before the later stages,
  `learner.members_per_stage` members are added by every stage, and `learner.num_members` stay the same.
  """
  num_stages, each = int(row["num_stages"]), int(row["model.num_experts"])
  added = sum(_numbers(row.get("learner.add_experts"))[:num_stages - 1])
  fixed, growing = (_numbers(row.get(f"learner.{field}")) for field in ("num_members", "members_per_stage"))
  first = fixed[0] if fixed else growing[0] if growing else None
  last = growing[0] * num_stages if growing and not fixed else first
  return Experts(each, first), Experts(each + added, last)


def _numbers(value: Any) -> list[int]:
  """The whole numbers of a field, e.g. of 3 or "[2, 2, 4]"; empty if the run lacks the field, or it is not a number."""
  if isinstance(value, float) and not pd.isna(value):  # a column of integers that other runs lack
    value = f"{value:g}"
  text = str(value).strip("[]()")
  return [int(part) for part in text.split(",")] if re.fullmatch(r" *\d+( *, *\d+)* *", text) else []
