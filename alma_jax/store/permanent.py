"""What checkpoints refer to and what never changes: files that are named by their checksums, and kept twice.

A file and its copy are written one after the other, each whole or not at all. When an entry is read, both are verified.
If one is damaged or missing, it is written again from the other. Parity over several files would take less space, but a
copy can be restored by hand, and files of different names may be damaged at the same time.

`Frozen` and `History` are what a run stores in this way.
"""
import hashlib
import json
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import serialization

from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.parallel import sharding
from alma_jax.store import arrays, run_files
from alma_jax.types import Tree

_SHOWN = 12  # characters of a checksum in the name of its file
_PART = 128  # lines of a part of a History

Leaves = dict[str, np.ndarray]
Lines = list[dict[str, Any]]


class Lost(BadInput):
  """Both files of an entry are damaged or missing."""


class Store:
  """A folder of numbered files that never change; their copies are in its folder `copies`."""

  def __init__(self, folder: pathlib.Path, suffix: str, writes: bool):
    """Opens a folder, which is made when it is first written to.

    Args:
      folder: path.
      suffix: of all files, as in ".json".
      writes: whether this process writes; what the others of a run compute is not used.
    """
    self._folder, self._suffix, self._writes = folder, suffix, writes

  def put(self, number: int, data: bytes) -> str:
    """Writes an entry and its copy, unless they are there; returns its SHA-256, with which it is read.

    Raises:
      OSError: it cannot be written.
    """
    digest = _digest(data)
    for path in self._paths(number, digest) if self._writes else ():
      if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    return digest

  def get(self, number: int, digest: str) -> bytes:
    """Reads an entry, and repairs it with a warning if one of its files is damaged or missing.

    Args:
      number: of the entry.
      digest: what `put` returned.

    Raises:
      Lost: neither file is what was written.
    """
    paths = self._paths(number, digest)
    read = [_read(path, digest) for path in paths]
    sound = next((data for data in read if data is not None), None)
    if sound is None:
      raise Lost(f"{paths[0]} and its copy in {run_files.COPIES}/ are both damaged or missing; restore one of them.")
    for path, data in zip(paths, read):
      if data is None and self._writes:
        _repair(path, sound)
    return sound

  def _paths(self, number: int, digest: str) -> tuple[pathlib.Path, pathlib.Path]:
    file = f"{number:05d}-{digest[:_SHOWN]}{self._suffix}"
    return self._folder / file, self._folder / run_files.COPIES / file


class Read(NamedTuple):
  """Frozen trees that were read.

  Attributes:
    trees: the arrays of each by their names, None where they are lost.
    lost: {number: why}.
  """
  trees: list[Leaves | None]
  lost: dict[int, str]


class Frozen:
  """What a run has frozen: the members of an ensemble, or the modules of a stream of tasks. Each is one file.

  All processes of the run call every method. flax.serialization.msgpack_restore returns the arrays of a file by their
  names.
  """

  def __init__(self, pool: pathlib.Path, writes: bool):
    """Opens the folder `pool`; `writes`: whether this process writes."""
    self._store = Store(pool, ".msgpack", writes)
    self._saved: list[str] = []  # digests of the trees that are sound in the pool

  def save(self, i: int, tree: Tree) -> str:
    """Writes tree i unless this session has read or written it; returns its digest."""
    if i == len(self._saved):
      leaves = {name: np.asarray(leaf, order="C") for name, leaf in arrays.flatten(sharding.fetch(tree))}
      self._saved.append(self._store.put(i, serialization.msgpack_serialize(leaves)))
    return self._saved[i]

  def read(self, digests: Sequence[str]) -> Read:
    """The trees of the digests that `save` returned, from the first one on."""
    trees: list[Leaves | None] = []
    lost = {}
    self._saved = []
    for i, digest in enumerate(digests):
      try:
        trees.append(serialization.msgpack_restore(self._store.get(i, digest)))
      except Lost as error:
        trees.append(None)
        lost[i] = str(error)
        continue
      if len(self._saved) == i:
        self._saved.append(digest)
    return Read(trees, lost)

  def renew(self) -> None:
    """The trees have other shapes from now on, and are saved again."""
    self._saved = []


class History:
  """The lines of metrics.jsonl. Old ones are written once, so that late checkpoints take no longer.

  Every checkpoint stands for all lines so far. Lines are sealed in parts of a fixed size, each a file of its own that
  later checkpoints refer to by its checksum. A checkpoint itself holds the lines after the last sealed part. At least
  one line is never sealed, because a live run may take its last line back.
  """

  def __init__(self, folder: pathlib.Path, writes: bool):
    """`writes`: whether this process writes; what the others of a run compute is not used."""
    self._store = Store(folder, ".json", writes)
    self._sealed: list[str] = []

  def seal(self, lines: Lines) -> tuple[list[str], Lines]:
    """(checksums of the sealed parts, the lines after them); writes the parts that are complete and not written yet.

    Args:
      lines: all lines so far. They begin with those of the last call, or of the last `read`.
    """
    while len(lines) > (len(self._sealed) + 1) * _PART:
      start = len(self._sealed) * _PART
      text = json.dumps(lines[start:start + _PART], allow_nan=False).encode()
      self._sealed.append(self._store.put(len(self._sealed), text))
    return list(self._sealed), lines[len(self._sealed) * _PART:]

  def read(self, sealed: list[str], rest: Lines) -> Lines:
    """All lines, from what `seal` returned.

    Raises:
      Lost: a part is damaged, and its copy too.
    """
    lines: Lines = []
    for i, digest in enumerate(sealed):
      lines += json.loads(self._store.get(i, digest))
    self._sealed = list(sealed)
    return lines + rest


def _repair(path: pathlib.Path, sound: bytes) -> None:
  what = "damaged" if path.exists() else "missing"
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, sound)
  except OSError as error:  # e.g. of a finished run in a read-only folder
    warnings.warn(f"{path} is {what}; what it held was read from its other copy, but it could not be written again "
                  f"({error.strerror})", stacklevel=3)
  else:
    warnings.warn(f"{path} was {what}, and was written again from its other copy", stacklevel=3)


def _read(path: pathlib.Path, digest: str) -> bytes | None:
  """The contents of a file, or None if it is not what was written."""
  try:
    data = path.read_bytes()
  except OSError:
    return None
  return data if _digest(data) == digest else None


def _digest(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
