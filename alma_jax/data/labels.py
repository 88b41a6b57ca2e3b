"""Finds the class that a label means, by its number or by its name. Imports nothing slow.

Names are the same if they differ only in spaces at their ends or in their Unicode encoding. Numbers are the same if
they differ only in leading zeros, such as "00" and "0": files may have one in one night and the other in the next. A
class keeps the name that came first. Names that differ only in case, or in spaces, hyphens and underscores inside, are
different classes that resemble each other; so are names that differ in characters without width.
"""
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from alma_jax.files import parse_json


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
    self._names: dict[str, str] = {}
    self._looks: dict[str, str] = {}
    for name in names:
      self._names.setdefault(_same(name), name)
      self._looks.setdefault(_look(name), name)

  def find(self, label: str) -> str | None:
    """The class that a label names; None if there is no such class."""
    return self._names.get(_same(label))

  def like(self, label: str) -> str | None:
    """A class whose name resembles a label that names no class; None if there is no such class."""
    return self._looks.get(_look(label))

  def advice(self, label: str) -> str:
    """The end of a sentence about a label that names no class: "did you mean" if one resembles it, else nothing."""
    found = self.like(label)
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
