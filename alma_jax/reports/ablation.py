"""Ablation: what each part of a learner is worth, from runs in which some parts are switched off.

A part is a field of the config; one value of it switches the part off. The runs with all parts on are the reference.
Each other setting is compared with it on the seeds that both have, and has the same values of all other fields. Fields
that vary only together with the parts may differ. So may the waiting time if the schedule is a part.
"""
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import comparisons, factors, scoring, studies, tables
from alma_jax.reports.parts import Table
from alma_jax.reports.read import LEARNER, SCHEDULE, SEED, WAITING
from alma_jax.reports.studies import Study

TITLE = "Ablation"
_HOW = ("mean ± standard error over seeds. Differences from all on are paired by seed; bold ones are significant (95 % "
        "for all settings of a column together)")


class Part(NamedTuple):
  """A part of a learner.

  Attributes:
    field: its name in the config, or the end of the name.
    off: text of the value that switches the part off.
  """
  field: str
  off: str


class Setting(NamedTuple):
  """Runs with some parts switched off.

  Attributes:
    name: e.g. "without replay".
    values: {field of a part: value}.
    runs: the rows of study.runs; the setting may have no run.
    diverged: number of its runs that diverged.
  """
  name: str
  values: dict[str, Any]
  runs: pd.DataFrame
  diverged: int


class Ablation(NamedTuple):
  """The settings of one learner: all parts on first, all parts off last.

  Attributes:
    name: the learner, and the values of other factors.
    settings: list of Setting.
  """
  name: str
  settings: list[Setting]


class Difference(NamedTuple):
  """Of a setting from all on, paired by seed, in percent of all on; `error` is the standard error, or NaN."""
  percent: float
  error: float
  significant: bool


def parse(text: str) -> list[Part]:
  """The parts that "FIELD=OFF,..." names.

  Raises:
    BadInput: the text has another form.
  """
  parts = [Part(field.strip(), off.strip()) for field, _, off in (piece.partition("=") for piece in text.split(","))]
  names = [part.field for part in parts]
  if not all(names) or not all(part.off for part in parts) or len(set(names)) < len(names):
    raise BadInput(f"--ablation={text!r} should name different fields and the values that switch them off, as in "
                   "train.augment=false,stream.replay=0.")
  return parts


def of_all(all_studies: Iterable[Study], parts: Sequence[Part]) -> list[tuple[Study, list[Ablation]]]:
  """The ablations of each study.

  Raises:
    BadInput: no run has one of the fields, or no study has runs with all parts on and others with some of them off.
  """
  found = [(study, of(study, parts)) for study in all_studies]
  if parts and not any(ablations for _, ablations in found):
    missing = [part.field for part in parts if not any(_named(study, part) for study, _ in found)]
    if missing:
      raise BadInput(f"--ablation: no run has the field {missing[0]!r}.")
    for part in parts:
      values = [value for study, _ in found if (field := _named(study, part)) for value in study.runs[field].unique()]
      if not any(_is(value, part.off) for value in values):
        there = ", ".join(sorted({str(factors.plain(value)) for value in values}))
        raise BadInput(f"--ablation: no run has {part.field}={part.off}; the runs have {there}.")
    raise BadInput(f"--ablation: no learner has finished runs with {', '.join(part.field for part in parts)} all on, "
                   "and others with the same values of all other fields and some of these off.")
  return found


def of(study: Study, parts: Sequence[Part]) -> list[Ablation]:
  """The ablations of a study: one for each kind of run that has all parts on and that others can be compared with."""
  fields = [_named(study, part) for part in parts]
  if not parts or not all(fields):
    return []
  every = study.runs if study.diverged.empty else pd.concat([study.runs, study.diverged])
  found = []
  for _, runs in every.dropna(subset=fields).groupby(LEARNER, sort=False):
    found += _of_learner(study, runs, {field: part.off for field, part in zip(fields, parts)})
  return found


def table(study: Study, ablation: Ablation) -> Table:
  """A row per setting."""
  rows = []
  for setting, cells in zip(ablation.settings, _compared(study, ablation)):
    row = {"setting": setting.name} | {factors.short(f): factors.plain(v) for f, v in setting.values.items()}
    row["seeds"] = tables.seeds(len(setting.runs), setting.diverged)
    for column, (head, form) in study.scoring.ablated.items():
      head = head if column in (scoring.COMP, scoring.FLOPS, "memory") else study.measure.named(head)
      row[head] = tables.mean(setting.runs[column].mean(), setting.runs[column].sem(), form)
      row[f"{head} difference"] = _text(cells[column])
    rows.append(row)
  return Table(f"{TITLE} of {ablation.name}: {_HOW}", tables.markdown(rows))


def frame(study: Study, ablation: Ablation) -> pd.DataFrame:
  """The numbers of `table`, for a CSV file."""
  rows = []
  for setting, cells in zip(ablation.settings, _compared(study, ablation)):
    row = {"study": study.name, "runs": ablation.name, "setting": setting.name, **setting.values,
           "seeds": len(setting.runs), "diverged": setting.diverged}
    for column, difference in cells.items():
      row |= {column: setting.runs[column].mean(), f"{column}_se": setting.runs[column].sem()}
      if difference is not None:
        row |= {f"{column}_difference_percent": difference.percent,
                f"{column}_difference_percent_se": difference.error,
                f"{column}_difference_significant": difference.significant}
    rows.append(row)
  return pd.DataFrame(rows)


