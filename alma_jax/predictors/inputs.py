"""Reads what a predictor is given: images, folders of images, arrays in .npz, Parquet files. Imports no jax."""
import io
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import folders, image_file, parquet_file, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.errors import BadInput

_X, _Y = ("x", "x_test"), ("y", "y_test")  # arrays of .npz files
_KINDS = "an image, a folder of images, an .npz file or a .parquet file"
_LABELLED = "a folder of images by class, an .npz file or a .parquet file"
_LARGEST = 2**53  # below it every whole float64 is exact
_BY_NAME = "; give labels by these names, not by their places"


class Form(NamedTuple):
  """What a predictor of images takes and answers, from its predictor.json.

  Attributes:
    shape, dtype: of one example.
    image_size: width and height to which image files are resized; 0: they are not resized.
    names: names of the classes; empty: they have none.
    classes: K.
  """
  shape: tuple[int, ...]
  dtype: np.dtype
  image_size: int
  names: tuple[str, ...]
  classes: int


class Batch(NamedTuple):
  """Examples that are predicted together.

  Attributes:
    source: the file or the array that each comes from.
    row: number of each in its source, from 0; -1 for an image file.
    x: [B, ...] of the predictor's shape and dtype.
    y: int [B], labels, or None.
  """
  source: list[str]
  row: list[int]
  x: np.ndarray
  y: np.ndarray | None = None


def form_of(facts: Mapping[str, Any]) -> Form:
  """The Form of a predictor, from the entries of its predictor.json."""
  return Form(tuple(facts["example_shape"]), np.dtype(facts["dtype"]), facts["image_size"],
              tuple(facts["class_names"] or ()), facts["classes"])


def read(paths: Sequence[str], form: Form, size: int, labelled: bool = False,
         columns: parquet_file.Columns = parquet_file.KNOWN) -> Iterator[Batch]:
  """Yields the examples of files in batches.

  Args:
    paths: images, folders of images, .npz files with an array `x`, .parquet files with a column of images.
    form: of the predictor.
    size: examples of a batch, at most.
    labelled: whether labels are read too: the folder of an image is its class, .npz files have `y`, .parquet files a
      column of labels.
    columns: of .parquet files.

  Raises:
    BadInput: a file does not exist, cannot be read, is empty, or does not fit the predictor.
  """
  images: list[tuple[pathlib.Path, int]] = []
  for name in paths:
    path = pathlib.Path(name).expanduser()
    suffix = path.suffix.lower()
    if path.is_dir():
      images += _labelled_images(path, form) if labelled else [(file, -1) for file in _image_files(path)]
    elif not path.is_file():
      raise BadInput(f"there is no file or folder {str(path)!r}; give {_LABELLED if labelled else _KINDS}.")
    elif suffix in image_file.suffixes() and not labelled:
      images.append((path, -1))
    elif suffix == ".npz":
      yield from _arrays(path, form, size, labelled)
    elif suffix == ".parquet":
      yield from _parquet(path, form, size, labelled, columns)
    else:
      raise BadInput(f"{str(path)!r} is of no kind that can be read here; give "
                     f"{_LABELLED if labelled else _KINDS}.")
  for start in range(0, len(images), size):
    part = images[start:start + size]
    x = np.stack([decoded(file, str(file), form) for file, _ in part])
    yield Batch([str(file) for file, _ in part], [-1] * len(part), x,
                np.array([label for _, label in part], np.int32) if labelled else None)


def count(paths: Sequence[str]) -> int | None:
  """The number of examples in files, for the progress; None if it is not known before they are read."""
  total = 0
  for path in map(pathlib.Path, paths):
    if path.suffix.lower() not in image_file.suffixes():
      return None
    total += 1
  return total


def decoded(file: pathlib.Path | io.BytesIO, name: str, form: Form, formats: tuple[str, ...] | None = None
            ) -> np.ndarray:
  """The pixels of one image file, of the predictor's shape and dtype.

  Args:
    file: the file, or its bytes.
    name: how messages refer to it.
    form: of the predictor.
    formats: see image_file.read.

  Raises:
    BadInput: it is no image, or of another size, or has colours that the predictor does not take.
  """
  if len(form.shape) != 3:
    raise BadInput(f"{name} is an image, but the predictor takes arrays of shape {list(form.shape)}; give an .npz or "
                   ".parquet file.")
  try:
    pixels = image_file.read(file, form.image_size, formats).pixels
  except BadInput as error:
    raise BadInput(f"{name} cannot be read ({error}); give an image of 8 bits a channel, or 16 bits grey.") from error
  if pixels.shape[-1] == 1 and form.shape[-1] == 3:
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
  if pixels.shape != form.shape:
    describe = lambda shape: f"{shape[1]}x{shape[0]} pixels with {shape[2]} channel{'s' * (shape[2] != 1)}"
    raise BadInput(f"{name} has {describe(pixels.shape)}, but the predictor takes {describe(form.shape)}; convert it.")
  if pixels.dtype != form.dtype and form.dtype != np.float32:
    raise BadInput(f"{name} has 16 bits a channel, but the predictor takes {form.dtype}; convert it to 8 bits.")
  return pixels.astype(form.dtype)


