"""The examples that a predictor of images is given, and whether they have the scale of training. Imports no jax."""
import math
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from alma_jax.data import examples, image_file, normalization


class Scale:
  """Means and standard deviations of some examples, over all values and for each channel or column."""

  def __init__(self, known: normalization.Normalization | None, is_image: bool):
    """`known`: the constants of training; None: unknown. `is_image`: whether the examples are [H, W, C]."""
    self._known, self._is_image = known, is_image
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
    if not trained / normalization.RATIO <= found <= trained * normalization.RATIO:
      return (f"the values of {what} have a standard deviation of {found:.3g}, against {trained:.3g} in training; "
              f"{advice}")
    unfit = np.argwhere(normalization.is_unfit(num_far, num_other)).tolist()
    if not unfit:
      return None
    places = [place[0] if len(place) == 1 else tuple(place) for place in unfit]
    mine = normalization.Normalization(values, np.sqrt(np.maximum(squares - values**2, 0)))
    return f"in {what}, {normalization.described(self._known, mine, places, self._is_image)} in training; {advice}"


def read(paths: Sequence[str], reader: examples.Reader, size: int) -> Iterator[examples.Examples]:
  """Yields the examples of files and folders in batches, and warns of what is not read. Image files come last.

  Args:
    paths: of the files and folders.
    reader: of the predictor.
    size: examples of a batch, at most.

  Raises:
    BadInput: one of them cannot be read, or does not fit the predictor.
  """
  images = []
  for path in (pathlib.Path(name).expanduser() for name in paths):
    if path.is_file() and path.suffix.lower() in image_file.suffixes() and not reader.labelled:
      images.append(path)
      continue
    with examples.named(repr(str(path))):
      for batch in reader.batches(path, size):
        for remark in batch.remarks:
          warnings.warn(remark, stacklevel=2)
        yield batch
  with examples.named(repr(str(images[0])) if len(images) == 1 else "the images"):
    yield from reader.images(images, size=size)
