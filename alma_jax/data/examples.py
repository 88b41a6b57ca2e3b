"""Reads examples with or without labels from files and folders, by the same rules for every command. Imports no jax.

  path              examples                                    labels
  FILE.npz          the array image, img, images or x           the array label, labels, y or class
  FILE.parquet      the column of such a name: images as        the column of such a name, whose numbers may count names
                    Hugging Face data sets store them, bytes    that the file declares, as files of Hugging Face do
                    of image files, or lists of numbers
  images by class   DIR/CLASS/*.png; deeper at one depth        CLASS
  a folder          its .npz and .parquet files, by name        from the same files
  FILE.png, ...     the image                                   none, so only for `alma predict`

The first of these names counts. If no such name has the labels, the only name that ends in "_label" does.
A file with the arrays or columns x_train, y_train, x_test and y_test has two parts, and so does a folder with the
folders DIR/train and DIR/test. Training reads both parts. `alma predict`, `alma evaluate` and the test set of a live
stream read the test part. A mega-batch of a live stream may not have parts.

Examples are uint8 or float32, [N, H, W, C] or [N, D]. Floats become float32. Whole numbers that are not uint8 become
uint8 in images and float32 in rows [N, D]. Later examples (for a predictor, from later mega-batches, or from the test
set) are converted to the form of the first ones if nothing is lost: flat rows of the right length become images, grey
image files become colour, and whole numbers become float32. Labels are whole numbers from 0, or names of classes.
"""
import contextlib
import dataclasses
import functools
import io
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax import extras
from alma_jax.data import folders, image_file, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.data.form import Form
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  import pyarrow as pa
  from pyarrow import parquet as pq

TRAIN, TEST = folders.TRAIN, folders.TEST
_EXAMPLES, _LABELS = ("image", "img", "images", "x"), ("label", "labels", "y", "class")  # the first one counts
_KIND_OF_LABEL = "_label"
_TABLES = (".npz", ".parquet")
_MOST_NAMES = 10  # names that a message lists
_COPIES, _CHARACTER = 2, 4  # of the examples, when they become one array; bytes of a character in an array


class Examples(NamedTuple):
  """N examples.

  Attributes:
    source: the file of each example.
    row: number of each example in its file, from 0; -1 for an image file.
    x: [N, ...]; see Form.fit.
    labels: of the examples; None: not read.
    remarks: warnings about the file or folder.
    decoded: (number of images with transparent parts, number with several frames).
  """
  source: list[str]
  row: list[int]
  x: np.ndarray
  labels: class_labels.Labels | None = None
  remarks: tuple[str, ...] = ()
  decoded: tuple[int, int] = (0, 0)


class _Cell(NamedTuple):
  """An example of a folder or of a Parquet file, before it is decoded.

  Attributes:
    source, row: see Examples.
    name: how messages refer to it.
    decode: () -> the example; raises BadInput if it is none.
    label: a number or a name; None: there is none.
  """
  source: str
  row: int
  name: str
  decode: Callable[[], image_file.Decoded]
  label: Any = None


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
  """Says which file a message is about."""
  try:
    yield
  except BadInput as error:
    raise BadInput(f"{what} cannot be used: {error}") from error


