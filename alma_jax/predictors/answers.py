"""Writes predictions as CSV or Parquet, part by part; the file appears when it is complete. Imports no jax."""
import csv
import io
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alma_jax import extras
from alma_jax.errors import BadInput
from alma_jax.files import usable

_PARQUET = ".parquet"
_SUFFIXES = (".csv", _PARQUET)


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
    self._file: Any = None  # what is renamed to `out` in the end
    self._parquet: Any = None  # its writer, from the first rows on
    self._is_begun = False
    if self._path is None:
      return
    if self._path.suffix.lower() not in _SUFFIXES:
      raise BadInput(f"--out={str(self._path)!r} should end in {' or '.join(_SUFFIXES)}.")
    if self._path.suffix.lower() == _PARQUET:
      extras.need(f"--out={str(self._path)!r}", "pyarrow")
    check_place(self._path)
    try:
      self._file = open(_temporary(self._path), "wb")  # noqa: SIM115 (closed by __exit__)
    except OSError as error:
      raise BadInput(f"--out={str(self._path)!r} cannot be written: {error.strerror}.") from error

  def __enter__(self) -> "Table":
    return self

  def write(self, columns: Mapping[str, Any]) -> None:
    """Adds rows; the first call decides about the columns.

    Args:
      columns: {name: values [B]}, lists of strings, of numbers, or of None where all numbers are missing; or arrays.
    """
    if self._path is not None and self._path.suffix.lower() == _PARQUET:
      self._write_parquet(columns)
    else:
      text = _csv(columns, header=not self._is_begun)
      if self._file is None:
        sys.stdout.write(text)
      else:
        self._file.write(text.encode())
    self._is_begun = True

  def _write_parquet(self, columns: Mapping[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet
    rows = pa.table({name: pa.array(values, pa.int64() if values[0] is None else None)
                     for name, values in columns.items()})
    self._parquet = self._parquet or parquet.ParquetWriter(self._file, rows.schema)
    self._parquet.write_table(rows)

  def __exit__(self, kind: type[BaseException] | None, *unused: Any) -> None:
    if self._path is None:
      return
    if self._parquet is not None:
      self._parquet.close()
    self._file.close()
    if kind is None:
      _temporary(self._path).replace(self._path)
    else:
      _temporary(self._path).unlink(missing_ok=True)


def check_place(out: str | os.PathLike[str]) -> None:
  """Raises BadInput if --out is a folder, is in a folder that does not exist, or is too long."""
  path = usable(out)
  usable(_temporary(path))  # this file is written first
  if path.is_dir():
    raise BadInput(f"--out={str(path)!r} is a folder; name a file in it.")
  if not path.parent.is_dir():
    raise BadInput(f"--out={str(path)!r} cannot be written: there is no folder {str(path.parent)!r}; make it.")


def rows(source: Sequence[str], row: Sequence[int], classes: np.ndarray, probabilities: np.ndarray,
         names: Sequence[str]) -> dict[str, Any]:
  """The columns of a table of classified images.

  Args:
    source, row: where each example comes from, see examples.Examples.
    classes: int [B].
    probabilities: float32 [B, K].
    names: names of the classes; empty: they have none.

  Returns:
    {"input", "row", "class", and "p_CLASS" for each class: values}; `row` is None for an image file.
  """
  labels = [names[i] for i in classes.tolist()] if names else classes
  return {"input": list(map(printable, source)), "row": [None if i < 0 else i for i in row], "class": labels,
          **{f"p_{names[k] if names else k}": column for k, column in enumerate(probabilities.T)}}


def printable(name: str) -> str:
  """The name of a file, of which Python stores bytes that are not UTF-8 as characters that cannot be written."""
  return name.encode("utf-8", "replace").decode()


def _temporary(path: pathlib.Path) -> pathlib.Path:
  return path.with_name(f".{path.name}.tmp")


def _csv(columns: Mapping[str, Any], header: bool) -> str:
  """Rows as CSV; nine digits are enough to read the same float32 again."""
  file = io.StringIO()
  writer = csv.writer(file, lineterminator="\n")
  if header:
    writer.writerow(columns)
  writer.writerows(zip(*(map("{:.9g}".format, values.tolist()) if getattr(values, "dtype", None) == np.float32 else
                         values for values in columns.values())))
  return file.getvalue()
