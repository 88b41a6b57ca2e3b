"""Reads labels, and finds the class of a label by its number or its name. Imports nothing slow.

Two names are the same if they differ only in spaces at their ends or in their Unicode encoding. Two numbers are the
same if they differ only in leading zeros: files may write "00" one night and "0" the next. A class keeps its first
name. Names that differ only in case, in inner spaces, hyphens and underscores, or in characters without width are
different classes that resemble each other.
"""
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.errors import BadInput
from alma_jax.files import parse_json

_MOST = 2**20  # classes


class Labels(NamedTuple):
  """The labels of N examples, as their file has them.

  Attributes:
    numbers: int32 [N], numbers of classes from 0; if there are names, places in `names`.
    names: of the classes; None: the labels are numbers.
    declared: whether the file holds numbers, and declares the names that they count.
  """
  numbers: np.ndarray
  names: tuple[str, ...] | None = None
  declared: bool = False

  def by_name(self) -> tuple[np.ndarray, tuple[str, ...]]:
    """(int32 [N], the names whose places they are); the names are numbers if there are no others."""
    if self.names is not None:
      return self.numbers, self.names
    unique, places = np.unique(self.numbers, return_inverse=True)
    return places.astype(np.int32), tuple(map(str, unique.tolist()))

  def text(self) -> np.ndarray:
    """str [N], the name of the class of each example."""
    numbers, names = self.by_name()
    return np.array(names)[numbers]


class Classes(NamedTuple):
  """The classes of a predictor or of a stream.

  Attributes:
    owner: how messages refer to it.
    names: empty: the classes have none.
    num: K.
  """
  owner: str
  names: tuple[str, ...]
  num: int

  def number(self, labels: Labels, unknown: int | None = None) -> np.ndarray:
    """The numbers of the classes that labels mean, int32 [N]; `unknown` for a name of no class.

    Numbers count the classes from 0, unless a class is called by a number that is not its place. If both the data and
    the classes have names, the names decide.

    Raises:
      BadInput: there is no such class, and `unknown` is None. The message begins with "it".
    """
    names = self.names or tuple(map(str, range(self.num)))
    counts = not self.names if labels.declared else labels.names is None and not are_names(names)
    if counts or (labels.declared and labels.names == names):
      if len(labels.numbers) and labels.numbers.max() >= self.num:
        raise BadInput(f"it has the label {labels.numbers.max()}, but {self.owner} has {self.num} classes, 0 to "
                       f"{self.num - 1}.")
      return labels.numbers
    (numbers, meant), index = labels.by_name(), Index(names)
    places = [index.find(name) for name in meant]
    for i in np.unique(numbers):
      if places[i] is None and unknown is not None:
        places[i] = unknown
      if places[i] is None:
        raise BadInput(f"it has the class {meant[i]!r}, which {self.owner} does not know; its classes are "
                       f"{', '.join(self.names) or f'the numbers 0 to {self.num - 1}'}"
                       f"{_BY_NAME * are_names(names)}{index.advice(meant[i]) or '.'}")
    return np.array([place or 0 for place in places], np.int32)[numbers]  # no label means a class that is not there


_BY_NAME = "; give labels by these names, not by their places"


def read(y: Any, names: tuple[str, ...] | None = None) -> Labels:
  """Labels of a file.

  Args:
    y: [N], whole numbers from 0, or names.
    names: of the classes that numbers in `y` count; None: the file declares none.

  Raises:
    BadInput: they are neither. The message begins with "it".
  """
  if y.dtype.kind in "OT":
    are_text = {isinstance(label, str | bytes) for label in y.flat}
    if len(are_text) > 1:
      raise BadInput("it has labels that are names and others that are not; give only names or only numbers.")
    try:
      y = np.array(y.tolist())
    except ValueError as error:  # lists of different lengths
      raise BadInput("it has labels that are lists; labels are [N], one for each example.") from error
  if y.ndim != 1:
    raise BadInput(f"it has labels of shape {y.shape}; labels are [N], one for each example.")
  if not len(y):
    raise BadInput("it has no labels; give at least one labelled example.")
  if y.dtype.kind in "US":
    try:
      y = y.astype(str)
    except UnicodeDecodeError as error:
      raise BadInput("it has labels that are bytes but not ASCII; give strings.") from error
    unique, places = np.unique(y, return_inverse=True)
    first: dict[str, str] = {}  # a class keeps its first name
    classes = [first.setdefault(_same(name), normal(name)) for name in unique.tolist()]
    if "" in first:
      raise BadInput("it has examples with an empty label; name their class, or remove them.")
    different, index = np.unique(classes, return_inverse=True)
    return Labels(index[places].astype(np.int32), tuple(different.tolist()))
  if y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and not np.array_equal(y, np.trunc(y))):
    raise BadInput(f"it has {y.dtype} labels that are not whole numbers and not names; labels are names, or count "
                   "classes from 0.")
  if y.min() < 0:
    raise BadInput(f"it has the negative label {y.min()}; labels count classes from 0.")
  if y.max() >= _MOST:
    raise BadInput(f"it has the label {y.max()}, but labels count classes from 0 and should be below {_MOST}.")
  if names is not None and y.max() >= len(names):
    raise BadInput(f"it has the label {y.max():g}, but names only {len(names)} classes, 0 to {len(names) - 1}.")
  return Labels(y.astype(np.int32), names, names is not None)


