"""The parts of a report: tables, lists and pictures, grouped in sections."""
from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
  """A Markdown table under a heading."""
  heading: str
  markdown: str


class Bullets(NamedTuple):
  """Markdown lines that begin with "- ", under a heading."""
  heading: str
  lines: list[str]


class Picture(NamedTuple):
  """A figure with its caption.

  Attributes:
    caption: text.
    png: contents of the file.
    width: of the figure, in inches.
  """
  caption: str
  png: bytes
  width: float


Part = Table | Bullets | Picture


class Section(NamedTuple):
  """Parts under a heading."""
  heading: str
  parts: Sequence[Part]
