"""The sections of the configs of image classification, and what sections of other kinds of data share with them.

Every field is declared once, by `fields.field`. Imports neither jax nor numpy.
"""
import dataclasses
from typing import ClassVar, NamedTuple

from alma_jax.config.fields import field

MOST_EXPERTS = 1024  # the size of the array that holds a tree of gates is quadratic in it

DATA_DIR = ("folder of prepared TFDS data sets, into which nothing is downloaded; empty: TFDS's own folder, into "
            "which missing data sets are downloaded")

SETTLE = ("for `live:DIR`: an entry of the stream counts as complete once it has not changed for so many seconds; one "
          "that is renamed within DIR/stream counts at once")
IDLE = "for `live:DIR`: seconds without a new entry after which the stream ends; 0: it never ends by itself"

MAX_BYTES = ("for `live:DIR`: bytes that an entry may take as arrays (for text, as a file); larger entries are set "
             "aside; 0: no limit")

LIVE = "live:"  # before the folder of a stream that arrives while the run goes on

NETWORKS = ["mlp", "vgg", "resnet"]  # names of image networks; register_model appends to it


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Images with labels."""
  name: str = field("digits", "`digits`, `mnist`, `cifar10`, `tfds:NAME`, `npz:PATH`, `folder:DIR` or `live:DIR`")
  data_dir: str = field("", DATA_DIR)
  image_size: int = field(
      0, "for `folder:DIR` and `live:DIR`: width and height in pixels to which images of files are resized, without "
      "keeping their aspect ratio; 0: images are not resized, and must have one size", at_least=0, before=0)
  settle_seconds: float = field(1.0, SETTLE, at_least=0, before=1.0)
  idle_seconds: float = field(0.0, IDLE, at_least=0, before=0.0)
  max_examples: int = field(
      1_000_000, "for `live:DIR`: examples that an entry may hold; larger entries are set aside; 0: no limit",
      at_least=0, before=1_000_000)
  max_bytes: int = field(2**33, MAX_BYTES, at_least=0, before=2**33)
  image_column: str = field(
      "", "for `live:DIR`: column of Parquet files that holds the images or lists of numbers; empty: the first of "
      "`image`, `img`, `images` and `x`", before="")
  label_column: str = field(
      "", "for `live:DIR`: column of Parquet files that holds the labels; empty: the first of `label`, `labels`, `y` "
      "and `class`, or the only one whose name ends in `_label`", before="")


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
      "learners", at_least=1, at_most=MOST_EXPERTS)


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
