"""Collects run folders into studies, and says what a reader must know about their runs."""
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import read, studies
from alma_jax.reports.read import DATA, ERROR, LEARNER, REGRET, REPLAY, SEED, TOTAL, WAITING, Rows
from alma_jax.reports.studies import Study
from alma_jax.store import local_copy, run_files

Path = str | pathlib.Path
_NAMED = 5  # notes of an error
TRANSFER, BASELINE = "transfer", "independent"
# Scores of runs that differ in one of these fields cannot be compared.
COMPARABLE = ("dataset.name", "dataset.test_per_class", "dataset.sources", TOTAL, "stream.untrained_error",
              "dataset.vocab_size", "dataset.tokenizer", "dataset.sequence_length", "dataset.cross_documents",
              "dataset.eval_tokens")
_DEFAULTS = ("model.num_experts", "train.patience", "train.patience_delta")  # fields whose default the learner decides


def collect(paths: Iterable[Path]) -> tuple[list[Study], list[str]]:
  """Reads runs.

  Args:
    paths: run folders, or folders that hold run folders at any depth.

  Returns:
    (studies, notes): the notes are sentences about runs that were left out, and
    about what a reader must know.

  Raises:
    BadInput: a folder does not exist, or no run is finished.
  """
  records, notes = _read_all(paths)
  if all(record.divergence for record in records):
    more = [f"{len(notes) - _NAMED} more runs are left out, too."] if len(notes) > _NAMED else []
    raise BadInput(" ".join(["there is no finished run to report.", *notes[:_NAMED], *more]))
  table, all_studies = pd.DataFrame([record.row for record in records]), list[Study]()
  kinds = [record.kind for record in records]
  contents = contents_apart(table, [kind.draws_data for kind in kinds])
  fields = [c for c in COMPARABLE if c in table] + ["contents"]
  groups = [rows for _, rows in table.assign(contents=contents).groupby(fields, sort=True, dropna=False)]
  for rows, name in zip(groups, _names(groups, fields, kinds)):
    rows, of_study = rows.drop(columns="contents"), [records[i] for i in rows.index]
    if all(record.divergence for record in of_study):
      notes.append(f"{name}: all runs diverged; there is nothing to report.")
      continue
    all_studies.append(_study(name, rows, of_study))
    notes += [f"{name}: {sentence}" for sentence in _notes(all_studies[-1], rows)]
  if len(all_studies) > 1:
    notes.append(f"The runs belong to {len(all_studies)} streams, and each stream is reported by itself: "
                 f"{'; '.join(each.name for each in all_studies)}.")
  return all_studies, notes


def contents_apart(runs: pd.DataFrame, drawn: Sequence[bool]) -> pd.Series:
  """Labels of the data of each run.

  Runs on data sets of the same name have different labels if their data differ, and the label "" otherwise.

  Args:
    runs: a row for each, with the fields of its config.
    drawn: for each, whether the fingerprint of its data depends on the seed.
  """
  labels = pd.Series("", index=runs.index)
  for (_, is_drawn), group in runs.groupby(["dataset.name", pd.Series(drawn, runs.index)]):
    seeds = group.groupby(DATA)[SEED].nunique()
    if not is_drawn or seeds.max() > 1:
      differ = len(seeds) > 1
    else:  # every seed has data of its own, the same ones in all runs
      alike = [c for c in (*COMPARABLE, SEED) if c in group]
      differ = bool(group.groupby(alike, dropna=False)[DATA].nunique().max() > 1)
    if differ:
      labels[group.index] = group[DATA].str[:8]
  return labels


def _read_all(paths: Iterable[Path]) -> tuple[list[Rows], list[str]]:
  """(Rows of the runs that finished or diverged, sentences about what was left out)."""
  records: list[Rows] = []
  notes: list[str] = []
  first: dict[str, pathlib.Path] = {}  # folder of the first run with these facts
  folders = [folder for path in paths for folder in local_copy.readable_folders(
      path, ("config.json", run_files.METRICS))]
  for folder in {folder.resolve(): folder for folder in folders}.values():
    try:
      record = read.read(folder)
    except BadInput as error:
      notes.append(str(error))
      continue
    facts = {k: v for k, v in record.row.items() if studies.identifies(k)}
    same = first.setdefault(json.dumps([facts, record.divergence is None], sort_keys=True), folder)
    if same != folder:
      notes.append(f"{folder} is left out: it is the same run as {same}.")
      continue
    records.append(record)
    notes += [record.divergence] if record.divergence else []
  return records, notes


