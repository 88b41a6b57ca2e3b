"""Ablation: what each part of a learner is worth, from runs in which some parts are switched off.

A part is a field of the config; one value of it switches the part off. The runs with all parts on are the reference.
Each other setting is compared with it on the seeds that both have, and has the same values of all other fields. Fields
that vary only together with the parts may differ. So may the fields that only some values of a part have, as
`stream.waiting_time` of the schedule `every`: if such a part is off, each value of its fields is a setting.
"""
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import statistics, studies, tables
from alma_jax.reports.read import LEARNER, SEED
from alma_jax.reports.statistics import Estimate
from alma_jax.reports.studies import Study, plain, short
from alma_jax.reports.tables import Table

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

  def __str__(self) -> str:
    """E.g. "+12.3 % ± 0.8"."""
    text = f"{self.percent:+.1f} %" + (f" ± {self.error:.1f}" if self.error >= 0.05 else "")
    return f"**{text}**" if self.significant else text


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
  ablations = [(study, of(study, parts)) for study in all_studies]
  if not parts or any(each for _, each in ablations):
    return ablations
  for part in parts:
    fields = [(study, field) for study, _ in ablations if (field := _full_name(study, part))]
    if not fields:
      raise BadInput(f"--ablation: no run has the field {part.field!r}.")
    values = [value for study, field in fields for value in study.runs[field].unique()]
    if not any(_is(value, part.off) for value in values):
      raise BadInput(f"--ablation: no run has {part.field}={part.off}; the runs have "
                     f"{', '.join(sorted(set(map(plain, values))))}.")
  raise BadInput(f"--ablation: no learner has finished runs with {', '.join(part.field for part in parts)} all on, "
                 "and others with the same values of all other fields and some of these off.")


def of(study: Study, parts: Sequence[Part]) -> list[Ablation]:
  """The ablations of a study: one for each kind of run that has all parts on and that others can be compared with."""
  off = {_full_name(study, part): part.off for part in parts}
  if not parts or not all(off):
    return []
  every = study.runs if study.diverged.empty else pd.concat([study.runs, study.diverged])
  groups = every.dropna(subset=list(off)).groupby(LEARNER, sort=False)
  return [ablation for _, runs in groups for ablation in _of_learner(study, runs, off)]


def table(study: Study, ablation: Ablation) -> Table:
  """A row per setting."""
  rows = []
  for setting, differences in zip(ablation.settings, _compared(study, ablation)):
    row = {"setting": setting.name} | {short(f): plain(v) for f, v in setting.values.items()}
    row["seeds"] = tables.seeds(len(setting.runs), setting.diverged)
    for column, (head, form) in study.scoring.ablated.items():
      row[head] = tables.mean(setting.runs[column].mean(), setting.runs[column].sem(), form)
      row[f"{head} difference"] = str(differences[column] or "")
    rows.append(row)
  return Table(f"{TITLE} of {ablation.name}: {_HOW}", tables.markdown(rows))


def frame(study: Study, ablation: Ablation) -> pd.DataFrame:
  """The numbers of `table`, for a CSV file."""
  rows = []
  for setting, differences in zip(ablation.settings, _compared(study, ablation)):
    row = {"study": study.name, "runs": ablation.name, "setting": setting.name, **setting.values,
           "seeds": len(setting.runs), "diverged": setting.diverged}
    for column, difference in differences.items():
      row |= {column: setting.runs[column].mean(), f"{column}_se": setting.runs[column].sem()}
      if difference is not None:
        row |= {f"{column}_difference_percent": difference.percent,
                f"{column}_difference_percent_se": difference.error,
                f"{column}_difference_significant": difference.significant}
    rows.append(row)
  return pd.DataFrame(rows)


def _of_learner(study: Study, runs: pd.DataFrame, off: dict[str, str]) -> Iterator[Ablation]:
  """Ablations of one learner; `runs` also has those that diverged, `off` is {field: value that switches it off}."""
  own = {field: [name for name in _own_fields(runs, field) if name not in off] for field in off}
  fields = [*dict.fromkeys([*off, *(name for names in own.values() for name in names)])]
  others = studies.further_factors(runs, fields)
  for _, alike in runs.groupby(others, sort=False, dropna=False) if others else [("", runs)]:
    groups = [rows for _, rows in alike.groupby(fields, sort=False, dropna=False)]
    is_on = [not any(_is(rows.iloc[0][field], off[field]) for field in off) for rows in groups]
    references = [rows for rows, on in zip(groups, is_on) if on]
    # What tells the references apart, beside other factors.
    several = [field for field in fields if len({_text(rows.iloc[0][field]) for rows in references}) > 1]
    for rows in references:
      settings = list(_settings(study, groups, rows.iloc[0], off, own))
      if len(settings[0].runs) and any(len(setting.runs) for setting in settings[1:]):
        yield Ablation(studies.label(rows.iloc[0], [*others, *several]), settings)


