"""Reads many run folders into tables: a row per run, and a row per run and mega-batch."""
import json
import pathlib
from typing import NamedTuple

import pandas as pd

from alma_jax import config as configs
from alma_jax import writers
from alma_jax.errors import BadInput

# Short names of the fields that studies vary, in the order in which tables show them.
SHORT = {"model.width": "width", "model.num_experts": "experts", "stream.waiting_time": "w", "stream.replay": "replay"}
# Runs that differ in these have scores that mean different things.
_COMPARABLE = ("dataset.name", "stream.num_megabatches", "stream.untrained_error", "dataset.vocab_size",
               "dataset.tokenizer", "dataset.sequence_length", "dataset.cross_documents", "dataset.eval_tokens")
_FIELDS = ("seed", "precision", "deterministic", "data_fingerprint")  # of a config, without a dot
_ALWAYS = ("model.width", "stream.waiting_time", "stream.replay")  # factors wherever they vary
_OWN = ("model.num_experts", "train.patience", "train.patience_delta")  # learners have defaults of their own
SEED, LEARNER, WAITING = "seed", "learner.name", "stream.waiting_time"
_SUMMARY = ("cer", "mean_error", "final_error", "average_perplexity", "final_perplexity", "cumulative_params",
            "cumulative_fwd_macs", "cumulative_train_flops", "cumulative_growth_macs", "num_stages", "wall_seconds",
            "compile_seconds", "device")


class Study(NamedTuple):
  """Finished runs that can be compared: of one data set, in one number of mega-batches.

  Attributes:
    name: of the data, for people, e.g. "mnist, 500 mega-batches".
    is_language: whether perplexity is judged, not error.
    runs: DataFrame, a row per run: `run` (its folder), every field of its
      config under its name ("model.width"), the entries of summary.json,
      first_params and last_params, held after the first and the last mega-batch.
    stream: DataFrame, a row per run and mega-batch: run, t, stage, updated, and
      error or perplexity (NaN before the first update).
    factors: fields other than the learner's name and the seed that tell kinds
      of runs apart: the waiting time, width and replay where they vary, and
      what else varies among runs of one learner.
  """
  name: str
  is_language: bool
  runs: pd.DataFrame
  stream: pd.DataFrame
  factors: tuple[str, ...]

  @property
  def metric(self):
    """What the lines of the stream hold."""
    return "perplexity" if self.is_language else "error"

  @property
  def judged(self):
    """The number that sums a run up: column of `runs`."""
    return "average_perplexity" if self.is_language else "cer"


def collect(paths):
  """Reads runs.

  Args:
    paths: run folders, or folders that hold some at any depth.

  Returns:
    (list of Study, list of sentences about what was left out).

  Raises:
    BadInput: there is no such folder, or not one finished run.
  """
  rows, streams, problems, seen = [], [], [], {}
  for folder in _run_folders(paths):
    try:
      row, stream = _read(folder)
    except BadInput as error:
      problems.append(str(error))
      continue
    same = seen.setdefault(json.dumps({k: v for k, v in row.items() if _identifies(k)}, sort_keys=True), folder)
    if same != folder:
      problems.append(f"{folder} is left out: it is the same run as {same}.")
      continue
    rows.append(row)
    streams.append(stream)
  if not rows:
    raise BadInput(" ".join(["there is no finished run to report.", *problems]))
  runs = pd.DataFrame(rows)
  studies = []
  apart = [c for c in _COMPARABLE if c in runs] + ["contents"]
  groups = [mine for _, mine in runs.assign(contents=_contents(runs)).groupby(apart, sort=True, dropna=False)]
  for mine, name in zip(groups, _names(groups, apart)):
    mine = mine.drop(columns="contents")
    stream = pd.concat([streams[i] for i in mine.index], ignore_index=True).dropna(axis=1, how="all")
    mine, factors = mine.dropna(axis=1, how="all"), _factors(mine)
    mine = mine.sort_values([LEARNER, *factors, SEED], ignore_index=True)
    studies.append(Study(name, "average_perplexity" in mine, mine, stream, factors))
    problems += [f"{name}: {sentence}" for sentence in [*_differences(mine), *_unequal_seeds(mine, factors)]]
  return studies, problems


def means(study, *columns):
  """One row per kind of run: mean, `_sd` (of the sample; NaN of one) of columns over seeds, and `seeds`.

  Args:
    study: Study.
    columns: of study.runs.

  Returns:
    DataFrame with the learner's name and study.factors first, the best kinds first.
  """
  keys = [LEARNER, *study.factors]
  groups = study.runs.groupby(keys, sort=False, dropna=False)
  table = groups[list(columns)].mean()
  for column in columns:
    table[f"{column}_sd"] = groups[column].std()
  table["seeds"] = groups[SEED].nunique()
  return table.reset_index().sort_values(columns[0], kind="stable", ignore_index=True)


def short(field):
  """What tables and figures call a field."""
  return SHORT.get(field, field.rsplit(".", 1)[-1])


def label(row, fields):
  """E.g. "ens, width 32, w 10" of a row with these fields."""
  parts = [f"{short(field)} {_plain(row[field])}" for field in fields if not pd.isna(row[field])]
  return ", ".join([row[LEARNER], *parts])


def _plain(value):
  return f"{value:g}" if isinstance(value, float) else str(value)


def _run_folders(paths):
  found = []
  for path in paths:
    path = pathlib.Path(path).expanduser()
    if not path.is_dir():
      raise BadInput(f"there is no folder {str(path)!r}.")
    here = [path] if (path / "config.json").exists() else sorted(
        {file.parent for name in ("config.json", writers.METRICS) for file in path.rglob(name)})
    if not here:
      raise BadInput(f"{str(path)!r} holds no run: there is no config.json in it or below it.")
    found += here
  return list({folder.resolve(): folder for folder in found}.values())


