"""The interface between a protocol and the run loop (runs/loop.py), and the types that they exchange.

A protocol defines how data reach a learner: mega-batches of a data set, mega-batches that arrive in a folder, tasks one
after the other. It decides what arrives, when the learner is trained and on which examples, and what it is tested on.
No other code checks which kind of stream a run is on.
"""
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from alma_jax.data.memory import Sizes
from alma_jax.errors import BadInput
from alma_jax.learners.contract import Contribution, Learner, LearnerState
from alma_jax.messages import spark
from alma_jax.store import metrics
from alma_jax.store.metrics import Entry, Measure
from alma_jax.training.loop import StageData


class Facts(NamedTuple):
  """What a learner is built from. If the facts change, a new learner is built; outputs.add_classes converts the state.

  Attributes:
    problem: problems.contract.Problem.
    example_shape: shape of one example; for text (L + 1,).
    max_val: validation examples of the largest stage.
    num_train: training examples of the first stage; None if the learner is never trained.
  """
  problem: Any
  example_shape: tuple[int, ...]
  max_val: int = 1
  num_train: int | None = None


class Arrival(NamedTuple):
  """A mega-batch that has arrived. Checkpoints saved during its stage contain it.

  Attributes:
    t: number of the mega-batch, from 1.
    trains: whether the learner is trained after it.
    notes: further entries for its line of metrics.jsonl.
  """
  t: int
  trains: bool
  notes: Entry


class Prepared(NamedTuple):
  """A stage that is ready for training.

  Attributes:
    data: its examples.
    meta: entries of `State.meta` for the learner after this stage.
    notes: further entries for its line of metrics.jsonl.
  """
  data: StageData
  meta: Entry = {}  # noqa: RUF012 (never changed in place)
  notes: Entry = {}  # noqa: RUF012


class TrainedStage(NamedTuple):
  """A trained stage, for measurements that repeat a part of the training (`log.lca`).

  Attributes:
    before: LearnerState after growth, before training.
    data: the examples.
  """
  before: LearnerState
  data: StageData


class Joined(NamedTuple):
  """The cached test prediction of the first `num` blocks of a learner together; they never change again."""
  cached: Contribution | None = None
  num: int = 0


class Shown(NamedTuple):
  """A predictor of a run.

  Attributes:
    name: of its folder in RUN/predictor; "" is that folder itself.
    stage: the last stage that changed it, from 0.
    state: LearnerState that predicts.
    meta: what it needs to know about its data, as in `State.meta`.
    line: the line of metrics.jsonl of its last training, with its own results.
    lines: the lines of metrics.jsonl so far, if their prequential metric says how good it is.
  """
  name: str
  stage: int
  state: LearnerState
  meta: Entry
  line: Entry
  lines: Sequence[Entry] = ()


@dataclasses.dataclass
class State:
  """The state of a run: what a checkpoint holds, except for a stage in training.

  Attributes:
    learner: LearnerState after the last complete training.
    initial_params: parameters of the untrained learner.
    meta: what the learner's predictions need to know about the data; JSON-serialisable.
    stage: the stage in progress, or the next one, from 0.
    epoch: epochs (language: rounds) of the stage so far.
    lines: entries of metrics.jsonl so far.
    arrival: the mega-batch being processed, from `Protocol.decide` on.
    joined: see Joined; reset when `meta` changes.
    complete: whether `learner` comes from a complete stage.
    num_train_lines: number of lines of train.jsonl so far.
    train_total: their checksum; see run_files.chained.
    wall_seconds, compile_seconds: of earlier sessions.
  """
  learner: LearnerState
  initial_params: int
  meta: Entry
  stage: int = 0
  epoch: int = 0
  lines: list[Entry] = dataclasses.field(default_factory=list)
  arrival: Arrival | None = None
  joined: Joined = Joined()
  complete: bool = True
  num_train_lines: int = 0
  train_total: str = ""
  wall_seconds: float = 0.0
  compile_seconds: float = 0.0
  _ends: list[int] = dataclasses.field(default_factory=list)
  _num_read: int = 0  # lines that `_ends` covers

  @property
  def ends(self) -> tuple[int, ...]:
    """The mega-batches after which the learner was trained, counted from 1. Their lines are never removed."""
    self._num_read = min(self._num_read, len(self.lines))
    self._ends += metrics.ends(self.lines[self._num_read:])
    self._num_read = len(self.lines)
    return tuple(self._ends)

  def adopt(self, meta: Entry) -> None:
    """Merges `meta` into the state's own, for the learner that predicts from now on."""
    if any(self.meta.get(name) != value for name, value in meta.items()):
      self.meta, self.joined = self.meta | meta, Joined()


