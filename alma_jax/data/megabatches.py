"""Which examples the mega-batches of a stream hold: arithmetic on the numbers of examples (docs/algorithms.md §1)."""
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from alma_jax import keys
from alma_jax.data.feed import Feed
from alma_jax.errors import BadInput

Arrays = tuple[np.ndarray, ...]  # of one length


class Megabatches:
  """The mega-batches t = 1, 2, ... of a stream, each a span of the order of its examples."""

  def __init__(self, starts: Sequence[int] | np.ndarray, val_fraction: float = 0.0, held_out: np.ndarray | None = None,
               order: np.ndarray | None = None):
    """Mega-batches whose sizes are known.

    Args:
      starts: see `starts`.
      val_fraction: share of a mega-batch, at its end, that is held out for validation: at least one example, unless the
        share is 0.
      held_out: int32, the validation examples of every stage, numbered apart from the examples of the mega-batches;
        None: the mega-batches hold out their own.
      order: int32, the examples in the order of the stream; None: they are numbered in this order.
    """
    self._starts, self.val_fraction, self.held_out, self._order = np.asarray(starts), val_fraction, held_out, order

  @property
  def starts(self) -> np.ndarray:
    """int64 [num + 1], the place in the order where each mega-batch starts, and where the last one ends."""
    return self._starts

  @property
  def num(self) -> int:
    """Number of mega-batches so far."""
    return len(self.starts) - 1

  @property
  def seen(self) -> np.ndarray:
    """int64 [num + 1, 2], numbers of training and validation examples of the first 0, 1, ... mega-batches."""
    total = np.diff(self.starts)
    val = self._num_val(total)
    return np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(np.stack([total - val, val], 1), 0)])

  def part(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, validation) examples of mega-batch t, int32."""
    first, end = self.starts[t - 1:t + 1]
    examples = np.arange(first, end, dtype=np.int32) if self._order is None else self._order[first:end]
    num_train = len(examples) - int(self._num_val(end - first))
    return examples[:num_train], examples[num_train:]

  def _num_val(self, total: np.ndarray) -> np.ndarray:
    """How many of the examples of mega-batches of these sizes are held out."""
    return np.maximum((self.val_fraction * total + 1e-9).astype(np.int64), 1) if self.val_fraction else 0 * total


def permuted(num_examples: int, num: int, val_fraction: float, seed: int) -> Megabatches:
  """A permuted training set in parts whose sizes differ by 1 at most.

  Args:
    num_examples: size of the training set.
    num: number of mega-batches, stream.num_megabatches.
    val_fraction: stream.val_fraction, above 0.
    seed: decides the permutation.

  Raises:
    BadInput: there are more mega-batches than examples, or a mega-batch would have no training example.
  """
  if num > num_examples:
    raise BadInput(f"stream.num_megabatches={num} exceeds the {num_examples} training examples; lower it.")
  size, extra = divmod(num_examples, num)
  if size <= max(int(val_fraction * size + 1e-9), 1):
    raise BadInput(f"stream.val_fraction={val_fraction} of a mega-batch of {size} examples leaves no training example; "
                   "lower it, or lower stream.num_megabatches.")
  starts = np.cumsum([0, *[size + 1] * extra, *[size] * (num - extra)])
  return Megabatches(starts, val_fraction, order=keys.rng(seed, keys.STREAM).permutation(num_examples).astype(np.int32))


class Arrived(Megabatches):
  """The entries of a live stream that have arrived, whose examples are numbered in the order of arrival.

  The examples of an entry are in random order (see data.live_entries), because files are often sorted by class.
  """

  def __init__(self, feed: Feed, val_fraction: float, held_out: np.ndarray | None = None):
    """`feed` has at least one mega-batch; `val_fraction` and `held_out`: see Megabatches."""
    super().__init__(np.zeros(1, np.int64), val_fraction, held_out)
    self._feed = feed

  @property
  def starts(self) -> np.ndarray:
    known, lines = self._starts, self._feed.lines
    if len(known) <= len(lines):
      sizes = [line["num"] for line in lines[len(known) - 1:]]
      self._starts = np.concatenate([known, known[-1] + np.cumsum(sizes)])
    return self._starts


class Rows:
  """The examples of a live stream that are in memory: the present stage's, and what a memory keeps."""

  def __init__(self, load: Callable[[int], Arrays], megabatches: Megabatches):
    """No rows. `load`: t -> the arrays of mega-batch t, one of `megabatches`."""
    self._load, self._megabatches = load, megabatches
    self._parts: dict[int, tuple[np.ndarray, Arrays]] = {}  # (examples of a mega-batch, ascending; their arrays)

  def take(self, examples: np.ndarray) -> Arrays:
    """The rows of examples int [N], from memory or, if they are not there, loaded."""
    made: Arrays = ()
    for t, places in self._places(examples):
      held, arrays = self._part(t, examples[places])
      made = made or tuple(np.empty((len(examples), *array.shape[1:]), array.dtype) for array in arrays)
      for array, part in zip(made, arrays):
        array[places] = part[np.searchsorted(held, examples[places])]
    return made

  def keep(self, examples: np.ndarray) -> None:
    """Forgets all other examples; they are loaded again if they are needed."""
    examples = np.sort(examples)
    self._parts = {t: (examples[places], self.take(examples[places])) for t, places in self._places(examples)}

  def _places(self, examples: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(t, the places of the examples of mega-batch t) for each mega-batch that has some."""
    of = np.searchsorted(self._megabatches.starts, examples, "right")
    order = np.argsort(of, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(of[order])) + 1):
      if len(places):
        yield int(of[places[0]]), places

  def _part(self, t: int, needed: np.ndarray) -> tuple[np.ndarray, Arrays]:
    """What is in memory of mega-batch t, all of it unless the examples `needed` are there."""
    if t not in self._parts or not np.isin(needed, self._parts[t][0]).all():
      arrays, first = self._load(t), int(self._megabatches.starts[t - 1])
      self._parts[t] = np.arange(first, first + len(arrays[0])), arrays
    return self._parts[t]
