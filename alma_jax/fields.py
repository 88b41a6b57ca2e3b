"""The fields of a config as frozen dataclasses: what `RunConfig` is made of.

Image classification and language modelling have sections of their own for the
data, the stream, the model and the training: IMAGES and LANGUAGE. Imports neither
jax nor numpy.
"""
import dataclasses
from typing import ClassVar, NamedTuple

from alma_jax.options import Options


@dataclasses.dataclass(frozen=True)
class Dataset:
  name: str  # digits, mnist, cifar10, tfds:NAME, npz:PATH, folder:DIR
  data_dir: str  # where prepared TFDS folders lie; empty: TFDS's own default


@dataclasses.dataclass(frozen=True)
class Text:
  name: str  # text:DIR, tfds:NAME
  data_dir: str  # as above
  vocab_size: int  # of the byte-level BPE; fewer where the first mega-batch yields fewer
  tokenizer: str  # a tokenizers JSON file; empty: trained on the first mega-batch
  sequence_length: int  # L, tokens of a window
  cross_documents: bool  # whether a window may hold the end of a document and the beginning of the next
  eval_tokens: int  # tokens of the validation and of the test text that are looked at, evenly spread; 0: all


@dataclasses.dataclass(frozen=True)
class Stream:
  num_megabatches: int  # B
  waiting_time: int  # w, in mega-batches
  replay: float  # share of the memory kept from stage to stage
  val_fraction: float  # share of every mega-batch held out for validation
  untrained_error: str  # error before the first update: chance, model


@dataclasses.dataclass(frozen=True)
class TextStream:
  num_megabatches: int
  waiting_time: int
  replay: float


@dataclasses.dataclass(frozen=True)
class Model:
  name: str  # mlp, vgg
  width: int
  num_experts: int = 1  # of every mixture, at the start


@dataclasses.dataclass(frozen=True)
class Switch:
  name: str  # switch
  width: int  # d
  num_layers: int  # every second one has a mixture of experts
  num_heads: int
  num_experts: int  # of every mixture, at the start
  capacity_factor: float  # an expert takes so many times its equal share of a group's tokens in training
  group_size: int  # tokens that are routed together; 0: a window
  balance: float  # weight of the load-balancing loss
  dropout: tuple[float, ...]  # several: the one with the best validation perplexity is chosen
  jitter: float  # the routers' inputs are multiplied by U(1 ± jitter) in training
  remat: bool  # compute activations again in the backward pass instead of keeping them


class Plan(NamedTuple):
  """How long a stage's training is.

  Attributes:
    rounds: parts that end with a validation: epochs, or spans of steps.
    per_round: training steps of a round.
    steps: of the stage.
    samples: training examples that go through, repeated ones counted again.
  """
  rounds: int
  per_round: int
  steps: int
  samples: int


@dataclasses.dataclass(frozen=True)
class Train:
  epochs: int
  batch_size: int
  optimizer: str  # adadelta, sgd, adam
  learning_rate: float
  momentum: float  # sgd only
  nesterov: bool
  weight_decay: float  # L2, added to the gradient
  patience: int  # epochs without improvement before a stage stops; 0: never
  patience_delta: float  # an improvement is more than this much accuracy
  augment: bool  # random flip and 4-pixel-padded crop

  micro_batch: ClassVar[int] = 0

  def plan(self, num):
    """Plan of a stage of `num` training examples."""
    steps = -(-num // self.batch_size)
    return Plan(self.epochs, steps, self.epochs * steps, self.epochs * num)


@dataclasses.dataclass(frozen=True)
class TextTrain:
  steps: int  # of a stage
  steps_multiplier: int  # so many times as many, for runs that wait
  warmup_steps: int  # linear, then a linear decay to 0
  batch_size: int  # windows of a step
  micro_batch: int  # windows that a device takes at once; 0: all of its share
  eval_every: int  # steps between validations; 0: one, at the end
  learning_rate: tuple[float, ...]  # at the end of the warm-up; several: as model.dropout

  patience: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0

  def plan(self, num):
    """Plan of a stage; windows are gone through as often as it takes."""
    del num
    steps = self.steps * self.steps_multiplier
    per_round = min(self.eval_every or steps, steps)
    return Plan(-(-steps // per_round), per_round, steps, steps * self.batch_size)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  seconds: float  # at most this much work is lost to a kill
  keep: int  # newest checkpoints kept
  keep_every: int  # every so many stages one is kept for good; 0: none


@dataclasses.dataclass(frozen=True)
class Log:
  progress: bool
  tensorboard: bool
  wandb: str  # project at Weights & Biases that is told the same; empty: none


@dataclasses.dataclass(frozen=True)
class RunConfig:
  seed: int
  dataset: Dataset | Text
  stream: Stream | TextStream
  learner: Options
  model: Model | Switch
  train: Train | TextTrain
  checkpoint: Checkpoint
  log: Log
  precision: str  # float32, bfloat16
  deterministic: bool  # on a GPU: bit-identical repeats, slower
  devices: int  # how many to use; 0: all. On CPU: that many virtual ones; 0: what is fastest

  @property
  def is_language(self):
    """Whether the task is language modelling."""
    return isinstance(self.model, Switch)


MODELS = ("mlp", "vgg", "switch")  # model.name of ours; plugins.MODELS are those of others
IMAGES = dict(dataset=Dataset, stream=Stream, model=Model, train=Train)
LANGUAGE = dict(dataset=Text, stream=TextStream, model=Switch, train=TextTrain)


class Size(NamedTuple):
  """A language model's size, and how it is trained by default."""
  width: int
  num_layers: int
  num_heads: int
  vocab_size: int
  sequence_length: int
  eval_tokens: int
  steps: int
  warmup_steps: int
  batch_size: int
  micro_batch: int
  eval_every: int
  learning_rate: float
  checkpoint_seconds: float


SIZES = {
    # Minutes on two CPU cores.
    "tiny": Size(128, 4, 4, 8192, 512, 100_000, 300, 30, 8, 0, 100, 4e-3, 30.0),
    # The paper's (Appendix): 120,000 steps of 192 windows of 512 tokens a mega-batch.
    "base": Size(512, 6, 8, 50_000, 512, 0, 120_000, 4000, 192, 16, 2000, 1e-3, 600.0),
    "large": Size(768, 12, 12, 50_000, 512, 0, 120_000, 4000, 192, 8, 2000, 5e-4, 600.0),
}