def _of_learner(study: Study, runs: pd.DataFrame, off: dict[str, str]) -> list[Ablation]:
  """Ablations of one learner; `runs` also has those that diverged, `off` is {field: value that switches it off}."""
  fields = list(off)
  # Without its schedule a learner has a waiting time, which may have several values.
  free = [WAITING] if SCHEDULE in fields and WAITING not in fields else []
  others = factors.besides(runs, [*fields, *free])
  kinds: dict[studies.Kind, dict[studies.Kind, pd.DataFrame]] = {}  # {values of others: {the other values: runs}}
  for _, mine in runs.groupby([*others, *fields, *free], sort=False, dropna=False):
    row = mine.iloc[0]
    kinds.setdefault(studies.kind(row, others), {})[studies.kind(row, [*fields, *free])[1:]] = mine
  found = []
  for settings in kinds.values():
    for values, mine in settings.items():
      if mine["run"].isin(study.runs["run"]).any() and not any(map(_is, values, off.values())):
        listed = list(_settings(study, settings, values, off))
        if any(len(setting.runs) for setting in listed[1:]):
          found.append(Ablation(_name(mine.iloc[0], others, settings, off), listed))
  return found


def _settings(study: Study, found: dict[studies.Kind, pd.DataFrame], on: studies.Kind,
              off: dict[str, str]) -> Iterator[Setting]:
  """The settings of one table: all on, each part off, each alone, all off, and others between that have runs.

  Args:
    study: Study.
    found: {values of the parts, and then the waiting time if it is free: runs}.
    on: such values of the reference.
    off: {field: text of the value that switches it off}.
  """
  fields = list(off)
  for num_off in range(len(fields) + 1):
    for without in combinations(fields, num_off):
      wanted = {field: off[field] if field in without else value for field, value in zip(fields, on)}
      mine = [runs for values, runs in found.items()
              if all(_is(value, off[field]) if field in without else value == wanted[field]
                     for field, value in zip(fields, values))
              and (SCHEDULE in without or values[len(fields):] == on[len(fields):])]
      if not mine and (num_off < 2 or num_off > len(fields) - 2):
        yield Setting(_setting_name(fields, without), wanted, study.runs.iloc[:0], 0)
      for runs in mine:
        row, finished = runs.iloc[0], study.runs[study.runs["run"].isin(runs["run"])]
        name = _setting_name(fields, without) + (f", w {factors.plain(row[WAITING])}" if len(mine) > 1 else "")
        yield Setting(name, {field: row[field] for field in fields}, finished, len(runs) - len(finished))


def _setting_name(fields: list[str], without: Sequence[str]) -> str:
  kept = [field for field in fields if field not in without]
  if not without or not kept:
    return "all off" if without else "all on"
  if len(kept) == 1 < len(without):
    return f"only {factors.short(kept[0])}"
  return f"without {', '.join(map(factors.short, without))}"


def _name(row: Any, others: list[str], settings: Iterable[studies.Kind], off: dict[str, str]) -> str:
  """The learner, and what tells its references apart: other factors, and parts that are on with several values."""
  several = [field for i, field in enumerate(off)
             if len({values[i] for values in settings if not _is(values[i], off[field])}) > 1]
  return studies.label(row, [*others, *several])


def _compared(study: Study, ablation: Ablation) -> Iterator[dict[str, Difference | None]]:
  """For each setting {column: Difference}; None for all on, and without shared seeds."""
  reference = ablation.settings[0].runs
  alternatives = sum(len(setting.runs) > 0 for setting in ablation.settings[1:])
  for setting in ablation.settings:
    yield {column: None if setting.runs is reference else _difference(setting.runs, reference, column, alternatives)
           for column in study.scoring.ablated}


def _difference(runs: pd.DataFrame, reference: pd.DataFrame, column: str, alternatives: int) -> Difference | None:
  mine, its = (dict(zip(each[SEED], each[column])) for each in (runs, reference))
  shared = sorted(mine.keys() & its.keys())
  base = sum(its[seed] for seed in shared)
  if not base:
    return None
  differences = pd.Series([mine[seed] - its[seed] for seed in shared])
  found = comparisons.compare(mine, its, alternatives)
  scale = 100 * len(shared) / base
  return Difference(scale * differences.mean(), scale * differences.sem(), found is not None and found.significant)


def _text(difference: Difference | None) -> str:
  """E.g. "+12.3 % ± 0.8"."""
  if difference is None:
    return ""
  text = f"{difference.percent:+.1f} %" + ("" if math.isnan(difference.error) else f" ± {difference.error:.1f}")
  return f"**{text}**" if difference.significant else text


def _named(study: Study, part: Part) -> str:
  """The full name of a part's field in a study; "" if no run has it.

  Raises:
    BadInput: several fields end with the name.
  """
  known = [c for c in study.runs.columns if factors.identifies(c)]
  found = ([c for c in known if c == part.field] or [c for c in known if factors.short(c) == part.field]
           or [c for c in known if c.endswith(f".{part.field}")])
  if len(found) > 1:
    raise BadInput(f"--ablation: {part.field!r} may be {' or '.join(found)}; give the full name.")
  return found[0] if found else ""


def _is(value: Any, text: str) -> bool:
  """Whether a value of a field is the one that a text on the command line stands for."""
  try:
    return float(value) == float(text)
  except (TypeError, ValueError):
    return str(value).lower() == text.lower()
