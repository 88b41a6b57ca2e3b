"""Reads Parquet files of examples, with or without labels: finds the columns, and yields the rows in small batches.

Examples are images as Hugging Face data sets store them (a struct with `bytes`), the bytes of image files, or lists of
numbers. Error messages begin with "it", which means the file.
"""
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from alma_jax.data import labels as class_labels
from alma_jax.data import unpacking
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  import pyarrow as pa

_EXAMPLES = ("image", "img", "images", "x", "x_test")  # names of columns, in order of preference
_LABELS, _KIND_OF_LABEL = ("label", "labels", "y", "y_test", "class"), "_label"  # else the only one that ends like this


class Columns(NamedTuple):
  """Names of columns; empty: the known names."""
  image: str = ""
  label: str = ""


KNOWN = Columns()


class Rows(NamedTuple):
  """Some rows of a file.

  Attributes:
    first: number of the first row, from 0.
    cells: for each row the bytes of an image file, a list of numbers, or something that is not an example.
    numbers: the type of the numbers in lists, "u" (0 to 255), "i" (other whole numbers) or "f" (floats); "": no lists.
    labels: the label of each row, or None.
    label: name of the column of labels.
    names: names of the classes that labels count; None: the file declares none.
  """
  first: int
  cells: list[Any]
  numbers: str
  labels: list[Any] | None
  label: str
  names: tuple[str, ...] | None


def read(path: pathlib.Path, columns: Columns, labelled: bool, most: int | None = None) -> Iterator[Rows]:
  """Yields the rows of a file.

  Args:
    path: the file.
    columns: names of the columns.
    labelled: whether labels are read.
    most: the most rows to read at once.

  Raises:
    BadInput: it cannot be read, lacks a column, or has more rows than an entry of the stream may have.
  """
  try:
    import pyarrow as pa
    from pyarrow import parquet
  except ImportError as error:
    raise BadInput("Parquet files need a package that is missing; run `pip install pyarrow`.") from error
  try:
    with parquet.ParquetFile(path) as file:
      unpacking.check_contents(file.metadata.num_rows, 0)
      schema, label = file.schema_arrow, ""
      image = _found(schema.names, columns.image, _EXAMPLES, "image")
      if labelled:
        label = _found(schema.names, columns.label, _LABELS, "label")
      numbers, names, first = _kind(schema.field(image).type), class_labels.class_names(schema, label), 0
      for rows in unpacking.parquet_rows(file, [image, *([label] if label else [])], most):
        cells = [value.get("bytes") if isinstance(value, dict) else value for value in rows.column(image).to_pylist()]
        yield Rows(first, cells, numbers, rows.column(label).to_pylist() if label else None, label, names)
        first += len(cells)
  except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
    raise BadInput(f"it is not a readable Parquet file ({unpacking.first_line(error)}).") from error
  if not first:
    raise BadInput("it is empty; give at least one example.")


def _found(there: Sequence[str], chosen: str, known: Sequence[str], what: str) -> str:
  """The name of a column; `chosen` is the user's, and `what` is "image" or "label"."""
  programs = "`alma predict` and `alma evaluate`" if what == "image" else "`alma evaluate`"
  ways = f"choose it with dataset.{what}_column, or with --{what}_column in {programs}"
  if chosen or (found := next((name for name in known if name in there), None)) is None:
    candidates = [chosen] if chosen else [name for name in there if what == "label" and name.endswith(_KIND_OF_LABEL)]
    if len(candidates) > 1:
      raise BadInput(f"it has the columns {' and '.join(candidates)}, and any of them may be the label; {ways}.")
    if not candidates or candidates[0] not in there:
      wanted = repr(chosen) if chosen else " or ".join(known[:2])
      raise BadInput(f"it has no column {wanted}; its columns are {', '.join(there) or '(none)'}; {ways}.")
    return candidates[0]
  return found


def _kind(kind: "pa.DataType") -> str:
  """See Rows.numbers; `kind` is the type of the column of examples."""
  from pyarrow import types
  is_list = False
  while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
    kind, is_list = kind.value_type, True
  return "" if not is_list else "f" if types.is_floating(kind) else "u" if types.is_uint8(kind) else "i"
