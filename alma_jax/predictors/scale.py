"""Whether examples have the scale of those that a predictor was trained on. Imports no jax."""
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST_RATIO = 8.0  # of two standard deviations; 0 to 16 against 0 to 255 is 16, and 0 to 1 against 0 to 255 is 255


class Scale:
  """The standard deviation of all values of some examples."""

  def __init__(self) -> None:
    self._num, self._sum, self._squares = 0, 0.0, 0.0

  def add(self, x: np.ndarray) -> None:
    """Adds examples [B, ...] of any dtype."""
    values = x.astype(np.float64)
    self._num, self._sum = self._num + values.size, self._sum + float(values.sum())
    self._squares += float(np.square(values).sum())

  def warning(self, facts: Mapping[str, Any], what: str) -> str | None:
    """A sentence if the examples have another scale than the training images; None if they may have the same.

    Args:
      facts: entries of predictor.json.
      what: how the sentence calls the examples.
    """
    known = facts.get("normalization")
    if not known or not self._num:
      return None
    mean, std = (np.asarray(known[key], np.float64) for key in ("mean", "std"))
    trained = math.sqrt(max(float((std**2 + mean**2).mean() - mean.mean()**2), 0))
    found = math.sqrt(max(self._squares / self._num - (self._sum / self._num)**2, 0))
    if trained / _MOST_RATIO <= found <= trained * _MOST_RATIO:
      return None
    return (f"the values of {what} have a standard deviation of {found:.3g}, those of the training images one of "
            f"{trained:.3g}; if they are of another scale, the scores say nothing: give raw, unnormalised examples")