def check_same(classes: Iterable[str], others: Iterable[str]) -> None:
  """Raises BadInput if the training part and the test part of a data set have other classes."""
  here, there = ({_same(name): name for name in names} for names in (classes, others))
  if odd := sorted((here | there)[same] for same in here.keys() ^ there.keys()):
    raise BadInput(f"it has the class {', '.join(odd[:5])} in only one of train and test; give both the same classes.")


def of_parts(train: Labels, test: Labels) -> tuple[Labels, Labels]:
  """The labels of the two parts of a data set, with the classes of the training part.

  Raises:
    BadInput: the test part has a class that the training part lacks, or one part has names and the other numbers. The
      message begins with "it".
  """
  if train.names is None and test.names is None:
    return train, test
  (numbers, names), (tested, others) = train.by_name(), test.by_name()
  index = Index(names)
  unknown = sorted(name for name in others if index.find(name) is None)
  if unknown and (train.names is None) != (test.names is None):
    raise BadInput(f"it has the training label {names[0]!r} and the test label {others[0]!r}, but labels are either "
                   "names or numbers; give both parts the same kind of labels.")
  if unknown:
    raise BadInput(f"it has the class {', '.join(unknown[:5])} only in its test part"
                   f"{index.advice(unknown[0]) or '; give every class training examples.'}")
  if others != names:  # of a data set that declares its names, two may be equal
    tested = np.array([index.find(name) for name in others], np.int32)[tested]
  return Labels(numbers, names, True), Labels(tested, names, True)


def joined(parts: Sequence[Labels]) -> Labels:
  """The labels of several files, in this order."""
  if len({part[1:] for part in parts}) == 1:
    return parts[0]._replace(numbers=np.concatenate([part.numbers for part in parts]))
  return read(np.concatenate([part.text() for part in parts]))


def are_names(names: Sequence[str]) -> bool:
  """Whether a number among the labels is the name of a class; else it is the place of the class in `names`, from 0.

  It is one if a class is called by a number that is not its place. A live stream without classes.txt numbers classes as
  they come: if its first labels are 5 and 3, these are the names of the classes 0 and 1.
  """
  return any(name.isdecimal() and name != str(place) for place, name in enumerate(names))


def normal(name: str) -> str:
  """A name without spaces at its ends, as composed characters (NFC)."""
  return unicodedata.normalize("NFC", name).strip("\ufeff").strip()


class Index:
  """Finds classes by their names."""

  def __init__(self, names: Iterable[str]):
    """`names` of the classes; if several are the same, the first counts."""
    self._places: dict[str, int] = {}
    self._looks: dict[str, str] = {}
    for place, name in enumerate(names):
      self._places.setdefault(_same(name), place)
      self._looks.setdefault(_look(name), name)

  def find(self, label: str) -> int | None:
    """The place of the class that a label names; None if there is no such class."""
    return self._places.get(_same(label))

  def advice(self, label: str) -> str:
    """The end of a sentence about a label that names no class: "did you mean" if one resembles it, else nothing."""
    found = self._looks.get(_look(label))
    return "" if found is None else f"; did you mean {found!r}?"


def alike(names: Sequence[str]) -> Iterator[tuple[str, str]]:
  """Yields the pairs of classes that are the same or resemble each other."""
  for look, group in itertools.groupby(sorted(names, key=_look), _look):
    del look
    first, *others = group
    yield from ((first, other) for other in others)


def _same(name: str) -> str:
  """A key that is equal for names that are the same."""
  name = normal(name)
  return name.lstrip("0") or "0" if name.isdecimal() and name.isascii() else name


def _look(name: str) -> str:
  """A key that is equal for names that resemble each other."""
  return re.sub(r"[\s_\u200b-\u200f-]+", " ", unicodedata.normalize("NFKC", _same(name)).casefold()).strip()


def class_names(schema: Any, label: str) -> tuple[str, ...] | None:
  """Names of the classes that a Hugging Face data set stores with its schema; None: it stores none."""
  stored = (schema.metadata or {}).get(b"huggingface")
  try:
    names = parse_json(stored)["info"]["features"][label]["names"] if stored else None
  except (ValueError, LookupError, TypeError):
    return None
  return tuple(map(str, names)) if isinstance(names, list) else None
