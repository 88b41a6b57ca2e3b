"""Reads a run folder, for everyone: each file is read and checked when it is first needed.

Imports neither jax nor pandas. An error is one sentence that names the file and the field, and says what to do.
"""
import functools
import math
import os
import pathlib
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from alma_jax import config as configs
from alma_jax.config import registry, schema
from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.messages import brief
from alma_jax.problems import measures
from alma_jax.store import metrics, run_files
from alma_jax.store.metrics import ACCURACIES, DRIFT_AFTER, DRIFT_BEFORE, SPAN, WEIGHTS, Entry, Measure

SUMMARY, GRAPH = "summary.json", "graph.json"
DATA, TOTAL, LABEL = "data_fingerprint", "stream.num_megabatches", "log.label"
_NUMBER, _OR_NULL = (int, float), (int, float, NoneType)
_NEEDED: dict[str, Any] = {"problem": "", "seed": 0, "learner.name": "", "dataset.name": "", TOTAL: 0, DATA: ""}
_FIELDS = _NEEDED | {LABEL: "", "stream.waiting_time": 1, "stream.num_trainings": 0}  # and their least values
_COLUMNS: dict[str, tuple[type, ...]] = {  # of metrics.jsonl, besides the metric
    "t": (int,), "stage": (int, NoneType), "updated": (bool,), "task": (str,),
    **dict.fromkeys(("num_params", "fwd_macs", "train_flops", "predict_macs", "seconds", "num_modules"), _NUMBER),
    **dict.fromkeys(("loss", "regret", "training_price", DRIFT_BEFORE, DRIFT_AFTER), _OR_NULL)}
_COSTS = ("cumulative_params", "cumulative_fwd_macs", "cumulative_train_flops", "cumulative_growth_macs", "num_stages",
          "num_megabatches", "wall_seconds", "compile_seconds")
_MEASURED = ("cer_from_zero", "lca", "regret")  # results of some runs
_LARGEST = 1e300  # of a number; sums of larger ones may not be finite
_AGAIN = "delete it, and run the run's own command to write it again"
_RESTORE = "restore the file"


class Graph(NamedTuple):
  """Which task started from which in a stream of tasks; tasks and modules count from 0.

  Attributes:
    names, families: of the tasks.
    origins: for each task, the earlier task that its network comes from, or None.
    parts: names of the parts of a network, from the inputs to the head.
    made: for each module, the task that trained it.
    paths: for each task, the module of each part.
  """
  names: tuple[str, ...]
  families: tuple[str, ...]
  origins: tuple[int | None, ...]
  parts: tuple[str, ...]
  made: tuple[int, ...]
  paths: tuple[tuple[int, ...], ...]

  @property
  def shares(self) -> bool:
    """Whether tasks share a module."""
    used = [module for path in self.paths for module in set(path)]
    return len(used) > len(set(used))


