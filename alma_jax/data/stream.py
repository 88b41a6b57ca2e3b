"""The stream of mega-batches, and the stages that a learner trains on (docs/algorithms.md §1).

Everything here is arithmetic on indices into the training set, and a pure function of (seed, stage): no stage depends
on what was trained before it.
"""
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config import schema
from alma_jax.errors import BadInput


class Stage(NamedTuple):
  """The data of one stage: the mega-batches that the learner waited for, and replayed examples.

  Attributes:
    stage: number of the stage, from 0.
    first_t, last_t: first and last mega-batch of the stage, counted from 1.
    train: int32 [n], indices into the training set; new examples first, replayed ones after them.
    val: int32 [n_val], likewise; train and val have no example in common.
    num_new: number of new examples in `train`.
  """
  stage: int
  first_t: int
  last_t: int
  train: np.ndarray
  val: np.ndarray
  num_new: int


@dataclasses.dataclass(frozen=True)
class Stream:
  """A permuted training set in B parts whose sizes differ by 1 at most.

  Attributes:
    num_examples: size of the training set.
    num_megabatches: B.
    waiting_time: w; stage s unites the mega-batches sw+1 to min((s+1)w, B).
    replay: ρ, the share of the memory that is kept from stage to stage.
    val_fraction: share of every mega-batch that is held out for validation, rounded down.
    seed: decides the permutation, and which examples replay keeps.
  """
  num_examples: int
  num_megabatches: int
  waiting_time: int
  replay: float
  val_fraction: float
  seed: int

  @property
  def num_stages(self) -> int:
    """S = ceil(B / w)."""
    return -(-self.num_megabatches // self.waiting_time)

  def megabatch(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, val) indices of mega-batch t = 1..B, int32."""
    size, extra = divmod(self.num_examples, self.num_megabatches)
    start = (t - 1) * size + min(t - 1, extra)
    part = self._order[start:start + size + (t - 1 < extra)]
    num_val = int(self.val_fraction * len(part) + 1e-9)
    return part[:len(part) - num_val], part[len(part) - num_val:]

  def last_t(self, stage: int) -> int:
    """The last mega-batch of a stage; the learner trains after it."""
    return min((stage + 1) * self.waiting_time, self.num_megabatches)

  def stage(self, stage: int) -> Stage:
    """Training and validation indices of a stage, with replayed memory.

    M_s = D_s ∪ sample(ρ M_{s-1}) without replacement, for training and validation data separately. With 0 < ρ < 1 the
    share of old data decays geometrically.
    """
    known: int | None = self._latest.get("stage")
    memories: Any = None
    if not self.replay:
      start = stage
    elif known is not None and known <= stage:
      start, memories = known + 1, self._latest["memories"]
    else:
      start = 0
    for s in range(start, stage + 1):
      memories = self._unite(s, memories)
    self._latest.update(stage=stage, memories=memories)
    train, val = memories
    span = self._span(stage)
    return Stage(stage, span[0], span[-1], train, val, sum(len(self.megabatch(t)[0]) for t in span))

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """int64 [S, 2], the numbers of training and validation examples of every stage."""
    sizes, previous = [], np.zeros(2)
    for stage in range(self.num_stages):
      new = np.sum([[len(side) for side in self.megabatch(t)] for t in self._span(stage)], axis=0)
      previous = new + np.floor(self.replay * previous + 1e-9)
      sizes.append(previous)
    return np.array(sizes, np.int64)

  def _span(self, stage: int) -> range:
    """The mega-batches of a stage, counted from 1."""
    return range(stage * self.waiting_time + 1, self.last_t(stage) + 1)

  def _unite(self, stage: int, previous: tuple[np.ndarray, ...] | None) -> tuple[np.ndarray, ...]:
    """(train, val) of a stage, from its own data and from those of the stage before it."""
    sides = [list(side) for side in zip(*map(self.megabatch, self._span(stage)))]
    for i, memory in enumerate(previous or ()):
      if self.replay < 1:
        kept = int(self.replay * len(memory) + 1e-9)
        memory = keys.rng(self.seed, keys.REPLAY, stage, i).choice(memory, kept, replace=False)
      sides[i].append(memory)
    return tuple(np.concatenate(side) for side in sides)

  @functools.cached_property
  def _latest(self) -> dict[str, Any]:
    """The stage computed last and its memories, because the replay of the next stage starts from them."""
    return {}

  @functools.cached_property
  def _order(self) -> np.ndarray:
    return keys.rng(self.seed, keys.STREAM).permutation(self.num_examples).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class WindowStream(Stream):
  """A stream whose mega-batches are consecutive windows of text. Validation windows are numbered separately.

  Attributes:
    bounds: mega-batch t = 1..B consists of the windows bounds[t - 1] to bounds[t] - 1.
    num_val: number of validation windows, the same at every stage.
  """
  bounds: tuple[int, ...] = ()
  num_val: int = 0

  def megabatch(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, val) numbers of the windows of mega-batch t = 1..B, int32; val is empty."""
    return np.arange(*self.bounds[t - 1:t + 1], dtype=np.int32), np.zeros(0, np.int32)

  def stage(self, stage: int) -> Stage:
    """Training windows of a stage with replayed memory, and all validation windows."""
    return super().stage(stage)._replace(val=np.arange(self.num_val, dtype=np.int32))

  @functools.cached_property
  def sizes(self) -> np.ndarray:
    """int64 [S, 2], the numbers of training and validation windows of every stage."""
    return np.stack([super().sizes[:, 0], np.full(self.num_stages, self.num_val)], 1)


def make(num_examples: int, config: schema.Stream, seed: int) -> Stream:
  """The stream of a training set.

  Args:
    num_examples: size of the training set.
    config: the section `stream` of the config.
    seed: see Stream.

  Raises:
    BadInput: there are more mega-batches than examples, or a mega-batch would have no training or no validation
      example.
  """
  stream = Stream(num_examples, config.num_megabatches, config.waiting_time, config.replay, config.val_fraction, seed)
  if config.num_megabatches > num_examples:
    raise BadInput(f"stream.num_megabatches={config.num_megabatches} exceeds the "
                   f"{num_examples} training examples; lower it.")
  train, val = stream.megabatch(config.num_megabatches)  # the smallest
  for part, name, change in ((train, "training", "lower"), (val, "validation", "raise")):
    if not len(part):
      raise BadInput(f"stream.val_fraction={config.val_fraction} of a mega-batch of {len(train) + len(val)} examples "
                     f"leaves no {name} example; {change} it, or lower stream.num_megabatches.")
  return stream


def of_windows(bounds: Sequence[int] | np.ndarray, num_val: int, config: schema.TextStream, seed: int) -> WindowStream:
  """The stream of the windows of a text; `bounds` and `num_val` are those of WindowStream."""
  return WindowStream(int(bounds[-1]), config.num_megabatches, config.waiting_time, config.replay, 0.0, seed,
                      tuple(map(int, bounds)), num_val)


def first_normalization(x_train: np.ndarray, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
  """(mean, std) of each channel or feature, from the training examples of the first mega-batch.

  Args:
    x_train: [N, H, W, C] or [N, D].
    stream: the stream of these examples.

  Returns:
    Two float32 arrays, [C] or [D]. The std is 1 where all values are equal.
  """
  x = x_train[stream.megabatch(1)[0]].astype(np.float64)
  x = x.reshape(-1, x.shape[-1]) if x.ndim == 4 else x
  std = x.std(0)
  return x.mean(0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)
