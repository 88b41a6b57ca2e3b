"""The stream of mega-batches, and the stages that a learner trains on (docs/algorithms.md §1).

Everything here is arithmetic on indices into the training set, and a pure function of the seed and of where stages end:
no stage depends on what was trained before it.
"""
import bisect
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config import image_sections, sections, text_sections
from alma_jax.data import reservoir
from alma_jax.errors import BadInput


class Stage(NamedTuple):
  """The data of one stage: the mega-batches that the learner waited for, and what it remembers of earlier ones.

  Attributes:
    stage: number of the stage, from 0.
    first_t, last_t: first and last mega-batch of the stage, counted from 1.
    train: int32 [n], indices into the training set; new examples first, those that `replay` keeps after them.
    val: int32 [n_val], likewise; training and validation examples are never the same.
    num_new: number of new examples in `train`.
    memory: int32 [m], examples of earlier stages from which a part of every batch is drawn; empty without
      `replay_share`.
    share: that part of a batch, at least 0 and below 1; 0 if the memory is empty.
  """
  stage: int
  first_t: int
  last_t: int
  train: np.ndarray
  val: np.ndarray
  num_new: int
  memory: np.ndarray = np.zeros(0, np.int32)
  share: float = 0.0


class Sizes(NamedTuple):
  """Sizes of the stages of a stream.

  Attributes:
    train: int64 [S], number of training examples of each stage, without `memory`.
    val: int64 [S], number of validation examples.
    share: float64 [S], part of every batch that comes from the memory.
  """
  train: np.ndarray
  val: np.ndarray
  share: np.ndarray


