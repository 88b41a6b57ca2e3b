"""Reads one entry of a live stream of images: an .npz file of x and y, a folder of images by class, or a Parquet file.

A Parquet file has a column of images or of lists of numbers, and a column of labels; see parquet_file.py.
"""
import hashlib
import io
import pathlib
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import datasets, image_file, image_folder, parquet_file, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.errors import BadInput

_COPIES, _CHARACTER = 2, 4  # of the pixels, when they become one array; bytes of a character in an array
_NOTHING = np.zeros((0, 0, 1), np.uint8)  # in the place of an image that cannot be read


class Labelled(NamedTuple):
  """Examples with labels.

  Attributes:
    x: uint8 or float32, [N, H, W, C] or [N, D].
    y: int32 [N], places in `names`, or class numbers if `names` is None.
    names: names of classes; None: the labels are numbers.
    remarks: what a user should know about the entry.
    too_small: why no normalisation constants can be made of x; None: they can.
  """
  x: np.ndarray
  y: np.ndarray
  names: tuple[str, ...] | None
  remarks: tuple[str, ...] = ()
  too_small: str | None = None

  def digest(self) -> str:
    """SHA-256 of the contents, the same whatever the format of the file and the order of the examples."""
    labels = self.y.astype(str) if self.names is None else np.array(self.names)[self.y]
    of_rows = sorted(hashlib.sha256(np.ascontiguousarray(x).data.tobytes() + label.encode()).digest()
                     for x, label in zip(self.x, labels.tolist()))
    return hashlib.sha256(f"{self.x.dtype} {self.x.shape}".encode() + b"".join(of_rows)).hexdigest()


def read(path: pathlib.Path, image_size: int = 0, columns: parquet_file.Columns = parquet_file.KNOWN) -> Labelled:
  """Reads an entry.

  Args:
    path: a file or a folder.
    image_size: width and height in pixels to which images of folders and Parquet files are resized; 0: none are.
    columns: names of the columns of Parquet files.

  Raises:
    BadInput: it cannot be read or used. The message is the reason, without the path.
  """
  try:
    if path.is_dir():
      return _read_folder(path, image_size)
    if path.suffix.lower() == ".npz":
      return _read_npz(path)
    if path.suffix.lower() == ".parquet":
      return _read_parquet(path, image_size, columns)
  except unpacking.TooMuch as error:
    raise BadInput(f"{error}.") from error
  except OSError as error:
    raise BadInput(f"it cannot be read: {error.strerror or error}.") from error
  raise BadInput("it is no .npz file, no .parquet file and no folder of images by class.")


def _read_npz(path: pathlib.Path) -> Labelled:
  try:
    arrays, names = unpacking.read_npz(path, ("x", "y"))
  except unpacking.TooMuch:
    raise
  except BadInput as error:
    raise BadInput(f"it is not an .npz file of plain arrays ({error}).") from error
  missing = [key for key in ("x", "y") if key not in arrays]
  if missing:
    raise BadInput(f"it lacks the array {missing[0]}; it holds {', '.join(names) or 'nothing'}.")
  return _labelled(arrays["x"], arrays["y"])


def _read_folder(path: pathlib.Path, image_size: int) -> Labelled:
  arrays, names, remarks = image_folder.read_part(path, image_size)
  return Labelled(arrays["x_train"], arrays["y_train"], tuple(names), tuple(remarks))


def _read_parquet(path: pathlib.Path, image_size: int, columns: parquet_file.Columns) -> Labelled:
  images: list[np.ndarray] = []
  labels: list[Any] = []
  bad: list[str] = []
  num_bytes, label, names = 0, "", None
  for rows in parquet_file.read(path, columns, labelled=True):
    label, names = rows.label, rows.names
    for i, cell in enumerate(rows.cells, rows.first):
      try:
        images.append(_decode(cell, rows.numbers, image_size))
      except BadInput as error:
        images.append(_NOTHING)
        bad.append(f"{i} ({error})")
      num_bytes += images[-1].nbytes
      unpacking.check_contents(0, num_bytes, _COPIES)
    num_bytes += sum(_CHARACTER * len(name) for name in rows.labels or () if isinstance(name, str))
    unpacking.check_contents(0, num_bytes, _COPIES)
    labels += rows.labels or []
  if bad:
    raise BadInput(f"{len(bad)} of its examples cannot be read, the first is row {bad[0]}.")
  shapes, is_flat = {array.shape[:2] for array in images}, images[0].ndim == 1
  if len(shapes) > 1:
    raise BadInput(f"its lists have {len(shapes)} different lengths; make them equally long." if is_flat else
                   f"its images have {len(shapes)} sizes; set dataset.image_size=N to resize all to NxN.")
  if None in labels:
    raise BadInput(f"its column {label} has rows without a label.")
  return _labelled(np.stack(images) if is_flat else image_folder.stacked(images), _label_array(labels, label), names)


def _decode(cell: Any, numbers: str, image_size: int) -> np.ndarray:
  """An example of a Parquet file, pixels [H, W, 1 or 3] or numbers [D]; see parquet_file.Rows."""
  if isinstance(cell, bytes):
    return image_file.read(io.BytesIO(cell), image_size).pixels
  try:
    found = np.array(cell if isinstance(cell, list) else [])
  except ValueError as error:
    raise BadInput("lists of different lengths") from error
  if not found.size or found.ndim > 3 or found.dtype.kind not in "iuf":
    raise BadInput("a cell with neither an image nor numbers")
  if numbers == "f" or (numbers == "i" and found.ndim == 1):  # a list of whole numbers is not a row of pixels
    found = found.astype(np.float32)
  elif found.min() < 0 or found.max() > 255:
    raise BadInput("numbers outside 0 to 255, which cannot be pixels")
  else:
    found = found.astype(np.uint8)
  return found if found.ndim == 1 else found.reshape(*found.shape[:2], -1)


def _label_array(labels: list[Any], column: str) -> np.ndarray:
  """Labels [N], numbers or names."""
  if all(isinstance(each, str) for each in labels):
    unpacking.check(len(labels) * _CHARACTER * max(map(len, labels)), f"its column {column}")
  elif not all(isinstance(each, (int, float)) for each in labels):
    raise BadInput(f"its column {column} holds neither whole numbers nor names.")
  return np.array(labels)


def _labelled(raw: np.ndarray, y: np.ndarray, names: tuple[str, ...] | None = None) -> Labelled:
  """Checks the arrays; `names` are those of the numbers in y, if they are known."""
  x = datasets.check_examples("x", raw)
  if y.dtype.kind in "US" and y.ndim == 1:
    found, y = np.unique(y.astype(str), return_inverse=True)
    names = tuple(found.tolist())
    if not all(map(class_labels.normal, names)):
      raise BadInput("it has examples with an empty label; name their class, or leave them out.")
  y = datasets.check_labels("y", y)
  if len(x) != len(y):
    raise BadInput(f"it has {len(x)} examples but {len(y)} labels.")
  if names is not None and y.max() >= len(names):
    raise BadInput(f"it has the label {y.max()}, but names of {len(names)} classes.")
  return Labelled(x, y, names, too_small=datasets.too_small("x", raw))
