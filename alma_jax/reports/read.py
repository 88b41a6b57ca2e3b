"""Reads one run folder, and checks every value that a report uses. Imports no jax."""
import math
import pathlib
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alma_jax import config as configs
from alma_jax.config import sections
from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.problems import measures
from alma_jax.reports import protocols, task_read
from alma_jax.reports.protocols import COMP, FLOPS, MEM, Protocol
from alma_jax.reports.task_read import TaskRun
from alma_jax.store import metrics, run_files
from alma_jax.store.metrics import Measure

SEED, LEARNER, WAITING = "seed", "learner.name", "stream.waiting_time"
SCHEDULE, LABEL = "stream.schedule", "log.label"
TOTAL, DATA = "stream.num_megabatches", "data_fingerprint"
TEXT = "dataset.sequence_length"  # a field that only language models have
PER_CLASS = "dataset.test_per_class"  # a field that only streams of tasks have
_SUMMARY, _DIVERGED = "summary.json", "diverged.json"
_NEEDED = ("problem", SEED, LEARNER, "dataset.name", TOTAL, DATA)
_COSTS = (MEM, COMP, FLOPS, "cumulative_growth_macs", "num_stages", "wall_seconds", "compile_seconds")
_OPTIONAL = ("cer_from_zero", "lca")
PREDICT = "predict_macs"  # a column of the stream
_LONGEST, _LARGEST = 60, 2**63  # characters of a value in a message; larger integers are stored as floats

Values = dict[str, Any]  # by the name of a field or of a result


class Record(NamedTuple):
  """The contents of a run folder.

  Attributes:
    row: `run` (the folder), and every field of the config. The learner's name is its label in reports. There is no
      waiting time if the run's schedule does not use it.
    result: the entries of summary.json, first_params, last_params and
      last_predict_macs; empty for a run that diverged.
    stream: a row per mega-batch; None for a run that diverged.
    protocol: the kind of its stream.
    divergence: a sentence, or None for a finished run.
    tasks: the results on a stream of tasks; None for other streams, and for a run that diverged.
    measure: what the metric is measured on.
    further: the newest values of the metrics of `log.metrics`, see measures.newest.
  """
  row: Values
  result: Values
  stream: pd.DataFrame | None
  protocol: Protocol
  divergence: str | None = None
  tasks: TaskRun | None = None
  measure: Measure = Measure("error")
  further: Mapping[str, Any] = types.MappingProxyType({})


def read(folder: pathlib.Path) -> Record:
  """The Record of a run that has finished or diverged.

  Raises:
    BadInput: the run has done neither, or the files are not those of a run. The
      message names the folder.
  """
  try:
    return _read(folder)
  except BadInput as error:
    raise BadInput(f"{folder} is left out: {error}") from None
  # A folder may hold any files, and one bad folder must not end the report on the others.
  except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
    raise BadInput(f"{folder} is left out: its files are not those of a run ({type(error).__name__}: "
                   f"{_brief(error)}).") from error


def _read(folder: pathlib.Path) -> Record:
  tree, summary = run_files.read_config(folder), run_files.read_json(folder / _SUMMARY)
  flat = _flat(tree)
  protocol = protocols.of(tree)
  metric, unit, total = protocol.metric, protocol.unit, flat[TOTAL]
  fields = flat.keys() - (configs.INCIDENTAL_LIVE if _is_live(flat) else ())
  row = dict(run=str(folder), **{field: str(v) if isinstance(v, list) else v for field, v in flat.items()
                                 if field in fields})
  row[LEARNER] = row.get(LABEL) or row[LEARNER]
  row.setdefault(WAITING, None)  # only the schedule `every` has it
  try:
    lines = run_files.read_lines(folder / run_files.METRICS)
  except OSError as error:
    if summary is not None or not isinstance(error, FileNotFoundError):
      raise BadInput(f"its {run_files.METRICS} cannot be read ({error}).") from None
    lines = []
  if _is_live(flat):  # its length is known when it has ended
    total = row[TOTAL] = (summary or {}).get("num_megabatches", len(lines))
    row[DATA] = feed.fingerprint(row[DATA], _entries(folder))
  if summary is None:
    so_far = f"{len(lines)} of {total} {unit}" if total else f"{len(lines)} {unit}"
    if (folder / _DIVERGED).exists():
      return Record(row, {}, None, protocol, _divergence(folder, so_far))
    raise BadInput(f"the run is not finished: it has {so_far} and no {_SUMMARY}.")
  result = _result(summary, protocol)
  if summary.get("config_sha256") != configs.digest(tree):
    raise BadInput(f"its {run_files.CONFIG} was changed after the run (config_sha256 in {_SUMMARY} belongs to "
                   "other fields).")
  row[TOTAL] = total = total or result["num_stages"]
  if len(lines) != total:
    raise BadInput(f"its {run_files.METRICS} has {len(lines)} of {total} {unit}, although {_SUMMARY} exists.")
  columns = _columns(lines, metric)
  measure = metrics.measure(metric, lines)
  if measure.is_prequential:  # the metric itself may be the error of guessing
    columns[metric] = [line.get(measure.key) for line in lines]
  held, predict = columns["num_params"], columns[PREDICT]
  stream = pd.DataFrame({  # stage and perplexity can be null
      "run": str(folder), "t": columns["t"], "stage": pd.array(columns["stage"], "Int64"),
      "updated": columns["updated"], metric: np.array(columns[metric], float),
      COMP: np.cumsum(columns["fwd_macs"], dtype=float), PREDICT: np.array(predict, float)})
  result |= dict(first_params=held[0], last_params=held[-1], last_predict_macs=predict[-1])
  further = measures.newest(lines, flat.get("log.metrics") or ())
  if protocol is not protocols.TASKS:
    return Record(row, result, stream, protocol, measure=measure, further=further)
  tasks = task_read.read(folder, lines)
  return Record(row, result, task_read.with_columns(stream, tasks), protocol, tasks=tasks, further=further)