def _study(name: str, rows: pd.DataFrame, records: list[Rows]) -> Study:
  """The Study of some runs, whose fields are `rows`."""
  finished = [record for record in records if record.stream is not None]
  stream = pd.concat([record.stream for record in finished], ignore_index=True).dropna(axis=1, how="all")
  done, varying = np.array([not record.divergence for record in records]), studies.factors(rows)
  runs, diverged = (part[[c for c in part if c in (WAITING, *varying) or part[c].notna().any()]]
                    for part in (rows[done], rows[~done]))
  runs = runs.join(pd.DataFrame([record.result for record in finished], index=runs.index))
  runs = runs.sort_values([LEARNER, *varying, SEED], ignore_index=True)
  tasks = {record.row["run"]: record.tasks for record in finished if record.tasks}
  further = {record.row["run"]: record.further for record in finished if record.further}
  replayed = {record.row["run"]: record.replayed for record in finished if record.replayed}
  study = Study(name, finished[0].scoring, runs, stream, varying, diverged, tasks, further, replayed)
  return _with_transfer(study) if tasks else _with_regret(study) if study.scoring.score == ERROR.score else study


def _with_transfer(study: Study) -> Study:
  """Adds the column `transfer` to the runs: R[T, T] minus that of the `independent` run of the same seed.

  That run has the same values of all factors but the options of learners. The column is NaN where there is no such run,
  or several.
  """
  shared = [SEED, *(field for field in study.factors if not field.startswith("learner."))]
  baselines = study.runs.loc[study.runs["learner.name"] == BASELINE, [*shared, "last_accuracy"]].drop_duplicates(
      shared, keep=False)
  paired = study.runs[shared].merge(baselines, "left", shared)["last_accuracy"]
  return study._replace(runs=study.runs.assign(**{TRANSFER: study.runs["last_accuracy"] - paired}))


def oracles(runs: pd.DataFrame) -> pd.DataFrame:
  """Of each seed the run with the lowest CER of those that train from scratch on all data after every mega-batch."""
  if not {"learner.init_from_scratch", REPLAY, WAITING} <= {*runs}:
    return runs[:0]
  found = runs[runs["learner.init_from_scratch"].eq(True) & runs[REPLAY].eq(1) & runs[WAITING].eq(1)]
  return found.sort_values(ERROR.score, kind="stable").drop_duplicates(SEED)


def _with_regret(study: Study) -> Study:
  """Adds the column `regret` to the runs and to the stream, if the study has an oracle.

  The regret at t is the sum of the first t errors, minus the same sum for the oracle with this seed; NaN without one.
  """
  best = oracles(study.runs)
  if best.empty:
    return study
  errors = study.stream.pivot(index="t", columns="run", values=study.scoring.metric).cumsum()
  of_seed = dict(zip(best[SEED], best["run"]))
  pairs = {run: of_seed[seed] for run, seed in zip(study.runs["run"], study.runs[SEED]) if seed in of_seed}
  regret = pd.DataFrame({run: errors[run] - errors[oracle] for run, oracle in pairs.items()})
  long = regret.rename_axis(columns="run").stack().rename(REGRET).reset_index()
  return study._replace(runs=study.runs.assign(**{REGRET: study.runs["run"].map(regret.iloc[-1])}),
                        stream=study.stream.merge(long, "left", ["run", "t"]))


def _names(groups: list[pd.DataFrame], apart: list[str], kinds: list[Any]) -> list[str]:
  """A name for each study, which differs from the names of all others; `kinds`: the class of each run's config."""
  long = [rows.iloc[0]["dataset.name"].rstrip("/") for rows in groups]
  brief = [name.rsplit("/", 1)[-1].removeprefix("tfds:").removeprefix("npz:").removeprefix("tasks:") for name in long]
  ambiguous = len({*zip(brief, long)}) > len(set(brief))
  names = [f"{name}, {_count(rows.iloc[0][TOTAL], kinds[rows.index[0]])}"
           for name, rows in zip(long if ambiguous else brief, groups)]
  unique = []
  for name, rows in zip(names, groups):
    twins: list[Any] = [other.iloc[0] for other, same in zip(groups, names) if same == name]
    fields = [c for c in apart if c in rows and len({str(twin[c]) for twin in twins}) > 1]
    unique.append(", ".join([name, *(f"{studies.short(field)} {rows.iloc[0][field]}" for field in fields)]))
  return unique


