"""A stream whose mega-batches are not known at the start: they are the entries of a folder, as they arrive.

What the other parts of a run see of it:
  - The number of mega-batches is the number of entries so far. `wait` blocks until the next one is there, and returns
    False when the stream has ended.
  - Examples are numbered in the order of arrival. In every mega-batch they are permuted, by the seed and t, before the
    last `val_fraction` of them (at least one) is held out for validation, because files are often sorted by class.
  - The schedules `every`, `geometric` and `adaptive` need no length. `power` is spread over `stream.num_megabatches`.
  - `every` also trains at the end. If the end becomes known only later, the last line of metrics.jsonl is taken back
    and the last mega-batch is received again. So no result depends on when the entries arrived.
  - The memories of `replay` and `replay_share` are those of any stream; they only look back.
  - Sizes of stages that have not arrived are guessed from the last mega-batch; only progress and checks read them.
"""
import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from alma_jax.config import sections
from alma_jax.data import stream as streams
from alma_jax.data.feed import Feed


@dataclasses.dataclass(frozen=True)
class LiveStream(streams.Stream):
  """The stream of the mega-batches of a feed.

  Attributes:
    feed: data.feed.Feed, which has at least one mega-batch.
  """
  feed: Feed = dataclasses.field(kw_only=True, compare=False)

  @property
  def num_megabatches(self) -> int:
    """Number of mega-batches so far."""
    return len(self.feed.lines)

  @property
  def ends(self) -> None:
    """None: nobody knows how many stages there will be."""

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The end of the first stage."""
    return (self.next_training(1) or 1,)

  def wait(self, t: int, tick: Callable[[], None] = lambda: None) -> bool:
    end = self.next_training(t)
    after = f"; the next training is after mega-batch {end}" if end is not None and end > t else ""
    return self.feed.wait(t, tick, after)

  def is_last(self, t: int) -> bool:
    return self.feed.is_last(t)

  @property
  def trains_late(self) -> bool:
    return self.config.schedule.trains_at_end

  def trains_after(self, t: int) -> bool:
    return t == self.next_training(t) or (self.trains_late and self.is_last(t))

  def next_training(self, t: int) -> int | None:
    return self.config.schedule.next(t, self.config.num_megabatches)

  def megabatch(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    part = np.arange(*self._starts[t - 1:t + 1], dtype=np.int32)
    num_val = num_validation(self.config, len(part))
    return part[:len(part) - num_val], part[len(part) - num_val:]

  def where(self, examples: np.ndarray) -> np.ndarray:
    """The mega-batches t = 1..B that examples belong to, of the shape of `examples`."""
    return np.searchsorted(self._starts, examples, "right")

  def first(self, t: int) -> int:
    """Number of the first example of mega-batch t."""
    return int(self._starts[t - 1])

  @property
  def most_val(self) -> int:
    """Validation examples of the first stage, of which several may still have to arrive."""
    return int(self.sizes(self.expected_ends).val.max())

  def sizes(self, ends: Sequence[int]) -> streams.Sizes:
    known = self.num_megabatches
    if ends[-1] <= known:
      return super().sizes(ends)
    factor = ends[-1] / known  # a guess
    sizes = super().sizes((known,))
    return sizes._replace(train=np.ceil(sizes.train * factor).astype(np.int64),
                          val=np.ceil(sizes.val * factor).astype(np.int64))

  def _part(self, t: int) -> np.ndarray:
    return np.concatenate(self.megabatch(t))

  @property
  def _seen(self) -> np.ndarray:
    total = np.diff(self._starts)
    val = np.array([num_validation(self.config, int(num)) for num in total], np.int64)
    return np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(np.stack([total - val, val], 1), 0)])

  @property
  def _starts(self) -> np.ndarray:
    """int64 [B + 1], the number of the first example of every mega-batch, and of the next one."""
    known, lines = self._cache["starts"], self.feed.lines
    if len(known) <= len(lines):
      sizes = [line["num"] for line in lines[len(known) - 1:]]
      known = self._cache["starts"] = np.concatenate([known, known[-1] + np.cumsum(sizes)])
    return known

  @functools.cached_property
  def _cache(self) -> dict[str, np.ndarray]:
    return {"starts": np.zeros(1, np.int64)}


@dataclasses.dataclass(frozen=True)
class LiveWindowStream(LiveStream):
  """A live stream of windows of text; see stream.WindowStream.

  Attributes:
    num_val: number of validation windows, the same at every stage.
  """
  num_val: int = dataclasses.field(kw_only=True)

  def stage(self, ends: Sequence[int]) -> streams.Stage:
    return super().stage(ends)._replace(val=np.arange(self.num_val, dtype=np.int32))

  def sizes(self, ends: Sequence[int]) -> streams.Sizes:
    return super().sizes(ends)._replace(val=np.full(len(ends), self.num_val))

  @property
  def most_val(self) -> int:
    return self.num_val


def num_validation(config: sections.Stream, num: int) -> int:
  """How many of the `num` examples of a mega-batch are held out for validation."""
  return max(1, int(config.val_fraction * num + 1e-9)) if config.val_fraction else 0
