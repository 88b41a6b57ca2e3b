"""The base classes for `alma_jax.register`, and the sections of a config that all problems share.

Every field is declared once. Imports neither jax nor numpy.
"""
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from alma_jax.config.fields import Section, field
from alma_jax.config.registry import DATA_SETS, IMAGES, LEARNERS, METRICS, NETWORKS, OPTIMIZERS, TASKS, TEXT, Registry
from alma_jax.errors import BadInput

LIVE = "live:"  # before the folder of a stream that arrives while the run goes on
DATA_DIR = "folder of prepared TFDS data sets, without downloads. Empty: TFDS's own folder, with downloads"
# Meanings of options that several learners have.
INIT_FROM_SCRATCH = "start every stage from fresh weights, not from the last stage's"
COMBINATIONS = ("probabilities", "logits", "vote")
COMBINE = "combine predictions by the mean of the members' `probabilities` or `logits`, or by one `vote` per member"
GROW_EVERY = "stages from one growth to the next"
MOST_EXPERTS = 1024  # the size of the array that holds a tree of gates is quadratic in it


@dataclasses.dataclass(frozen=True)
class DataSet(Section):
  """Base class of the fields of a data set, under `dataset.`.

  Attributes:
    problems: what the data are for: images, text, tasks.
    form: how users write the name, e.g. "npz:PATH"; the part before the colon is the default of `name`.
    is_complete: whether all examples are there when a run starts, so that several runs can share them.
    takes_arrays: whether their mega-batches may come from alma_jax.Stream.
    protocol: the protocols.contract.Protocol in which the data reach a learner, or "module:Class" of alma_jax's own.
  """
  name: str = field("", "the data set; `alma list` has the names")

  registries: ClassVar[Mapping[str, Registry]] = DATA_SETS
  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  is_complete: ClassVar[bool] = True
  takes_arrays: ClassVar[bool] = False
  protocol: ClassVar[Any] = "alma_jax.protocols.offline:Images"
  # For data sets without these fields: TFDS's own folder, and images keep their size.
  data_dir = ""
  image_size = 0

  @property
  def path(self) -> str:
    """The part of the name after the colon."""
    return self.name.partition(":")[2]

  def load(self) -> Any:
    """The data, a data.datasets.Dataset of images.

    Raises:
      BadInput: the data do not exist or cannot be used.
    """
    raise _missing(self, "load(self)", "the data")

  def blank(self) -> Any:
    """Data of the same shapes that are there at once, to predict costs from; None: there are none."""
    return None

  @property
  def is_downloaded(self) -> bool:
    """Whether the first run downloads the data, which their costs are predicted without."""
    return False

  def coverage(self, t: int) -> str:
    """Says which data the fingerprint after mega-batch t is a hash of."""
    del t
    return "the whole data set; the config (see config_sha256) decides which part had arrived by this mega-batch"

  def arrived(self, config: Any, form: Any, entries: Callable[[Callable[[Any], Any]], list[Any]]) -> Iterable[Any]:
    """The examples that a run may have been trained on: images, or documents as bytes.

    Args:
      config: of the run.
      form: data.form.Form of the images that its predictor takes.
      entries: calls its argument, a reader of paths, for each entry of a live stream that the run has used.
    """
    del config, entries
    examples: Iterable[Any] = self.load().x_train.astype(form.dtype, copy=False)
    return examples

  def tested(self, config: Any, task: int | None) -> tuple[Any, str | None]:
    """The test set of a run with this config, or of one of its tasks, counted from 1.

    Returns:
      (data.examples.Examples, or documents as bytes; the fingerprint of their data, if they were held out).

    Raises:
      BadInput: there is no test set, or it cannot be read.
    """
    del config, task
    data = self.load()
    return data.tested, data.fingerprint


@dataclasses.dataclass(frozen=True)
class Columns(DataSet):
  """Base class of data sets that are read from `.npz` and Parquet files."""
  image_column: str = field(
      "", "array (.npz) or column (Parquet) of the examples; empty: the first of `image`, `img`, `images` and `x`")
  label_column: str = field(
      "", "array (.npz) or column (Parquet) of the labels; empty: the first of `label`, `labels`, `y` and `class`, or "
      "the only one whose name ends in `_label`")