def _entries(folder: pathlib.Path) -> list[Values]:
  """The lines of stream.jsonl of a live run."""
  lines = run_files.read_lines(folder / feed.LEDGER) if (folder / feed.LEDGER).exists() else []
  if not all(isinstance(line, dict) and isinstance(line.get("content"), str) for line in lines):
    raise BadInput(f"its {feed.LEDGER} has a line without the hash of an entry.")
  return lines


def _flat(tree: Values) -> Values:
  """The flat fields of a config.json."""
  flat = configs.flatten({name: value for name, value in tree.items() if name != "made_with"})  # no factor of a study
  for field in _NEEDED:
    if field not in flat:
      raise BadInput(f"its {run_files.CONFIG} lacks {field!r}.")
  for field in (DATA, LABEL):  # config_sha256 does not cover them
    if not isinstance(flat.get(field, ""), str):
      raise BadInput(f"its {run_files.CONFIG} has {field}={_brief(flat[field])}, which is not text.")
  least = protocols.of(tree).least
  if flat[TOTAL] < least and not _is_live(flat):
    raise BadInput(f"its {run_files.CONFIG} has {TOTAL}={flat[TOTAL]}, which should be at least {least}.")
  return flat


def _is_live(flat: Values) -> bool:
  return str(flat["dataset.name"]).startswith(sections.LIVE)


def _is_number(value: Any) -> bool:
  return type(value) in (int, float) and math.isfinite(value)


def _divergence(folder: pathlib.Path, so_far: str) -> str:
  """A sentence about a run that diverged, with the cause that diverged.json gives."""
  stored = run_files.read_json(folder / _DIVERGED)
  line = stored.get("line") if isinstance(stored, dict) else None
  cause = " ".join(line.partition(";")[0].split()).rstrip(".") if isinstance(line, str) else ""
  why = f": {cause}" if cause else ""
  return f"{folder} is left out: it diverged after {so_far}{why}."


def _result(summary: Any, protocol: Protocol) -> Values:
  """The entries of summary.json that reports use."""
  if not isinstance(summary, dict):
    raise BadInput(f"its {_SUMMARY} holds {_brief(summary)} instead of named results.")
  results: Values = {}
  needed = (*protocol.results, *_COSTS)
  for key in dict.fromkeys((*needed, *_OPTIONAL)):
    if key not in summary and key in needed:
      raise BadInput(f"its {_SUMMARY} lacks {key!r}.")
    if key in summary:
      if not _is_number(summary[key]):
        raise BadInput(f"its {_SUMMARY} has {key}={_brief(summary[key])}, which is not a finite number.")
      results[key] = summary[key] if abs(summary[key]) < _LARGEST else float(summary[key])
  return results | {"device": str(summary["device"])}


def _columns(lines: list[Any], metric: str) -> dict[str, list[Any]]:
  """{key: values} of metrics.jsonl."""
  if not all(isinstance(line, dict) for line in lines):
    raise BadInput(f"its {run_files.METRICS} has a line without named values.")
  kinds: dict[str, tuple[type, ...]] = {
      "t": (int,), "stage": (int, type(None)), "updated": (bool,), "num_params": (int, float), "fwd_macs": (int, float),
      PREDICT: (int, float), metric: (int, float, type(None)) if metric == "perplexity" else (int, float)}
  columns: dict[str, list[Any]] = {}
  for key, allowed in kinds.items():
    if not all(key in line for line in lines):
      raise BadInput(f"its {run_files.METRICS} has a line without {key!r}.")
    values = columns[key] = [line[key] for line in lines]
    types_found = set(map(type, values))
    floats = values if types_found == {float} else [value for value in values if type(value) is float]
    if types_found.issubset(allowed) and all(map(math.isfinite, floats)):
      continue
    for value in values:
      if type(value) not in allowed or (isinstance(value, float) and not math.isfinite(value)):
        raise BadInput(f"its {run_files.METRICS} has a line with {key}={_brief(value)}.")
  if columns["t"] != list(range(1, len(lines) + 1)):
    raise BadInput(f"the lines of its {run_files.METRICS} should be mega-batches 1 to {len(lines)}, in this order.")
  return columns


def _brief(value: Any) -> str:
  """A value as text, shortened."""
  text = str(value) if isinstance(value, Exception) else repr(value)
  return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