@dataclasses.dataclass(frozen=True)
class Stream:
  """A permuted training set in B parts whose sizes differ by 1 at most, and what a stage sees of it.

  A stage is named by the ends of all stages up to it: the numbers of their last mega-batches, counted from 1.

  Attributes:
    num_examples: size of the training set.
    config: the section `stream` of the config.
    seed: decides the permutation, and which examples are kept and drawn.
  """
  num_examples: int
  config: sections.Stream
  seed: int

  @property
  def num_megabatches(self) -> int:
    """B."""
    return self.config.num_megabatches

  @functools.cached_property
  def ends(self) -> tuple[int, ...] | None:
    """The last mega-batches of all stages; None if they are decided while the run goes on."""
    return None if self.is_adaptive else self.config.expected_ends

  @functools.cached_property
  def expected_ends(self) -> tuple[int, ...]:
    """`ends`; if they are not known yet, a guess."""
    return self.config.expected_ends

  @property
  def is_adaptive(self) -> bool:
    """Whether the run decides after every mega-batch whether to train."""
    return not self.config.schedule.is_fixed

  def wait(self, t: int, tick: Callable[[], None] = lambda: None) -> bool:
    """Whether there is a mega-batch t; a live stream waits for it, and calls `tick` several times a second."""
    del tick
    return t <= self.num_megabatches

  def is_last(self, t: int) -> bool:
    """Whether the stream is known to end with mega-batch t."""
    return t == self.num_megabatches

  @property
  def trains_late(self) -> bool:
    """Whether there may be mega-batches to train on when it becomes known that the stream has ended."""
    return False

  def trains_after(self, t: int) -> bool:
    """Whether a fixed schedule trains after mega-batch t."""
    return t == self.next_training(t)

  def next_training(self, t: int) -> int | None:
    """The first mega-batch, from t on, after which a fixed schedule trains; None: unknown, or there is none."""
    ends = self.ends or ()
    place = bisect.bisect_left(ends, t)
    return ends[place] if place < len(ends) else None

  def megabatch(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, val) indices of mega-batch t = 1..B, int32."""
    part = self._part(t)
    num_val = int(self._val_fraction * len(part) + 1e-9)
    return part[:len(part) - num_val], part[len(part) - num_val:]

  def stage(self, ends: Sequence[int]) -> Stage:
    """The last of the stages that end at `ends`.

    With `replay` ρ: M_s = D_s ∪ sample(ρ M_{s-1}) without replacement, for training and validation data separately.
    With 0 < ρ < 1 the share of old data decays geometrically. With `replay_share` the stage's examples are the new
    ones alone, and the memory is apart. Its validation data are the new ones and so many old ones that their share is
    that of a batch.
    """
    ends = tuple(ends)
    stage, new = len(ends) - 1, span(ends)
    sides = [np.concatenate(side) for side in zip(*map(self.megabatch, new))]
    num_new = len(sides[0])
    memory, old_val, share = np.zeros(0, np.int32), np.zeros(0, np.int32), 0.0
    if self.config.replay:
      sides = list(self._united(ends))
    elif self.config.replay_share:
      memory, old_val = self._memory.after(new[0] - 1)
      share = _share(self.config.replay_share, len(memory), num_new)
      num = _old_val(self.config.replay_share, len(old_val), len(sides[1]))
      if num < len(old_val):
        old_val = keys.rng(self.seed, keys.RECALL, stage).choice(old_val, num, replace=False)
    return Stage(stage, new[0], new[-1], sides[0], np.concatenate([sides[1], old_val]), num_new, memory, share)

  def sizes(self, ends: Sequence[int]) -> Sizes:
    """Sizes of the stages that end at `ends`."""
    found, previous, kept = [], np.zeros(2), self._kept()
    for first, last in zip((0, *ends), ends):
      new = self._seen[last] - self._seen[first]
      old, share = np.floor(self.config.replay * previous + 1e-9), 0.0
      if self.config.replay_share:
        memory = np.minimum(self._seen[first], kept)
        share = _share(self.config.replay_share, int(memory[0]), int(new[0]))
        old = np.array([0, _old_val(self.config.replay_share, int(memory[1]), int(new[1]))])
      previous = new + old
      found.append((*previous, share))
    train, val, shares = np.array(found).T
    return Sizes(train.astype(np.int64), val.astype(np.int64), shares)

  def needed(self, ends: Sequence[int]) -> np.ndarray:
    """Examples that stages after the one that ends at ends[-1] may use again, int32."""
    if self.config.replay:
      return np.concatenate(self._united(tuple(ends)))
    return np.concatenate(self._memory.after(ends[-1])) if self.config.replay_share else np.zeros(0, np.int32)

  @property
  def most_val(self) -> int:
    """The largest number of validation examples that a stage can have."""
    if self.ends is not None:
      return int(self.sizes(self.ends).val.max())
    return int(self._seen[-1, 1])

  @functools.cached_property
  def _seen(self) -> np.ndarray:
    """int64 [B + 1, 2], numbers of training and validation examples of the first 0, 1, ... B mega-batches."""
    sizes = [[len(side) for side in self.megabatch(t)] for t in range(1, self.num_megabatches + 1)]
    return np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(sizes, 0)])

  @property
  def _val_fraction(self) -> float:
    return self.config.val_fraction

  def _part(self, t: int) -> np.ndarray:
    """Indices of mega-batch t, training examples first."""
    size, extra = divmod(self.num_examples, self.num_megabatches)
    start = (t - 1) * size + min(t - 1, extra)
    return self._order[start:start + size + (t - 1 < extra)]

  def _kept(self) -> np.ndarray:
    """The largest numbers of training and of validation examples in the memory, float64 [2]."""
    if not self.config.memory_size:
      return np.full(2, np.inf)
    num_val = self.config.num_kept_for_validation
    return np.array([self.config.memory_size - num_val, num_val], float)

  def _united(self, ends: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """(train, val) of a stage with `replay`."""
    stage = len(ends) - 1
    known: tuple[int, ...] = self._latest.get("ends", ())
    start, memories = 0, None
    if known and ends[:len(known)] == known:
      start, memories = len(known), self._latest["memories"]
    for s in range(start, stage + 1):
      memories = self._unite(ends[:s + 1], memories)
    self._latest.update(ends=ends, memories=memories)
    assert memories is not None
    return memories

  def _unite(self, ends: Sequence[int], previous: tuple[np.ndarray, ...] | None) -> tuple[np.ndarray, ...]:
    """(train, val) of a stage, from its own data and from those of the stage before it."""
    sides = [list(side) for side in zip(*map(self.megabatch, span(ends)))]
    for i, memory in enumerate(previous or ()):
      if self.config.replay < 1:
        kept = int(self.config.replay * len(memory) + 1e-9)
        memory = keys.rng(self.seed, keys.REPLAY, len(ends) - 1, i).choice(memory, kept, replace=False)
      sides[i].append(memory)
    return tuple(np.concatenate(side) for side in sides)

  @functools.cached_property
  def _latest(self) -> dict[str, Any]:
    """The stage computed last and its memories, because the replay of the next stage starts from them."""
    return {}

  @functools.cached_property
  def _memory(self) -> reservoir.Reservoir:
    """The memory of `replay_share`; at the beginning of a stage it holds examples of all mega-batches before."""
    return reservoir.Reservoir(self._drawn, (self._kept()[0], self._kept()[1]))

  def _drawn(self, t: int) -> reservoir.Sides:
    """The examples of mega-batch t with their random numbers, those for training first."""
    train, val = self.megabatch(t)
    numbers = keys.rng(self.seed, keys.MEMORY, t).random(len(train) + len(val))
    return (train, numbers[:len(train)]), (val, numbers[len(train):])

  @functools.cached_property
  def _order(self) -> np.ndarray:
    return keys.rng(self.seed, keys.STREAM).permutation(self.num_examples).astype(np.int32)


def span(ends: Sequence[int]) -> range:
  """The mega-batches of the last stage, counted from 1; the stages end at `ends`."""
  return range((ends[-2] if len(ends) > 1 else 0) + 1, ends[-1] + 1)


def _share(wanted: float | str, num_memory: int, num_new: int) -> float:
  """The part of a batch that comes from the memory."""
  if not num_memory:
    return 0.0
  return num_memory / (num_memory + num_new) if isinstance(wanted, str) else wanted


def _old_val(wanted: float | str, num_memory: int, num_new: int) -> int:
  """How many of `num_memory` old validation examples go with `num_new` new ones."""
  return num_memory if isinstance(wanted, str) else min(num_memory, round(wanted / (1 - wanted) * num_new))


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

  def stage(self, ends: Sequence[int]) -> Stage:
    """Training windows of a stage with replayed memory, and all validation windows."""
    return super().stage(ends)._replace(val=np.arange(self.num_val, dtype=np.int32))

  def sizes(self, ends: Sequence[int]) -> Sizes:
    """Sizes of the stages that end at `ends`, in windows."""
    return super().sizes(ends)._replace(val=np.full(len(ends), self.num_val))

  @property
  def most_val(self) -> int:
    """Number of validation windows."""
    return self.num_val

  def _part(self, t: int) -> np.ndarray:
    return self.megabatch(t)[0]


def make(num_examples: int, config: image_sections.Stream, seed: int) -> Stream:
  """The stream of a training set.

  Args:
    num_examples: size of the training set.
    config: the section `stream` of the config.
    seed: see Stream.

  Raises:
    BadInput: there are more mega-batches than examples, or a mega-batch would have no training or no validation
      example.
  """
  stream = Stream(num_examples, config, seed)
  if config.num_megabatches > num_examples:
    raise BadInput(f"stream.num_megabatches={config.num_megabatches} exceeds the "
                   f"{num_examples} training examples; lower it.")
  train, val = stream.megabatch(config.num_megabatches)  # the smallest
  for part, name, change in ((train, "training", "lower"), (val, "validation", "raise")):
    if not len(part):
      raise BadInput(f"stream.val_fraction={config.val_fraction} of a mega-batch of {len(train) + len(val)} examples "
                     f"leaves no {name} example; {change} it, or lower stream.num_megabatches.")
  return stream


def of_windows(bounds: Sequence[int] | np.ndarray, num_val: int, config: text_sections.Stream,
               seed: int) -> WindowStream:
  """The stream of the windows of a text; `bounds` and `num_val` are those of WindowStream."""
  return WindowStream(int(bounds[-1]), config, seed, tuple(map(int, bounds)), num_val)

