"""Whether examples have the scale of the examples that a predictor was trained on. Imports no jax."""
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from alma_jax.data import normalization
from alma_jax.data.normalization import RATIO


class Scale:
  """Means and standard deviations of some examples, over all values and for each channel or column."""

  def __init__(self, facts: Mapping[str, Any]):
    """`facts`: entries of predictor.json."""
    known = facts.get("normalization")
    self._known = None if known is None else normalization.of_entries(known)
    self._is_image = len(facts.get("example_shape", ())) == 3
    self._num = 0  # values of a column
    self._sums: Any = 0.0  # float64 [4, C]: values, squares, values that are far from the mean, and that differ from it

  def add(self, x: np.ndarray) -> None:
    """Adds examples [B, ..., C] of any dtype."""
    if self._known is not None:
      values = x.reshape(-1, *self._known.mean.shape).astype(np.float64)
      self._num += len(values)
      self._sums += np.stack([values.sum(0), np.square(values).sum(0), *normalization.far(values, self._known)])

  def warning(self, what: str) -> str | None:
    """A sentence if the examples have another scale than the training images; None if they may have the same.

    Args:
      what: how the sentence calls the examples.
    """
    if self._known is None or not self._num:
      return None
    advice = "if their scale differs, the scores mean nothing; give raw, unnormalised examples"
    mean, std = (each.astype(np.float64) for each in (self._known.mean, self._known.scale))
    values, squares, num_far, num_other = self._sums / self._num
    trained = math.sqrt(max(float((std**2 + mean**2).mean() - mean.mean()**2), 0))
    found = math.sqrt(max(float(squares.mean() - values.mean()**2), 0))
    if not trained / RATIO <= found <= trained * RATIO:
      return (f"the values of {what} have a standard deviation of {found:.3g}, against {trained:.3g} in training; "
              f"{advice}")
    unfit = np.argwhere(normalization.is_unfit(num_far, num_other)).tolist()
    if not unfit:
      return None
    places = [place[0] if len(place) == 1 else tuple(place) for place in unfit]
    mine = normalization.Normalization(values, np.sqrt(np.maximum(squares - values**2, 0)))
    return f"in {what}, {normalization.described(self._known, mine, places, self._is_image)} in training; {advice}"
