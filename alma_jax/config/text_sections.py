"""The sections of the configs of language models; see sections.py."""
import dataclasses
from typing import ClassVar

from alma_jax.config.fields import field
from alma_jax.config.sections import DATA_DIR, IDLE, MAX_BYTES, MOST_EXPERTS, SETTLE, AnyStream, Plan

_LEAST_VOCABULARY = 257  # 256 bytes, and the end of a document


@dataclasses.dataclass(frozen=True)
class Text:
  """Documents."""
  name: str = field("tfds:tiny_shakespeare", "`text:DIR`, `tfds:NAME` or `live:DIR`")
  data_dir: str = field("", DATA_DIR)
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
  settle_seconds: float = field(1.0, SETTLE, at_least=0, before=1.0)
  idle_seconds: float = field(0.0, IDLE, at_least=0, before=0.0)
  max_bytes: int = field(2**33, MAX_BYTES, at_least=0, before=2**33)

  max_examples: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True)
class TextStream(AnyStream):
  """A stream of mega-batches of documents."""
  num_megabatches: int = 4
  waiting_time: int = 1


@dataclasses.dataclass(frozen=True)
class Switch:
  """A Switch Transformer: every second layer has a mixture of experts."""
  name: str = field("switch", "Switch Transformer", choices=("switch",))
  width: int = field(128, "size of the vector that represents a token, d", at_least=1)
  num_layers: int = field(4, "number of layers; every second one has a mixture of experts", at_least=2)
  num_heads: int = field(4, "number of attention heads", at_least=1)
  num_experts: int = field(4, "initial number of experts of every mixture", at_least=1, at_most=MOST_EXPERTS)
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
