"""Checks and converts the shape, dtype and values of examples. Imports no jax."""
from typing import NamedTuple

import numpy as np

from alma_jax.errors import BadInput

_LARGEST, _SMALLEST = 1e30, 1e-35  # of the largest absolute values of float features from which constants are made
_MOST_CHANNELS = 4  # grey, grey with alpha, RGB, RGBA


class Form(NamedTuple):
  """The shape and dtype that examples are converted to.

  Attributes:
    shape, dtype: of one example; None: whatever the examples have.
    image_size: width and height in pixels to which image files are resized; 0: they keep their size.
    owner: subject and verb for messages, e.g. "the predictor takes".
  """
  shape: tuple[int, ...] | None = None
  dtype: np.dtype | None = None
  image_size: int = 0
  owner: str = ""

  def fit(self, x: np.ndarray) -> np.ndarray:
    """Arrays [N, ...] as uint8 or float32, [N, H, W, C] or [N, D].

    Raises:
      BadInput: their shape, dtype or values do not allow it. The message begins with "it".
    """
    if x.dtype.kind not in "iuf":
      raise BadInput(f"it has examples of dtype {x.dtype}; give numbers, uint8 or floats.")
    if self.shape is None:
      x = _with_channels(x)
    elif (x.ndim == 2 and x.shape[1] == np.prod(self.shape)) or (
        x.ndim and (*x.shape[1:], 1) == self.shape):
      x = x.reshape(-1, *self.shape)
    elif len(self.shape) == 3 and self.shape[-1] == 3 and x.shape[1:] in (self.shape[:-1], (*self.shape[:-1], 1)):
      x = np.repeat(x.reshape(-1, *self.shape[:-1], 1), 3, -1)
    elif not x.ndim or x.shape[1:] != self.shape:
      raise BadInput(f"it has examples of shape {list(x.shape[1:])}, but {self.owner} {list(self.shape)}; give "
                     "examples of this shape.")
    if not len(x):
      raise BadInput("it is empty; give at least one example.")
    return self._cast(x)

  def _cast(self, x: np.ndarray) -> np.ndarray:
    floats = x.dtype.kind == "f"
    dtype = self.dtype or np.dtype(np.float32 if floats or (x.ndim == 2 and x.dtype != np.uint8) else np.uint8)
    if floats and dtype.kind != "f":
      raise BadInput(f"it has examples of dtype {x.dtype}, but {self.owner} {dtype}; give raw, unnormalised examples.")
    if dtype == np.uint8 and x.dtype != np.uint8 and (x.min() < 0 or x.max() > 255):
      raise BadInput("it has whole numbers outside of 0 to 255, which cannot become pixels (uint8); rescale them.")
    if floats:
      if not np.isfinite(x).all():
        raise BadInput("it holds NaN or infinite values; replace or remove them.")
      largest = _largest(x)
      if (largest > _LARGEST).any():
        raise BadInput(_off_scale(x, largest, largest > _LARGEST))
    return x.astype(dtype, copy=False)


def too_small(x: np.ndarray) -> str | None:
  """A sentence if values of a channel or column are too small to make normalisation constants of them; else None.

  It concerns only the data that the first constants come from. `x` has the dtype in which it was given.
  """
  if x.dtype.kind != "f":
    return None
  largest = _largest(x)
  bad = (largest > 0) & (largest < _SMALLEST)
  return _off_scale(x, largest, bad) if bad.any() else None


def _with_channels(x: np.ndarray) -> np.ndarray:
  """Examples of any form as [N, H, W, C] or [N, D]."""
  if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
    raise BadInput(f"it has examples in an array of shape {x.shape}; give [N, H, W], [N, H, W, C] or [N, D].")
  # Feature maps such as [N, 4, 4, 512] have their channels last: the width is as small as the height.
  if x.ndim == 4 and x.shape[1] in (1, 3, 4) and min(x.shape[2:]) > _MOST_CHANNELS:
    raise BadInput(f"it has examples in an array of shape {x.shape}, which looks like [N, C, H, W]; give "
                   "[N, H, W, C], with numpy.moveaxis(x, 1, -1).")
  return x[..., None] if x.ndim == 3 else x


def _largest(x: np.ndarray) -> np.ndarray:
  """The largest absolute value of each channel or column [C]; of images without channels [1]."""
  axes = tuple(range(x.ndim - (x.ndim in (2, 4))))
  return np.atleast_1d(np.maximum(x.max(axes).astype(np.float64), -x.min(axes).astype(np.float64)))


def _off_scale(x: np.ndarray, largest: np.ndarray, bad: np.ndarray) -> str:
  i = int(np.flatnonzero(bad)[0])
  where = f" in its {'channel' if x.ndim == 4 else 'column'} {i}" if len(largest) > 1 else ""
  return (f"it has values up to {largest[i]:.2g}{where}, but float32 can normalise values from {_SMALLEST:g} to "
          f"{_LARGEST:g}; {'divide' if largest[i] > 1 else 'multiply'} them by a constant.")
