"""The sections of a config as frozen dataclasses, and `RunConfig`, which consists of them.

Image classification and language modelling have their own sections for the data, the stream, the model and the
training. Every field is declared once, by `fields.field`. Imports neither jax nor numpy.
"""
import dataclasses
import itertools
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from alma_jax.config.fields import Declared, declared, field
from alma_jax.config.learner_options import Options

_MOST_EXPERTS = 1024  # the size of the array that holds a tree of gates is quadratic in it
_LEAST_VOCABULARY = 257  # 256 bytes, and the end of a document

_DATA_DIR = ("folder of prepared TFDS data sets, into which nothing is downloaded; empty: TFDS's own folder, into "
             "which missing data sets are downloaded")

_SETTLE = ("for `live:DIR`: an entry of the stream counts as complete once it has not changed for so many seconds; one "
           "that is renamed within DIR/stream counts at once")
_IDLE = "for `live:DIR`: seconds without a new entry after which the stream ends; 0: it never ends by itself"

LIVE = "live:"  # before the folder of a stream that arrives while the run goes on

NETWORKS = ["mlp", "vgg", "resnet"]  # names of image networks; register_model appends to it


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Images with labels."""
  name: str = field("digits", "`digits`, `mnist`, `cifar10`, `tfds:NAME`, `npz:PATH`, `folder:DIR` or `live:DIR`")
  data_dir: str = field("", _DATA_DIR)
  image_size: int = field(
      0, "for `folder:DIR` and `live:DIR`: width and height in pixels to which images of files are resized, without "
      "keeping their aspect ratio; 0: images are not resized, and must have one size", at_least=0, before=0)
  settle_seconds: float = field(1.0, _SETTLE, at_least=0, before=1.0)
  idle_seconds: float = field(0.0, _IDLE, at_least=0, before=0.0)


@dataclasses.dataclass(frozen=True)
class Text:
  """Documents."""
  name: str = field("tfds:tiny_shakespeare", "`text:DIR`, `tfds:NAME` or `live:DIR`")
  data_dir: str = field("", _DATA_DIR)
  vocab_size: int = field(
      8192, "number of units of the byte-level BPE; there are fewer if the first mega-batch yields no more",
      at_least=_LEAST_VOCABULARY)
  tokenizer: str = field(
      "", "path of a JSON file of the `tokenizers` package; empty: a BPE is trained on the first mega-batch")
  sequence_length: int = field(512, "number of tokens of a window, L", at_least=2)
  cross_documents: bool = field(
      True, "whether a window may hold the end of a document and the beginning of the next; every token is predicted "
      "once in either case")
  eval_tokens: int = field(
      100_000, "number of tokens of the validation text and of the test text that are used, evenly spread; 0: all",
      at_least=0)
  settle_seconds: float = field(1.0, _SETTLE, at_least=0, before=1.0)
  idle_seconds: float = field(0.0, _IDLE, at_least=0, before=0.0)


@dataclasses.dataclass(frozen=True)
class TaskImages:
  """A stream of tasks, each of which is a small data set of images."""
  name: str = field(
      "digits", "`digits`, `s_minus`, `s_plus`, `s_in`, `s_out`, `s_pl`, `s_long`, `nevis_mini`, or `tasks:PATH.py`, a "
      "file of your own")
  data_dir: str = field("", _DATA_DIR)
  sources: str = field(
      "auto", "where SVHN, Fashion-MNIST, DTD and CIFAR-100 come from: `real` data sets, `stand_ins` that are made "
      "from MNIST and CIFAR-10, or real ones where they are prepared (`auto`)", choices=("auto", "real", "stand_ins"))
  test_per_class: int = field(
      0, "largest number of test images of a class; 0: that of the stream's definition", at_least=0)


@dataclasses.dataclass(frozen=True)
class AnyStream:
  """What all streams of mega-batches have."""
  num_megabatches: int = field(
      20, "number of mega-batches of the stream, B; of `live:DIR` the largest number, and 0: no limit", at_least=0)
  waiting_time: int = field(
      2, "number of mega-batches of a stage of the schedule `every`, w; the learner waits for all of them before it "
      "trains", at_least=1)
  replay: float = field(
      0.0, "share of the memory that is kept from stage to stage, and united with the stage's new data", at_least=0,
      at_most=1)
  replay_share: float | str = field(
      0.0, "part of every batch that is drawn from the examples of earlier stages, so that replay takes no further "
      "steps; `uniform`: the memory's share of the memory and the stage's new examples", at_least=0, below=1,
      choices=("uniform",), before=0.0)
  memory_size: int = field(
      0, "largest number of examples of earlier stages that are kept for `stream.replay_share`, a uniform sample; "
      "0: all", at_least=0, before=0)
  schedule: str = field(
      "every", "after which mega-batches the learner is trained: `every` waiting_time; at t_s = B (s/S)^p (`power`); "
      "at t_(s+1) = factor t_s (`geometric`); or where the expected gain pays for a training (`adaptive`)",
      choices=("every", "power", "geometric", "adaptive"), before="every")
  num_trainings: int = field(0, "number of trainings of the schedule `power`, S", at_least=0, before=0)
  exponent: float = field(2.0, "exponent of the schedule `power`, p", at_least=1, before=2.0)
  factor: float = field(1.15, "factor of the schedule `geometric`", above=1, before=1.15)
  price: float = field(
      0.0, "price of a multiply-add for the schedule `adaptive`, in error (text: perplexity) times mega-batches; it "
      "aims at the least CER + price Comp", at_least=0, before=0.0)


@dataclasses.dataclass(frozen=True)
class Stream(AnyStream):
  """A stream of mega-batches of images."""
  val_fraction: float = field(
      0.1, "share of every mega-batch that is held out for validation, by which the best epoch is selected",
      above=0, below=1)
  untrained_error: str = field(
      "chance", "error before the first update: that of guessing, 1 - 1/K of K classes (`chance`), or that of the "
      "untrained `model`", choices=("chance", "model"))


@dataclasses.dataclass(frozen=True)
class TextStream(AnyStream):
  """A stream of mega-batches of documents."""
  num_megabatches: int = 4
  waiting_time: int = 1


@dataclasses.dataclass(frozen=True)
class TaskStream(AnyStream):
  """A stream of tasks. The learner trains on each when it arrives."""
  num_megabatches: int = field(0, "number of tasks, the first ones of the stream; 0: all", at_least=0)
  waiting_time: int = field(1, "a task is trained when it arrives", at_least=1, at_most=1)


def memory_for_validation(stream: AnyStream) -> int:
  """How many of the `memory_size` examples are validation examples; they are never trained on."""
  return int(getattr(stream, "val_fraction", 0.0) * stream.memory_size + 1e-9)


@dataclasses.dataclass(frozen=True)
class Model:
  """A network that classifies images."""
  name: str = field(
      "mlp", "`mlp` (two hidden layers), `vgg` (VGG19 of constant width with batch norm), `resnet` (ResNet18 of "
      "constant width), or the name of a registered network", choices=NETWORKS)
  width: int = field(32, "neurons of each hidden layer, or channels of each convolution", at_least=1)
  num_experts: int = field(
      1, "`moe`, `gmoe`: initial number of experts of every mixture; `hmoe`: initial number of clusters; 1 for other "
      "learners", at_least=1, at_most=_MOST_EXPERTS)


@dataclasses.dataclass(frozen=True)
class Switch:
  """A Switch Transformer: every second layer has a mixture of experts."""
  name: str = field("switch", "Switch Transformer", choices=("switch",))
  width: int = field(128, "size of the vector that represents a token, d", at_least=1)
  num_layers: int = field(4, "number of layers; every second one has a mixture of experts", at_least=2)
  num_heads: int = field(4, "number of attention heads", at_least=1)
  num_experts: int = field(4, "initial number of experts of every mixture", at_least=1, at_most=_MOST_EXPERTS)
  capacity_factor: float = field(
      1.0, "number of tokens of a group that an expert takes in training, as a multiple of its equal share; further "
      "tokens skip the expert. Evaluation has no limit", above=0)
  group_size: int = field(
      0, "number of tokens that are routed together, a divisor or a multiple of a window; 0: a window", at_least=0)
  balance: float = field(0.01, "weight of the load-balancing loss", at_least=0)
  dropout: tuple[float, ...] = field(
      (0.0,), "dropout rate; of several rates every stage selects the one with the best validation perplexity",
      at_least=0, at_most=0.99)
  jitter: float = field(
      0.0, "the routers' inputs are multiplied by U(1 - jitter, 1 + jitter) in training", at_least=0, below=1)
  remat: bool = field(False, "whether the backward pass computes activations again, which saves memory")


class Plan(NamedTuple):
  """The length of a stage's training.

  Attributes:
    rounds: number of parts that end with a validation: epochs, or spans of steps.
    per_round: training steps of a round.
    steps: training steps of the stage.
    samples: training examples of all steps; an example counts as often as it is used.
    per_pass: training steps of a pass over the new examples; 0 where batches go on from one pass to the next.
  """
  rounds: int
  per_round: int
  steps: int
  samples: int
  per_pass: int


def memory_part(batch_size: int, share: float) -> int:
  """Number of examples of a batch that come from the memory; at least one example is new."""
  return min(round(batch_size * share), batch_size - 1)


@dataclasses.dataclass(frozen=True)
class Train:
  """Training of image networks."""
  epochs: int = field(
      100, "largest number of epochs of a stage; in its first stage `hmoe` trains twice, first its base network and "
      "then its experts", at_least=1)
  steps: int = field(
      0, "number of training steps of a stage, however many examples it has (`hmoe`: of its base network and of each "
      "expert); 0: `train.epochs` decide", at_least=0, before=0)
  eval_every: int = field(
      0, "with `train.steps`: number of steps from one validation to the next; 0: a pass over the new examples. One "
      "always follows the last step", at_least=0, before=0)
  batch_size: int = field(128, "number of examples of a batch; the partial last batch of an epoch is used", at_least=1)
  optimizer: str = field(
      "adadelta", "the optimiser; its state starts afresh in every stage (except with `learner.keep_optimizer`)",
      choices=("adadelta", "sgd", "adam"))
  learning_rate: float = field(1.0, "learning rate", above=0)
  decay: float = field(
      0.0, "share of a stage's steps, the last ones, in which the learning rate falls linearly to 0", at_least=0,
      at_most=1, before=0.0)
  momentum: float = field(0.0, "momentum of `sgd`", at_least=0, below=1)
  nesterov: bool = field(False, "whether the momentum of `sgd` is Nesterov's")
  weight_decay: float = field(0.0, "coefficient of the L2 penalty, which is added to the gradient", at_least=0)
  patience: int = field(
      0, "number of validations without an improvement, one an epoch or every `train.eval_every` steps, after which a "
      "stage stops; 0: a stage never stops early", at_least=0)
  patience_delta: float = field(
      0.0, "a validation is an improvement if it raises the validation accuracy by more than this", at_least=0)
  label_smoothing: float = field(
      0.0, "share of the uniform distribution in the labels that are trained on (Szegedy et al., 2016); losses are "
      "reported without it", at_least=0, below=1, before=0.0)
  augment: bool = field(False, "whether training images are flipped and cropped at random, after padding by 4 pixels")

  micro_batch: ClassVar[int] = 0

  def plan(self, num: int, share: float = 0.0) -> Plan:
    """Plan of a stage of `num` new training examples, if a `share` of every batch comes from the memory."""
    if not num:
      return Plan(0, 0, 0, 0, 0)
    old = memory_part(self.batch_size, share)
    new = self.batch_size - old
    per_pass = -(-num // new)
    steps = self.steps or self.epochs * per_pass
    per_round = min(self.eval_every or per_pass, steps)
    samples = steps * old + steps // per_pass * num + min(steps % per_pass * new, num)
    return Plan(-(-steps // per_round), per_round, steps, samples, per_pass)


@dataclasses.dataclass(frozen=True)
class TaskTrain:
  """Training of a task. Of several learning rates and weight decays, it selects the pair that validates best."""
  epochs: int = field(300, "largest number of epochs of a training", at_least=1)
  steps: int = field(
      0, "number of steps of a training, however many examples it has; 0: `train.epochs` decide", at_least=0, before=0)
  eval_every: int = field(
      0, "with `train.steps`: number of steps from one validation to the next; 0: a pass over the examples. One always "
      "follows the last step", at_least=0, before=0)
  batch_size: int = field(256, "number of examples of a batch; the partial last batch of an epoch is used", at_least=1)
  optimizer: str = field("adam", "the optimiser; its state starts afresh in every training",
                         choices=("adadelta", "sgd", "adam"))
  learning_rate: tuple[float, ...] = field((1e-2, 1e-3), "learning rate, or several to choose from", above=0)
  weight_decay: tuple[float, ...] = field(
      (0.0, 1e-4, 1e-5), "coefficient of the L2 penalty, which is added to the gradient, or several to choose from",
      at_least=0)
  patience: int = field(
      30, "number of validations without an improvement of any of the networks that are trained side by side, after "
      "which a training stops; 0: it never stops early", at_least=0)
  num_random: int = field(
      0, "number of pairs of a learning rate and a weight decay that every task draws at random: the rate "
      "log-uniformly between the smallest and the largest `train.learning_rate`, the decay from `train.weight_decay`; "
      "0: all pairs of those listed", at_least=0, before=0)
  label_smoothing: float = field(
      0.0, "share of the uniform distribution in the labels that are trained on; losses are reported without it",
      at_least=0, below=1)
  augment: bool = field(False, "whether training images are flipped and cropped at random, after padding by 4 pixels")

  micro_batch: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0

  @property
  def each(self) -> Train:
    """The training of one network, by the first learning rate and without a penalty."""
    return Train(self.epochs, self.steps, self.eval_every, batch_size=self.batch_size, optimizer=self.optimizer,
                 learning_rate=self.learning_rate[0], patience=self.patience, label_smoothing=self.label_smoothing,
                 augment=self.augment)

  @property
  def num_pairs(self) -> int:
    """Number of networks that are trained side by side."""
    return self.num_random or len(self.pairs)

  @property
  def pairs(self) -> tuple[tuple[float, float], ...]:
    """All (learning rate, weight decay) of those listed."""
    return tuple(itertools.product(self.learning_rate, self.weight_decay))

  def plan(self, num: int, share: float = 0.0) -> Plan:
    """Plan of a training on `num` examples."""
    return self.each.plan(num, share)


@dataclasses.dataclass(frozen=True)
class TextTrain:
  """Training of language models, by Adam."""
  steps: int = field(300, "number of training steps of a stage, also of a shorter last stage", at_least=1)
  steps_multiplier: int = field(
      1, "factor of `train.steps`; a learner that waits for w mega-batches needs w here to train as long as one that "
      "does not wait", at_least=1)
  warmup_steps: int = field(
      30, "number of steps in which the learning rate rises linearly; then it falls linearly to 0, see `train.decay`",
      at_least=0)
  decay: float = field(
      1.0, "share of a stage's steps, the last ones, in which the learning rate falls linearly to 0; before, and after "
      "the warm-up, it is constant. 1: it falls from the end of the warm-up on", above=0, at_most=1, before=1.0)
  batch_size: int = field(8, "number of windows of a step", at_least=1)
  micro_batch: int = field(
      0, "number of windows that a device computes at once; 0: its whole share of the step", at_least=0)
  eval_every: int = field(100, "number of steps from one validation to the next; 0: only one, at the end", at_least=0)
  learning_rate: tuple[float, ...] = field(
      (4e-3,), "learning rate at the end of the warm-up; of several rates every stage selects the one with the best "
      "validation perplexity", above=0)
  restart: float = field(
      1.0, "factor of the learning rate in all stages but the first, which therefore do not restart at its peak",
      above=0, at_most=1, before=1.0)

  patience: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0

  def plan(self, num: int, share: float = 0.0) -> Plan:
    """Plan of a stage, which does not depend on the number of windows: they are repeated as often as necessary."""
    del num, share
    steps = self.steps * self.steps_multiplier
    per_round = min(self.eval_every or steps, steps)
    return Plan(-(-steps // per_round), per_round, steps, steps * self.batch_size, 0)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Saving."""
  seconds: float = field(30.0, "longest time between two checkpoints", at_least=0)
  keep: int = field(2, "number of newest checkpoints that are kept", at_least=1)
  keep_every: int = field(
      0, "number of stages from one checkpoint that is kept permanently to the next; 0: none", at_least=0)


