"""The stream of mega-batches and the stages a learner makes of it (§1).

All is index arithmetic on the training set, and a pure function of
(seed, stage): nothing here depends on what was trained before.
"""
import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.errors import BadInput


class Stage(NamedTuple):
  """What a learner trains on after waiting.

  Attributes:
    stage: counts from 0.
    first_t, last_t: mega-batches united, counted from 1, inclusive.
    train: int32 [n], indices into the training set.
    val: int32 [n_val], likewise; never also in `train`.
    num_new: how many of `train`, from the first, are no replayed memory.
  """
  stage: int
  first_t: int
  last_t: int
  train: np.ndarray
  val: np.ndarray
  num_new: int


@dataclasses.dataclass(frozen=True)
class Stream:
  """B near-equal parts of a permuted training set (sizes differ by at most 1).

  Attributes:
    num_examples: size of the training set.
    num_megabatches: B.
    waiting_time: w; stage s unites mega-batches sw+1 ... min((s+1)w, B).
    replay: ρ, the share of the memory that is kept from stage to stage.
    val_fraction: share of every mega-batch held out, rounded down.
    seed: decides the permutation and what replay forgets.
  """
  num_examples: int
  num_megabatches: int
  waiting_time: int
  replay: float
  val_fraction: float
  seed: int

  @property
  def num_stages(self):
    """S = ceil(B / w)."""
    return -(-self.num_megabatches // self.waiting_time)

  def megabatch(self, t):
    """(train, val) indices of mega-batch t = 1..B."""
    size, extra = divmod(self.num_examples, self.num_megabatches)
    start = (t - 1) * size + min(t - 1, extra)
    part = self._order[start:start + size + (t - 1 < extra)]
    num_val = int(self.val_fraction * len(part) + 1e-9)
    return part[:len(part) - num_val], part[len(part) - num_val:]

  def last_t(self, stage):
    """The mega-batch after which `stage` is trained."""
    return min((stage + 1) * self.waiting_time, self.num_megabatches)

  def stage(self, stage):
    """Train and validation indices of a stage, replayed memory included.

    M_s = D_s ∪ sample(ρ M_{s-1}) without replacement, separately for train
    and validation, so that old data decays geometrically for 0 < ρ < 1.
    """
    known, memories = self._latest.get("stage"), self._latest.get("memories")
    if not self.replay:
      start, memories = stage, None
    elif known is not None and known <= stage:
      start = known + 1
    else:
      start, memories = 0, None
    for s in range(start, stage + 1):
      memories = self._unite(s, memories)
    self._latest.update(stage=stage, memories=memories)
    span = range(stage * self.waiting_time + 1, self.last_t(stage) + 1)
    num_new = sum(len(self.megabatch(t)[0]) for t in span)
    return Stage(stage, span[0], span[-1], *memories, num_new)

  def _unite(self, stage, previous):
    """The stage's own data, and what is kept of the previous memories."""
    span = range(stage * self.waiting_time + 1, self.last_t(stage) + 1)
    sides = [list(side) for side in zip(*map(self.megabatch, span))]
    for i, memory in enumerate(previous or ()):
      if self.replay < 1:
        kept = int(self.replay * len(memory) + 1e-9)
        memory = keys.rng(self.seed, keys.REPLAY, stage, i).choice(memory, kept, replace=False)
      sides[i].append(memory)
    return tuple(np.concatenate(side) for side in sides)

  @functools.cached_property
  def _latest(self):
    """The stage computed last: the next one's replay starts from it."""
    return {}

  @functools.cached_property
  def sizes(self):
    """int64 [S, 2]: train and validation examples of every stage."""
    sizes, previous = [], np.zeros(2)
    for stage in range(self.num_stages):
      span = range(stage * self.waiting_time + 1, self.last_t(stage) + 1)
      fresh = np.sum([[len(side) for side in self.megabatch(t)] for t in span], axis=0)
      previous = fresh + np.floor(self.replay * previous + 1e-9)
      sizes.append(previous)
    return np.array(sizes, np.int64)

  @functools.cached_property
  def _order(self):
    return keys.rng(self.seed, keys.STREAM).permutation(self.num_examples).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class WindowStream(Stream):
  """Mega-batches of consecutive windows of text; validation data come from elsewhere.

  Attributes:
    bounds: mega-batch t = 1..B is the windows bounds[t - 1] : bounds[t].
    num_val: validation windows, the same at every stage.
  """
  bounds: tuple[int, ...] = ()
  num_val: int = 0

  def megabatch(self, t):
    """(train, val) window numbers of mega-batch t = 1..B; val is empty."""
    return np.arange(*self.bounds[t - 1:t + 1], dtype=np.int32), np.zeros(0, np.int32)

  def stage(self, stage):
    return super().stage(stage)._replace(val=np.arange(self.num_val, dtype=np.int32))

  @functools.cached_property
  def sizes(self):
    return np.stack([super().sizes[:, 0], np.full(self.num_stages, self.num_val)], 1)


def of_windows(bounds, num_val, config, seed):
  """The WindowStream of a fields.TextStream."""
  return WindowStream(int(bounds[-1]), config.num_megabatches, config.waiting_time, config.replay, 0.0, seed,
                      tuple(map(int, bounds)), num_val)


def make(num_examples, config, seed):
  """The stream of a fields.Stream over a training set.

  Raises:
    BadInput: more mega-batches than examples, or a mega-batch whose training
      or validation part would be empty.
  """
  stream = Stream(num_examples, config.num_megabatches, config.waiting_time,
                  config.replay, config.val_fraction, seed)
  if config.num_megabatches > num_examples:
    raise BadInput(f"stream.num_megabatches={config.num_megabatches} exceeds the "
                   f"{num_examples} training examples.")
  train, val = stream.megabatch(config.num_megabatches)  # the smallest
  for part, name in ((train, "training"), (val, "validation")):
    if not len(part):
      raise BadInput(f"stream.val_fraction={config.val_fraction} of a mega-batch of "
                     f"{len(train) + len(val)} examples leaves no {name} example.")
  return stream


def first_normalization(x_train, stream):
  """(mean, std) per channel or feature, from the first mega-batch's training part.

  Args:
    x_train: [N, H, W, C] or [N, D].
    stream: Stream over it.

  Returns:
    Two float32 arrays, [C] or [D]; where all values are equal the std is 1.
  """
  x = x_train[stream.megabatch(1)[0]].astype(np.float64)
  x = x.reshape(-1, x.shape[-1]) if x.ndim == 4 else x
  std = x.std(0)
  return x.mean(0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)
