"""The sections of a config that all problems share, and the base classes for `alma_jax.register`.

Every field is declared once. Imports neither jax nor numpy.
"""
import bisect
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from alma_jax.config.fields import Section, choice, field
from alma_jax.config.registry import (
  DATA_SETS,
  IMAGES,
  LEARNERS,
  METRICS,
  NETWORKS,
  OPTIMIZERS,
  TASKS,
  TEXT,
  Registry,
)
from alma_jax.errors import BadInput

LIVE = "live:"  # before the folder of a stream that arrives while the run goes on
DATA_DIR = ("folder of prepared TFDS data sets; nothing is downloaded into it. Empty: TFDS's own folder; missing "
            "data sets are downloaded")
# Meanings of options that several learners have.
INIT_FROM_SCRATCH = "whether every stage starts from fresh weights, not from the weights of the stage before"
COMBINATIONS = ("probabilities", "logits", "vote")
COMBINE = ("how predictions are combined: the mean of the members' `probabilities`, the mean of their `logits`, or "
           "one `vote` per member")
GROW_EVERY = "number of stages from one growth to the next"
MOST_EXPERTS = 1024  # the size of the array that holds a tree of gates is quadratic in it


# ---------------------------------------------------------------------------- what users register


@dataclasses.dataclass(frozen=True)
class DataSet(Section):
  """Base class of the fields of a data set, under `dataset.`.

  Attributes:
    problems: what the data are for: images, text, tasks.
    form: how users write the name, e.g. "npz:PATH"; the part before the colon is the default of `name`.
    is_complete: whether all examples are there when a run starts, so that several runs can share them.
    protocol: the protocols.contract.Protocol in which the data reach a learner, or "module:Class" of alma_jax's own.
  """
  name: str = field("", "the data set; `alma list` has the names")

  registries: ClassVar[Mapping[str, Registry]] = DATA_SETS
  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  is_complete: ClassVar[bool] = True
  protocol: ClassVar[Any] = "alma_jax.protocols.offline:Images"
  # For data sets without these fields: TFDS's own folder, and images keep their size.
  data_dir = ""
  image_size = 0

  @property
  def path(self) -> str:
    """The part of the name after the colon."""
    return self.name.partition(":")[2]

  def check_length(self, num_megabatches: int) -> None:
    """Raises BadInput if the data cannot be cut into this number of mega-batches; 0: no limit."""
    if not num_megabatches:
      raise BadInput("stream.num_megabatches=0 should be at least 1; only a live stream, dataset.name=live:DIR, may "
                     "have no limit.")

  def load(self) -> Any:
    """The data, a data.datasets.Dataset of images.

    Raises:
      BadInput: the data do not exist or cannot be used.
    """
    raise BadInput(f"{type(self).__name__} has no method load(self); write one that returns the data.")

  def blank(self) -> Any:
    """Data of the same shapes that are there at once, to predict costs from; None: there are none."""
    return None

  @property
  def is_downloaded(self) -> bool:
    """Whether the first run downloads the data, which their costs are predicted without."""
    return False

  def covered(self, t: int) -> str:
    """What the fingerprint of the data that mega-batches 1 to t are from is a hash of."""
    del t
    return "the whole data set; the config (see config_sha256) decides which part had arrived by this mega-batch"

  def arrived(self, config: Any, form: Any, entries: Callable[[Callable[[Any], Any]], list[Any]]) -> Iterable[Any]:
    """The examples that a run may have been trained on: images, or documents as bytes.

    Args:
      config: of the run.
      form: data.form.Form of the images that its predictor takes.
      entries: function of an entry's path -> what it returns for each entry of a live stream that the run has used.
    """
    del config, entries
    examples: Iterable[Any] = self.load().x_train.astype(form.dtype, copy=False)
    return examples


