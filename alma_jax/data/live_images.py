"""The entries of a live stream of images: their checks, their classes, and the fixed test set beside them.

Classes are the lines of DIR/classes.txt. Labels that are numbers count its lines from 0; if a line is a number that is
not its own place, they are looked up in it. Without this file classes are found as they come: numbers and names of
labels are names of classes, and a class that occurs for the first time is the next one.
"""
import pathlib
import types
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.data import cache, entry_file, feed, folders, image_file, parquet_file
from alma_jax.data import labels as class_labels
from alma_jax.errors import BadInput

CLASSES, TEST = "classes.txt", "test"
_LEAST = 2  # examples of a mega-batch: one to train on, and one for validation
UNKNOWN = -1  # label of a test example whose class has not been found yet


class TestSet(NamedTuple):
  """The fixed test set.

  Attributes:
    x: [N, ...].
    names: of the class of each example.
  """
  x: np.ndarray
  names: np.ndarray


class ImageReader:
  """Reads entries of images; see feed.Reader.

  Attributes:
    declared: the classes of DIR/classes.txt; None: classes are found as they come.
    test: TestSet, or None.
  """
  notes: Mapping[str, type[Any]] = types.MappingProxyType(
      dict(num=int, example_shape=list, dtype=str, new_classes=list))

  def __init__(self, folder: pathlib.Path, image_size: int, seed: int,
               columns: parquet_file.Columns = parquet_file.KNOWN):
    """Reads DIR/classes.txt and DIR/test.

    Args:
      folder: DIR.
      image_size, seed: of the config.
      columns: of Parquet files.

    Raises:
      BadInput: one of them is there and cannot be used.
    """
    self._size, self._seed, self._columns = image_size, seed, columns
    self.declared = _read_classes(folder / CLASSES)
    self._counts = self.declared is not None and not class_labels.are_names(self.declared)  # numbers count lines
    self.test = self._read_test(folder)
    self._tested = None if self.test is None else frozenset(map(cache.hash_row, self.test.x))
    self._found: list[tuple[int, str]] = []  # (mega-batch, name) of the classes of the first `_num_read` of them
    self._num_read = 0
    self._padded = False  # whether a label differed from its class in leading zeros

  def read(self, path: pathlib.Path, lines: list[feed.Line]) -> feed.Read:
    """The arrays x and y of an entry, permuted; its notes are num, example_shape, dtype and new_classes."""
    found = entry_file.read(path, self._size, self._columns)
    shape, dtype, num = list(found.x.shape[1:]), str(found.x.dtype), len(found.x)
    expected = lines[0] if lines else self._of_test()
    if expected is not None and (shape, dtype) != (expected["example_shape"], expected["dtype"]):
      raise BadInput(f"its examples have shape {tuple(shape)} and dtype {dtype}, but those of the "
                     f"{'stream' if lines else 'test set'} have shape {tuple(expected['example_shape'])} and dtype "
                     f"{expected['dtype']}.")
    if not lines and found.too_small:  # the normalisation constants come from the first entry
      raise BadInput(found.too_small)
    if num < _LEAST:
      raise BadInput(f"it has {num} example; a mega-batch needs {_LEAST}, one of them for validation.")
    remarks = found.remarks + self._overlap(found.x)
    known = self.classes(lines)
    y, new = self._numbered(found, known)
    remarks += self._resemblances(found, new, known)
    order = keys.rng(self._seed, keys.STREAM, len(lines) + 1).permutation(num)
    notes = dict(num=num, example_shape=shape, dtype=dtype, new_classes=new)
    return feed.Read(dict(x=found.x[order], y=y[order]), notes, found.digest(), remarks)

  def classes(self, lines: list[feed.Line], num: int | None = None) -> list[str]:
    """Names of the classes that are known after the first `num` mega-batches of `lines`; None: after all."""
    num = len(lines) if num is None else num
    if self.declared is not None:
      return self.declared
    for t, line in enumerate(lines[self._num_read:num], self._num_read + 1):
      self._found += [(t, name) for name in line["new_classes"]]
    self._num_read = max(self._num_read, num)
    return [name for t, name in self._found if t <= num]

  def test_labels(self, classes: list[str]) -> np.ndarray:
    """int32 [N], the class numbers of the test examples; UNKNOWN if a class is not known yet."""
    assert self.test is not None
    index, place = class_labels.Index(classes), {name: i for i, name in enumerate(classes)}
    number = {name: place.get(index.find(name) or "", UNKNOWN) for name in {*self.test.names.tolist()}}
    return np.array([number[name] for name in self.test.names.tolist()], np.int32)

  def _numbered(self, found: entry_file.Labelled, known: list[str]) -> tuple[np.ndarray, list[str]]:
    """(int32 [N] class numbers, names of new classes)."""
    if found.names is None and self.declared is not None and self._counts:
      if found.y.max() >= len(known):
        raise BadInput(f"it has the label {found.y.max()}, but {CLASSES} declares {len(known)} classes.")
      return found.y, []
    names = [class_labels.normal(name) for name in _names_of(found)]
    index = class_labels.Index([*known, *([] if self.declared else names)])
    odd = [name for name in names if index.find(name) is None]
    if odd:
      raise BadInput(f"it has the class {odd[0]!r}, which {CLASSES} does not declare{index.advice(odd[0]) or '.'}")
    if known and self.declared is None:
      _refuse_other_kind(names, known)
    meant = [str(index.find(name)) for name in names]
    new = [name for name in dict.fromkeys(meant) if name not in set(known)]
    place = {name: i for i, name in enumerate([*known, *new])}
    numbers = np.array([place[name] for name in meant], np.int32)
    if found.names is None:
      return numbers[np.searchsorted(np.unique(found.y), found.y)], new
    return numbers[found.y], new

  def _resemblances(self, found: entry_file.Labelled, new: list[str], known: list[str]) -> tuple[str, ...]:
    """Sentences about labels with other leading zeros than their class, and about new classes that resemble others."""
    index = class_labels.Index([*known, *new])
    padded = [(label, index.find(label)) for label in map(class_labels.normal, _names_of(found))]
    padded = [(label, name) for label, name in padded if name not in (None, label)]
    said = () if self._padded or not padded else (
        f"the label {padded[0][0]!r} means the class {padded[0][1]!r}; leading zeros do not count",)
    self._padded = self._padded or bool(padded)
    pairs = [(a, b) for a, b in class_labels.alike([*known, *new]) if b in new]
    return said + tuple(
        f"the new class {b!r} resembles {a!r}; if they are one class, start a new run over entries that use one name "
        f"for it, or declare the classes in {CLASSES}" for a, b in pairs)

  def _overlap(self, x: np.ndarray) -> tuple[str, ...]:
    if self._tested is None:
      return ()
    num = sum(cache.hash_row(row) in self._tested for row in x)
    if num == len(x):
      raise BadInput("all its examples are also in the test set.")
    return (f"{num} of {len(x)} examples {'is' if num == 1 else 'are'} also in the test set, so its error is too low",
            ) if num else ()

  def _of_test(self) -> dict[str, Any] | None:
    if self.test is None:
      return None
    return dict(example_shape=list(self.test.x.shape[1:]), dtype=str(self.test.x.dtype))

  def _read_test(self, folder: pathlib.Path) -> TestSet | None:
    paths = [path for path in (folder / TEST, *(folder / f"{TEST}{suffix}" for suffix in (".npz", ".parquet")))
             if path.exists()]
    if len(paths) > 1:
      raise BadInput(f"there are both {str(paths[0])!r} and {str(paths[1])!r}; keep one test set.")
    if paths and paths[0].is_dir():
      inside = sorted(path for path in paths[0].iterdir() if path.suffix.lower() in (".npz", ".parquet"))
      if inside and any(folders.holds(path, image_file.suffixes()) for path in paths[0].iterdir()):
        raise BadInput(f"{str(paths[0])!r} holds both images and files such as {inside[0].name!r}; keep one kind.")
      paths = inside or paths
    parts = []
    for path in paths:
      try:
        parts.append(entry_file.read(path, self._size, self._columns))
      except BadInput as error:
        raise BadInput(f"the test set {str(path)!r} cannot be used: {error}") from error
      for remark in parts[-1].remarks:
        warnings.warn(remark, stacklevel=3)
    if not parts:
      return None
    if len({(part.x.shape[1:], part.x.dtype) for part in parts}) > 1:
      raise BadInput(f"the files of the test set in {str(folder / TEST)!r} hold examples of several shapes or dtypes; "
                     "they should be alike.")
    names = np.concatenate([self._test_names(part) for part in parts])
    return TestSet(np.concatenate([part.x for part in parts]), names)

  def _test_names(self, part: entry_file.Labelled) -> np.ndarray:
    if part.names is not None or self.declared is None or not self._counts:
      names = part.y.astype(str) if part.names is None else np.array([*map(class_labels.normal, part.names)])[part.y]
      index = class_labels.Index(names.tolist() if self.declared is None else self.declared)
      odd = sorted(name for name in {*names.tolist()} if index.find(name) is None)
      if odd:
        raise BadInput(f"the test set has the class {odd[0]!r}, which {CLASSES} does not declare"
                       f"{index.advice(odd[0]) or '.'}")
      return names
    if part.y.max() >= len(self.declared):
      raise BadInput(f"the test set has the label {part.y.max()}, but {CLASSES} declares {len(self.declared)} classes.")
    return np.array(self.declared)[part.y]


