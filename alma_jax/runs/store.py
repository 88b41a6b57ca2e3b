"""Files that are written once: named by their checksums, and kept twice.

A file and its copy are written one after the other, each whole or not at all. When an entry is read, both are verified.
If one is damaged or missing, it is written again from the other. Parity over several files would take less space, but a
copy can be restored by hand, and files of different names may be damaged at the same time.
"""
import hashlib
import pathlib
import warnings

from alma_jax.errors import BadInput
from alma_jax.files import write_bytes

COPIES = "copies"
_SHOWN = 12  # characters of a checksum in the name of its file


class Lost(BadInput):
  """Both files of an entry are damaged or missing."""


class Store:
  """A folder of files that never change; their copies are in its folder `copies`."""

  def __init__(self, folder: pathlib.Path, suffix: str, writes: bool):
    """Opens a folder, which is made when it is first written to.

    Args:
      folder: path.
      suffix: of all files, as in ".json".
      writes: whether this process writes; what the others of a run compute is not used.
    """
    self._folder, self._suffix, self._writes = folder, suffix, writes

  def put(self, name: str, data: bytes) -> str:
    """Writes an entry and its copy, unless they are there; returns its SHA-256, with which it is read.

    Raises:
      OSError: it cannot be written.
    """
    digest = _digest(data)
    for path in self._paths(name, digest) if self._writes else ():
      if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    return digest

  def get(self, name: str, digest: str) -> bytes:
    """Reads an entry, and repairs it with a warning if one of its files is damaged or missing.

    Args:
      name: of the entry.
      digest: what `put` returned.

    Raises:
      Lost: neither file is what was written.
    """
    paths = self._paths(name, digest)
    read = [_read(path, digest) for path in paths]
    sound = next((data for data in read if data is not None), None)
    if sound is None:
      raise Lost(f"{paths[0]} and its copy in {COPIES}/ are both damaged or missing; restore one of them.")
    for path, data in zip(paths, read):
      if data is None and self._writes:
        _repair(path, sound)
    return sound

  def _paths(self, name: str, digest: str) -> tuple[pathlib.Path, pathlib.Path]:
    file = f"{name}-{digest[:_SHOWN]}{self._suffix}"
    return self._folder / file, self._folder / COPIES / file


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