@dataclasses.dataclass(frozen=True)
class Model(Section):
  """Base class of the fields of a network, under `model.`.

  Attributes:
    layer_weights: weights of each layer that ends in `width`, over its square; 0: unknown.
    one_thread: product of all widths of a layer and the batch size, up to which a CPU is faster with one thread.
  """
  name: str = field("", "the network; `alma list` has the names")
  width: int = field(32, "neurons of each hidden layer, or channels of each convolution", at_least=1)
  num_experts: int = field(
      1, "`moe`, `gmoe`: initial number of experts of every mixture; `hmoe`: initial number of clusters; 1 for other "
      "learners", at_least=1, at_most=MOST_EXPERTS)

  registries: ClassVar[Mapping[str, Registry]] = NETWORKS
  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  one_thread: ClassVar[int] = 0
  layer_weights: ClassVar[int] = 0
  num_layers = 1  # for networks without this field

  def build(self, num_outputs: int, example_shape: tuple[int, ...], dtype: Any, axis: str | None,
            **changes: Any) -> Any:
    """The models.Network, see models.build; `changes` are what a learner asks for."""
    raise NotImplementedError

  @property
  def first_widths(self) -> tuple[int, ...]:
    """The width of each hidden layer before Firefly widens any; empty: it widens none."""
    return ()

  def check(self, config: Any) -> None:
    """Raises BadInput if there are experts, but the learner has none."""
    if self.num_experts == 1 or config.learner.has_experts:
      return
    having = ", ".join(name for name, options in LEARNERS[IMAGES].items() if options.has_experts)
    raise BadInput(f"model.num_experts={self.num_experts} is for the learners {having}, not {config.learner.name}; "
                   "leave it 1.")


@dataclasses.dataclass(frozen=True)
class Optimizer(Section):
  """Base class of the fields of an optimiser, under `train.`."""
  name: str = ""

  registries: ClassVar[Mapping[str, Registry]] = OPTIMIZERS
  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)

  def transform(self, rate: Any) -> Any:
    """An optax.GradientTransformation without weight decay. `rate`: the learning rate, a number or a schedule."""
    raise BadInput(f"{type(self).__name__} has no method transform(self, rate); write one that returns an optax "
                   "transformation.")


COLUMNS = frozenset((  # of metrics.jsonl, besides metrics, val_ and prequential_
    "t", "stage", "updated", "error", "perplexity", "loss", "num_params", "fwd_macs", "train_flops", "growth_macs",
    "predict_macs", "seconds", "classes", "new_classes", "untrained_error", "untrained_perplexity", "renormalized",
    "drift_before", "drift_after", "regret", "training_price", "law_exponent", "law_floor", "law_scale", "task",
    "accuracies", "num_modules", "new_modules", "lca", "errors", "scores", "best", "learning_rate", "weight_decay"))


@dataclasses.dataclass(frozen=True)
class Metric(Section):
  """Base class of the metrics that `log.metrics` can name (docs/add-a-metric.md).

  Both methods run on the host, after the predictions have been gathered from all devices and processes. Sums over
  batches are therefore exact.

  Attributes:
    problems: what the metric is for: images, text, tasks.
  """
  name: str = ""

  registries: ClassVar[Mapping[str, Registry]] = METRICS
  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)

  @classmethod
  def check_class(cls) -> None:
    if not cls.name.isidentifier() or cls.name in COLUMNS or cls.name.startswith(("val_", "prequential_")):
      raise BadInput(f"{cls.__name__}.name={cls.name!r} cannot be the name of a metric: use an identifier such as "
                     "brier_score that is not a column of metrics.jsonl and does not begin with val_ or prequential_.")

  def sums(self, prediction: Any, labels: Any, mask: Any) -> Any:
    """Sums over a batch of examples, a pytree of numbers and numpy arrays.

    Args:
      prediction: for images, (classes int [B], probabilities float32 [B, K]). A class that the network does not know
        yet has probability 0. For text, log-probabilities of the targets, float32 [B, L].
      labels: for images, int [B], from 0 to K - 1. For text, problems.measures.Targets.
      mask: bool, [B] for images and [B, L] for text: True for the examples or targets that count.
    """
    raise BadInput(f"{type(self).__name__} has no method sums(self, prediction, labels, mask); write one that returns "
                   "sums over a batch.")

  def value(self, sums: Any) -> Any:
    """The metric, from the sums over all batches: a number, a list with one number per class, or a matrix.

    Use NaN for an unknown value or element; it becomes null in metrics.jsonl. Return None for no entry at all.
    """
    raise BadInput(f"{type(self).__name__} has no method value(self, sums); write one that returns the metric.")