class Told(NamedTuple):
  """The results of a finished run, as text.

  Attributes:
    measured: what the curve shows, e.g. "test error".
    curve: its first value, bars, and its last value.
    name, value: of the result of the whole stream, e.g. "CER" and "2.4250".
    meaning: what the value is.
  """
  measured: str
  curve: str
  name: str
  value: str
  meaning: str


class Protocol:
  """Base class of protocols; a data set names its own (docs/add-a-protocol.md).

  The constructor loads the data; it uses no device and writes no files. After that, all processes of a run make the
  same calls. As in metrics.jsonl, mega-batches t count from 1 and stages from 0. `ends` identifies a stage: it holds
  the last mega-batch of every stage up to this one.

  Attributes:
    unit: what arrives, in the plural.
    labels: of a run's plot: the label of the x axis, and what follows the name of the metric.
    waits: whether `arrivals` may yield None. Such a stream needs a run with a single process.
    files: {name: text} of files to write into the run folder.
    fingerprint: SHA-256 of the data, without what arrives later.
    measure: what the metric is measured on.
    named_data: what a message says has changed, if the fingerprint has.
  """
  unit: ClassVar[str] = "mega-batches"
  labels: ClassVar[tuple[str, str]] = "mega-batches seen", ""
  waits: ClassVar[bool] = False
  files: dict[str, str] = {}  # noqa: RUF012
  fingerprint: str
  measure: Measure = metrics.ERROR
  named_data: str = "the data (same name, other contents)"

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    """Loads the data.

    Args:
      config: schema.RunConfig.
      data: arrays in place of `dataset.name`, or None.
      run: folder of the run to resume; None for a new run.

    Raises:
      BadInput: the data do not exist or do not match the config.
    """
    self.config = config
    if data is not None:
      raise BadInput(f"dataset.name={config.dataset.name!r} takes no arrays; leave data out.")

  # ------------------------------------------------------------------------ what a learner and a run are made from

  @classmethod
  def data_for_costs(cls, dataset: Any) -> Any:
    """`data` that the costs of all runs on a data set are predicted with; None: each run loads its own."""
    return None

  @classmethod
  def of_meta(cls, config: Any, meta: Entry) -> Facts:
    """The facts for a learner that only predicts; `meta` comes from the State that it was saved with."""
    raise _missing(cls, "of_meta(cls, config, meta)")

  @classmethod
  def classes(cls, meta: Entry) -> Any:
    """Names of the classes, or their numbers as strings; None without classes. `meta` comes from the State."""
    return list(meta["class_names"] or map(str, range(meta["num_classes"]))) if "num_classes" in meta else None

  @classmethod
  def entries(cls, config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files of a live stream with the same mega-batches, (path in its folder, arrays); for `alma stream`."""
    raise BadInput(f"dataset.name={config.dataset.name!r} cannot be written as a live stream; name images or vectors "
                   "that are complete, such as mnist or drift:mnist.")

  def facts(self, ends: Sequence[int]) -> Facts:
    """The facts for the stage `ends`, and a function of `ends` alone; () means before the first stage."""
    raise _missing(type(self), "facts(self, ends)")

  def meta(self, ends: Sequence[int]) -> Entry:
    """What predictions need to know about the data after the stage `ends`; JSON-serialisable. `of_meta` reads it."""
    raise _missing(type(self), "meta(self, ends)")

  @property
  def num_bytes(self) -> tuple[int, int]:
    """(bytes in host memory, bytes on each device): a lower bound for the examples that a run holds at a time."""
    return 0, 0

  def sizes(self) -> Sizes:
    """The sizes of all stages; by default, one stage per mega-batch, all as large as the first."""
    num = self.config.stream.num_megabatches
    return Sizes([self.facts(()).num_train or 0] * num, [0.0] * num, [1.0] * num)

  # ------------------------------------------------------------------------ the life of a stream

  def attach(self, folder: Any, num_lines: int) -> None:
    """Called when the run has claimed its folder; from now on, files may be written to it.

    Args:
      folder: its path.
      num_lines: number of mega-batches in the checkpoint that the run resumes from; 0 for a new run.

    Raises:
      BadInput: the folder lacks something that these mega-batches need.
    """

  def arrivals(self, lines: list[Entry]) -> Generator[int | None, None, None]:
    """Yields t = 1, 2, ..., each when its mega-batch is available; by default, up to `stream.num_megabatches`.

    It may yield None several times a second while it waits. If the learner was not trained after the last t, it may
    yield that t again: the loop then removes its line and receives it again. `lines` is the list that the loop updates.
    """
    while len(lines) < self.config.stream.num_megabatches:
      yield len(lines) + 1

  def decide(self, t: int, learner: Learner, state: State) -> Arrival:
    """Receives mega-batch t, may test the deployed learner on it, and says whether to train."""
    del learner, state
    return Arrival(t, True, {})

  def stage(self, ends: Sequence[int], learner: Learner, meta: Entry) -> Prepared:
    """The examples of the stage `ends`; `meta` comes from the State before it."""
    raise _missing(type(self), "stage(self, ends, learner, meta)")

  def test(self, learner: Learner, state: State, trained: TrainedStage) -> Entry:
    """Results on the test set after a stage, as entries for metrics.jsonl; empty without a test set.

    Nothing outside the protocol sees test data. May replace `state.joined`. `state.lines` does not have the line yet.
    """
    raise _missing(type(self), "test(self, learner, state, trained)")

  def covered(self, t: int) -> None:
    """Called when no checkpoint that the run may resume from needs mega-batches 1 to t for training again."""

  # ------------------------------------------------------------------------ what a run shows

  def summary(self, lines: list[Entry], initial_params: int) -> Entry:
    """The results, as written to summary.json; plots show `chance`, the metric of random guessing, if it is there."""
    return metrics.summarize(lines, initial_params)

  @classmethod
  def told(cls, config: Any, summary: Entry, lines: list[Entry]) -> Told:
    """The results of a finished run in words; `summary` is what summary.json holds, without its wall-clock times."""
    measure = metrics.measure(config.metric, lines)
    values, chance, result = measure.values(lines), summary.get("chance"), config.results[0]
    if not values:
      return Told(measure.name, "not measured", measure.named("mean"), "–", "nothing arrived after the first training")
    number = "{:.2f}".format if measure.metric == "error" else "{:.4g}".format
    shown = [*([lines[0][metrics.UNTRAINED]] if metrics.UNTRAINED in lines[0] else []), *values]
    curve = f"{number(shown[0])} {spark(shown, chance or 0.0)} {number(shown[-1])}"
    num = 0 if measure.is_prequential else summary.get("num_test", 0)
    curve += f" ({round(shown[-1] * num):,} of {num:,} wrong)" if num else ""
    curve += f"     guessing {number(chance)}" if chance else ""
    if measure.is_prequential:
      return Told(measure.name, curve, measure.name, f"{sum(values) / len(values):.4f}",
                  f"mean over {len(values)} {cls.unit}, each tested before it is used; lower is better")
    if result != "cer":
      name = result.replace("_", " ")
      return Told(measure.name, curve, name, f"{summary[result]:.4f}", name)
    guessing = f"; guessing scores {chance * len(lines):.1f}" if chance else ""
    regret = f"; regret {summary['regret']:.4f}" if "regret" in summary else ""
    return Told(measure.name, curve, "CER", f"{summary[result]:.4f}",
                f"sum of the {len(lines)} errors (CER), lower is better{guessing}{regret}")

  def reports(self, learner: Learner, spec: Entry, lines: list[Entry]) -> dict[str, bytes]:
    """{name: contents} of further files to write after every stage; `spec` comes from the LearnerState."""
    del learner, spec, lines
    return {}

  def shown(self, learner: Learner, state: State, since: int = 0) -> Iterator[Shown]:
    """Yields the predictors of a run, between two stages, that stage `since` (from 0) or a later one has changed."""
    yield self.view(learner, state)

  @classmethod
  def view(cls, learner: Learner, state: State, task: int | str | None = None, lost: Mapping[int, str] = {},
           named: str = "the run") -> Shown:
    """A predictor of a run in progress or of a saved one.

    Args:
      learner: of the run.
      state: of the run, between two stages.
      task: which of several predictors; None for the only one.
      lost: {number of a frozen block that could not be restored: a sentence about it}.
      named: how messages refer to the run.

    Raises:
      BadInput: there is no such predictor, or a block of it is lost.
    """
    if task is not None:
      raise BadInput(f"{named} has no tasks; leave task={task!r} out.")
    if lost:
      raise BadInput(f"a network of the learner is lost: {next(iter(lost.values()))}")
    last = next((line for line in reversed(state.lines) if line["updated"]), {})
    return Shown("", state.stage - 1, state.learner, state.meta, last, state.lines)


def _missing(protocol: type, method: str) -> BadInput:
  return BadInput(f"{protocol.__name__} has no method {method}; write one, see docs/add-a-protocol.md.")