def _own_fields(runs: pd.DataFrame, field: str) -> list[str]:
  """The fields that all runs with some values of a field have, and none with its other values."""
  shares = runs.drop(columns=field).notna().groupby(runs[field]).mean()
  return [name for name in shares if studies.identifies(name) and set(shares[name]) == {0, 1}]


def _settings(study: Study, groups: list[pd.DataFrame], reference: Any, off: dict[str, str],
              own: dict[str, list[str]]) -> Iterator[Setting]:
  """The settings of one table: all on, each part off, each alone, all off, and others between that have runs.

  Args:
    study: Study.
    groups: the runs of each setting, also those that diverged.
    reference: a row with all parts on.
    off: {field of a part: text of the value that switches it off}.
    own: {field of a part: its own fields}, which may differ from those of the reference if the part is off.
  """
  for num_off in range(len(off) + 1):
    for without in combinations(off, num_off):
      free = [name for field in without for name in own[field]]
      same = {*off, *(name for names in own.values() for name in names)} - {*without, *free}
      alike = [rows for rows in groups if all(_is(rows.iloc[0][field], off[field]) for field in without)
               and all(_text(rows.iloc[0][field]) == _text(reference[field]) for field in same)]
      name = _setting_name(list(off), without)
      if not alike and (num_off < 2 or num_off > len(off) - 2):
        yield Setting(name, {field: off[field] if field in without else reference[field] for field in off},
                      study.runs.iloc[:0], 0)
      differing = [field for field in free if len({_text(rows.iloc[0][field]) for rows in alike}) > 1]
      for rows in alike:
        row, finished = rows.iloc[0], study.runs[study.runs["run"].isin(rows["run"])]
        told = "".join(f", {short(field)} {plain(row[field])}" for field in differing)
        yield Setting(name + told, {field: row[field] for field in off}, finished, len(rows) - len(finished))


def _setting_name(fields: list[str], without: Collection[str]) -> str:
  on = [field for field in fields if field not in without]
  if not without or not on:
    return "all off" if without else "all on"
  if len(on) == 1 < len(without):
    return f"only {short(on[0])}"
  return f"without {', '.join(map(short, without))}"


def _compared(study: Study, ablation: Ablation) -> Iterator[dict[str, Difference | None]]:
  """For each setting {column: Difference}; None for all on, and without shared seeds."""
  reference = ablation.settings[0].runs
  alternatives = sum(len(setting.runs) > 0 for setting in ablation.settings[1:])
  for setting in ablation.settings:
    yield {column: None if setting.runs is reference else _difference(setting.runs, reference, column, alternatives)
           for column in study.scoring.ablated}


def _difference(runs: pd.DataFrame, reference: pd.DataFrame, column: str, alternatives: int) -> Difference | None:
  values, base = (dict(zip(each[SEED], each[column])) for each in (runs, reference))
  total = sum(base[seed] for seed in values.keys() & base.keys())
  estimate: Estimate | None = statistics.compare(values, base, alternatives)
  if estimate is None or not total:
    return None
  scale = 100 * estimate.num / total
  return Difference(scale * estimate.mean, scale * estimate.error, estimate.is_lower or estimate.is_higher)


def _full_name(study: Study, part: Part) -> str:
  """The full name of a part's field in a study; "" if no run has it.

  Raises:
    BadInput: several fields end with the name.
  """
  fields = [c for c in study.runs.columns if studies.identifies(c)]
  named = ([c for c in fields if c == part.field] or [c for c in fields if short(c) == part.field]
           or [c for c in fields if c.endswith(f".{part.field}")])
  if len(named) > 1:
    raise BadInput(f"--ablation: {part.field!r} may be {' or '.join(named)}; give the full name.")
  return named[0] if named else ""


def _text(value: Any) -> str:
  """A value as text; missing values are equal, and 2 and 2.0."""
  return "" if pd.isna(value) else plain(value)


def _is(value: Any, text: str) -> bool:
  """Whether a value of a field is the one that a text on the command line stands for."""
  try:
    return float(value) == float(text)
  except (TypeError, ValueError):
    return str(value).lower() == text.lower()