@dataclasses.dataclass(frozen=True)
class AnyOptions(Section):
  """Base class of the options of all learners, under `learner.`.

  Code for all learners reads the attributes and properties below. A subclass may replace a property by an option or by
  its own property.

  Attributes:
    problems: what the learner is for: images, text, tasks.
    defaults: defaults that the learner changes in other sections, e.g. {"train.optimizer": "sgd"}.
    stops_early: whether stages stop early in the authors' code, and so with `:LEARNER,authors`.
    splits_data: whether every expert trains on its own examples; then each takes `train.steps`.
    has_experts: whether the learner uses `model.num_experts`; with other learners for images, it must be 1.
    adds_experts: whether growth adds experts to the mixtures of one network.
    trains_apart: whether the experts can be trained by runs of their own, see runs/mixture.py.
    num_tried: number of trainings in a stage of which one is kept; a guess, for progress bars.
    members: the option with the number of networks that train side by side; empty if the learner has only one.
  """
  name: str = field("", "the learner; choose it after the colon of --config=configs/NAME.py:LEARNER")

  registries: ClassVar[Mapping[str, Registry]] = LEARNERS
  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  stops_early: ClassVar[bool] = False
  splits_data: ClassVar[bool] = False
  has_experts: ClassVar[bool] = False
  adds_experts: ClassVar[bool] = False
  trains_apart: ClassVar[bool] = False
  num_tried: ClassVar[int] = 1
  members: ClassVar[str] = ""
  combine, root = "", ""  # for learners without these options

  @property
  def num_trained(self) -> int:
    """Number of networks that train side by side."""
    return 1

  @property
  def mixture_size(self) -> int:
    """Number of networks of the model that each of them consists of."""
    return 1

  def make(self, context: Any) -> Any:
    """The learner, a learners.contract.Learner. `context` is a learners.contract.Context."""
    raise BadInput(f"{type(self).__name__} has no method make(self, context); write one that returns the learner.")


@dataclasses.dataclass(frozen=True)
class Options(AnyOptions):
  """Base class of the options of a learner of mega-batches."""
  average: float = field(
      0.0, "horizon of an exponential average of the weights, as a share of a stage's steps. The averaged weights are "
      "selected, predict and are exported. 0: no average", at_least=0, at_most=1)
  start: str = field(
      "last", "with `learner.average`: whether a stage starts from the `last` weights, which are then kept as well, or "
      "from the `average`", choices=("last", "average"))
  shrink: float = field(
      1.0, "every stage but the first starts by multiplying the weights by this (Ash and Adams, 2020)", at_least=0,
      at_most=1)
  perturb: float = field(
      0.0, "every stage but the first starts by adding fresh weights times this, after `learner.shrink`", at_least=0)

  registries: ClassVar[Mapping[str, Registry]] = {problem: LEARNERS[problem] for problem in (IMAGES, TEXT)}
  stops_early: ClassVar[bool] = True

  @property
  def init_from_scratch(self) -> bool:
    """Whether every stage starts from fresh weights."""
    return False

  @property
  def keep_optimizer(self) -> bool:
    """Whether a stage continues with the optimiser's state of the stage before."""
    return False

  def check(self, config: Any) -> None:
    """Raises BadInput if the options do not go together, or not with the rest of the config."""
    del config
    if self.start == "average" and not self.average:
      raise BadInput("learner.start='average' needs learner.average above 0; raise it, or set learner.start=last.")
    if not self.shrink and not self.perturb:
      raise BadInput("learner.shrink=0.0 without learner.perturb makes all weights 0; raise one of them, or set "
                     "learner.init_from_scratch.")
    if self.init_from_scratch and (self.shrink != 1 or self.perturb):
      raise BadInput(f"learner.shrink={self.shrink} and learner.perturb={self.perturb} change the weights that a "
                     "stage takes over, but every stage starts from scratch; leave them 1 and 0.")


# ---------------------------------------------------------------------------- the stream


@dataclasses.dataclass(frozen=True)
class Schedule(Section):
  """Base class of schedules: after which mega-batches the learner is trained.

  Attributes:
    is_fixed: whether this is known before the stream starts.
    trains_at_end: whether there is a last training on mega-batches that are left over at the end of the stream.
  """
  name: str = ""

  is_fixed: ClassVar[bool] = True
  trains_at_end: ClassVar[bool] = False

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    """The last mega-batch of each stage, t_1 < t_2 < ..., counted from 1; a guess if the schedule is not fixed.

    Numbers are rounded like Python's `round`, ties to even.
    """
    raise NotImplementedError

  def next(self, t: int, num_megabatches: int) -> int | None:
    """The first training at mega-batch t or later; None if there is none or it is unknown.

    `num_megabatches` is 0 if the stream has no limit.
    """
    raise NotImplementedError

  @property
  def rarer(self) -> str:
    """Advice to train less often."""
    return "train less often"

  def described(self, num_trainings: int) -> str:
    """When a run has trained, e.g. "7 trainings (power)"; `num_trainings` there were."""
    return f"{num_trainings} training{'s' * (num_trainings != 1)} ({self.name})"

  def decide(self, t: int, num_megabatches: int, is_last: Callable[[], bool], history: Callable[[], Any]
             ) -> tuple[bool, dict[str, Any]]:
    """Whether to train after mega-batch t, and what metrics.jsonl says about the decision.

    Args:
      t: from 1.
      num_megabatches: as for `next`.
      is_last: () -> whether the stream is known to end with mega-batch t. A live stream looks for the next one, so it
        is asked only if the answer matters.
      history: () -> data.schedule.History of the run; only schedules that are not fixed ask for it.
    """
    del history
    return t == self.next(t, num_megabatches) or (self.trains_at_end and is_last()), {}