def _refuse_other_kind(names: list[str], known: list[str]) -> None:
  """Raises BadInput if one of two lists holds only numbers, and the other one none: all classes would be new."""
  numbers, others = ([name.isdecimal() for name in group] for group in (names, known))
  if all(numbers) != all(others) and not (any(numbers) and any(others)):
    what = ("numbers", "names") if all(numbers) else ("names", "numbers")
    raise BadInput(f"its labels are {what[0]}, such as {names[0]!r}, but those of the stream so far are {what[1]}, "
                   f"such as {known[0]!r}: each would be a new class. Label it as the stream is.")


def _names_of(found: entry_file.Labelled) -> list[str]:
  """Names of the classes of an entry; numbers in their order."""
  return [str(number) for number in np.unique(found.y)] if found.names is None else list(found.names)


def _read_classes(path: pathlib.Path) -> list[str] | None:
  if not path.exists():
    return None
  try:
    lines = path.read_text(encoding="utf-8-sig").splitlines()  # Windows begins a text file with a byte order mark
    names = [name for line in lines if (name := class_labels.normal(line))]
  except (OSError, UnicodeDecodeError) as error:
    raise BadInput(f"{str(path)!r} cannot be read ({error}); each of its lines should name a class.") from error
  index = class_labels.Index(names)
  twins = [(index.find(name), name) for name in names if index.find(name) != name]
  twins += [(name, name) for name in names if names.count(name) > 1]
  if len(names) < 2 or twins:
    what = f"names a class twice, {twins[0][0]!r} and {twins[0][1]!r}" if twins else f"names {len(names)} class"
    raise BadInput(f"{str(path)!r} {what}; it should hold the names of at least two classes, one in every line.")
  return names
