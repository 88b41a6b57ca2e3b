"""Writes predictions as CSV or Parquet, part by part; the file appears when it is complete. Imports no jax."""
import io
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from alma_jax.errors import BadInput
from alma_jax.files import usable

_SUFFIXES = (".csv", ".parquet")


class Table:
  """A table of predictions. A context: an exception inside it leaves no file."""

  def __init__(self, out: str | os.PathLike[str] | None):
    """Checks where the table goes.

    Args:
      out: path of a .csv or .parquet file; None: CSV on standard output.

    Raises:
      BadInput: the name has another ending, or the file cannot be written.
    """
    self._path = None if out is None else pathlib.Path(out).expanduser()
    self._sink: Any = None
    self._writer: Any = None
    if self._path is None:
      return
    if self._path.suffix.lower() not in _SUFFIXES:
      raise BadInput(f"--out={str(self._path)!r} should end in {' or '.join(_SUFFIXES)}.")
    check_place(self._path)
    self._temporary = self._path.with_name(f".{self._path.name}.tmp")
    try:
      self._sink = open(self._temporary, "wb")  # noqa: SIM115 (closed by __exit__)
    except OSError as error:
      raise BadInput(f"--out={str(self._path)!r} cannot be written: {error.strerror}.") from error

  def __enter__(self) -> "Table":
    return self

  def write(self, columns: Mapping[str, Any]) -> None:
    """Adds rows; the first call decides about the columns.

    Args:
      columns: {name: values [B]}, lists of strings, of numbers, or of None where all numbers are missing; or arrays.
    """
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays([_array(values) for values in columns.values()], names=list(columns))
    if self._path is not None and self._path.suffix.lower() == ".parquet":
      if self._writer is None:
        import pyarrow.parquet as pq
        self._writer = pq.ParquetWriter(self._sink, batch.schema)
      self._writer.write_batch(batch)
      return
    text = _csv(batch, header=self._writer is None)
    self._writer = True
    if self._sink is not None:
      self._sink.write(text)
    elif hasattr(sys.stdout, "buffer"):
      sys.stdout.flush()
      sys.stdout.buffer.write(text)
    else:
      sys.stdout.write(text.decode())

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
               trace: TracebackType | None) -> None:
    if self._sink is None:
      return
    if self._writer not in (None, True):
      self._writer.close()
    self._sink.close()
    if kind is None and self._path is not None:
      self._temporary.replace(self._path)
    else:
      self._temporary.unlink(missing_ok=True)


def check_place(out: str | os.PathLike[str]) -> None:
  """Raises BadInput if --out is a folder, is in a folder that does not exist, or is too long."""
  path = usable(out)
  usable(path.with_name(f".{path.name}.tmp"))  # this file is written first
  if path.is_dir():
    raise BadInput(f"--out={str(path)!r} is a folder; name a file in it.")
  if not path.parent.is_dir():
    raise BadInput(f"--out={str(path)!r} cannot be written: there is no folder {str(path.parent)!r}; make it.")


def rows(source: Sequence[str], row: Sequence[int], classes: np.ndarray, probabilities: np.ndarray,
         names: Sequence[str]) -> dict[str, Any]:
  """The columns of a table of classified images.

  Args:
    source, row: where each example comes from, see inputs.Batch.
    classes: int [B].
    probabilities: float32 [B, K].
    names: names of the classes; empty: they have none.

  Returns:
    {"input", "row", "class", and "p_CLASS" for each class: values}; `row` is None for an image file.
  """
  labels = [names[i] for i in classes.tolist()] if names else classes
  columns = np.ascontiguousarray(probabilities.T)
  return {"input": list(source), "row": [None if i < 0 else i for i in row], "class": labels,
          **{f"p_{names[k] if names else k}": columns[k] for k in range(len(columns))}}


def _array(values: Any) -> Any:
  """An Arrow array. pyarrow.array would import pandas first, which takes longer than to write 100,000 rows."""
  import pyarrow as pa

  num = len(values)
  if isinstance(values, list) and isinstance(values[0], str):
    encoded = [value.encode("utf-8", "replace") for value in values]  # names of files need not be UTF-8
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), num, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))])
  if isinstance(values, list) and values[0] is None:
    return pa.nulls(num, pa.int64())
  numbers = np.ascontiguousarray(values)
  return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), num, [None, pa.py_buffer(numbers)])


def _csv(batch: Any, header: bool) -> bytes:
  import pyarrow.csv

  file = io.BytesIO()
  pyarrow.csv.write_csv(batch, file, pyarrow.csv.WriteOptions(include_header=header, quoting_style="needed"))
  return file.getvalue()