@dataclasses.dataclass(frozen=True)
class Every(Schedule):
  """Trains after every w mega-batches, and at the end."""
  name: str = "every"
  waiting_time: int = field(
      2, "number of mega-batches of a stage, w: the learner waits for w mega-batches, then trains", at_least=1)

  trains_at_end: ClassVar[bool] = True

  @property
  def rarer(self) -> str:
    return f"raise stream.waiting_time={self.waiting_time}"

  def described(self, num_trainings: int) -> str:
    del num_trainings
    return f"waiting time {self.waiting_time}"

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return (*range(self.waiting_time, num_megabatches, self.waiting_time), num_megabatches)

  def next(self, t: int, num_megabatches: int) -> int | None:
    return -(-t // self.waiting_time) * self.waiting_time

  def check(self, config: Any) -> None:
    num = config.stream.num_megabatches
    if num and self.waiting_time > num:
      raise BadInput(f"stream.waiting_time={self.waiting_time} exceeds stream.num_megabatches={num}; use at most "
                     f"{num}.")


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
  """Trains at t_s = max(t_(s-1) + 1, round(B (s/S)^p)), or earlier, so that S - s mega-batches remain."""
  name: str = "power"
  num_trainings: int = field(0, "number of trainings, S", at_least=0)
  exponent: float = field(2.0, "exponent p", at_least=1)

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return _power_ends(num_megabatches, self.num_trainings, self.exponent)

  def next(self, t: int, num_megabatches: int) -> int | None:
    ends = self.ends(num_megabatches)
    place = bisect.bisect_left(ends, t)
    return ends[place] if place < len(ends) else None

  def check(self, config: Any) -> None:
    num = config.stream.num_megabatches
    if not num:
      raise BadInput("stream.schedule='power' needs stream.num_megabatches above 0, because it spreads its trainings "
                     "over the whole stream; set that number, or choose another schedule.")
    if not 0 < self.num_trainings <= num:
      raise BadInput(f"stream.num_trainings={self.num_trainings} should be from 1 to "
                     f"stream.num_megabatches={num}.")


@dataclasses.dataclass(frozen=True)
class Geometric(Schedule):
  """Trains at t_1 = 1 and t_(s+1) = max(t_s + 1, round(factor t_s)), up to B; there may be no training at B."""
  name: str = "geometric"
  factor: float = field(1.15, "factor from one training to the next", above=1)

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    ends = [1]
    while (t := max(ends[-1] + 1, round(self.factor * ends[-1]))) <= num_megabatches:
      ends.append(t)
    return tuple(ends)

  def next(self, t: int, num_megabatches: int) -> int | None:
    end = 1
    while end < t:
      end = max(end + 1, round(self.factor * end))
    return end


@dataclasses.dataclass(frozen=True)
class Adaptive(Schedule):
  """Trains when the expected gain pays for a training; see data/schedule.py."""
  name: str = "adaptive"
  price: float = field(
      0.0, "price of a multiply-add, in error (text: perplexity) times mega-batches; the schedule minimises "
      "CER + price x Comp", at_least=0)

  is_fixed: ClassVar[bool] = False

  def ends(self, num_megabatches: int) -> tuple[int, ...]:
    return Geometric().ends(num_megabatches)

  def next(self, t: int, num_megabatches: int) -> int | None:
    return None

  def decide(self, t: int, num_megabatches: int, is_last: Callable[[], bool], history: Callable[[], Any]
             ) -> tuple[bool, dict[str, Any]]:
    train, notes = history().decide(self.price)
    return train, notes

  def check(self, config: Any) -> None:
    if not self.price:
      raise BadInput("stream.price=0.0 should be above 0; give the price of a multiply-add, such as 1e-11.")


@functools.lru_cache(maxsize=16)  # for runs with many mega-batches, which ask after each
def _power_ends(num_megabatches: int, num: int, exponent: float) -> tuple[int, ...]:
  ends = [0]
  for s in range(1, num + 1):
    wanted = max(ends[-1] + 1, round(num_megabatches * (s / num) ** exponent))
    ends.append(min(wanted, num_megabatches - (num - s)))
  return tuple(ends[1:])


SCHEDULES: Mapping[str, type[Schedule]] = {cls.name: cls for cls in (Every, Power, Geometric, Adaptive)}
WHEN = ("when the learner trains: after `every` waiting_time mega-batches; at t_s = B (s/S)^p (`power`); at "
        "t_(s+1) = factor t_s (`geometric`); or when the expected gain pays for a training (`adaptive`)")


@dataclasses.dataclass(frozen=True)
class AnyStream(Section):
  """Base class of all streams."""
  num_megabatches: int = field(
      20, "number of mega-batches of the stream, B; for `live:DIR` at most this many, and 0: no limit", at_least=0)

  @property
  def schedule(self) -> Schedule:
    """When the learner is trained."""
    return Every(waiting_time=1)

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The last mega-batch of each stage; a guess if the schedule is not fixed."""
    return self.schedule.ends(self.num_megabatches)

  @property
  def shares(self) -> list[float]:
    """How much each stage trains on, in units that depend on the data alone; [1.0]: the number of stages is unknown."""
    return [1.0] * (self.num_megabatches or 1)


@dataclasses.dataclass(frozen=True)
class Stream(AnyStream):
  """A stream of mega-batches."""
  replay: float = field(
      0.0, "share of the memory that is kept from stage to stage and added to the stage's new data", at_least=0,
      at_most=1)
  replay_share: float | str = field(
      0.0, "share of every batch that comes from earlier stages, so replay needs no extra steps; `uniform`: the "
      "memory's share of all examples, old and new", at_least=0, below=1,
      choices=("uniform",))
  memory_size: int = field(
      0, "with `stream.replay_share`: largest number of examples to keep of earlier stages, a uniform sample; "
      "0: all", at_least=0)
  schedule: Schedule = choice(SCHEDULES, "every", WHEN)

  val_fraction = 0.0  # share of every mega-batch that is held out for validation

  @property
  def num_kept_for_validation(self) -> int:
    """How many of the `memory_size` examples are validation examples; they are never trained on."""
    return int(self.val_fraction * self.memory_size + 1e-9)

  @property
  def most_trainings(self) -> int:
    """An upper bound on the number of trainings."""
    if not self.num_megabatches:
      return 2**31
    return len(self.expected_ends) if self.schedule.is_fixed else self.num_megabatches

  @property
  def shares(self) -> list[float]:
    """The share of the data that each stage trains on, with what is replayed; [1.0]: the stream has no limit."""
    shares, share, ends = [], 0.0, self.expected_ends if self.num_megabatches else ()
    for first, last in zip((0, *ends), ends):
      share = (last - first) / self.num_megabatches + self.replay * share
      shares.append(share)
    return shares or [1.0]

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together, or not with the rest of the config."""
    config.dataset.check_length(self.num_megabatches)
    if self.replay and self.replay_share:
      raise BadInput(f"stream.replay={self.replay} and stream.replay_share={self.replay_share} exclude each other: the "
                     "first adds old data to the new data, the second draws a part of every batch from old data; set "
                     "one of them to 0.")
    if not self.replay_share:
      if self.memory_size:
        raise BadInput(f"stream.memory_size={self.memory_size} needs stream.replay_share above 0; set it, or "
                       "leave stream.memory_size=0.")
      return
    batch = config.train.batch_size
    part = memory_part(batch, 0.5 if isinstance(self.replay_share, str) else self.replay_share)
    asked = f"stream.replay_share={self.replay_share} of train.batch_size={batch}"
    if not part:
      raise BadInput(f"{asked} is less than one example; raise one of them, or set stream.replay_share=0.")
    num_kept = self.memory_size - self.num_kept_for_validation
    if self.memory_size and not isinstance(self.replay_share, str) and num_kept < part:
      raise BadInput(f"stream.memory_size={self.memory_size} keeps {num_kept} training examples, fewer than the {part} "
                     f"that {asked} asks for; raise stream.memory_size or lower the share.")


def memory_part(batch_size: int, share: float) -> int:
  """Number of examples of a batch that come from the memory; at least one example is new."""
  return min(round(batch_size * share), batch_size - 1)


class Plan(NamedTuple):
  """How long a stage trains.

  Attributes:
    rounds: number of rounds, each of which ends with a validation: epochs, or spans of steps.
    per_round: training steps in a round.
    steps: training steps in the stage.
    samples: training examples in all steps; an example counts every time it is used.
    per_pass: training steps in a pass over the new examples; 0 if batches continue from one pass to the next.
  """
  rounds: int
  per_round: int
  steps: int
  samples: int
  per_pass: int


# ---------------------------------------------------------------------------- saving and reporting


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section):
  """Checkpoints."""
  seconds: float = field(30.0, "longest time between two checkpoints, in seconds", at_least=0)
  keep: int = field(2, "number of checkpoints to keep, the newest ones", at_least=1)
  keep_every: int = field(
      0, "number of stages between two checkpoints that are kept for good; 0: keep none for good", at_least=0)


