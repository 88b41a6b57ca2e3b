"""What a run asks of a protocol, and what they exchange; runs/loop.py is the loop that asks.

A protocol is a way in which data reach a learner: mega-batches of a data set, mega-batches that arrive in a folder,
tasks one after the other. It decides what arrives, when the learner is trained and on which examples, and what it is
tested on. Nobody else asks what kind of stream a run is on.
"""
import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from alma_jax.errors import BadInput
from alma_jax.learners.contract import Contribution, Learner, LearnerState
from alma_jax.store import metrics
from alma_jax.store.metrics import Entry, Measure
from alma_jax.store.record import DATA, Record
from alma_jax.training.loop import StageData


class Facts(NamedTuple):
  """What a learner is made from. Other facts make another learner, whose state outputs.add_classes brings along.

  Attributes:
    problem: problems.contract.Problem.
    example_shape: shape of one example; for text (L + 1,).
    max_val: validation examples of the largest stage.
    num_train: training examples of the first stage; None if the learner is only read and never trained.
  """
  problem: Any
  example_shape: tuple[int, ...]
  max_val: int = 1
  num_train: int | None = None


class Arrival(NamedTuple):
  """A mega-batch that has arrived. Checkpoints inside its stage hold it.

  Attributes:
    t: number of the mega-batch, from 1.
    trains: whether the learner is trained after it.
    notes: entries of its line of metrics.jsonl.
  """
  t: int
  trains: bool
  notes: Entry


class Prepared(NamedTuple):
  """A stage that is ready to be trained on.

  Attributes:
    data: its examples.
    meta: entries of `State.meta` for the learner that it makes.
    notes: entries of its line of metrics.jsonl.
  """
  data: StageData
  meta: Entry = {}  # noqa: RUF012 (never changed in place)
  notes: Entry = {}  # noqa: RUF012


class Trained(NamedTuple):
  """A stage that was trained, for measurements that repeat a part of it (`log.lca`).

  Attributes:
    before: LearnerState after growing, before the training.
    data: the examples.
  """
  before: LearnerState
  data: StageData


class Joined(NamedTuple):
  """The joint test prediction of the first `num` blocks of a learner, which never change again."""
  cached: Contribution | None = None
  num: int = 0


class Sizes(NamedTuple):
  """Sizes of the stages of a whole stream, as far as they are known before it begins.

  Attributes:
    train: int [S], training examples of each stage.
    share: float [S], part of every batch that comes from the memory.
    exact: whether the number of stages is known; otherwise it is a guess.
  """
  train: Sequence[int] | np.ndarray
  share: Sequence[float] | np.ndarray
  exact: bool = True


class Standing(NamedTuple):
  """How good a predictor is, as far as the run knows.

  Attributes:
    line: the line of metrics.jsonl after which it was trained last, with its own results.
    is_prequential: whether the metric of `line` is the prequential one, as there is no test set.
    prequential: mean of the prequential metric so far; None: there is none.
    num_prequential: number of mega-batches that have one.
  """
  line: Entry
  is_prequential: bool = False
  prequential: float | None = None
  num_prequential: int = 0


class Shown(NamedTuple):
  """A predictor of a run.

  Attributes:
    name: of its folder in RUN/predictor; "": that folder itself.
    stage: the last stage that changed it, from 0.
    state: LearnerState that predicts.
    meta: what it needs to know of its data, as `State.meta`.
    standing: how good it is.
  """
  name: str
  stage: int
  state: LearnerState
  meta: Entry
  standing: Standing


