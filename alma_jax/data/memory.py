"""What a stage is trained on: the new examples, and what a memory keeps of earlier ones (docs/algorithms.md §1).

A stage is named by the ends of all stages up to it: the numbers of their last mega-batches, counted from 1. What it
holds is a pure function of these ends and of the seed; no stage depends on what was trained before it.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config.stream import Policy, Stream
from alma_jax.data.megabatches import Megabatches

Row = tuple[float, float, float, float]  # training and validation examples of a stage, its share and grown, see Sizes

_NONE = np.zeros(0, np.int32)


class StageData(NamedTuple):
  """What a learner may see of a stage.

  The labels of images are `pool.y[train]`. Draw random numbers from `alma_jax.keys.rng(seed, PURPOSE, stage)`, with a
  number of your own from 100 as PURPOSE; then a stage that is repeated after a stop draws the same ones.

  Attributes:
    stage: number of the stage, from 0.
    seed: of the run. Seed and stage decide every order of examples and every augmentation.
    pool: the problem's pool of training examples. For images it is the whole training set on the device; for text it
      stays on the host. None until a source has loaded it.
    val_pool: the problem's pool of validation examples on the device.
    train: int32 [n], indices into `pool`; new examples first, those that `stream.replay` keeps after them.
    val: int32 [n_val], indices into `val_pool`.
    num_new: the first `num_new` of `train` are new; the others are replayed.
    memory: int32 [m], indices into `pool`: examples of earlier stages from which a part of every batch is drawn, with
      `stream.replay_share`.
    share: that part of a batch, at least 0 and below 1; 0 if there is no memory.
    grown: training examples that have arrived, as a multiple of those of the first stage.
    num_new_val: the first `num_new_val` of `val` are new.
    memory_from: int32 [m], the mega-batch that each example of `memory` came with, counted from 1.
    in_passes: whether `memory` is drawn without replacement until each of its examples has had its turn.
  """
  stage: int
  seed: int
  pool: Any
  val_pool: Any
  train: np.ndarray
  val: np.ndarray
  num_new: int
  memory: np.ndarray = _NONE
  share: float = 0.0
  grown: float = 1.0
  num_new_val: int = 0
  memory_from: np.ndarray = _NONE
  in_passes: bool = False


class Sizes(NamedTuple):
  """Sizes of the stages of a stream, as far as they are known before it begins.

  Attributes:
    train: int64 [S], number of training examples of each stage, without `memory`.
    share: float64 [S], part of every batch that comes from the memory.
    grown: float64 [S], training examples that have arrived, as a multiple of those of the first stage.
    exact: whether the number of stages is known; otherwise it is a guess.
    val: int64 [S], number of validation examples, if a memory counts them.
  """
  train: Sequence[int] | np.ndarray
  share: Sequence[float] | np.ndarray
  grown: Sequence[float] | np.ndarray
  exact: bool = True
  val: np.ndarray = _NONE


def span(ends: Sequence[int]) -> range:
  """The mega-batches of the last stage, counted from 1; the stages end at `ends`."""
  return range((ends[-2] if len(ends) > 1 else 0) + 1, ends[-1] + 1)


def make(config: Stream, megabatches: Megabatches, seed: int) -> "Memory":
  """The memory that the section `stream` of a config describes."""
  if config.replay:
    return Replay(megabatches, seed, config.replay)
  if config.replay_share:
    num_val = config.num_kept_for_validation
    most = (config.memory_size - num_val, num_val) if config.memory_size else (np.inf, np.inf)
    return Reservoir(megabatches, seed, config.replay_share, most, config.memory_policy,
                     config.replay_order == "passes")
  return Memory(megabatches, seed)


class Memory:
  """A memory that keeps nothing, and the base class of those that do."""

  def __init__(self, megabatches: Megabatches, seed: int):
    """`seed` decides which examples are kept and drawn."""
    self._megabatches, self._seed = megabatches, seed
    self._known: tuple[tuple[int, ...], list[Row]] = (), []  # the ends of stages, and their sizes

  def stage(self, ends: Sequence[int]) -> StageData:
    """The last of the stages that end at `ends`, without its pools."""
    (train, val), held_out = self._new(ends), self._megabatches.held_out
    *_, grown = self._rows(tuple(ends))[-1]
    data = StageData(len(ends) - 1, self._seed, None, None, train, val, num_new=len(train), grown=grown,
                     num_new_val=len(val))
    data = self._recall(data, tuple(ends))
    return data if held_out is None else data._replace(val=held_out)

  def sizes(self, ends: Sequence[int]) -> Sizes:
    """Sizes of the stages that end at `ends`. If the last one has not arrived, a guess at one stage up to its end."""
    num, held_out = self._megabatches.num, self._megabatches.held_out
    train, val, shares, grown = np.array(self._rows(tuple(ends) if ends[-1] <= num else (num,))).T
    if ends[-1] > num:
      train, val = (np.ceil(side * (ends[-1] / num)) for side in (train, val))
    val = val if held_out is None else np.full(len(val), len(held_out))
    return Sizes(train.astype(np.int64), shares, grown, val=val.astype(np.int64))

  def _rows(self, ends: tuple[int, ...]) -> list[Row]:
    """Sizes of the stages that end at `ends`; a long stream is not gone through again at every stage."""
    known, rows = self._known
    if known[:len(ends)] == ends:
      return rows[:len(ends)]
    if ends[:len(known)] != known:
      known, rows = (), []
    seen = self._megabatches.seen
    for first, last in zip((0, *ends)[len(known):], ends[len(known):]):
      new = seen[last] - seen[first]
      old, share = self._num_old(first, last, np.array(rows[-1][:2] if rows else (0, 0)))
      rows.append((*(new + old), share, seen[last][0] / seen[ends[0]][0]))
    self._known = ends, rows
    return rows

  def most_val(self, ends: Sequence[int] | None) -> int:
    """The largest number of validation examples of the stages that end at `ends`; None: at any mega-batches."""
    if ends is not None:
      return int(self.sizes(ends).val.max())
    held_out = self._megabatches.held_out
    return int(self._megabatches.seen[-1, 1]) if held_out is None else len(held_out)

  def needed(self, ends: Sequence[int]) -> np.ndarray:
    """Examples that stages after the one that ends at ends[-1] may use again, int32; empty if no stage ever does."""
    del ends
    return _NONE

  def _new(self, ends: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(training, validation) examples of the mega-batches of a stage."""
    train, val = zip(*map(self._megabatches.part, span(ends)))
    return np.concatenate(train), np.concatenate(val)

  def _recall(self, data: StageData, ends: tuple[int, ...]) -> StageData:
    """The last of the stages that end at `ends` with examples of earlier ones; `data` holds the new ones."""
    del ends
    return data

  def _num_old(self, first: int, last: int, previous: np.ndarray) -> tuple[np.ndarray, float]:
    """(numbers of old training and validation examples of the stage of mega-batches first + 1 to last [2], its share).

    `previous` are the numbers [2] of all in the stage before.
    """
    del first, last, previous
    return np.zeros(2), 0.0