@dataclasses.dataclass(frozen=True)
class Log(Section):
  """What a run reports besides its metrics files."""
  progress: bool = field(True, "show a progress bar (terminals only)")
  tensorboard: bool = field(True, "write TensorBoard files")
  wandb: str = field(
      "", "project at Weights & Biases that receives the metrics (needs `pip install wandb`); empty: none")
  predictor: bool = field(
      False, "write a new predictor into the run folder after every stage, for `alma predict` and `alma serve`; "
      "without it they read the last checkpoint when they start")
  label: str = field("", "name of the learner in reports; empty: `learner.name`")
  metrics: tuple[str, ...] = field(
      (), "further metrics, as in (balanced_error,confusion); `alma list` has their names, and docs/metrics.md their "
      "formulas")

  drift, lca = 0.0, 0  # nothing watches for drift, and LCA is not measured

  def check(self, config: Any) -> None:
    """Raises BadInput if there is no such metric for the problem."""
    for name in self.metrics:
      METRICS[config.problem].of(name, "log.metrics")


@dataclasses.dataclass(frozen=True)
class StreamLog(Log):
  """What a run on mega-batches reports."""
  drift: float = field(
      0.0, "confidence δ of ADWIN, which warns if the prequential error or perplexity rises; δ is about the "
      "probability of a false alarm. 0: off", at_least=0, below=1)


