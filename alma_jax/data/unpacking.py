"""Refuses files before they are unpacked if their contents are too much for the memory, or more than a user allows.

A few kilobytes of a compressed format can hold gigabytes of zeros. The headers of .npz files, images and Parquet files
say how large their contents are. What one file or one folder unpacks to may take three quarters of the memory that this
process may use; some of it is needed for the run. Headers that lie are noticed while they are unpacked. The entries of
a live stream also have smaller limits, so that none of them holds up the stream for long.
"""
import contextlib
import contextvars
import functools
import io
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from alma_jax.errors import BadInput
from alma_jax.messages import num_bytes
from alma_jax.parallel.machine import host_memory

if TYPE_CHECKING:
  import pyarrow.parquet as pq

_SHARE = 0.75  # of the memory
_MOST_ROWS = 1024  # of a Parquet file that are read at once
_COPIES = 4  # of rows of a Parquet file: compressed, as a table, as Python objects, as arrays
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Limits(NamedTuple):
  """How much an entry of a live stream may hold; 0: no limit.

  Attributes:
    examples: dataset.max_examples.
    size: dataset.max_bytes, of the arrays of its examples and labels.
  """
  examples: int = 0
  size: int = 0


NO_LIMITS = Limits()
_limits: contextvars.ContextVar[Limits] = contextvars.ContextVar("limits", default=NO_LIMITS)


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
  """A context in which `check_contents` also enforces the limits of an entry."""
  token = _limits.set(limits)
  try:
    yield
  finally:
    _limits.reset(token)


@functools.cache
def limit() -> int:
  """Bytes that the contents of one file or folder may take in memory."""
  return int(_SHARE * host_memory())


def check(size: int) -> None:
  """Raises BadInput if something takes more than `limit()` bytes. The message begins with "it"."""
  if size > limit():
    raise BadInput(f"it unpacks to at least {num_bytes(size)}, more than the {num_bytes(limit())} of memory that data "
                  "may take; give less of it.")


def check_contents(examples: int, size: int, copies: int = 1) -> None:
  """Refuses a file or folder with too much for the memory, or for an entry of the stream.

  Args:
    examples: number of examples so far.
    size: bytes of their arrays so far.
    copies: how many copies of the arrays are in memory at once.

  Raises:
    BadInput: it is too much. The message begins with "it".
  """
  limits = _limits.get()
  advice = "; split the entry, or raise the field and touch the entry."
  if limits.examples and examples > limits.examples:
    raise BadInput(f"it holds {examples:,} examples, more than dataset.max_examples={limits.examples}{advice}")
  if limits.size and size > limits.size:
    raise BadInput(f"it holds at least {num_bytes(size)}, more than dataset.max_bytes={limits.size}{advice}")
  check(copies * size)


@contextlib.contextmanager
def _opened(file: pathlib.Path | io.BytesIO) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
  """(an .npz file, {name of an array: its place in it}, sorted); raises BadInput if anything about it is damaged."""
  try:
    with zipfile.ZipFile(file) as archive:
      yield archive, {info.filename.removesuffix(".npy"): info
                      for info in sorted(archive.infolist(), key=lambda info: info.filename.removesuffix(".npy"))}
  except BadInput:
    raise
  except Exception as error:  # zipfile, zlib and numpy raise many kinds
    raise BadInput(f"it is not an .npz file of plain arrays ({first_line(error)}); write it by np.savez with arrays of "
                   "numbers, and names of classes as labels.astype(str).") from error


def arrays_of(file: pathlib.Path) -> list[str]:
  """The names of the arrays in an .npz file; raises BadInput if it is not one."""
  with _opened(file) as (_, members):
    return [*members]


def read_npz(file: pathlib.Path | io.BytesIO, choose: Callable[[list[str]], Sequence[str]] = list
             ) -> dict[str, np.ndarray]:
  """Reads arrays of an .npz file. No pickle is loaded.

  Args:
    file: path, or its bytes.
    choose: sorted names of all arrays -> names of the wanted ones.

  Returns:
    The wanted arrays, in the order of their names as `choose` returns them.

  Raises:
    BadInput: it is not such a file, they unpack to more than is allowed, or `choose` raises it. The message begins with
      "it".
  """
  with _opened(file) as (archive, members):
    names, arrays = choose([*members]), {}
    check_contents(0, sum(members[name].file_size for name in names))
    for name in names:  # all headers first: examples may be small and many
      with archive.open(members[name]) as member:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
        if not dtype.itemsize:
          raise ValueError(f"the array {name} holds nothing")
        check_contents(shape[0] if shape else 0, 0)
    for name in names:
      with archive.open(members[name]) as member:
        arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def rows_at_once(metadata: "pq.FileMetaData", most: int | None = None) -> int:
  """How many rows of a Parquet file fit into memory at once, at most `most`.

  Equal values may be stored once for many rows. Therefore a row is assumed to be as large as all that a row group
  stores.

  Raises:
    BadInput: one row may take more than `limit()`.
  """
  # Not by column: pyarrow ends the process if the description of a column is damaged.
  largest = max([1, *(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))])
  check(largest)
  return max(1, min(most or _MOST_ROWS, _MOST_ROWS, limit() // (_COPIES * largest)))


def first_line(error: Exception) -> str:
  """The beginning of an exception's message, for a sentence."""
  text = getattr(error, "strerror", None) or next(iter(str(error).strip().splitlines()), "") or type(error).__name__
  return "".join(character if character.isprintable() else "?" for character in text[:200]).rstrip(".")