class Replay(Memory):
  """`stream.replay` ρ: M_s = D_s ∪ sample(ρ M_{s-1}) without replacement, for training and validation data separately.

  With 0 < ρ < 1 the share of old data decays geometrically.
  """

  def __init__(self, megabatches: Megabatches, seed: int, share: float):
    """`share`: ρ."""
    super().__init__(megabatches, seed)
    self._share = share
    self._latest: tuple[tuple[int, ...], tuple[np.ndarray, ...]] = (), (_NONE, _NONE)  # the ends and M of a stage

  def needed(self, ends: Sequence[int]) -> np.ndarray:
    return np.concatenate(self._all(tuple(ends)))

  def _recall(self, data: StageData, ends: tuple[int, ...]) -> StageData:
    train, val = self._all(ends)
    return data._replace(train=train, val=val)

  def _num_old(self, first: int, last: int, previous: np.ndarray) -> tuple[np.ndarray, float]:
    return np.floor(self._share * previous + 1e-9), 0.0

  def _all(self, ends: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """M of the stage that ends at ends[-1], as (training, validation) examples; the next M is drawn from it."""
    known, sides = self._latest
    if ends[:len(known)] != known:
      known, sides = (), (_NONE, _NONE)
    for stage in range(len(known), len(ends)):
      if self._share < 1:
        sides = tuple(keys.rng(self._seed, keys.REPLAY, stage, i).choice(
            side, int(self._share * len(side) + 1e-9), replace=False) for i, side in enumerate(sides))
      sides = tuple(map(np.concatenate, zip(self._new(ends[:stage + 1]), sides)))
    self._latest = ends, sides
    return sides


class Kept(NamedTuple):
  """Training or validation examples in a memory, in the order of the stream.

  Attributes:
    examples: int32 [n].
    number: float64 [n], the random number of each.
    rank: int64 [n], its rank among those of its mega-batch.
    born: int32 [n], the mega-batch that it came with, counted from 1.
  """
  examples: np.ndarray = _NONE
  number: np.ndarray = np.zeros(0)
  rank: np.ndarray = np.zeros(0, np.int64)
  born: np.ndarray = _NONE


class Reservoir(Memory):
  """`stream.replay_share`: a part of every batch is drawn from examples of earlier stages.

  The validation data of a stage mix new and old examples in the same proportion as a batch.

  Every example has a random number, and those with the smallest numbers are kept: of each mega-batch as many as
  `stream.memory_policy` says, of all together `stream.memory_size`. So the sample does not depend on how the stream is
  cut into stages, and what it has dropped never comes back.
  """

  def __init__(self, megabatches: Megabatches, seed: int, share: float | str, most: tuple[float, float],
               policy: Policy, in_passes: bool = False):
    """A memory that is extended as far as it is asked for.

    Args:
      megabatches: of the stream.
      seed: see Memory.
      share: part of a batch that comes from the memory; `uniform`: the memory's part of all examples.
      most: how many training and validation examples are kept; infinity: all.
      policy: `stream.memory_policy`.
      in_passes: see StageData.
    """
    super().__init__(megabatches, seed)
    self._share, self._most, self._policy, self._in_passes = share, most, policy, in_passes
    self._t = 0
    self._sides: tuple[Kept, ...] = Kept(), Kept()

  def needed(self, ends: Sequence[int]) -> np.ndarray:
    return np.concatenate([side.examples for side in self._after(ends[-1])])

  def _recall(self, data: StageData, ends: tuple[int, ...]) -> StageData:
    first = span(ends)[0] - 1
    memory, old = (self._still(side, i, ends[-1]) for i, side in enumerate(self._after(first)))
    (_, num_val), share = self._num_old(first, ends[-1], np.zeros(2))
    val = old.examples
    if num_val < len(val):
      val = keys.rng(self._seed, keys.RECALL, len(ends) - 1).choice(val, num_val, replace=False)
    return data._replace(val=np.concatenate([data.val, val]), memory=memory.examples, memory_from=memory.born,
                         share=share, in_passes=self._in_passes)

  def _num_old(self, first: int, last: int, previous: np.ndarray) -> tuple[np.ndarray, float]:
    seen = self._megabatches.seen
    train, val = map(int, np.minimum(self._counts(last)[:first].sum(0), self._most))
    new_train, new_val = map(int, seen[last] - seen[first])
    share = train / (train + new_train) if train else 0.0
    if not isinstance(self._share, str):
      share, val = self._share if train else 0.0, min(val, round(self._share / (1 - self._share) * new_val))
    return np.array([0, val]), share

  def _after(self, t: int) -> tuple[Kept, ...]:
    """(training, validation) examples kept of the mega-batches 1..t at mega-batch t."""
    if t < self._t:
      self._t, self._sides = 0, (Kept(), Kept())
    parts = [[side] for side in self._sides]
    for u in range(self._t + 1, t + 1):
      train, val = self._megabatches.part(u)
      numbers = keys.rng(self._seed, keys.MEMORY, u).random(len(train) + len(val))
      for side, examples, number in zip(parts, (train, val), np.split(numbers, [len(train)])):
        side.append(Kept(examples, number, number.argsort().argsort(), np.full(len(number), u, np.int32)))
    joined = [Kept(*map(np.concatenate, zip(*side))) if len(side) > 1 else side[0] for side in parts]
    self._t, self._sides = t, tuple(self._still(side, i, t) for i, side in enumerate(joined))
    return self._sides

  def _still(self, side: Kept, i: int, t: int) -> Kept:
    """What is kept at mega-batch t of the training examples (i = 0) or validation examples (1) `side`."""
    stays = side.rank < self._counts(t)[side.born - 1, i]
    side = Kept(*(array[stays] for array in side)) if not stays.all() else side
    if len(side.number) <= self._most[i]:
      return side
    most = int(self._most[i])
    places = np.sort(np.argpartition(side.number, most)[:most])
    return Kept(*(array[places] for array in side))

  def _counts(self, t: int) -> np.ndarray:
    """How many examples of each of the mega-batches 1..t are kept at mega-batch t, int64 [t, 2]."""
    sizes = np.diff(self._megabatches.seen[:t + 1], axis=0)
    kept = self._policy.kept(t - np.arange(1, t + 1))
    return np.ceil(kept[:, None] * sizes - 0.5).astype(np.int64)
