"""Writes predictions as CSV or Parquet, part by part; the file appears when it is complete. Imports no jax."""
import contextlib
import csv
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alma_jax import extras
from alma_jax.errors import BadInput
from alma_jax.files import usable

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def table(out: str | None) -> Iterator[Write]:
  """A table of predictions; the context is a function that adds rows. An exception inside it leaves no file.

  The rows are {name of the column: values [B]}: lists of strings, of numbers, or of None where all numbers are missing;
  or arrays. The first call decides about the columns.

  Args:
    out: path of a .csv or .parquet file; None: CSV on standard output.

  Raises:
    BadInput: the name has another ending, or the file cannot be written.
  """
  if out is None:
    yield _csv(sys.stdout)
    return
  path = check_place(out)
  kind = path.suffix.lower()
  if kind not in (".csv", ".parquet"):
    raise BadInput(f"--out={out!r} should end in .csv or .parquet.")
  if kind == ".parquet":
    extras.need(f"--out={out!r}", "pyarrow")
  temporary = path.with_name(f".{path.name}.tmp")
  options = dict(mode="wb") if kind == ".parquet" else dict(mode="w", newline="", encoding="utf-8")
  try:
    file: Any = open(temporary, **options)  # type: ignore[call-overload]  # noqa: SIM115 (closed below)
  except OSError as error:
    raise BadInput(f"--out={out!r} cannot be written: {error.strerror}.") from error
  try:
    with file, contextlib.ExitStack() as opened:
      yield _parquet(file, opened) if kind == ".parquet" else _csv(file)
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def check_place(out: str) -> pathlib.Path:
  """The path of --out; raises BadInput if it is a folder, is in a folder that does not exist, or is too long."""
  path = usable(out)
  if path.is_dir():
    raise BadInput(f"--out={out!r} is a folder; name a file in it.")
  if not path.parent.is_dir():
    raise BadInput(f"--out={out!r} cannot be written: there is no folder {str(path.parent)!r}; make it.")
  return path


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


def _csv(file: Any) -> Write:
  """Rows as CSV; nine digits are enough to read the same float32 again."""
  writer, heads = csv.writer(file, lineterminator="\n"), list[Mapping[str, Any]]()

  def write(columns: Mapping[str, Any]) -> None:
    if not heads:
      heads.append(columns)
      writer.writerow(columns)
    writer.writerows(zip(*(map("{:.9g}".format, values.tolist()) if getattr(values, "dtype", None) == np.float32 else
                           values for values in columns.values())))

  return write


def _parquet(file: Any, opened: contextlib.ExitStack) -> Write:
  """Rows as Parquet; its writer is closed with `opened`."""
  import pyarrow as pa
  from pyarrow import parquet
  writers: list[Any] = []

  def write(columns: Mapping[str, Any]) -> None:
    rows = pa.table({name: pa.array(values, pa.int64() if values[0] is None else None)
                     for name, values in columns.items()})
    if not writers:
      writers.append(opened.enter_context(parquet.ParquetWriter(file, rows.schema)))
    writers[0].write_table(rows)

  return write
