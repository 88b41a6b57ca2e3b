"""What the experts of a flat hard mixture share if they are trained apart: a file that is written once."""
import hashlib
import os
import pathlib
from typing import NamedTuple

import flax.serialization
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.types import Variables


class Gate(NamedTuple):
  """The base network, whose features decide which cluster an example belongs to.

  Attributes:
    width: of the base network.
    base: its Variables, numpy arrays [1, ...].
    prototypes: float64 [E, H]; an example belongs to the nearest one.
    counts: int64 [E], training examples of each cluster in the first stage.
    macs: multiply-adds of the training of the base and of its pass over the first stage.
  """
  width: int
  base: Variables
  prototypes: np.ndarray
  counts: np.ndarray
  macs: int


def packed(gate: Gate) -> bytes:
  """The file of a Gate. Equal gates make equal files."""
  data: bytes = flax.serialization.msgpack_serialize(gate._asdict() | {"base": gate.base._asdict()})
  return data


def read(path: str | os.PathLike[str]) -> tuple[Gate, str]:
  """(the Gate of a file, the file's SHA-256).

  Raises:
    BadInput: there is no such file, or `packed` has not made it.
  """
  try:
    data = pathlib.Path(path).expanduser().read_bytes()
    tree = flax.serialization.msgpack_restore(data)
    return Gate(**tree | {"base": Variables(**tree["base"])}), hashlib.sha256(data).hexdigest()
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise BadInput(f"the gate {str(path)!r} is not a file that `alma apart` has published ({error}); `alma apart` "
                   "makes it, and runs the experts.") from error