@dataclasses.dataclass(frozen=True)
class Live(DataSet):
  """Mega-batches that appear in DIR/stream while the run goes on."""
  name: str = "live"
  settle_seconds: float = field(
      1.0, "an entry that was not renamed within DIR/stream is complete when it has not changed for this many seconds",
      at_least=0)
  idle_seconds: float = field(0.0, "end the stream after this many seconds without a new entry; 0: never", at_least=0)
  max_bytes: int = field(
      2**33, "set aside entries with more bytes; 0: no limit", at_least=0)

  form: ClassVar[str] = "live:DIR"
  is_complete: ClassVar[bool] = False
  max_examples = 0  # examples that an entry may hold; 0: no limit

  def coverage(self, t: int) -> str:
    return f"mega-batches 1 to {t}, listed in stream.jsonl in the run folder, and the files beside the folder stream"

  def check(self, config: Any) -> None:
    """Raises BadInput if DIR is an address."""
    del config
    if "://" in self.path:
      raise BadInput(f"dataset.name={self.name!r} is an address, but a live stream is a folder; mount the bucket and "
                     "give the folder where it is mounted.")


@dataclasses.dataclass(frozen=True)
class Model(Section):
  """Base class of the fields of a network, under `model.`.

  Attributes:
    layer_weights: weights of each layer that ends in `width`, over its square; 0: unknown.
    one_thread: product of all widths of a layer and the batch size, up to which a CPU is faster with one thread.
  """
  name: str = field("", "the network; `alma list` has the names")
  width: int = field(
      32, "neurons of each hidden layer, or channels of each convolution; 0: `train.budget` decides", at_least=0)
  num_experts: int = field(
      1, "initial experts of every mixture (`moe`, `gmoe`) or clusters (`hmoe`); 1 for other learners",
      at_least=1, at_most=MOST_EXPERTS)

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
    """Raises BadInput if there are experts, but the learner has none, or no width."""
    check_free("model.width", self.width, config)
    if self.num_experts == 1 or config.learner.has_experts:
      return
    having = ", ".join(name for name, options in LEARNERS[IMAGES].items() if options.has_experts)
    raise BadInput(f"model.num_experts={self.num_experts} is for the learners {having}, not {config.learner.name}; "
                   "leave it 1.")


@dataclasses.dataclass(frozen=True)
class Optimizer(Section):
  """Base class of the fields of an optimiser, under `train.`.

  Attributes:
    decoupled: whether `train.weight_decay` shrinks the parameters instead of adding to the gradient.
    multiplies: whether an update has products of matrices, which count in `train_flops`.
    mirrors: whether the state holds trees of the parameters' structure, which grow with them.
  """
  name: str = ""

  registries: ClassVar[Mapping[str, Registry]] = OPTIMIZERS
  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  decoupled: ClassVar[bool] = False
  multiplies: ClassVar[bool] = False
  mirrors: ClassVar[bool] = True

  def transform(self, rate: Any) -> Any:
    """An optax.GradientTransformation without weight decay. `rate`: the learning rate, a number or a schedule."""
    raise _missing(self, "transform(self, rate)", "an optax transformation")

  def around(self, inner: Any, rate: Any) -> Any:
    """The whole optimiser; `inner` is `transform` with the penalty and all factors of `rate`, the learning rate."""
    del rate
    return inner

  def evaluated(self, state: Any, params: Any) -> Any:
    """The parameters that predict, where `params` are in training and `state` is the optimiser's."""
    del state
    return params


COLUMNS = frozenset((  # of metrics.jsonl, besides metrics, val_ and prequential_
    "t", "stage", "updated", "error", "perplexity", "loss", "num_params", "fwd_macs", "train_flops", "growth_macs",
    "predict_macs", "seconds", "classes", "new_classes", "untrained_error", "untrained_perplexity", "renormalized",
    "drift_before", "drift_after", "regret", "training_price", "law_exponent", "law_floor", "law_scale", "task",
    "accuracies", "num_modules", "new_modules", "lca", "errors", "scores", "best", "learning_rate", "weight_decay",
    "memory_weights", "memory_span", "changed", "fast_from", "slow_from_fast"))


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
    raise _missing(self, "sums(self, prediction, labels, mask)", "sums over a batch")

  def value(self, sums: Any) -> Any:
    """The metric, from the sums over all batches: a number, a list with one number per class, or a matrix.

    Use NaN for an unknown value or element; it becomes null in metrics.jsonl. Return None for no entry at all.
    """
    raise _missing(self, "value(self, sums)", "the metric")


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
    batches: examples of a batch with `train.batch_size=0`, before `train.budget` adjusts them: the first number with
      which a stage has enough steps, otherwise the last.
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
  batches: ClassVar[tuple[int, ...]] = (32, 16)
  combine, root, average = "", "", 0.0  # for learners without these options

  @property
  def num_trained(self) -> int:
    """Number of networks that train side by side."""
    return 1

  @property
  def num_networks(self) -> int:
    """Number of networks that a stage trains, side by side or one after the other, and that share its budget."""
    return self.num_trained

  @property
  def mixture_size(self) -> int:
    """Number of networks of the model that each of them consists of."""
    return 1

  def make(self, context: Any) -> Any:
    """The learner, a learners.contract.Learner. `context` is a learners.contract.Context."""
    raise _missing(self, "make(self, context)", "the learner")