def _read(folder):
  """(row of `runs`, DataFrame of the stream) of a finished run."""
  try:
    config, summary = (writers.read_json(folder / name) for name in ("config.json", "summary.json"))
    lines = writers.read_lines(folder / writers.METRICS)
  except (BadInput, OSError, UnicodeDecodeError) as error:
    raise BadInput(f"{folder} is left out: one of its files cannot be read ({str(error).rstrip('.')}).") from None
  if config is None:
    raise BadInput(f"{folder} is left out: it has no config.json.")
  try:
    total = config["stream"]["num_megabatches"]
    if summary is None or len(lines) != total:
      lacks = "" if summary else " and no summary.json"
      raise BadInput(f"{folder} is left out: it is not finished, {len(lines)} of {total} mega-batches{lacks}.")
    return _row(folder, config, summary, lines)
  except (KeyError, TypeError, IndexError, AttributeError) as error:
    raise BadInput(f"{folder} is left out: its files are not those of a run ({type(error).__name__}: "
                   f"{error}).") from None


def _row(folder, config, summary, lines):
  flat = {field: str(value) if isinstance(value, list) else value for field, value in configs.flatten(config).items()}
  row = dict(run=str(folder), **flat, **{key: summary[key] for key in _SUMMARY if key in summary},
             first_params=lines[0]["num_params"], last_params=lines[-1]["num_params"])
  metric = "perplexity" if "perplexity" in lines[0] else "error"
  for key in (SEED, LEARNER, "dataset.name", WAITING, "data_fingerprint", "cumulative_params", "cumulative_fwd_macs",
              "average_perplexity" if metric == "perplexity" else "cer"):
    row[key]  # what no report can do without
  stream = pd.DataFrame({key: [line[key] for line in lines] for key in ("t", "stage", "updated", metric)})
  stream = stream.astype({"stage": "Int64", metric: float})  # no stage, and no perplexity, before the first update
  stream.insert(0, "run", str(folder))
  return row, stream


def _contents(runs):
  """Series that tells apart data of one name with different contents; "" where a name has one."""
  told = pd.Series("", index=runs.index)
  for name, mine in runs.groupby("dataset.name"):
    prints = mine.groupby("data_fingerprint")[SEED].nunique()
    of_seeds = name == "digits" or name.startswith("folder:") or _is_language(mine)  # every seed may split its own way
    alike = [c for c in (*_COMPARABLE, SEED) if c in mine]
    if of_seeds and prints.max() == 1:
      changed = mine.groupby(alike, dropna=False)["data_fingerprint"].nunique().max() > 1
    else:
      changed = len(prints) > 1
    if changed:
      told[mine.index] = mine["data_fingerprint"].str[:8]
  return told


def _is_language(runs):
  return "average_perplexity" in runs and runs["average_perplexity"].notna().all()


def _names(groups, apart):
  """A name for each study, for people and for files: what sets it apart from the others of its data set."""
  long = [mine.iloc[0]["dataset.name"].rstrip("/") for mine in groups]
  brief = [name.rsplit("/", 1)[-1].removeprefix("tfds:").removeprefix("npz:") for name in long]
  unlike = len({*zip(brief, long)}) > len(set(brief))  # two of one last name
  names = [f"{name}, {mine.iloc[0]['stream.num_megabatches']} mega-batches"
           for name, mine in zip(long if unlike else brief, groups)]
  told = []
  for name, mine in zip(names, groups):
    twins = [other.iloc[0] for other, its in zip(groups, names) if its == name]
    fields = [c for c in apart if c in mine and len({str(twin[c]) for twin in twins}) > 1]
    told.append(", ".join([name, *(f"{short(field)} {mine.iloc[0][field]}" for field in fields)]))
  return told


def _differences(runs):
  """Sentences about fields that no table tells apart: those in which whole learners differ, or that follow others."""
  told, factors = [], _factors(runs)
  for field in runs.columns:
    if not _identifies(field) or field in (LEARNER, SEED, "data_fingerprint", *factors):
      continue
    values = runs.groupby(LEARNER)[field].agg(["nunique", "first"])
    if (values["nunique"] > 1).any():
      leading = [f for f in factors if (runs.groupby([LEARNER, f], dropna=False)[field].nunique() <= 1).all()]
      told.append(f"{field} varies together with {short(leading[0]) if leading else 'the rest'}, and is not told apart "
                  "from it.")
    elif field.startswith("learner.") or field in _OWN:
      continue
    elif (values["nunique"] == 1).all() and values["first"].nunique() > 1:
      each = ", ".join(f"{name} {_plain(value)}" for name, value in values["first"].items())
      told.append(f"the learners differ in {field}: {each}.")
  return told


def _unequal_seeds(runs, factors):
  """A sentence where some kinds of runs have fewer seeds than others."""
  seeds = runs.groupby([LEARNER, *factors], dropna=False)[SEED].nunique()
  if seeds.min() == seeds.max():
    return []
  return [f"its kinds of runs have {seeds.min()} to {seeds.max()} seeds; tables and figures show the mean over those "
          "that each has."]


def _identifies(column):
  """Whether a column of `runs` is a field that makes a run itself, or the data's fingerprint."""
  return ("." in column or column in _FIELDS) and not column.startswith(configs.INCIDENTAL)


def _factors(runs):
  """Fields that tell kinds of runs apart; of several that vary together, the first in SHORT or the shortest."""
  fields = [c for c in runs.columns if _identifies(c) and c not in (LEARNER, SEED, "data_fingerprint")]
  varying = []
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
