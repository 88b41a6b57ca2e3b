"""Runs an exported predictor: loads its program and weights, and compiles it for a few sizes of batches."""
import io
import threading
from typing import Any

import jax
import numpy as np
from jax import export

from alma_jax.data import unpacking
from alma_jax.errors import BadInput
from alma_jax.parallel import environment
from alma_jax.predictors import facts, folder

_BATCH_BYTES = 2**22  # of the inputs of a batch as float32, and of the outputs of a language model
_MOST = 4096  # examples of a batch


class Predictor:
  """A predictor that is ready to be called.

  Attributes:
    facts: entries of predictor.json.
    version: name of the version, see folder.Stored.
    is_language: whether its inputs are windows of tokens.
  """

  @environment.fixed()
  def __init__(self, stored: folder.Stored, before: "Predictor | None" = None):
    """Loads a predictor.

    Args:
      stored: its files.
      before: a predictor that it replaces. If both have the same program, what was compiled for it is used again.

    Raises:
      BadInput: the files are not those of a predictor, or jax cannot run them on this machine.
    """
    self.version, self._bytes = stored.version, stored.files[folder.PROGRAM]
    try:
      self.facts: dict[str, Any] = facts.parse(stored.files[folder.FACTS])
      self.is_language = "vocabulary" in self.facts
      shape, dtype = ((self.facts["sequence_length"],), "int32") if self.is_language else (
          self.facts["example_shape"], self.facts["dtype"])
      self.shape, self.dtype = tuple(map(int, shape)), np.dtype(dtype)
      same = before is not None and before._bytes == self._bytes
      self._program: _Program = before._program if before is not None and same else _Program(self._bytes)
      self._weights = jax.device_put(_weights(stored, self._program.avals[:-1]))
      self.tokenizer: Any = None
      if self.is_language:
        from alma_jax.data import tokens
        self.tokenizer = tokens.parse(stored.files[folder.TOKENIZER].decode())
    except Exception as error:  # jax raises many kinds
      raise BadInput(f"the predictor cannot be loaded ({type(error).__name__}: {unpacking.first_line(error)}); export "
                     "it again.") from error

  @property
  def batch_size(self) -> int:
    """A good number of examples of a batch, a power of two."""
    one = int(np.prod(self.shape)) * 4 * (self.facts["vocabulary"] if self.is_language else 1)
    return int(np.clip(1 << (max(_BATCH_BYTES // one, 1).bit_length() - 1), 1, _MOST))

  @environment.fixed()
  def compile(self, size: int) -> None:
    """Compiles the program for batches of `size` examples, if that has not been done."""
    try:
      self._program.compile(size, (*self._weights, jax.ShapeDtypeStruct((size, *self.shape), self.dtype)))
    except Exception as error:  # as above
      raise BadInput(f"the predictor cannot be compiled for batches of {size} ({type(error).__name__}: "
                     f"{unpacking.first_line(error)}); export it again.") from error

  @environment.fixed()
  def __call__(self, x: np.ndarray, size: int | None = None) -> tuple[np.ndarray, ...]:
    """Predicts one batch.

    Args:
      x: inputs [B, ...] of the predictor's shape and dtype, B at least 1.
      size: to which the batch is padded, at least B; None: the next power of two.

    Returns:
      For images (classes int32 [B], probabilities float32 [B, K]); for text (log-probabilities float32 [B, L, V],).
    """
    num = len(x)
    size = size or 1 << (num - 1).bit_length()
    if num < size:
      x = np.concatenate([x, np.zeros((size - num, *x.shape[1:]), x.dtype)])
    if size not in self._program.compiled:
      self.compile(size)
    # np.asarray waits; jax.device_get does more for a tuple, and takes longer than the program of a small network
    return tuple(np.asarray(each)[:num] for each in self._program.compiled[size](*self._weights, x))


class _Program:
  """A program that is compiled for some sizes of batches.

  Attributes:
    avals: shapes and dtypes of its arguments.
    compiled: {size: what runs batches of that size}.
  """

  def __init__(self, stored: bytes):
    environment.keep_programs()
    exported = export.deserialize(bytearray(stored))
    self.avals, self._call, self._lock = exported.in_avals, jax.jit(exported.call), threading.Lock()
    self.compiled: dict[int, Any] = {}

  def compile(self, size: int, arguments: tuple[Any, ...]) -> None:
    """Compiles the program for batches of `size` examples, unless that has been done."""
    with self._lock:
      if size not in self.compiled:
        self.compiled[size] = self._call.lower(*arguments).compile()


def _weights(stored: folder.Stored, avals: Any) -> list[np.ndarray]:
  """The arrays of weights.npz, of the shapes and dtypes that the program takes."""
  arrays = unpacking.read_npz(io.BytesIO(stored.files[folder.WEIGHTS]))
  weights = [arrays[str(i)].view(aval.dtype) for i, aval in enumerate(avals)]
  if [leaf.shape for leaf in weights] != [aval.shape for aval in avals]:
    raise ValueError("the weights are not those of the program")
  return weights