@dataclasses.dataclass
class State:
  """The state of a run: what a checkpoint holds, apart from a stage in training.

  Attributes:
    learner: LearnerState after the last complete training.
    initial_params: parameters of the untrained learner.
    meta: what the learner's predictions need to know of the data; JSON can hold it.
    stage: the stage in progress, or the next one, from 0.
    epoch: epochs (language: rounds) of the stage so far.
    lines: entries of metrics.jsonl so far.
    arrival: the mega-batch whose stage is in training, from the decision on.
    joined: see Joined; it is void once `meta` changes.
    complete: whether `learner` is that of a complete stage.
    num_train_lines: lines of train.jsonl so far.
    train_total: their checksum, see run_files.chained.
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
    """The mega-batches after which the learner was trained, counted from 1. No line with one of them is taken back."""
    self._num_read = min(self._num_read, len(self.lines))
    self._ends += metrics.ends(self.lines[self._num_read:])
    self._num_read = len(self.lines)
    return tuple(self._ends)

  def adopt(self, meta: Entry) -> None:
    """Takes over entries of `meta`, for the learner that now predicts."""
    if any(self.meta.get(name) != value for name, value in meta.items()):
      self.meta, self.joined = self.meta | meta, Joined()


class Protocol:
  """Base class of protocols; a data set names its own (docs/add-a-protocol.md).

  The constructor loads the data: it touches no device, and writes nothing. After that, all processes of a run make the
  same calls. Mega-batches t and stages are numbered as in metrics.jsonl, t from 1, stages from 0; a stage is named by
  `ends`, the last mega-batches of all stages up to it.

  Attributes:
    unit: what arrives, in the plural.
    labels: of the curve of a run: below it, and behind the name of the metric.
    waits: whether `arrivals` may yield None. Such a stream is run by one process.
    files: {name: text} of files that are written into the run folder.
    fingerprint: SHA-256 of the data; what arrives later is not part of it.
    measure: what the metric is measured on.
    chance: the metric of guessing, for pictures; None: unknown.
    named_data: what has changed if the fingerprint of a run's data has, for a message.
  """
  unit: ClassVar[str] = "mega-batches"
  labels: ClassVar[tuple[str, str]] = "mega-batches seen", ""
  waits: ClassVar[bool] = False
  files: dict[str, str] = {}  # noqa: RUF012
  fingerprint: str
  measure: Measure = metrics.ERROR
  chance: float | None = None
  named_data: str = "the data (same name, other contents)"

  def __init__(self, config: Any, data: Any = None, run: Any = None) -> None:
    """Loads the data.

    Args:
      config: schema.RunConfig.
      data: arrays in place of `dataset.name`; None: there are none.
      run: folder of a run that goes on; None: a run that begins.

    Raises:
      BadInput: the data do not exist, or do not fit the config.
    """
    self.config = config
    if data is not None:
      raise BadInput(f"dataset.name={config.dataset.name!r} takes no arrays.")

  # ------------------------------------------------------------------------ what a learner and a run are made from

  @classmethod
  def stand_in(cls, dataset: Any) -> Any:
    """`data` by which the costs of many runs on a data set are predicted; None: each loads its own."""
    return None

  @classmethod
  def of_meta(cls, config: Any, meta: Entry) -> Facts:
    """What a learner that only predicts is made from; `meta`: of the State that it was saved with."""
    raise _missing(cls, "of_meta(cls, config, meta)")

  @classmethod
  def classes(cls, meta: Entry) -> Any:
    """Names of the classes; without names, their numbers as texts; None: there are no classes. `meta`: of the State."""
    return list(meta["class_names"] or map(str, range(meta["num_classes"]))) if "num_classes" in meta else None

  def facts(self, ends: Sequence[int]) -> Facts:
    """Of the last of the stages `ends`, of which they are a function; (): before the first one."""
    raise _missing(type(self), "facts(self, ends)")

  def meta(self, ends: Sequence[int]) -> Entry:
    """What predictions need to know of the data, likewise; JSON can hold it. `of_meta` reads it."""
    raise _missing(type(self), "meta(self, ends)")

  @property
  def num_bytes(self) -> tuple[int, int]:
    """(bytes in the host's memory, bytes on each device) of the examples that a run holds at one time, at least."""
    return 0, 0

  def sizes(self) -> Sizes:
    """Of all stages: here one after each mega-batch, as large as the first."""
    num = self.config.stream.num_megabatches
    return Sizes([self.facts(()).num_train or 0] * num, [0.0] * num)

  # ------------------------------------------------------------------------ the life of a stream

  def attach(self, folder: Any, num_lines: int) -> None:
    """The run folder is claimed: from now on files may be written to it.

    Args:
      folder: its path.
      num_lines: mega-batches that the checkpoint covers from which the run goes on.

    Raises:
      BadInput: the folder lacks something that they need.
    """

  def arrivals(self, lines: list[Entry]) -> Generator[int | None, None, None]:
    """A generator that yields every mega-batch t, 1, 2, ..., when it is there: here `stream.num_megabatches` of them.

    It may yield None while it waits, several times a second. It may yield the last t again, if the learner was not
    trained after it: its line is then taken back, and it is received again. `lines` is the present list of lines.
    """
    while len(lines) < self.config.stream.num_megabatches:
      yield len(lines) + 1

  def decide(self, t: int, learner: Learner, state: State) -> Arrival:
    """Receives mega-batch t: may test the deployed learner on it, and says whether to train."""
    del learner, state
    return Arrival(t, True, {})

  def stage(self, ends: Sequence[int], learner: Learner, meta: Entry) -> Prepared:
    """The last of the stages `ends`; `meta`: of the State before it."""
    raise _missing(type(self), "stage(self, ends, learner, meta)")

  def test(self, learner: Learner, state: State, trained: Trained) -> Entry:
    """Entries of a line of metrics.jsonl on the test set, after a stage; none without a test set.

    Nothing outside the protocol sees test data. It may replace `state.joined`; the line is not yet among `state.lines`.
    """
    raise _missing(type(self), "test(self, learner, state, trained)")

  def covered(self, t: int) -> None:
    """No checkpoint from which the run may resume needs the mega-batches up to t to be trained on again."""

  # ------------------------------------------------------------------------ what a run shows

  def summary(self, lines: list[Entry], initial_params: int) -> Entry:
    """The results, as summary.json has them."""
    return metrics.summarize(lines, initial_params)

  def headline(self, summary: Entry, lines: list[Entry]) -> str:
    """The result in a few words, for a title; `summary`: what `summary` returned."""
    value = self.measure.values(lines)[-1]
    return f"final {self.measure.name} {value:.4g} over {summary['num_megabatches']} {self.unit}"

  @classmethod
  def told(cls, config: Any, summary: Entry, lines: list[Entry]) -> str:
    """The results of a run in a sentence; `summary`: what `summary` returned."""
    measure = metrics.measure(config.metric, lines)
    if measure.is_prequential:
      values = measure.values(lines)
      return (f"{measure.name} {sum(values) / len(values):.4f}, the mean over {len(values)} mega-batch"
              f"{'es' * (len(values) != 1)}, and {values[-1]:.4f} on the last" if values else
              f"no {measure.name}, because nothing arrived after the first training")
    first, *others = (f"{name.replace('_', ' ').replace('cer', 'CER')} {summary[name]:.4f}" for name in config.results)
    return ", ".join([f"{first} over {len(lines)} {cls.unit}", *others])

  def reports(self, learner: Learner, spec: Entry, lines: list[Entry]) -> dict[str, bytes]:
    """{name: contents} of further files, written after every stage; `spec`: of the LearnerState then."""
    del learner, spec, lines
    return {}

  def shown(self, learner: Learner, state: State, since: int = 0) -> Iterator[Shown]:
    """The predictors of a run between two stages that a stage from `since` on, counted from 0, has changed."""
    yield self.view(learner, state)

  @classmethod
  def view(cls, learner: Learner, state: State, task: int | str | None = None, lost: Mapping[int, str] = {},
           named: str = "the run") -> Shown:
    """A predictor of a run, which may have been saved.

    Args:
      learner: of the run.
      state: of the run, between two stages.
      task: which of several predictors; None: the only one.
      lost: sentences about frozen blocks that could not be restored, by their numbers.
      named: the run, for messages.

    Raises:
      BadInput: there is no such predictor, or a block of it is lost.
    """
    if task is not None:
      raise BadInput(f"{named} has no tasks; leave task={task!r} out.")
    if lost:
      raise BadInput(f"a network of the learner is lost: {next(iter(lost.values()))}")
    return Shown("", state.stage - 1, state.learner, state.meta, standing(state.lines))

  def fingerprint_after(self, t: int) -> str:
    """SHA-256 of the data up to mega-batch t."""
    del t
    return self.fingerprint

  @classmethod
  def saved_fingerprint(cls, record: Record, t: int) -> str:
    """The same for a run in a folder."""
    del t
    fingerprint: str = record.fields[DATA]
    return fingerprint


def _missing(protocol: type, method: str) -> BadInput:
  return BadInput(f"{protocol.__name__} has no method {method}; write one, see docs/add-a-protocol.md.")


def standing(lines: Sequence[Entry]) -> Standing:
  """How good a learner is after these lines of metrics.jsonl."""
  last = next((line for line in reversed(lines) if line["updated"]), {})
  metric = metrics.metric_of(lines)
  values = [value for line in lines if (value := line.get(f"prequential_{metric}")) is not None]
  return Standing(last, metrics.measure(metric, [last]).is_prequential, sum(values) / len(values) if values else None,
                  len(values))