def like_examples(x: np.ndarray, what: str, form: Form) -> np.ndarray:
  """Arrays [N, ...] as the predictor takes them, N at least 1; grey images may lack their channel.

  Raises:
    BadInput: the shape or the dtype is another one, there are no examples, or a value is not finite.
  """
  x = np.asarray(x)
  if x.ndim == len(form.shape) and form.shape[-1] == 1 and x.shape[1:] == form.shape[:-1]:
    x = x[..., None]
  wanted = ", ".join(map(str, form.shape))
  if x.ndim != len(form.shape) + 1 or x.shape[1:] != form.shape:
    raise BadInput(f"{what} has shape {list(x.shape)}, but the predictor takes [N, {wanted}]; give such examples.")
  if not len(x):
    raise BadInput(f"{what} is empty; give at least one example.")
  if x.dtype != form.dtype:
    if form.dtype != np.float32 or x.dtype.kind not in "fiu":
      raise BadInput(f"{what} is {x.dtype}, but the predictor takes {form.dtype}; give raw, unnormalised examples.")
    x = x.astype(form.dtype)
  if x.dtype.kind == "f" and not np.isfinite(x).all():
    raise BadInput(f"{what} holds NaN or infinite values; replace or remove them.")
  return x


def check_labels(y: Any, what: str, form: Form, names: Sequence[str] | None = None) -> np.ndarray:
  """Labels as int32 [N], numbers of the predictor's classes.

  Args:
    y: names of classes, or whole numbers; see `labels.are_names`.
    what: how messages refer to them.
    form: of the predictor.
    names: of the classes of the data, of which numbers in y are the places, from 0; None: unknown. If the classes of
      the predictor have names, too, these decide.

  Raises:
    BadInput: a label is none of the predictor's classes.
  """
  y = np.asarray(y)
  if y.dtype.kind == "f" and (np.abs(y) < _LARGEST).all() and np.array_equal(y, np.trunc(y)):
    y = y.astype(np.int64)
  if y.dtype.kind in "iu" and y.ndim == 1 and names and form.names:
    odd_place = y[(y < 0) | (y >= len(names))]
    if len(odd_place):
      raise BadInput(f"{what} holds the label {odd_place[0]}, but names of {len(names)} classes, 0 to "
                     f"{len(names) - 1}.")
    if tuple(names) != form.names:
      y = np.array(names)[y]
  elif y.dtype.kind in "iu" and class_labels.are_names(form.names):
    y = y.astype(str)
  if y.dtype.kind in "UO" and y.ndim == 1 and len(y) and all(isinstance(name, str) for name in y.tolist()):
    index, place = class_labels.Index(form.names), {name: i for i, name in enumerate(form.names)}
    meant = {name: index.find(name) for name in {*y.tolist()}}
    odd = sorted(name for name, found in meant.items() if found is None)
    if odd:
      raise BadInput(f"{what} holds the class {odd[0]!r}, which the predictor does not know; its classes are "
                     f"{', '.join(form.names) or f'the numbers 0 to {form.classes - 1}'}"
                     f"{_BY_NAME * class_labels.are_names(form.names)}{index.advice(odd[0]) or '.'}")
    return np.array([place[str(meant[name])] for name in y.tolist()], np.int32)
  if y.ndim != 1 or y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and not np.array_equal(y, np.trunc(y))):
    raise BadInput(f"{what} should hold one whole number or one name for each example.")
  if len(y) and not (y.min() >= 0 and y.max() < form.classes):
    odd_number = y[(y < 0) | (y >= form.classes)][0]
    raise BadInput(f"{what} holds the label {odd_number:g}, but the predictor has {form.classes} classes, 0 to "
                   f"{form.classes - 1}.")
  return y.astype(np.int32)


