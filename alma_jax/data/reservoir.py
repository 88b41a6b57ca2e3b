"""The memory of a stream: a uniform sample of the examples seen so far."""
from collections.abc import Callable

import numpy as np

Side = tuple[np.ndarray, np.ndarray]  # (int32 examples, float64 their random numbers), in the order of the stream
Sides = tuple[Side, Side]  # of training and of validation examples

_NOTHING: Sides = ((np.zeros(0, np.int32), np.zeros(0)),) * 2


class Reservoir:
  """A uniform sample of the examples of the first mega-batches, for every number of them.

  Every example has a random number; those with the smallest numbers are kept. So the sample does not depend on how the
  stream is cut into stages, and what it has dropped never comes back.
  """

  def __init__(self, drawn: Callable[[int], Sides], most: tuple[float, float]):
    """A reservoir that is extended as far as it is asked for.

    Args:
      drawn: t -> the training and validation examples of mega-batch t = 1..B, with their random numbers.
      most: how many training and validation examples are kept; infinity: all.
    """
    self._drawn, self._most = drawn, most
    self._t, self._full, self._sides = 0, False, _NOTHING

  def after(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(training, validation) examples kept of the mega-batches 1..t, int32."""
    if t < self._t:
      self._t, self._full, self._sides = 0, False, _NOTHING
    new: tuple[list[Side], list[Side]] = [self._sides[0]], [self._sides[1]]
    for u in range(self._t + 1, t + 1):
      for side, drawn in zip(new, self._drawn(u)):
        side.append(drawn)
    # Until more examples were seen than the smaller side may keep, both sides keep all.
    num = sum(len(side[0]) for of_side in new for side in of_side)
    self._full = self._full or num > min(self._most)
    self._sides = self._kept(new[0], self._most[0]), self._kept(new[1], self._most[1])
    self._t = t
    return self._sides[0][0], self._sides[1][0]

  def _kept(self, parts: list[Side], most: float) -> Side:
    examples, numbers = (np.concatenate(arrays) for arrays in zip(*parts)) if len(parts) > 1 else parts[0]
    if not self._full or len(examples) <= most:
      return examples, numbers
    places = np.sort(np.argpartition(numbers, int(most))[:int(most)])
    return examples[places], numbers[places]