@dataclasses.dataclass(frozen=True)
class Log:
  """What a run reports besides its files of metrics."""
  progress: bool = field(True, "whether a bar shows the progress, on a terminal")
  tensorboard: bool = field(True, "whether TensorBoard files are written")
  wandb: str = field(
      "", "project at Weights & Biases that gets the same values (needs `pip install wandb`); empty: none")
  predictor: bool = field(
      False, "whether the folder `predictor` of the run folder is replaced after every stage, for `alma predict` and "
      "`alma serve`; without it these commands read the last checkpoint when they start")
  drift: float = field(
      0.0, "confidence δ of ADWIN, about the probability of a false alarm, which watches the prequential error "
      "or perplexity for rises; 0: nothing watches it", at_least=0, below=1)
  lca: int = field(
      0, "on a stream of tasks: number of steps b of LCA@b, the mean test accuracy on a task after 0, 1, ..., b steps "
      "of the training that is kept; 0: not measured", at_least=0)
  label: str = field("", "name of the learner in reports; empty: `learner.name`")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """All fields of a run: an `ImageConfig` or a `LanguageConfig`."""
  seed: int = field(
      0, "seed of all random numbers; runs with the same seed are equal to the bit on the same machine and number of "
      "devices. The test set does not depend on it", at_least=0, below=2**31)
  dataset: Dataset | TaskImages | Text
  stream: AnyStream
  learner: Options
  model: Model | Switch
  train: Train | TaskTrain | TextTrain
  checkpoint: Checkpoint
  log: Log
  precision: str = field("float32", "type of the numbers in computations", choices=("float32", "bfloat16"))
  deterministic: bool = field(False, "on a GPU: whether repeated runs are equal to the bit, which is slower")
  devices: int = field(
      0, "number of devices; 0: all. On a CPU the devices are virtual; 0: a fast number of them", at_least=0)

  @property
  def label(self) -> str:
    """The learner's name in reports, titles and the names of run folders."""
    return self.log.label or self.learner.name

  @property
  def is_live(self) -> bool:
    """Whether the mega-batches arrive in a folder while the run goes on."""
    return self.dataset.name.startswith(LIVE)

  @property
  def is_language(self) -> bool:
    """Whether the task is language modelling."""
    return isinstance(self, LanguageConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(RunConfig):
  """A run on images."""
  dataset: Dataset
  stream: Stream
  model: Model
  train: Train


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(RunConfig):
  """A run on text."""
  dataset: Text
  stream: TextStream
  model: Switch
  train: TextTrain


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(RunConfig):
  """A run on a stream of tasks."""
  dataset: TaskImages
  stream: TaskStream
  model: Model
  train: TaskTrain


IMAGES: Mapping[str, type] = dict(dataset=Dataset, stream=Stream, model=Model, train=Train)
LANGUAGE: Mapping[str, type] = dict(dataset=Text, stream=TextStream, model=Switch, train=TextTrain)
TASKS: Mapping[str, type] = dict(dataset=TaskImages, stream=TaskStream, model=Model, train=TaskTrain)


def config_of(sections: Mapping[str, Any]) -> type[RunConfig]:
  """The class of configs with these sections, which may be incomplete: each kind has its own fields of the data."""
  dataset = sections.get("dataset")
  names = dataset if isinstance(dataset, Mapping) else {}
  return LanguageConfig if "sequence_length" in names else TaskConfig if "test_per_class" in names else ImageConfig


def sections(config: type[RunConfig], options: type[Options]) -> dict[str, type]:
  """{section: dataclass} of a kind of config and the options of its learner."""
  hints = typing.get_type_hints(config)
  found = {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}
  return found | {"learner": options}


def declared_fields(config: type[RunConfig], options: type[Options]) -> dict[str, Declared]:
  """{full name: Declared} of all fields of a config, in their order."""
  found: dict[str, Declared] = {}
  inner = sections(config, options)
  for section in dataclasses.fields(config):
    if section.name in inner:
      found |= {f"{section.name}.{name}": each for name, each in declared(inner[section.name]).items()}
    else:
      found[section.name] = declared(config)[section.name]
  return found


def defaults(config: type[RunConfig], options: type[Options]) -> dict[str, Any]:
  """Nested dict of the declared defaults of all fields."""
  inner = sections(config, options)
  return {each.name: dataclasses.asdict(inner[each.name]()) if each.name in inner else each.default
          for each in dataclasses.fields(config)}
