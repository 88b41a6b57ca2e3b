"""The lines of metrics.jsonl in checkpoints. Old ones are written once, so that late checkpoints take no longer.

Every checkpoint stands for all lines so far. Lines are sealed in parts of a fixed size, each a file of its own that
later checkpoints refer to by its checksum. A checkpoint itself holds the lines after the last sealed part. At least one
line is never sealed, because a live run may take its last line back.
"""
import json
import pathlib
from typing import Any

from alma_jax.runs import store

_PART = 128  # lines of a part

Lines = list[dict[str, Any]]


class History:
  """The sealed parts of a run's lines, in a folder of its checkpoints."""

  def __init__(self, folder: pathlib.Path, writes: bool):
    """`writes`: whether this process writes; what the others of a run compute is not used."""
    self._store = store.Store(folder, ".json", writes)
    self._sealed: list[str] = []

  def seal(self, lines: Lines) -> tuple[list[str], Lines]:
    """(checksums of the sealed parts, the lines after them); writes the parts that are complete and not written yet.

    Args:
      lines: all lines so far. They begin with those of the last call, or of the last `read`.
    """
    while len(lines) > (len(self._sealed) + 1) * _PART:
      start = len(self._sealed) * _PART
      text = json.dumps(lines[start:start + _PART], allow_nan=False).encode()
      self._sealed.append(self._store.put(_name(len(self._sealed)), text))
    return list(self._sealed), lines[len(self._sealed) * _PART:]

  def read(self, sealed: list[str], rest: Lines) -> Lines:
    """All lines, from what `seal` returned.

    Raises:
      store.Lost: a part is damaged, and its copy too.
    """
    lines: Lines = []
    for i, digest in enumerate(sealed):
      lines += json.loads(self._store.get(_name(i), digest))
    self._sealed = list(sealed)
    return lines + rest


def _name(i: int) -> str:
  return f"{i:05d}"
