"""Reads one entry of a live stream of images: an .npz file of x and y, a folder of images by class, or a Parquet file.

A Parquet file has a column of images, as Hugging Face data sets store them, and a column of labels.
"""
import hashlib
import io
import pathlib
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import datasets, image_file, image_folder, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.errors import BadInput

_IMAGE, _LABEL = ("image", "img", "x"), ("label", "labels", "y", "class")  # names of columns, in order of preference
_COPIES, _CHARACTER = 2, 4  # of the pixels, when they become one array; bytes of a character in an array
_NOTHING = np.zeros((0, 0, 1), np.uint8)  # in the place of an image that cannot be read


class Labelled(NamedTuple):
  """Examples with labels.

  Attributes:
    x: uint8 or float32, [N, H, W, C] or [N, D].
    y: int32 [N], places in `names`, or class numbers if `names` is None.
    names: names of classes; None: the labels are numbers.
    remarks: what a user of the entry should know.
  """
  x: np.ndarray
  y: np.ndarray
  names: tuple[str, ...] | None
  remarks: tuple[str, ...] = ()

  def digest(self) -> str:
    """SHA-256 of the contents, the same whatever the format of the file and the order of the examples."""
    labels = self.y.astype(str) if self.names is None else np.array(self.names)[self.y]
    of_rows = sorted(hashlib.sha256(np.ascontiguousarray(x).data.tobytes() + label.encode()).digest()
                     for x, label in zip(self.x, labels.tolist()))
    return hashlib.sha256(f"{self.x.dtype} {self.x.shape}".encode() + b"".join(of_rows)).hexdigest()


def read(path: pathlib.Path, image_size: int = 0) -> Labelled:
  """Reads an entry.

  Args:
    path: a file or a folder.
    image_size: width and height in pixels to which images of folders and Parquet files are resized; 0: none are.

  Raises:
    BadInput: it cannot be read or used. The message is the reason, without the path.
  """
  try:
    if path.is_dir():
      return _read_folder(path, image_size)
    if path.suffix.lower() == ".npz":
      return _read_npz(path)
    if path.suffix.lower() == ".parquet":
      return _read_parquet(path, image_size)
  except OSError as error:
    raise BadInput(f"it cannot be read: {error.strerror or error}.") from error
  raise BadInput("it is no .npz file, no .parquet file and no folder of images by class.")


def _read_npz(path: pathlib.Path) -> Labelled:
  try:
    arrays, names = unpacking.read_npz(path, ("x", "y"))
  except BadInput as error:
    raise BadInput(f"it is not an .npz file of plain arrays ({error}).") from error
  missing = [key for key in ("x", "y") if key not in arrays]
  if missing:
    raise BadInput(f"it lacks the array {missing[0]}; it holds {', '.join(names) or 'nothing'}.")
  return _labelled(arrays["x"], arrays["y"])


def _read_folder(path: pathlib.Path, image_size: int) -> Labelled:
  arrays, names, remarks = image_folder.read_part(path, image_size)
  return Labelled(arrays["x_train"], arrays["y_train"], tuple(names), tuple(remarks))


def _read_parquet(path: pathlib.Path, image_size: int) -> Labelled:
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise BadInput("Parquet files need a package that is missing; run `pip install pyarrow`.") from error
  try:
    with parquet.ParquetFile(path) as file:
      schema = file.schema_arrow
      image, label = (_column(schema, names) for names in (_IMAGE, _LABEL))
      images, labels = _read_rows(file, image, label, image_size)
  except BadInput:
    raise
  except (pyarrow.ArrowException, OSError, ValueError) as error:
    raise BadInput(f"it is not a Parquet file ({unpacking.first_line(error)}).") from error
  if not images:
    raise BadInput("it is empty.")
  shapes = {pixels.shape[:2] for pixels in images}
  if len(shapes) > 1:
    raise BadInput(f"its images have {len(shapes)} sizes; set dataset.image_size=N to resize all to NxN.")
  if None in labels:
    raise BadInput(f"its column {label} has rows without a label.")
  return _labelled(image_folder.stacked(images), _label_array(labels, label), class_labels.class_names(schema, label))


def _read_rows(file: Any, image: str, label: str, image_size: int) -> tuple[list[np.ndarray], list[Any]]:
  """(pixels, labels) of the rows of a Parquet file."""
  images: list[np.ndarray] = []
  labels: list[Any] = []
  bad: list[str] = []
  num_bytes = 0
  for rows in unpacking.parquet_rows(file, [image, label]):
    for value in rows.column(image).to_pylist():
      try:
        images.append(_decode(value, image_size))
      except BadInput as error:
        images.append(_NOTHING)
        bad.append(f"image {len(images) - 1} ({error})")
      num_bytes += _COPIES * images[-1].nbytes
      unpacking.check(num_bytes)
    names = rows.column(label).to_pylist()
    num_bytes += sum(_CHARACTER * len(name) for name in names if isinstance(name, str))
    unpacking.check(num_bytes)
    labels += names
  if bad:
    raise BadInput(f"{len(bad)} of its images cannot be read, first {bad[0]}.")
  return images, labels


def _column(schema: Any, names: tuple[str, ...]) -> str:
  found = next((name for name in names if name in schema.names), None)
  if found is None:
    raise BadInput(f"it has no column {' or '.join(names[:2])}; its columns are {', '.join(schema.names)}.")
  return found


def _decode(value: Any, image_size: int) -> np.ndarray:
  """Pixels [H, W, 1 or 3] of a cell: a struct with `bytes`, the bytes themselves, or nested lists of pixels."""
  if isinstance(value, dict):
    value = value.get("bytes")
  if isinstance(value, bytes):
    return image_file.read(io.BytesIO(value), image_size).pixels
  if isinstance(value, list):
    try:
      pixels = np.array(value)
    except ValueError as error:
      raise BadInput("lists of several lengths") from error
    is_image = pixels.size and pixels.ndim in (2, 3) and pixels.dtype.kind in "iu"
    if is_image and pixels.min() >= 0 and pixels.max() <= 255:
      return pixels.astype(np.uint8).reshape(*pixels.shape[:2], -1)
  raise BadInput("a cell without the bytes of an image")


def _label_array(labels: list[Any], column: str) -> np.ndarray:
  """Labels [N], numbers or names."""
  if all(isinstance(each, str) for each in labels):
    unpacking.check(len(labels) * _CHARACTER * max(map(len, labels)), f"its column {column}")
  elif not all(isinstance(each, (int, float)) for each in labels):
    raise BadInput(f"its column {column} holds neither whole numbers nor names.")
  return np.array(labels)


def _labelled(x: np.ndarray, y: np.ndarray, names: tuple[str, ...] | None = None) -> Labelled:
  """Checks the arrays; `names` are those of the numbers in y, if they are known."""
  x = datasets.check_examples("x", x)
  if y.dtype.kind in "US" and y.ndim == 1:
    found, y = np.unique(y.astype(str), return_inverse=True)
    names = tuple(found.tolist())
  y = datasets.check_labels("y", y)
  if len(x) != len(y):
    raise BadInput(f"it has {len(x)} examples but {len(y)} labels.")
  if names is not None and y.max() >= len(names):
    raise BadInput(f"it has the label {y.max()}, but names of {len(names)} classes.")
  return Labelled(x, y, names)
