"""What a report uses of a run folder, and how it scores a run. Imports no jax."""
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alma_jax import config as configs
from alma_jax.config.schema import RunConfig
from alma_jax.errors import BadInput
from alma_jax.store.metrics import Measure
from alma_jax.store.record import DATA, LABEL, SUMMARY, TOTAL, Graph, Record

SEED, LEARNER, WAITING, REPLAY = "seed", "learner.name", "stream.waiting_time", "stream.replay"
COMP, MEM = "cumulative_fwd_macs", "cumulative_params"  # results of summary.json; COMP is also a column of the stream
FLOPS, MEMORY = "cumulative_train_flops", "memory"
REGRET = "regret"  # a result of summary.json; of the stream: of its mega-batches so far
_RESULTS = (MEM, COMP, FLOPS, "cumulative_growth_macs", "num_stages", "wall_seconds", "compile_seconds",
            "cer_from_zero", "lca", "regret")  # entries of summary.json
_LARGEST = 2**63  # larger integers are stored as floats

Values = dict[str, Any]  # by the name of a field or of a result
Columns = dict[str, tuple[str, str]]  # {column of `Study.runs`: (head of a table, format)}


class Scoring(NamedTuple):
  """How runs are scored, and how reports show the scores.

  Attributes:
    metric, label: the column of the stream that measures each unit, and its name.
    score, score_name: the column of `Study.runs` that scores a whole run, and its name.
    overall, overall_name: the column by which kinds that are trained at different t are compared, and its name.
    brief: the name of a value in findings.
    columns: those of the overview, besides costs.
    ablated: those of the tables of ablations.
    forms: formats of a score, and of the metric of one unit.
    averages: whether the score is a mean over the trainings. A learner that waits longer averages over fewer and later
      ones, so kinds that are trained at different t cannot be compared by it.
    counts_experts: whether the size of a run is also given in experts.
    source: the figures of the paper that show the score against a cost.
  """
  metric: str
  label: str
  score: str
  score_name: str
  overall: str
  overall_name: str
  brief: str
  columns: Columns
  ablated: Columns
  forms: tuple[str, str]
  averages: bool = False
  counts_experts: bool = False
  source: str = "Figures 2 and 7"

  def on(self, measure: Measure) -> "Scoring":
    """The scoring with names that say what the metric is measured on."""
    named = lambda columns: {column: (head if column in (COMP, FLOPS, MEMORY) else measure.named(head), form)
                             for column, (head, form) in columns.items()}
    return self._replace(
        label=measure.name, score_name=measure.named(self.score_name), overall_name=measure.named(self.overall_name),
        brief=measure.named(self.brief), columns=named(self.columns), ablated=named(self.ablated))


ERROR = Scoring(
    "error", "test error", "cer", "CER", "cer", "CER", "CER",
    columns={"cer": ("CER", ".3f"), "mean_error": ("mean error", ".4f"), "final_error": ("final error", ".4f")},
    ablated={"cer": ("CER", ".3f"), COMP: ("Comp", "brief"), "final_error": ("final error", ".4f")},
    forms=(".3f", ".4f"))
PERPLEXITY = Scoring(
    "perplexity", "test perplexity", "average_perplexity", "average perplexity", "final_perplexity",
    "final perplexity", "perplexity",
    columns={"average_perplexity": ("average", ".2f")},
    ablated={"average_perplexity": ("average", ".2f"), COMP: ("Comp", "brief"), "final_perplexity": ("final", ".2f")},
    forms=(".2f", ".2f"), averages=True, counts_experts=True, source="Figure 5")
ACCURACY = Scoring(
    "error", "test error", "cumulative_error", "cumulative error", "cumulative_error", "cumulative error",
    "cumulative error",
    columns={"cumulative_error": ("E", ".3f")},
    ablated={"cumulative_error": ("E", ".3f"), FLOPS: ("C", "brief"), MEMORY: ("M", "brief")}, forms=(".3f", ".4f"))
_BY_SCORE = {each.score: each for each in (ERROR, PERPLEXITY, ACCURACY)}


class TaskRun(NamedTuple):
  """The results of a run on a stream of T tasks.

  Attributes:
    names: of the tasks.
    accuracies: float [T, T], R[t, i], the test accuracy on task i after task t; NaN for i > t.
    num_params, num_modules: float [T], parameters and modules that are stored after each task.
    train_flops: float [T], spent on each task.
    graph: None if it cannot be read; then `problem` says why.
    problem: a clause, or "".
  """
  names: tuple[str, ...]
  accuracies: np.ndarray
  num_params: np.ndarray
  num_modules: np.ndarray
  train_flops: np.ndarray
  graph: Graph | None
  problem: str