def _image_files(folder: pathlib.Path) -> list[pathlib.Path]:
  found, others = folders.divided(folders.visible(folder), image_file.suffixes())
  if others:
    warnings.warn(folders.left_out(folder, others), stacklevel=2)
  if not found:
    raise BadInput(f"{str(folder)!r} holds no image; give images in a format that Pillow reads, such as PNG.")
  return found


def _labelled_images(folder: pathlib.Path, form: Form) -> list[tuple[pathlib.Path, int]]:
  """(file, label) of the images in folders by class, or in the folders of its test split."""
  parts = folders.splits(folder)
  if parts and folders.TEST not in parts:
    raise BadInput(f"{str(folder)!r} has the split {folders.listed(part.name for part in parts.values())}, but no test "
                   "split; name the folder that holds the folders of the classes.")
  root = parts.get(folders.TEST, folder)
  found = folders.by_class(root)
  for remark in found.remarks(root):
    warnings.warn(remark, stacklevel=2)
  if not found.classes:
    raise BadInput(f"{str(root)!r} holds no images in folders by class; give them as DIR/CLASS/*.png.")
  names = list(found.classes)
  numbered = not form.names and all(name.isdecimal() for name in names)
  labels = check_labels(np.array([int(name) for name in names] if numbered else names), f"{str(root)!r}", form)
  return [(file, int(label)) for label, files in zip(labels, found.classes.values()) for file in files]


def _arrays(path: pathlib.Path, form: Form, size: int, labelled: bool) -> Iterator[Batch]:
  try:
    arrays, names = unpacking.read_npz(path, (*_X, *(_Y if labelled else ())))
  except BadInput as error:
    raise BadInput(f"{str(path)!r} is not an .npz file of plain arrays: {error}; write it by np.savez with arrays of "
                   "numbers.") from error
  x, y = (next((arrays[name] for name in known if name in arrays), None) for known in (_X, _Y))
  if x is None or (labelled and y is None):
    raise BadInput(f"{str(path)!r} holds {', '.join(names) or 'nothing'}; give an array x [N, ...]"
                   f"{', and labels y [N]' if labelled else ''}.")
  x = like_examples(x, f"x of {str(path)!r}", form)
  if y is not None:
    y = check_labels(y, f"y of {str(path)!r}", form)
    if len(x) != len(y):
      raise BadInput(f"{str(path)!r} has {len(x)} examples but {len(y)} labels; give one label for each.")
  for start in range(0, len(x), size):
    here = slice(start, min(start + size, len(x)))
    yield Batch([str(path)] * (here.stop - start), list(range(start, here.stop)), x[here],
                None if y is None else y[here])


def _parquet(path: pathlib.Path, form: Form, size: int, labelled: bool, columns: parquet_file.Columns
             ) -> Iterator[Batch]:
  rows = parquet_file.read(path, columns, labelled, size)
  while (part := _next(rows, path)) is not None:
    numbers = range(part.first, part.first + len(part.cells))
    x = np.stack([_example(cell, f"row {i} of {str(path)!r}", form) for i, cell in zip(numbers, part.cells)])
    y = None if part.labels is None else check_labels(
        np.array(part.labels), f"the column {part.label} of {str(path)!r}", form, part.names)
    yield Batch([str(path)] * len(x), list(numbers), x, y)


def _next(rows: Iterator[parquet_file.Rows], path: pathlib.Path) -> parquet_file.Rows | None:
  try:
    return next(rows, None)
  except BadInput as error:
    raise BadInput(f"{str(path)!r} cannot be used: {error}") from error


def _example(cell: Any, what: str, form: Form) -> np.ndarray:
  """The example in a cell of a Parquet file; see parquet_file.Rows."""
  if isinstance(cell, bytes):
    return decoded(io.BytesIO(cell), what, form)
  if not isinstance(cell, list):
    raise BadInput(f"{what} holds no image; give the bytes of an image file, or a list of numbers.")
  try:
    found = np.array(cell, np.float32 if form.dtype == np.float32 else np.int64)
  except (ValueError, TypeError) as error:
    raise BadInput(f"{what} is no array of numbers; give one of shape {list(form.shape)}.") from error
  if form.dtype == np.uint8 and found.size and (found.min() < 0 or found.max() > 255):
    raise BadInput(f"{what} holds values outside of 0 to 255, but the predictor takes {form.dtype}.")
  if found.size == np.prod(form.shape) and found.ndim == 1:
    found = found.reshape(form.shape)
  return like_examples(found.astype(form.dtype)[None], what, form)[0]
