"""The program of a predictor: with its weights on the device, compiled for a few sizes of batches."""
import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import export

from alma_jax.data import unpacking
from alma_jax.errors import BadInput
from alma_jax.parallel import environment
from alma_jax.predictors import folder

_BATCH_BYTES = 2**22  # of the inputs of a batch as float32, and of the outputs of a language model
_MOST = 4096  # examples of a batch


class Program:
  """A program that can be called."""

  def __init__(self, stored: folder.Stored, before: "Program | None" = None):
    """Loads the program of some files. If it is that of `before`, what was compiled for it is used again.

    Raises:
      ValueError: predictor.json or the weights are those of another program. jax raises other exceptions.
    """
    self._known, self._bytes = stored.description, stored.files[folder.PROGRAM]
    if before is not None and before._bytes == self._bytes:
      self._program: export.Exported = before._program
      self._call: Callable[..., Any] = before._call
    else:
      environment.keep_programs()
      self._program = export.deserialize(bytearray(self._bytes))
      self._call = jax.jit(self._program.call)
    *weights, x = self._program.in_avals
    if (x.shape[1:], x.dtype) != (self._known.shape, self._known.dtype):
      raise ValueError(f"predictor.json says that inputs are {self._known.dtype} {list(self._known.shape)}, but the "
                       f"program takes {x.dtype} {list(x.shape[1:])}")
    self._weights = jax.device_put(_weights(stored, weights))

  @property
  def batch_size(self) -> int:
    """A good number of examples of a batch, a power of two."""
    one = int(np.prod(self._known.shape)) * 4 * (self._known.vocabulary or 1)
    return int(np.clip(1 << (max(_BATCH_BYTES // one, 1).bit_length() - 1), 1, _MOST))

  @environment.fixed()
  def __call__(self, x: np.ndarray, size: int | None = None) -> tuple[np.ndarray, ...]:
    """Predicts one batch.

    Args:
      x: inputs [B, ...] of the predictor's shape and dtype, B at least 1.
      size: to which the batch is padded, at least B; None: the next power of two.

    Returns:
      For images (classes int32 [B], probabilities float32 [B, K]); for text (log-probabilities float32 [B, L, V],).

    Raises:
      BadInput: jax cannot compile the program for so many examples, or run it.
    """
    num = len(x)
    size = size or 1 << (num - 1).bit_length()
    if num < size:
      x = np.concatenate([x, np.zeros((size - num, *x.shape[1:]), x.dtype)])
    try:
      # np.asarray waits; jax.device_get does more for a tuple, and takes longer than the program of a small network
      return tuple(np.asarray(each)[:num] for each in self._call(*self._weights, x))
    except (RuntimeError, ValueError) as error:
      raise BadInput(f"the predictor cannot run on batches of {size} ({unpacking.first_line(error)}); export it "
                     "again.") from error


def _weights(stored: folder.Stored, avals: Any) -> list[np.ndarray]:
  """The arrays of weights.npz, of the shapes and dtypes that the program takes."""
  arrays = unpacking.read_npz(io.BytesIO(stored.files[folder.WEIGHTS]))
  weights = [arrays[str(i)].view(aval.dtype) for i, aval in enumerate(avals)]
  if [leaf.shape for leaf in weights] != [aval.shape for aval in avals]:
    raise ValueError("the weights are not those of the program")
  return weights