class Record:
  """The files of a run folder, finished or not. All attributes except `path` raise BadInput if a file is damaged.

  Attributes:
    path: the folder.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)

  @property
  def is_begun(self) -> bool:
    """Whether the folder holds a run."""
    return (self.path / run_files.CONFIG).exists()

  @property
  def is_finished(self) -> bool:
    """Whether the run has seen the whole stream."""
    return self.summary is not None

  @property
  def is_published(self) -> bool:
    """Whether this is the first part of `alma apart`, which ends after the first stage, without a summary."""
    return (self.path / run_files.GATE).exists()

  @property
  def num_lines(self) -> int:
    """The current number of lines of metrics.jsonl, without parsing them."""
    try:
      with open(self.path / run_files.METRICS, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 16), b""))
    except OSError:
      return 0

  @functools.cached_property
  def tree(self) -> dict[str, Any]:
    """The contents of config.json."""
    tree = run_files.find_config(self.path)
    if tree is None:
      raise BadInput(f"there is no run in {run_files.shown(self.path)!r}: it has no {run_files.CONFIG}.")
    return tree

  @functools.cached_property
  def fields(self) -> dict[str, Any]:
    """{"a.b": value} of config.json, with what train.budget has decided."""
    fields = configs.flatten({name: value for name, value in self.tree.items() if name not in ("decided", "made_with")})
    for field, least in _FIELDS.items():
      if field not in fields and field in _NEEDED:
        raise self._bad(run_files.CONFIG, f"lacks {field!r}")
      value = fields.get(field, least)
      if type(value) is not type(least) or value < least:
        raise self._bad(run_files.CONFIG, f"has {field}={brief(value)}, which is not a valid value")
    if not _are_names(fields.get("log.metrics", [])):
      raise self._bad(run_files.CONFIG, "has a log.metrics that is not a list of names")
    if fields["problem"] not in schema.CONFIGS:
      raise self._bad(run_files.CONFIG, f"has problem={fields['problem']!r}, which is not one of "
                      f"{', '.join(schema.CONFIGS)}")
    for field, value in self.decided.items():
      if fields.get(field) != 0 or type(value) is not int or value < 1:
        raise self._bad(run_files.CONFIG, f"says that {brief(field)} was decided to be {brief(value)}")
    return fields | self.decided

  @property
  def decided(self) -> dict[str, int]:
    """The fields that train.budget has decided, which are 0 in the config."""
    return self.tree.get("decided", {})

  @property
  def kind(self) -> type[schema.RunConfig]:
    """The class of the config; its attributes say what the files contain."""
    return schema.CONFIGS[self.fields["problem"]]

  @functools.cached_property
  def config(self) -> schema.RunConfig:
    """The config, with what train.budget has decided. All names but those of metrics must be registered."""
    tree = {name: value for name, value in self.tree.items() if name not in configs.STORED}
    known, chosen = registry.METRICS[self.kind.problem], self.fields.get("log.metrics", ())
    tree["log"] = tree["log"] | {"metrics": [name for name in chosen if name in known]}
    return configs.parse(configs.nested(configs.flatten(tree) | self.decided))

  @functools.cached_property
  def summary(self) -> Entry | None:
    """The contents of summary.json; None while the run is not finished."""
    summary = run_files.read_json(self.path / SUMMARY)
    if summary is None:
      return None
    if not isinstance(summary, dict):
      raise self._bad(SUMMARY, f"holds {brief(summary)} instead of a JSON object", _AGAIN)
    needed = (*self.kind.results, *_COSTS, "device")
    for key in (*needed, *_MEASURED):
      if key not in summary and key in needed:
        raise self._bad(SUMMARY, f"lacks {key!r}", _AGAIN)
      if key in summary and key != "device" and not _is_number(summary[key]):
        raise self._bad(SUMMARY, f"has {key}={brief(summary[key])}, which is not a finite number", _AGAIN)
    if summary.get("config_sha256") != configs.digest(self.tree):
      raise self._bad(run_files.CONFIG, "was changed after the run had finished", "restore it")
    return summary

  @functools.cached_property
  def lines(self) -> list[Entry]:
    """The entries of metrics.jsonl, one for each unit of the stream so far."""
    summary, lines = self.summary, self._read(run_files.METRICS)  # in this order: the summary is written last
    for key, kinds in (_COLUMNS | dict.fromkeys((
        self.metric, f"val_{self.metric}", f"prequential_{self.metric}"), _OR_NULL)).items():
      values = [line[key] for line in lines if key in line]
      if not _fit(values, kinds):
        bad = next(value for value in values if not _fit([value], kinds))
        raise self._bad(run_files.METRICS, f"has a line with {key}={brief(bad)}")
    if any((line.get("stage") or 0) >= len(lines) for line in lines):
      raise self._bad(run_files.METRICS, f"has a line with a stage of {len(lines)} or more")
    if any(not _are_names(line.get(key, [])) for line in lines for key in measures.NAMED):
      raise self._bad(run_files.METRICS, f"has a line whose {measures.CLASSES} are not a list of names")
    if [line.get("t") for line in lines] != [*range(1, len(lines) + 1)]:
      raise self._bad(run_files.METRICS, f"should have lines with t from 1 to {len(lines)}, in this order")
    if summary is not None and len(lines) != self.total:
      raise self._bad(run_files.METRICS, f"has {len(lines)} of {self.total} {self.unit}, although {SUMMARY} exists",
                      "restore it, or let the run's own command write it again")
    return lines

  @functools.cached_property
  def train(self) -> list[Entry]:
    """The entries of train.jsonl."""
    return self._read(run_files.TRAIN)

  @functools.cached_property
  def entries(self) -> list[Entry]:
    """The lines of stream.jsonl, one for each mega-batch that has arrived; empty if the run began with all data."""
    lines = self._read(feed.LEDGER)
    if not all(isinstance(line.get("content"), str) for line in lines):
      raise self._bad(feed.LEDGER, "has a line without the hash of an entry")
    return lines

  @functools.cached_property
  def set_aside(self) -> list[str]:
    """The names of the entries of a live stream that were set aside, and not used later."""
    names, used = (dict.fromkeys(str(line.get("name")) for line in lines)
                   for lines in (self._read(feed.REJECTED), self.entries))
    return [name for name in names if name not in used]

  @functools.cached_property
  def notices(self) -> list[Entry]:
    """The lines of notices.jsonl, about entries of a live stream that were used."""
    return self._read(feed.NOTICES)

  @property
  def data(self) -> str:
    """The fingerprint of the data, including what has arrived."""
    return self.data_until(len(self.entries))

  def data_until(self, t: int) -> str:
    """The fingerprint of the data, including what has arrived until mega-batch t."""
    used = self.entries[:t]
    if len(used) < t and not self.config.dataset.is_complete:
      raise self._bad(feed.LEDGER, f"lists only {len(used)} of the {t} mega-batches that were used")
    return feed.fingerprint(self.fields[DATA], used)

  @property
  def divergence(self) -> str | None:
    """Why the run diverged, as a clause; "" if the reason is unknown; None if it has not diverged, or has finished."""
    if self.is_finished or not (self.path / run_files.DIVERGED).exists():
      return None
    stored = run_files.read_json(self.path / run_files.DIVERGED)
    line = stored.get("line") if isinstance(stored, dict) else None
    return " ".join(line.partition(";")[0].split()).rstrip(".") if isinstance(line, str) else ""

  @property
  def unit(self) -> str:
    """What the stream consists of: mega-batches or tasks."""
    return self.kind.unit

  @property
  def metric(self) -> str:
    """The entry of `lines` that measures each unit: error or perplexity."""
    return self.kind.metric

  @functools.cached_property
  def measure(self) -> Measure:
    """What the metric is measured on."""
    return metrics.measure(self.metric, self.lines)

  @property
  def total(self) -> int:
    """The number of units of the stream; 0 if it is unknown before the end."""
    return int((self.summary or {}).get("num_megabatches") or self.fields[TOTAL])

  @property
  def further(self) -> Entry:
    """The latest values of the metrics in `log.metrics`; see measures.newest."""
    return measures.newest(self.lines, self.fields.get("log.metrics", ()))

  @functools.cached_property
  def accuracies(self) -> np.ndarray | None:
    """R[t, i], the test accuracy on task i after task t: float64 [T', T'], NaN for i > t; None without tasks."""
    if not any(ACCURACIES in line for line in (*self.lines[:1], *self.lines[-1:])):
      return None
    accuracies = np.full((len(self.lines), len(self.lines)), np.nan)
    for t, line in enumerate(self.lines):
      row = line.get(ACCURACIES)
      if not isinstance(row, list) or len(row) != t + 1 or not all(_is_number(each) and 0 <= each <= 1 for each in row):
        raise self._bad(run_files.METRICS, f"should have {ACCURACIES!r} in line {t + 1}, a list of {t + 1} numbers "
                        "from 0 to 1")
      accuracies[t, :t + 1] = row
    return accuracies

  @functools.cached_property
  def replayed(self) -> list[list[float]]:
    """For each line, the weights from 0 to 1 of the old mega-batches 1, 2, ... in its training; [] if it has none."""
    rows, old = list[list[float]](), 0
    for line in self.lines:
      weights, span = line.get(WEIGHTS, []), line.get(SPAN, 1)
      if not (isinstance(weights, list) and all(_is_number(each) and 0 <= each <= 1 for each in weights)
              and type(span) is int and 1 <= span <= line["t"]):
        raise self._bad(run_files.METRICS, f"has a line whose {WEIGHTS} are not numbers from 0 to 1 for {SPAN} "
                        "mega-batches each")
      rows.append(np.repeat(weights, span)[:old].tolist())
      old = line["t"] if line.get("updated") else old
    return rows

  @functools.cached_property
  def graph(self) -> Graph:
    """What each task so far was started from."""
    tree, num = run_files.read_json(self.path / GRAPH), len(self.lines)
    try:
      parts, modules, tasks = tuple(map(str, tree["parts"])), tree["modules"], tree["tasks"]
      made, where = tuple(each["task"] for each in modules), [parts.index(each["part"]) for each in modules]
      graph = Graph(tuple(str(task["name"]) for task in tasks), tuple(str(task["family"]) for task in tasks),
                    tuple(task["origin"] for task in tasks), parts, made, tuple(tuple(task["path"]) for task in tasks))
      fits = (len(tasks) == num and all(type(task) is int and 0 <= task < num for task in made)
              and all(origin is None or (type(origin) is int and 0 <= origin < t)
                      for t, origin in enumerate(graph.origins))
              and all([where[module] for module in path] == [*range(len(parts))] and min(path, default=0) >= 0
                      and all(made[module] <= t for module in path) for t, path in enumerate(graph.paths)))
    except (IndexError, KeyError, TypeError, ValueError):
      fits = False
    if not fits:
      raise self._bad(GRAPH, "is missing" if tree is None else f"is not the graph of {num} tasks",
                      "the run's own command writes it again")
    return graph

  def values(self, key: str) -> list[tuple[int, float]]:
    """[(t, value)] of an entry of metrics.jsonl, skipping lines without a value."""
    return [(line["t"], line[key]) for line in self.lines if line.get(key) is not None]

  def column(self, key: str) -> list[Any]:
    """The values of an entry in all lines of metrics.jsonl. Raises BadInput if a line lacks it."""
    try:
      return [line[key] for line in self.lines]
    except KeyError:
      raise self._bad(run_files.METRICS, f"has a line without {key!r}") from None

  def _read(self, name: str) -> list[Entry]:
    try:
      lines = run_files.read_lines(self.path / name)
    except FileNotFoundError:
      return []
    except OSError as error:
      raise self._bad(name, f"cannot be read ({error.strerror})") from error
    if not all(isinstance(line, dict) for line in lines):
      raise self._bad(name, "has a line that is not a JSON object")
    return lines

  def _bad(self, name: str, problem: str, advice: str = _RESTORE) -> BadInput:
    return BadInput(f"{run_files.shown(self.path / name)} {problem}; {advice}.")


def _are_names(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_number(value: Any) -> bool:
  return type(value) in _NUMBER and abs(value) <= _LARGEST


def _fit(values: list[Any], kinds: tuple[type, ...]) -> bool:
  """Whether all values have one of these types, and the numbers are finite; so is their sum, which is fast to find."""
  found = set(map(type, values))
  if not found <= {*kinds} or str in kinds:
    return found <= {*kinds}
  try:
    return math.isfinite(sum(value for value in values if value is not None) if NoneType in found else sum(values))
  except OverflowError:  # of an integer that is no float
    return False
