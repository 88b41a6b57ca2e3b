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
               "dataset.tokenizer")
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
    same = seen.setdefault(json.dumps({k: v for k, v in row.items() if _identifies(k)}), folder)
    if same != folder:
      problems.append(f"{folder} is left out: it is the same run as {same}.")
      continue
    rows.append(row)
    streams.append(stream)
  if not rows:
    raise BadInput(" ".join(["there is no finished run to report.", *problems]))
  runs = pd.DataFrame(rows)
  studies = []
  groups = list(runs.groupby([c for c in _COMPARABLE if c in runs] + [_versions(runs)], sort=True, dropna=False))
  for (_, mine), name in zip(groups, _names([mine for _, mine in groups])):
    stream = pd.concat([streams[i] for i in mine.index], ignore_index=True).dropna(axis=1, how="all")
    mine, factors = mine.dropna(axis=1, how="all"), _factors(mine)
    mine = mine.sort_values([LEARNER, *factors, SEED], ignore_index=True)
    studies.append(Study(name, "average_perplexity" in mine, mine, stream, factors))
    problems += [f"{name}: {sentence}" for sentence in _differences(mine)]
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
    here = [path] if (path / "config.json").exists() else sorted(file.parent for file in path.rglob("config.json"))
    if not here:
      raise BadInput(f"{str(path)!r} holds no run: there is no config.json in it or below it.")
    found += here
  return list({folder.resolve(): folder for folder in found}.values())


def _read(folder):
  """(row of `runs`, DataFrame of the stream) of a finished run."""
  try:
    config, summary = (writers.read_json(folder / name) for name in ("config.json", "summary.json"))
  except BadInput:
    raise BadInput(f"{folder} is left out: its config.json or summary.json cannot be read.") from None
  if not isinstance(config, dict) or "stream" not in config or "learner" not in config:
    raise BadInput(f"{folder} is left out: its config.json is of no run.")
  try:
    lines = json.loads("[" + ",".join((folder / writers.METRICS).read_text().splitlines()) + "]")
  except (OSError, ValueError):
    raise BadInput(f"{folder} is left out: its {writers.METRICS} cannot be read.") from None
  total = config["stream"]["num_megabatches"]
  if summary is None or len(lines) != total:
    lacks = "" if summary else " and no summary.json"
    raise BadInput(f"{folder} is left out: it is not finished, {len(lines)} of {total} mega-batches{lacks}.")
  flat = {field: str(value) if isinstance(value, list) else value for field, value in configs.flatten(config).items()}
  row = dict(run=str(folder), **flat, **{key: summary[key] for key in _SUMMARY if key in summary},
             first_params=lines[0]["num_params"], last_params=lines[-1]["num_params"])
  metric = "perplexity" if "perplexity" in lines[0] else "error"
  stream = pd.DataFrame({key: [line[key] for line in lines] for key in ("t", "stage", "updated", metric)})
  stream[metric] = stream[metric].astype(float)
  stream.insert(0, "run", str(folder))
  return row, stream


def _versions(runs):
  """Series that tells apart data of one name and seed with different contents."""
  contents = runs.groupby(["dataset.name", SEED])["data_fingerprint"].nunique()
  changed = {name for (name, _), num in contents.items() if num > 1 and _same_stream(runs, name)}
  return runs["data_fingerprint"].where(runs["dataset.name"].isin(changed), "").rename("contents")


def _same_stream(runs, name):
  """Whether contents are not already told apart by other fields: those of texts depend on B and the vocabulary."""
  mine = runs[runs["dataset.name"] == name]
  keys = [c for c in (*_COMPARABLE, SEED) if c in mine]
  return mine.groupby(keys, dropna=False)["data_fingerprint"].nunique().gt(1).any()


def _names(groups):
  """A name for each study, for people and for files."""
  names = []
  for short_name in (True, False):
    names = []
    for mine in groups:
      first = mine.iloc[0]
      name = first["dataset.name"].rstrip("/")
      if short_name:
        name = name.rsplit("/", 1)[-1].removeprefix("tfds:").removeprefix("npz:")
      names.append(f"{name}, {first['stream.num_megabatches']} mega-batches")
    if len(set(names)) == len(names):
      return names
  return [f"{name} ({i})" for i, name in enumerate(names, 1)]


def _differences(runs):
  """Sentences about fields in which learners differ from each other, but no runs of one learner."""
  told = []
  for field in runs.columns:
    if not _identifies(field) or field.startswith("learner.") or field in (*_OWN, SEED, "data_fingerprint"):
      continue
    values = runs.groupby(LEARNER)[field].agg(["nunique", "first"])
    if field not in _factors(runs) and (values["nunique"] == 1).all() and values["first"].nunique() > 1:
      each = ", ".join(f"{name} {_plain(value)}" for name, value in values["first"].items())
      told.append(f"the learners differ in {field}: {each}.")
  return told


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
