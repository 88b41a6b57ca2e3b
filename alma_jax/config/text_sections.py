import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from alma_jax.config import stream
from alma_jax.config.fields import choice, field
from alma_jax.config.registry import OPTIMIZERS, TEXT
from alma_jax.config.sections import AnyTrain, DataSet, Optimizer, Plan
from alma_jax.config.stream import SCHEDULES, WHEN, Every, Schedule
from alma_jax.errors import BadInput

_LEAST_VOCABULARY = 257  # 256 bytes, and the end of a document
_MOST_TOKENS = 2**31  # between two validations: they are counted in int32


@dataclasses.dataclass(frozen=True)
class Text(DataSet):
  """Base class of the fields of a text.

  Attributes:
    keeps_documents: whether a stage knows which document a window comes from.
  """
  vocab_size: int = field(
      8192, "tokens in the vocabulary of the byte-level BPE; fewer if the first mega-batch is too small",
      at_least=_LEAST_VOCABULARY)
  tokenizer: str = field("", "JSON file of the `tokenizers` package; empty: train a BPE on the first mega-batch")
  sequence_length: int = field(512, "tokens of a window, L", at_least=2)
  cross_documents: bool = field(True, "let a window hold the end of one document and the beginning of the next")
  eval_tokens: int = field(
      100_000, "tokens to use of the validation text and of the test text, evenly spread; 0: all", at_least=0)

  problems: ClassVar[tuple[str, ...]] = (TEXT,)
  protocol: ClassVar[Any] = "alma_jax.protocols.offline:Texts"
  keeps_documents: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class EveryMegabatch(Every):
  """After every `waiting_time` mega-batches."""
  waiting_time: int = 1


@dataclasses.dataclass(frozen=True)
class Stream(stream.Stream):
  """A stream of mega-batches of documents."""
  num_megabatches: int = 4
  schedule: Schedule = choice({**SCHEDULES, EveryMegabatch.name: EveryMegabatch}, EveryMegabatch.name, WHEN)


@dataclasses.dataclass(frozen=True)
class Train(AnyTrain):
  """Training of language models."""
  optimizer: Optimizer = choice(OPTIMIZERS[TEXT], "adam", "the optimiser; its state starts afresh in every stage")
  steps: int = field(300, "training steps of a stage, also of a shorter last stage", at_least=1)
  steps_multiplier: int = field(
      1, "factor of `train.steps`; at waiting time w, set it to w to train as long as without waiting", at_least=1)
  warmup_steps: int = field(30, "steps in which the learning rate rises linearly; then see `train.decay`", at_least=0)
  decay: float = field(
      1.0, "the learning rate falls linearly to 0 in this last share of a stage's steps, and is constant before. 1: it "
      "falls right after the warm-up", above=0, at_most=1)
  batch_size: int = field(8, "windows of a step", at_least=1)
  micro_batch: int = field(0, "windows that a device computes at once; 0: its whole share of the step", at_least=0)
  eval_every: int = field(100, "steps between two validations; 0: only one, at the end", at_least=0)
  learning_rate: tuple[float, ...] = field(
      (4e-3,), "learning rate at the end of the warm-up; of several, every stage selects the one with the best "
      "validation perplexity", above=0)
  weight_decay: float = field(0.0, "coefficient of the L2 penalty", at_least=0)
  restart: float = field(1.0, "factor of the learning rate in every stage after the first", above=0, at_most=1)

  patience: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0
  num_pairs: ClassVar[int] = 1

  @property
  def falling(self) -> int:
    """Steps of a stage, after the warm-up and at its end, in which the learning rate falls to 0."""
    steps = self.plan(0).steps
    return max(1, min(round(self.decay * steps), steps - self.warmup_steps))

  def factors(self, stage: int, steps: Sequence[int], num: int) -> list[float] | None:
    """See image_sections.Train."""
    del num
    return None if self.restart == 1 else [self.restart if stage else 1.0] * len(steps)

  def plan(self, num: int, share: float = 0.0, grown: float = 1.0) -> Plan:
    """Does not depend on the number of windows: they are repeated as often as necessary."""
    del num, share, grown
    steps = self.steps * self.steps_multiplier
    per_round = min(self.eval_every or steps, steps)
    return Plan(-(-steps // per_round), per_round, steps, steps * self.batch_size, 0)

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together, or not with the rest of the config."""
    check_different("train.learning_rate", self.learning_rate)
    length = config.dataset.sequence_length
    if self.steps * self.steps_multiplier <= self.warmup_steps:
      raise BadInput(f"train.steps={self.steps} times train.steps_multiplier={self.steps_multiplier} should be above "
                     f"train.warmup_steps={self.warmup_steps}; raise the steps or lower the warm-up.")
    if self.plan(0).per_round * self.batch_size * length >= _MOST_TOKENS:
      num = self.plan(0).per_round * self.batch_size * length
      raise BadInput(f"train.eval_every={self.eval_every} puts {num:,} tokens between two validations, which "
                     "should be below 2**31; validate more often.")
    if self.micro_batch > self.batch_size:
      raise BadInput(f"train.micro_batch={self.micro_batch} exceeds train.batch_size={self.batch_size}; use at "
                     f"most {self.batch_size}.")


def check_different(path: str, values: tuple[float, ...]) -> None:
  """Raises BadInput unless the values of a field that are tried are one or more different ones."""
  if not values:
    raise BadInput(f"{path} is an empty list; give one value, or several to choose from.")
  if len(set(values)) < len(values):
    raise BadInput(f"{path}={values} lists a value twice; list each value once.")
