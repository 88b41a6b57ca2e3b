"""Collects run folders into studies."""
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from alma_jax.errors import BadInput
from alma_jax.reports import contents, factors, notes, read, scoring, task_studies
from alma_jax.reports.read import LEARNER, SEED, TOTAL, WAITING, Rows
from alma_jax.reports.studies import Study
from alma_jax.store import local_copy, run_files

Path = str | pathlib.Path


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
  records, said = _read_all(paths)
  if all(record.divergence for record in records):
    raise BadInput(" ".join(["there is no finished run to report.", *said]))
  every, studies = pd.DataFrame([record.row for record in records]), []
  kinds = [record.kind for record in records]
  labels = contents.apart(every, [kind.draws_data for kind in kinds])
  apart = [c for c in contents.COMPARABLE if c in every] + ["contents"]
  groups = [mine for _, mine in every.assign(contents=labels).groupby(apart, sort=True, dropna=False)]
  for mine, name in zip(groups, _names(groups, apart, kinds)):
    mine, of_mine = mine.drop(columns="contents"), [records[i] for i in mine.index]
    if all(record.divergence for record in of_mine):
      said.append(f"{name}: all runs diverged; there is nothing to report.")
      continue
    studies.append(_study(name, mine, of_mine))
    said += [f"{name}: {sentence}" for sentence in notes.about(studies[-1], mine)]
  if len(studies) > 1:
    said.append(f"The runs belong to {len(studies)} streams, and each stream is reported by itself: "
                f"{'; '.join(study.name for study in studies)}.")
  return studies, said


def _read_all(paths: Iterable[Path]) -> tuple[list[Rows], list[str]]:
  """(Rows of the runs that finished or diverged, sentences about what was left out)."""
  records: list[Rows] = []
  said: list[str] = []
  seen: dict[str, pathlib.Path] = {}  # folder of the first run with these facts
  for folder in _run_folders(paths):
    try:
      record = read.read(folder)
    except BadInput as error:
      said.append(str(error))
      continue
    facts = {k: v for k, v in record.row.items() if factors.identifies(k)}
    same = seen.setdefault(json.dumps([facts, record.divergence is None], sort_keys=True), folder)
    if same != folder:
      said.append(f"{folder} is left out: it is the same run as {same}.")
      continue
    records.append(record)
    said += [record.divergence] if record.divergence else []
  return records, said


def _study(name: str, rows: pd.DataFrame, records: list[Rows]) -> Study:
  """The Study of some runs; `rows` are theirs."""
  stream = pd.concat([r.stream for r in records if not r.divergence], ignore_index=True).dropna(axis=1, how="all")
  done, varying = np.array([not r.divergence for r in records]), factors.find(rows)
  runs, diverged = (part[[c for c in part if c in (WAITING, *varying) or part[c].notna().any()]]
                    for part in (rows[done], rows[~done]))
  results = pd.DataFrame([r.result for r in records if not r.divergence], index=runs.index)
  runs = runs.join(results).sort_values([LEARNER, *varying, SEED], ignore_index=True)
  tasks = {r.row["run"]: r.tasks for r in records if r.tasks}
  measure = next(r.measure for r in records if not r.divergence)
  further = {r.row["run"]: r.further for r in records if r.further}
  study = Study(name, scoring.of(records[0].kind), runs, stream, varying, diverged, tasks, measure, further)
  return task_studies.with_transfer(study) if tasks else study


def _run_folders(paths: Iterable[Path]) -> list[pathlib.Path]:
  folders = []
  for given in paths:
    folders += local_copy.readable_folders(given, ("config.json", run_files.METRICS))
  return list({folder.resolve(): folder for folder in folders}.values())


def _names(groups: list[pd.DataFrame], apart: list[str], kinds: list[Any]) -> list[str]:
  """A name for each study, which differs from the names of all others; `kinds`: the class of each run's config."""
  long = [mine.iloc[0]["dataset.name"].rstrip("/") for mine in groups]
  brief = [name.rsplit("/", 1)[-1].removeprefix("tfds:").removeprefix("npz:").removeprefix("tasks:") for name in long]
  ambiguous = len({*zip(brief, long)}) > len(set(brief))
  names = [f"{name}, {_count(mine.iloc[0][TOTAL], kinds[mine.index[0]])}"
           for name, mine in zip(long if ambiguous else brief, groups)]
  unique = []
  for name, mine in zip(names, groups):
    twins: list[Any] = [other.iloc[0] for other, its in zip(groups, names) if its == name]
    fields = [c for c in apart if c in mine and len({str(twin[c]) for twin in twins}) > 1]
    unique.append(", ".join([name, *(f"{factors.short(field)} {mine.iloc[0][field]}" for field in fields)]))
  return unique


def _count(num: int, kind: Any) -> str:
  """E.g. "500 mega-batches" or "1 task"."""
  return f"{num} {kind.single if num == 1 else kind.unit}"