@contextlib.contextmanager
def _instead_of_it(array: str) -> Iterator[None]:
  """Names the array that a message, which begins with "it", is about."""
  try:
    yield
  except BadInput as error:
    raise BadInput(f"{array}{str(error).removeprefix('it')}") from error


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads files and folders; see above.

  Attributes:
    form: of the examples.
    labelled: whether to read labels as well.
    part: TRAIN or TEST, the part to read from a file or folder with parts; "": parts are not allowed.
    image_column, label_column: columns or arrays; empty: the first of the usual names.
    classes: the classes whose numbers the labels become; None: labels stay as they are in the file.
  """
  form: Form = Form()
  labelled: bool = True
  part: str = ""
  image_column: str = ""
  label_column: str = ""
  classes: class_labels.Classes | None = None

  def whole(self, path: pathlib.Path) -> Examples:
    """All examples of a file or folder; see `batches`."""
    parts = [*self.batches(path)]
    if len(parts) == 1:
      return parts[0]._replace(remarks=(*parts[0].remarks, *image_remarks(path, parts[0].decoded)))
    if len({(part.x.shape[1:], part.x.dtype) for part in parts}) > 1:
      raise BadInput("it holds files with examples of several shapes or dtypes; give all files the same.")
    unpacking.check_contents(sum(len(part.x) for part in parts), sum(part.x.nbytes for part in parts), _COPIES)
    return Examples([source for part in parts for source in part.source], [row for part in parts for row in part.row],
                    np.concatenate([part.x for part in parts]),
                    class_labels.joined([part.labels for part in parts if part.labels]) if self.labelled else None)

  def batches(self, path: pathlib.Path, size: int | None = None) -> Iterator[Examples]:
    """Yields the examples of a file or folder.

    Args:
      path: the file or folder.
      size: examples of a batch, at most; None: each file, and all images of a folder, are one batch.

    Raises:
      BadInput: they cannot be read or used. The message begins with "it", which is `path`, or names a file in it.
    """
    kind = path.suffix.lower()
    try:
      if not path.exists():
        raise BadInput(f"there is no such file or folder; give {self._kinds()}.")
      if path.is_dir():
        yield from self._folder(path, size)
      elif kind == ".npz":
        yield from self._arrays(path, size)
      elif kind == ".parquet":
        yield from self._rows(path, size)
      elif kind in image_file.suffixes() and not self.labelled:
        yield from self.images([path], size=size)
      else:
        raise BadInput(f"it is of a kind that cannot be read here; give {self._kinds()}.")
    except OSError as error:
      raise BadInput(f"it cannot be read: {error.strerror or error}.") from error

  def _kinds(self) -> str:
    return "an .npz or .parquet file, or a folder of " + ("images by class" if self.labelled else "images, or an image")

  def images(self, files: Sequence[pathlib.Path], root: pathlib.Path | None = None, size: int | None = None,
             classes: Sequence[str] = ()) -> Iterator[Examples]:
    """Yields image files; see `batches`.

    Args:
      files: the image files.
      root: a folder above all of them, which messages leave out; None: messages give whole paths.
      size: of a batch.
      classes: the class of each file; empty: the files have no labels.
    """
    yield from self._batches((
        _Cell(str(file), -1, file.relative_to(root).as_posix() if root else str(file),
              functools.partial(image_file.read, file, self.form.image_size), label)
        for file, label in itertools.zip_longest(files, classes)), size)

  def image(self, content: bytes, formats: tuple[str, ...]) -> np.ndarray:
    """One example [1, ...] from the bytes of an image file; `formats`: see image_file.read."""
    decode = lambda: image_file.read(io.BytesIO(content), self.form.image_size, formats)
    (examples,) = self._batches([_Cell("", -1, "the image", decode)])
    return examples.x

  def _folder(self, folder: pathlib.Path, size: int | None) -> Iterator[Examples]:
    folder = self._part_of(folder)
    tables = tables_of(folder)
    for path in tables:
      with named(repr(path.name)):
        yield from self.batches(path, size)
    if tables:
      return
    if self.labelled:
      classes = folders.by_class(folder)
      if not classes.classes:
        raise BadInput("it holds no images in folders by class; give them as CLASS/*.png.")
      files, names = classes.pairs()
      remarks = folders.remarks(folder, [classes])
    else:
      files, others = folders.divided(folders.visible(folder), image_file.suffixes())
      if not files:
        raise BadInput("it holds no image; give images in a format that Pillow reads, such as PNG.")
      names, remarks = [], [folders.left_out(folder, others)] if others else []
    unpacking.check_contents(len(files), 0)
    for examples in self.images(files, folder, size, names):
      yield examples._replace(remarks=tuple(remarks))
      remarks = []

  def _part_of(self, folder: pathlib.Path) -> pathlib.Path:
    parts = folders.splits(folder) if self.part else {}
    if not self.labelled and not any(map(tables_of, parts.values())):
      return folder  # all images below it
    if parts and self.part not in parts:
      raise BadInput(f"it has the folder {folders.listed(part.name for part in parts.values())}, but no folder "
                     f"{self.part}; name the folder that holds the folders of the classes.")
    return parts.get(self.part, folder)

  def _arrays(self, path: pathlib.Path, size: int | None) -> Iterator[Examples]:
    arrays = unpacking.read_npz(path, lambda names: self.chosen(names, "array"))
    x, *_, y = [*arrays] * 2  # the same one if no labels are read
    whole = self._checked(arrays[x], arrays[y] if self.labelled else None, called=(x, y))
    every = range(len(whole.x))
    for start in every[::size or len(every)]:
      some = slice(start, start + (size or len(every)))
      labels = whole.labels and whole.labels._replace(numbers=whole.labels.numbers[some])
      yield Examples([str(path)] * len(every[some]), list(every[some]), whole.x[some], labels)

  def _checked(self, x: np.ndarray, y: np.ndarray | None = None, names: tuple[str, ...] | None = None,
               called: tuple[str, str] = ("it", "it")) -> Examples:
    """Examples of raw arrays, without their sources; `names`: see labels.read; `called`: x and y in messages."""
    with _instead_of_it(called[0]):
      shaped = self.form.fit(x)
    with _instead_of_it(called[1]):
      labels = None if y is None else class_labels.read(y, names)
    if labels and len(x) != len(labels.numbers):
      raise BadInput(f"it has {len(x)} examples but {len(labels.numbers)} labels; give one label for each example.")
    if labels and self.classes:
      labels = class_labels.Labels(self.classes.number(labels))
    return Examples([], [], shaped, labels)

  def chosen(self, names: Sequence[str], kind: str) -> list[str]:
    """The names of the array or column of examples and, if labels are read, of labels; `kind` is what it is."""
    if self.part and has_parts(names):
      chosen = [self.image_column or f"x_{self.part}", self.label_column or f"y_{self.part}"][:1 + self.labelled]
      missing = [name for name in chosen if name not in names]
      if missing:
        raise BadInput(f"it has no {kind} {missing[0]}; its {kind}s are {', '.join(names)}.")
      return chosen
    if has_parts(names) and not self.image_column and not {*names} & {*_EXAMPLES}:
      raise BadInput(f"it has a training or a test part ({', '.join(names)}), which cannot be read here; give one "
                     "part, as x and y.")
    image = _chosen(names, self.image_column, _EXAMPLES, "image", kind)
    return [image, _chosen(names, self.label_column, _LABELS, "label", kind)] if self.labelled else [image]

  def _rows(self, path: pathlib.Path, size: int | None) -> Iterator[Examples]:
    """Yields the rows of a Parquet file."""
    pa, parquet = (extras.load(name, "it") for name in ("pyarrow", "pyarrow.parquet"))
    try:
      with parquet.ParquetFile(path) as file:
        unpacking.check_contents(file.metadata.num_rows, 0)
        if not file.metadata.num_rows:
          raise BadInput("it is empty; give at least one example.")
        columns = self.chosen(file.schema_arrow.names, "column")
        names = class_labels.class_names(file.schema_arrow, columns[1]) if self.labelled else None
        yield from self._batches(self._cells(path, file, columns, size), size, names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
      raise BadInput(f"it is not a readable Parquet file ({unpacking.first_line(error)}).") from error

  def _cells(self, path: pathlib.Path, file: "pq.ParquetFile", columns: list[str], size: int | None) -> Iterator[_Cell]:
    numbers, at_once = itertools.count(), unpacking.rows_at_once(file.metadata, size)
    dtype = _dtype(file.schema_arrow.field(columns[0]).type)
    for rows in file.iter_batches(at_once, columns=columns, use_threads=False):
      unpacking.check(rows.nbytes)
      labels = rows.column(columns[1]).to_pylist() if self.labelled else [None] * rows.num_rows
      for row, cell, label in zip(numbers, rows.column(columns[0]).to_pylist(), labels):
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        decode = functools.partial(_decode, content, self.form.image_size, dtype)
        yield _Cell(str(path), row, f"row {row}", decode, label)

  def _batches(self, cells: Iterable[_Cell], size: int | None = None, names: tuple[str, ...] | None = None
               ) -> Iterator[Examples]:
    """Yields cells in batches; `names`: see labels.read."""
    cells = iter(cells)
    while batch := list(_decoded(itertools.islice(cells, size))):
      x = _joined([(cell.name, image.pixels) for cell, image in batch])
      y = _stacked([cell.label for cell, _ in batch]) if self.labelled else None
      yield self._checked(x, y, names)._replace(
          source=[cell.source for cell, _ in batch], row=[cell.row for cell, _ in batch],
          decoded=(sum(image.had_transparency for _, image in batch), sum(image.has_frames for _, image in batch)))


def of_arrays(name: str, x: np.ndarray, labels: class_labels.Labels, files: Sequence[str] = (),
              rows: Sequence[int] = ()) -> Examples:
  """Examples of a data set called `name`, in these rows, by default from 0; or each from a file of its own."""
  return Examples(list(files) or [name] * len(x), [-1] * len(x) if files else [*(rows or range(len(x)))], x, labels)


def has_parts(names: Sequence[str]) -> bool:
  """Whether a file with arrays or columns of these names has the parts train and test."""
  return bool({"x_train", "x_test"} & {*names})


def tables_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """The .npz and .parquet files that lie in a folder.

  Raises:
    BadInput: the folder holds both such files and images.
  """
  tables = sorted(path for path in folder.iterdir() if not path.is_dir() and folders.holds(path, _TABLES))
  if tables and any(folders.holds(path, image_file.suffixes()) for path in folder.iterdir()):
    raise BadInput(f"it holds both images and files such as {tables[0].name!r}; keep only one kind.")
  return tables


def image_remarks(folder: pathlib.Path, decoded: Sequence[int]) -> list[str]:
  """Warnings about decoded images; see Examples.decoded."""
  what = ("transparent parts, which become white", "several frames or pages, and only the first is read")
  return [f"{num} of the images of {str(folder)!r} {'has' if num == 1 else 'have'} {each}"
          for num, each in zip(decoded, what) if num]


def _decoded(cells: Iterable[_Cell]) -> Iterator[tuple[_Cell, image_file.Decoded]]:
  """Yields the cells, without their contents, and what they decode to; the error after them names all that cannot be.
  """
  bad, num_bytes = [], 0
  for cell in cells:
    try:
      image = cell.decode()
    except BadInput as error:
      bad.append(f"{cell.name} ({str(error).rstrip('.')})")
      continue
    num_bytes += image.pixels.nbytes + (_CHARACTER * len(cell.label) if isinstance(cell.label, str) else 0)
    unpacking.check_contents(0, num_bytes, _COPIES)
    yield cell._replace(decode=functools.partial(image_file.Decoded, *image)), image
  if bad:
    more = f" and {len(bad) - _MOST_NAMES} more" if len(bad) > _MOST_NAMES else ""
    raise BadInput(f"it has {len(bad)} example{'s' * (len(bad) > 1)} that cannot be read, "
                   f"{', '.join(bad[:_MOST_NAMES])}{more}; repair, convert (images to 8 bits a channel) or remove "
                   f"{'them' if len(bad) > 1 else 'it'}.")


def _decode(content: Any, image_size: int, dtype: type[Any]) -> image_file.Decoded:
  """The pixels of an image, from the bytes of its file, or the numbers [D] or [H, W, C] of a list."""
  if isinstance(content, bytes):
    return image_file.read(io.BytesIO(content), image_size)
  try:
    array = np.array(content if isinstance(content, list) else [], dtype)
  except (ValueError, TypeError, OverflowError) as error:
    raise BadInput("lists of different lengths, or of something other than numbers") from error
  if not array.size or array.ndim > 3:
    raise BadInput("neither an image nor numbers")
  if array.ndim > 1 and array.dtype == np.int64 and array.min() >= 0 and array.max() <= 255:
    array = array.astype(np.uint8)  # pixels, which take less memory
  return image_file.Decoded(array[..., None] if array.ndim == 2 else array, False, False)


def _joined(images: list[tuple[str, np.ndarray]]) -> np.ndarray:
  """Images or rows of numbers with their names as one array; grey ones beside others become colour."""
  sizes: dict[tuple[int, ...], str] = {}  # {size: name of the first example that has it}
  for name, array in images:
    sizes.setdefault(array.shape[:2], name)
  if len(sizes) > 1:
    (size, name), (other, another) = list(sizes.items())[:2]
    raise BadInput(f"it has examples of several sizes: {name!r} has {_pixels(size)}, {another!r} {_pixels(other)}; "
                   "give one size, or set dataset.image_size=N for the run to resize all images to NxN.")
  channels = {array.shape[2:] for _, array in images}
  if len(channels - {(1,)}) > 1:
    raise BadInput(f"it has examples of {' and '.join(str(num) for num, in sorted(channels - {(1,)}))} channels; give "
                   "one number of them.")
  shape = next(iter(sizes)) + max(channels)
  return np.stack([array if array.shape == shape else np.broadcast_to(array, shape) for _, array in images])


def _stacked(labels: list[Any]) -> np.ndarray:
  """Labels [N], numbers or names."""
  if None in labels:
    raise BadInput("it has examples without a label; label them, or remove them.")
  if not all(isinstance(label, (int, float, str)) for label in labels):
    raise BadInput("it has labels that are neither whole numbers nor names; give one or the other.")
  unpacking.check(_CHARACTER * len(labels) * max(len(str(label)) for label in labels))
  return np.array(labels)


def _dtype(kind: "pa.DataType") -> type[Any]:
  """The dtype of the numbers in a column of lists."""
  from pyarrow import types
  while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
    kind = kind.value_type
  return (np.uint8 if types.is_uint8(kind) else np.float32 if types.is_float32(kind) else
          np.float64 if types.is_floating(kind) else np.int64)


def _chosen(names: Sequence[str], chosen: str, usual: Sequence[str], what: str, kind: str) -> str:
  """The name of an array or column; `chosen` is the user's, `usual` are the usual ones, the first one counts."""
  candidates = [chosen] if chosen else [name for name in usual if name in names][:1]
  if not candidates and what == "label":
    candidates = [name for name in names if name.endswith(_KIND_OF_LABEL)]
  commands = "`alma evaluate`" if what == "label" else "`alma predict` and `alma evaluate`"
  ways = f"choose it with dataset.{what}_column, or with --{what}_column in {commands}"
  if len(candidates) > 1:
    raise BadInput(f"it has the {kind}s {' and '.join(candidates)}, and any of them may be the label; {ways}.")
  if not candidates or candidates[0] not in names:
    wanted = repr(chosen) if chosen else f"{', '.join(usual[:-1])} or {usual[-1]}"
    raise BadInput(f"it has no {kind} {wanted}; its {kind}s are {', '.join(names) or '(none)'}; {ways}.")
  return candidates[0]


def _pixels(size: tuple[int, ...]) -> str:
  return f"{size[1]}x{size[0]} pixels" if len(size) == 2 else f"{size[0]} numbers"