def _count(num: int, kind: Any) -> str:
  """E.g. "500 mega-batches" or "1 task"."""
  return f"{num} {kind.single if num == 1 else kind.unit}"


# ----------------------------------------------------------------------------------------------------------- notes

def _notes(study: Study, rows: pd.DataFrame) -> list[str]:
  """Sentences that a reader needs to judge tables and figures; `rows` has all runs, also those that diverged."""
  sentences = _differences(rows) + (_notes_on_regret(study) if REGRET in study.runs else [])
  seeds = study.runs.groupby([LEARNER, *study.factors], dropna=False)[SEED].nunique()
  if seeds.min() < seeds.max():
    sentences.append(f"the kinds of runs have {seeds.min()} to {seeds.max()} seeds; tables and figures show the mean "
                     "over the seeds of each kind.")
  for kind in studies.kinds(study):
    if kind.diverged:
      effect = ("its means include only the seeds that finished, which favours it" if len(kind.runs) else
                "it has no mean")
      sentences.append(f"{studies.label(kind.row, study.factors)}: {kind.divergence}; {effect}.")
  return sentences + (_notes_on_tasks(study) if study.tasks else [])


def _notes_on_regret(study: Study) -> list[str]:
  """Sentences about what the regret is against."""
  if REGRET not in study.stream:
    named = sorted(set(study.runs.loc[study.runs[REGRET].notna(), "log.oracle"]))
    return [f"the regret is the CER minus the CER of the run that log.oracle names: {', '.join(named)}."]
  by_label: dict[str, list[str]] = {}
  for _, row in oracles(study.runs).iterrows():
    by_label.setdefault(studies.label(row, study.factors), []).append(str(row[SEED]))
  names = "; ".join(f"{label} (seed {', '.join(sorted(seeds))})" for label, seeds in by_label.items())
  without = sorted({str(seed) for seed in study.runs.loc[study.runs[REGRET].isna(), SEED]})
  return [f"the regret is the CER minus the CER of a run with the same seed that trains from scratch on all data after "
          f"every mega-batch: {names}."
          + (f" It leaves out the seeds without such a run: {', '.join(without)}." if without else "")]


def _differences(runs: pd.DataFrame) -> list[str]:
  """Sentences about fields that vary but are not factors: they follow a factor, or differ between learners."""
  sentences, varying = [], studies.factors(runs)
  for field in runs.columns:
    if not studies.identifies(field) or field in (LEARNER, SEED, DATA, *varying):
      continue
    values = runs.groupby(LEARNER)[field].agg(["nunique", "first"])
    if (values["nunique"] > 1).any():
      leading = [f for f in varying if (runs.groupby([LEARNER, f], dropna=False)[field].nunique() <= 1).all()]
      other = studies.short(leading[0]) if leading else "the other factors"
      sentences.append(f"{field} varies together with {other}; their effects cannot be separated.")
    elif field.startswith("learner.") or field in _DEFAULTS:
      continue
    elif (values["nunique"] == 1).all() and values["first"].nunique() > 1:
      each = ", ".join(f"{name} {studies.plain(value)}" for name, value in values["first"].items())
      sentences.append(f"the learners differ in {field}: {each}.")
  return sentences


def _notes_on_tasks(study: Study) -> list[str]:
  """Sentences about runs without a transfer, and about runs whose graph is not drawn."""
  sentences = []
  missing = study.runs[study.runs[TRANSFER].isna()]
  if len(missing) == len(study.runs):
    sentences.append(f"there is no finished run of `{BASELINE}`, against which the transfer to the last task (T) is "
                     "measured.")
  elif len(missing):
    seeds = ", ".join(f"{name} (seed {', '.join(map(str, sorted(rows[SEED].unique())))})"
                      for name, rows in missing.groupby(LEARNER))
    sentences.append(f"the transfer to the last task (T) leaves out {seeds}, because there is not exactly one finished "
                     f"run of `{BASELINE}` with the same seed and fields.")
  return sentences + [f"the graph of {run} is not drawn, because {tasks.problem}."
                      for run, tasks in study.tasks.items() if tasks.problem]
