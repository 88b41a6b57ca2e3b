"""The lines of metrics.jsonl in checkpoints. Old ones are written once, so that late checkpoints take no longer.

Every checkpoint stands for all lines so far. Lines are sealed in parts of a fixed size, each a file of its own that
later checkpoints refer to by its checksum. A checkpoint itself holds the lines after the last sealed part. At least one
line is never sealed, because a live run may take its last line back.
"""
import hashlib
import json
import os
import pathlib
from typing import Any

_PART = 128  # lines of a part

Lines = list[dict[str, Any]]


class History:
  """The sealed parts of a run's lines, in a folder of its checkpoints."""

  def __init__(self, folder: pathlib.Path, writes: bool):
    """`writes`: whether this process writes; the others of a run only compute the same checksums."""
    self._folder, self._writes = folder, writes
    self._sealed: list[str] = []

  def seal(self, lines: Lines) -> tuple[list[str], Lines]:
    """(checksums of the sealed parts, the lines after them); writes the parts that are complete and not written yet.

    Args:
      lines: all lines so far. They begin with those of the last call, or of the last `read`.
    """
    while len(lines) > (len(self._sealed) + 1) * _PART:
      start = len(self._sealed) * _PART
      text = json.dumps(lines[start:start + _PART], allow_nan=False).encode()
      digest = hashlib.sha256(text).hexdigest()
      if self._writes:
        self._write(self._path(len(self._sealed), digest), text)
      self._sealed.append(digest)
    return list(self._sealed), lines[len(self._sealed) * _PART:]

  def read(self, sealed: list[str], rest: Lines) -> Lines:
    """All lines, from what `seal` returned.

    Raises:
      ValueError: a part is damaged.
      OSError: a part is missing.
    """
    lines: Lines = []
    for i, digest in enumerate(sealed):
      text = self._path(i, digest).read_bytes()
      if hashlib.sha256(text).hexdigest() != digest:
        raise ValueError(f"part {i} of the lines of metrics.jsonl does not match its checksum")
      lines += json.loads(text)
    self._sealed = list(sealed)
    return lines + rest

  def _path(self, i: int, digest: str) -> pathlib.Path:
    return self._folder / f"{i:05d}-{digest[:12]}.json"

  def _write(self, path: pathlib.Path, text: bytes) -> None:
    if path.exists() and path.read_bytes() == text:
      return
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