@dataclasses.dataclass(frozen=True)
class Options(AnyOptions):
  """Base class of the options of a learner of mega-batches."""
  average: float = field(
      0.0, "horizon of an exponential average of the weights, as a share of a stage's steps. The average is selected, "
      "predicts and is exported. 0: none", at_least=0, at_most=1)
  start: str = field(
      "last", "with `learner.average`: start a stage from the `last` weights, which it keeps as well, or from the "
      "`average`", choices=("last", "average"))
  shrink: float = field(
      1.0, "multiply the weights by this before every stage but the first (Ash and Adams, 2020)", at_least=0, at_most=1)
  perturb: float = field(0.0, "after `learner.shrink`, add fresh weights times this", at_least=0)

  registries: ClassVar[Mapping[str, Registry]] = {problem: LEARNERS[problem] for problem in (IMAGES, TEXT)}
  stops_early: ClassVar[bool] = True
  judges: ClassVar[bool] = False  # whether it can tell which old mega-batches contradict new ones
  keep_optimizer = False  # whether a stage continues with the optimiser's state of the stage before

  @property
  def init_from_scratch(self) -> bool:
    """Whether every stage starts from fresh weights."""
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


def check_free(path: str, value: int, config: Any) -> None:
  """Raises BadInput if a field is 0, but no budget decides it."""
  if not value and not config.train.budget:
    raise BadInput(f"{path}=0 should be at least 1." if config.train.budget is None else
                   f"{path}=0 lets train.budget decide, which is 0, too; set one of them.")


def _missing(of: Any, method: str, result: str) -> BadInput:
  return BadInput(f"{type(of).__name__} has no method {method}; write one that returns {result}.")


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


@dataclasses.dataclass(frozen=True)
class AnyTrain(Section):
  """Base class of the fields of training, under `train.`."""
  budget = None  # for training without this field

  def plan(self, num: int, share: float = 0.0, grown: float = 1.0) -> Plan:
    """Plan of a training.

    Args:
      num: training examples, without those of the memory.
      share: part of every batch that comes from the memory.
      grown: training examples that have arrived, as a multiple of those of the first stage.
    """
    raise NotImplementedError

  def planned(self, steps: int, num: int, share: float) -> Plan:
    """As `plan`, but of a training of so many steps; 0: the epochs decide."""
    raise NotImplementedError

  def plans(self, sizes: Any) -> list[Plan]:
    """Plans of all stages; `sizes` are a protocol's or a memory's."""
    return [self.plan(int(num), float(share), float(grown))
            for num, share, grown in zip(sizes.train, sizes.share, sizes.grown)]


@dataclasses.dataclass(frozen=True)
class Checkpoint(Section):
  """Checkpoints."""
  seconds: float = field(30.0, "longest time between two checkpoints, in seconds", at_least=0)
  keep: int = field(2, "keep this many checkpoints, the newest ones", at_least=1)
  keep_every: int = field(0, "keep a checkpoint for good every so many stages; 0: none", at_least=0)


@dataclasses.dataclass(frozen=True)
class Log(Section):
  """What a run reports besides its metrics files."""
  progress: bool = field(True, "show a progress bar (terminals only)")
  tensorboard: bool = field(True, "write TensorBoard files")
  wandb: str = field(
      "", "project at Weights & Biases that receives the metrics (needs `pip install 'alma_jax[wandb]'`)")
  predictor: bool = field(
      False, "write a new predictor after every stage, for `alma predict` and `alma serve`")
  label: str = field("", "name of the learner in reports; empty: `learner.name`")
  metrics: tuple[str, ...] = field((), "further metrics, as in (balanced_error,confusion); see docs/metrics.md")

  drift, lca, oracle = 0.0, 0, ""  # nothing watches for drift; neither LCA nor regret is measured

  def check(self, config: Any) -> None:
    """Raises BadInput if there is no such metric for the problem."""
    for name in self.metrics:
      METRICS[config.problem].of(name, "log.metrics")


@dataclasses.dataclass(frozen=True)
class StreamLog(Log):
  """What a run on mega-batches reports."""
  drift: float = field(
      0.0, "warn if the prequential error or perplexity rises; the confidence δ of ADWIN. 0: off", at_least=0, below=1)


@dataclasses.dataclass(frozen=True)
class ImageLog(StreamLog):
  """What a run on mega-batches of images reports."""
  oracle: str = field(
      "", "folder of a finished run on the same stream; summary.json then has the `regret`, this run's CER minus that "
      "run's")


@dataclasses.dataclass(frozen=True)
class TaskLog(Log):
  """What a run on a stream of tasks reports."""
  lca: int = field(
      0, "steps b of LCA@b, the mean test accuracy on a task after 0, 1, ..., b steps of its training; 0: not measured",
      at_least=0)
