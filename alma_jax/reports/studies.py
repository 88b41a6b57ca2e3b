"""A study is a set of finished runs that can be compared. It has kinds of runs.

A kind of run is a learner with one value of every factor (for example its width and its waiting time). The runs of a
kind differ in their seeds alone.
"""
import collections
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.reports.factors import is_switch, plain, short
from alma_jax.reports.read import LEARNER, SEED, TaskRun
from alma_jax.reports.scoring import Scoring
from alma_jax.store.metrics import Measure

REPLAY = "stream.replay"

Kind = tuple[Any, ...]  # the learner's name and the values of the factors


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
      perplexity (NaN before the first update).
    factors: the fields that tell kinds of runs apart, without the learner's
      name and the seed. Waiting time, width and replay are factors if they
      vary; every other field is one if it varies among the runs of one learner.
    diverged: a row per run that diverged: `run` and the fields of its config.
      The other tables do not have these runs.
    tasks: {run: TaskRun} of the runs of a stream of tasks; empty for others.
    measure: what the metric of its runs is measured on.
    further: {run: {key: newest value}} of the metrics of `log.metrics`, see measures.newest.
  """
  name: str
  scoring: Scoring
  runs: pd.DataFrame
  stream: pd.DataFrame
  factors: tuple[str, ...]
  diverged: pd.DataFrame
  tasks: Mapping[str, TaskRun] = types.MappingProxyType({})
  measure: Measure = Measure("error")
  further: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})

  @property
  def metric(self) -> str:
    """The metric of the stream: error or perplexity."""
    return self.scoring.metric

  @property
  def score(self) -> str:
    """The column of `runs` that scores a whole run."""
    return self.scoring.score

  @property
  def score_name(self) -> str:
    """The name of the score in figures."""
    return self.measure.named(self.scoring.score_name)

  @property
  def score_title(self) -> str:
    """The name of the score at the beginning of a caption."""
    return self.score_name[0].upper() + self.score_name[1:]

  @property
  def overall(self) -> str:
    """The column of `runs` by which kinds that are trained at different t are compared."""
    return self.scoring.overall

  @property
  def overall_name(self) -> str:
    """The name of `overall`."""
    return self.measure.named(self.scoring.overall_name)


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
  keys = [LEARNER, *study.factors]
  groups = study.runs.groupby(keys, sort=False, dropna=False)
  table = groups[list(columns)].mean()
  for column in columns:
    table[f"{column}_sd"] = groups[column].std()
  table["seeds"] = groups[SEED].nunique()
  return table.reset_index().sort_values(columns[0], kind="stable", ignore_index=True)


def without_replay(study: Study) -> Study:
  """The study with only its runs without replay, if it varies."""
  runs = study.runs
  return study._replace(runs=runs[runs[REPLAY] == 0]) if REPLAY in study.factors else study


def kind(row: Any, factors: Iterable[str]) -> Kind:
  """The kind of a row of `runs` or `diverged`; None in the place of a factor that the row lacks."""
  values = [row.get(field) for field in (LEARNER, *factors)]
  return tuple(None if pd.isna(value) else value for value in values)


def divergences(study: Study) -> dict[Kind, tuple[int, int]]:
  """{kind: (seeds that diverged, all seeds)} of the kinds with a run that diverged."""
  def count(table: pd.DataFrame) -> collections.Counter[Kind]:
    return collections.Counter(kind(row, study.factors) for _, row in table.iterrows())

  diverged = count(study.diverged)
  finished = count(study.runs) if diverged else {}
  return {key: (num, num + finished.get(key, 0)) for key, num in diverged.items()}


def diverged_seeds(num: int, total: int) -> str:
  """E.g. "1 of 3 seeds diverged"."""
  if num < total:
    return f"{num} of {total} seeds diverged"
  return {1: "its only seed diverged", 2: "both seeds diverged"}.get(num, f"all {num} seeds diverged")


def lost(study: Study) -> list[tuple[Any, int]]:
  """[(row of one of its runs, number of seeds)] of the kinds without a finished run."""
  rows = {kind(row, study.factors): row for _, row in study.diverged.iterrows()}
  return [(rows[key], total) for key, (num, total) in divergences(study).items() if num == total]


def label(row: Any, fields: Iterable[str], switches: Collection[str] = ()) -> str:
  """E.g. "ens, width 32, w 10" of a row with these fields; one of `switches` is named alone if it is on, else not."""
  there = [field for field in fields if not pd.isna(row.get(field)) and (field not in switches or row[field])]
  parts = [short(field) if field in switches else f"{short(field)} {plain(row[field])}" for field in there]
  return ", ".join([row[LEARNER], *parts])


def switches(table: pd.DataFrame, fields: Iterable[str]) -> list[str]:
  """The fields that are on or off in all rows of each learner that has them."""
  return [field for field in fields
          if all(is_switch(mine) for _, mine in table.groupby(LEARNER)[field] if mine.notna().any())]


def brief_labels(table: pd.DataFrame, fields: Iterable[str]) -> list[str]:
  """A label for each row, with those of the fields that vary among the rows of its learner; 0 is not named."""
  fields = list(fields)
  labels: dict[Any, str] = {}
  for _, rows in table.groupby(LEARNER):
    varying = [field for field in fields if rows[field].nunique(dropna=False) > 1]
    on_or_off = switches(rows, varying)
    for index, row in rows.iterrows():
      named = [field for field in varying if row[field] is False or row[field] != 0]
      labels[index] = label(row, named, on_or_off)
  return [labels[index] for index in table.index]
