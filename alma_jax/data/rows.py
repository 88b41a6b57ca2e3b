"""The examples of a live stream that are in memory: those of the present stage, and those that a memory keeps."""
from collections.abc import Callable

import numpy as np

Arrays = tuple[np.ndarray, ...]  # of one length


class Rows:
  """Rows of arrays by the numbers of examples."""

  def __init__(self, load: Callable[[int], Arrays], where: Callable[[np.ndarray], np.ndarray],
               first: Callable[[int], int]):
    """No rows.

    Args:
      load: t -> the arrays of mega-batch t.
      where: examples -> the mega-batches that they belong to.
      first: t -> the number of the first example of mega-batch t.
    """
    self._load, self._where, self._first = load, where, first
    self._kept = np.zeros(0, np.int64)  # ascending
    self._arrays: Arrays | None = None  # of the kept examples
    self._parts: dict[int, Arrays] = {}  # whole mega-batches

  def take(self, examples: np.ndarray) -> Arrays:
    """The rows of examples int [N], from memory or, if they are not there, loaded."""
    place = np.searchsorted(self._kept, examples)
    is_kept = np.zeros(len(examples), bool)
    if len(self._kept):
      place = np.minimum(place, len(self._kept) - 1)
      is_kept = self._kept[place] == examples
    of = self._where(examples)
    found: list[np.ndarray] | None = None
    if self._arrays is not None:
      found = [np.empty((len(examples), *array.shape[1:]), array.dtype) for array in self._arrays]
      for array, kept in zip(found, self._arrays):
        array[is_kept] = kept[place[is_kept]]
    for t in np.unique(of[~is_kept]):
      part = self._part(int(t))
      if found is None:
        found = [np.empty((len(examples), *array.shape[1:]), array.dtype) for array in part]
      here = ~is_kept & (of == t)
      for array, loaded in zip(found, part):
        array[here] = loaded[examples[here] - self._first(int(t))]
    return tuple(found or ())

  def keep(self, examples: np.ndarray) -> None:
    """Forgets all other examples; they are loaded again if they are needed."""
    examples = np.sort(examples)
    self._arrays = self.take(examples) if len(examples) else None
    self._kept, self._parts = examples.astype(np.int64), {}

  def _part(self, t: int) -> Arrays:
    if t not in self._parts:
      self._parts[t] = self._load(t)
    return self._parts[t]
