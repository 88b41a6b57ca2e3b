"""Checks and converts the shape, dtype and values of examples. Imports no jax."""
from typing import NamedTuple

import numpy as np

from alma_jax.errors import BadInput

_LARGEST = 1e30  # absolute value; the squares of larger ones are beyond float32
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
      axes = tuple(range(x.ndim - (x.ndim in (2, 4))))  # all but the channels or columns
      largest = np.atleast_1d(np.maximum(x.max(axes).astype(np.float64), -x.min(axes).astype(np.float64)))
      if (bad := np.flatnonzero(largest > _LARGEST)).size:
        where = f" in its {'channel' if x.ndim == 4 else 'column'} {bad[0]}" if len(largest) > 1 else ""
        raise BadInput(f"it has values up to {largest[bad[0]]:.2g}{where}, but float32 can normalise values up to "
                       f"{_LARGEST:g}; divide them by a constant.")
    return x.astype(dtype, copy=False)


def _with_channels(x: np.ndarray) -> np.ndarray:
  """Examples of any form as [N, H, W, C] or [N, D]."""
  if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
    raise BadInput(f"it has examples in an array of shape {x.shape}; give [N, H, W], [N, H, W, C] or [N, D].")
  # Feature maps such as [N, 4, 4, 512] have their channels last: the width is as small as the height.
  if x.ndim == 4 and x.shape[1] in (1, 3, 4) and min(x.shape[2:]) > _MOST_CHANNELS:
    raise BadInput(f"it has examples in an array of shape {x.shape}, which looks like [N, C, H, W]; give "
                   "[N, H, W, C], with numpy.moveaxis(x, 1, -1).")
  return x[..., None] if x.ndim == 3 else x
