"""What checkpoints refer to and what never changes: files that are named by their checksums, and kept twice.

A file and its copy are written one after the other, each whole or not at all. When an entry is read, both are verified.
If one is damaged or missing, it is written again from the other. Parity over several files would take less space, but a
copy can be restored by hand, and files of different names may be damaged at the same time.
"""
import hashlib
import pathlib
import warnings
from collections.abc import Callable, Sequence

from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.store.run_files import COPIES

_SHOWN = 12  # characters of a checksum in the name of its file


class Lost(BadInput):
  """Both files of an entry are damaged or missing."""


class Once:
  """A folder of numbered entries that are written once; their copies are in its folder `copies`.

  All processes of a run call every method; one of them writes, and what the others compute is not used.
  """

  def __init__(self, folder: pathlib.Path, suffix: str, writes: bool):
    """Opens a folder, which is made when it is first written to.

    Args:
      folder: path.
      suffix: of all files, as in ".json".
      writes: whether this process writes.
    """
    self._folder, self._suffix, self._writes = folder, suffix, writes
    self._sound: list[str] = []  # checksums of the first entries, which this session has read or written

  def save(self, num: int, contents: Callable[[int], bytes]) -> list[str]:
    """Writes the first `num` entries, except those that this session has read or written.

    Args:
      num: of entries.
      contents: i -> those of entry i.

    Returns:
      Their SHA-256, by which they are read.

    Raises:
      OSError: one cannot be written.
    """
    for i in range(len(self._sound), num):
      data = contents(i)
      self._sound.append(_digest(data))
      for path in self._paths(i, self._sound[i]) if self._writes else ():
        if not path.exists() or path.read_bytes() != data:
          self._write(path, data)
    return self._sound[:num]

  def read(self, digests: Sequence[str]) -> list[bytes | Lost]:
    """The entries of the checksums that `save` returned, or why one is lost.

    An entry is repaired, with a warning, if one of its files is damaged or missing.
    """
    entries = [self._read(i, digest) for i, digest in enumerate(digests)]
    num = next((i for i, entry in enumerate(entries) if isinstance(entry, Lost)), len(entries))
    self._sound = list(digests[:num])
    return entries

  def renew(self) -> None:
    """The entries have other contents from now on, and are saved again."""
    self._sound = []

  def _read(self, i: int, digest: str) -> bytes | Lost:
    paths = self._paths(i, digest)
    contents = [*map(_contents, paths)]
    sound = next((data for data in contents if _digest(data) == digest), None)
    if sound is None:
      return Lost(f"{paths[0]} and its copy in {COPIES}/ are both damaged or missing; restore one of them.")
    for path, data in zip(paths, contents):
      if data != sound and self._writes:
        what = "damaged" if path.exists() else "missing"
        try:
          self._write(path, sound)
          warnings.warn(f"{path} was {what}, and was written again from its other copy", stacklevel=2)
        except OSError as error:  # e.g. of a finished run in a read-only folder
          warnings.warn(f"{path} is {what}; what it held was read from its other copy, but it could not be written "
                        f"again ({error.strerror})", stacklevel=2)
    return sound

  def _paths(self, i: int, digest: str) -> tuple[pathlib.Path, pathlib.Path]:
    file = f"{i:05d}-{digest[:_SHOWN]}{self._suffix}"
    return self._folder / file, self._folder / COPIES / file

  def _write(self, path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)


def _contents(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError:  # it is missing, or the disk fails
    return b""


def _digest(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