class Rows(NamedTuple):
  """What a report uses of a run that has finished or diverged.

  Attributes:
    row: `run` (the folder), and every field of the config. The learner's name is its label in reports. There is no
      waiting time if the run's schedule does not use it.
    result: entries of summary.json, first_params, last_params and last_predict_macs; empty for a run that diverged.
    stream: a row per mega-batch; None for a run that diverged.
    kind: the class of its config.
    scoring: how it is scored.
    divergence: a sentence, or None for a finished run.
    tasks: the results on a stream of tasks; None for other streams, and for a run that diverged.
    further: the newest values of the metrics of `log.metrics`, see measures.newest.
    replayed: see Record.replayed; empty if no line has weights.
  """
  row: Values
  result: Values
  stream: pd.DataFrame | None
  kind: type[RunConfig]
  scoring: Scoring
  divergence: str | None = None
  tasks: TaskRun | None = None
  further: Mapping[str, Any] = types.MappingProxyType({})
  replayed: Sequence[Sequence[float]] = ()


def read(folder: pathlib.Path) -> Rows:
  """The Rows of a run that has finished or diverged.

  Raises:
    BadInput: the run has done neither, or the files are not those of a run. The message names the folder.
  """
  try:
    return _read(Record(folder))
  except BadInput as error:
    raise BadInput(f"{folder} is left out: {error}") from None


def _read(record: Record) -> Rows:
  fields, summary, lines, kind = record.fields, record.summary, record.lines, record.kind
  hidden = {*configs.INCIDENTAL_LIVE} - configs.identity(record.tree).keys()  # they do not change a live run's results
  row = {"run": str(record.path), **{field: str(value) if isinstance(value, list) else value
                                     for field, value in fields.items() if field not in hidden}}
  row.setdefault(WAITING, None)  # only the schedule `every` has it
  row |= {LEARNER: fields.get(LABEL) or fields[LEARNER], TOTAL: record.total or len(lines), DATA: record.data}
  scoring = _BY_SCORE[kind.results[0]]
  if summary is None:
    so_far = f"{len(lines)} of {record.total} {kind.unit}" if record.total else f"{len(lines)} {kind.unit}"
    if record.divergence is None:
      raise BadInput(f"the run is not finished: it has {so_far} and no {SUMMARY}.")
    why = f": {record.divergence}" if record.divergence else ""
    return Rows(row, {}, None, kind, scoring, f"{record.path} is left out: it diverged after {so_far}{why}.")
  results = {key: summary[key] for key in dict.fromkeys((*kind.results, *_RESULTS)) if key in summary}
  result = {key: value if abs(value) < _LARGEST else float(value) for key, value in results.items()}
  sizes, predict = record.column("num_params"), record.column("predict_macs")
  before_use = f"prequential_{record.metric}"
  result |= dict(device=str(summary["device"]), first_params=sizes[0], last_params=sizes[-1],
                 last_predict_macs=predict[-1])
  # A live stream may have no test set; then the metric itself may be the error of guessing.
  values = [line.get(record.measure.key) for line in lines] if record.measure.is_prequential else (
      record.column(record.metric))
  stream = pd.DataFrame({  # stage and perplexity can be null
      "run": row["run"], "t": record.column("t"), "stage": pd.array(record.column("stage"), "Int64"),
      "updated": record.column("updated"), record.metric: np.array(values, float),
      COMP: np.cumsum(record.column("fwd_macs"), dtype=float), "predict_macs": np.array(predict, float),
      before_use: np.array([line.get(before_use) for line in lines], float)})
  tasks = _tasks(record)
  if tasks is not None:
    stream = stream.assign(task=tasks.names, accuracy=np.diag(tasks.accuracies), num_params=tasks.num_params,
                           num_modules=tasks.num_modules, **{FLOPS: np.cumsum(tasks.train_flops)})
  return Rows(row, result, stream, kind, scoring.on(record.measure), None, tasks, record.further,
              record.replayed if any(record.replayed) else ())


def _tasks(record: Record) -> TaskRun | None:
  """The TaskRun of a finished run, or None without tasks."""
  if record.accuracies is None:
    return None
  graph, problem = None, ""
  try:
    graph = record.graph
  except BadInput as error:
    problem = str(error).removesuffix(".")
  num_params, num_modules, flops = (
      np.array(record.column(key), float) for key in ("num_params", "num_modules", "train_flops"))
  return TaskRun(tuple(record.column("task")), record.accuracies, num_params, num_modules, flops, graph, problem)