@dataclasses.dataclass(frozen=True)
class TaskLog(Log):
  """What a run on a stream of tasks reports."""
  lca: int = field(
      0, "number of steps b of LCA@b: the mean test accuracy on a task after 0, 1, ..., b steps of the training that "
      "is kept; 0: not measured", at_least=0)


# ---------------------------------------------------------------------------- files of examples


@dataclasses.dataclass(frozen=True)
class Columns(DataSet):
  """Base class of data sets that are read from `.npz` and Parquet files."""
  image_column: str = field(
      "", "array of .npz files or column of Parquet files that holds the examples; empty: the first of `image`, `img`, "
      "`images` and `x`")
  label_column: str = field(
      "", "array of .npz files or column of Parquet files that holds the labels; empty: the first of `label`, "
      "`labels`, `y` and `class`, or the only one whose name ends in `_label`")


# ---------------------------------------------------------------------------- live streams


@dataclasses.dataclass(frozen=True)
class Live(DataSet):
  """Mega-batches that appear in DIR/stream while the run goes on."""
  name: str = "live"
  settle_seconds: float = field(
      1.0, "an entry of the stream counts as complete when it has not changed for this many seconds, or at once if it "
      "was renamed within DIR/stream", at_least=0)
  idle_seconds: float = field(
      0.0, "the stream ends after this many seconds without a new entry; 0: it never ends by itself", at_least=0)
  max_bytes: int = field(
      2**33, "most bytes of an entry as arrays (for text, as a file); larger entries are set aside; 0: no limit",
      at_least=0)

  form: ClassVar[str] = "live:DIR"
  is_complete: ClassVar[bool] = False
  max_examples = 0  # examples that an entry may hold; 0: no limit

  def check_length(self, num_megabatches: int) -> None:
    """Any number; 0: no limit."""

  def covered(self, t: int) -> str:
    return f"mega-batches 1 to {t}, listed in stream.jsonl in the run folder, and the files beside the folder stream"

  def check(self, config: Any) -> None:
    """Raises BadInput if DIR is an address."""
    del config
    if "://" in self.path:
      raise BadInput(f"dataset.name={self.name!r} is an address, but a live stream is a folder; mount the bucket and "
                     "give the folder where it is mounted.")
