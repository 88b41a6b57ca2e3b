"""Watches a folder in which entries appear: which of them are complete, and in which order they are used.

An entry is a file or a folder. Nothing tells when a program has finished writing it, so it counts as complete if
  - it was seen under a name that is ignored, and has been renamed since, or
  - its newest modification is older than `settle` seconds, or it has not changed for `settle` seconds while it was
    watched (clocks of other machines may be wrong). For folders it is ten times as long: their files arrive one after
    the other.
Entries are used in the order of their names. A complete entry waits for one with a smaller name that is not complete.
"""
import math
import os
import pathlib
import time
from collections.abc import Iterator

from alma_jax.data import cache

_IGNORED = (".tmp", ".part")
_FOLDERS_SETTLE = 10  # times as long as files
_TICK = 2.0  # seconds; the coarsest clock of a file system by which two changes of a folder may look like one
_LIST_SECONDS = 20.0  # between two listings of a folder whose time of modification does not change, as on some mounts

Signature = tuple[int, int, int]  # number of files, their bytes, the newest time of modification in ns


class Inbox:
  """The entries of a folder that have not been used yet."""

  def __init__(self, folder: pathlib.Path, settle: float):
    """`settle`: seconds without a change after which a file counts as complete."""
    self._folder, self._settle = folder, settle
    self._done: dict[str, Signature | None] = {}  # None: used; else rejected, and tried again once it has changed
    self._new: list[str] = []  # names that are not done, in order
    self._listed_at, self._modified = -math.inf, -1
    self._watched: dict[str, tuple[Signature, float]] = {}  # since when an entry has been as it is
    self._ignored: set[int] = set()  # inodes that were seen under an ignored name

  def finish(self, name: str, signature: Signature | None = None) -> None:
    """The entry is used, and never found again; or with this signature it cannot be used, until it changes."""
    self._done[name] = signature
    self._watched.pop(name, None)
    if name in self._new:
      self._new.remove(name)

  def refresh(self) -> None:
    """Makes the next call of `next` list the folder, whether or not its time of modification has changed."""
    self._listed_at = -math.inf

  @property
  def is_empty(self) -> bool:
    """Whether the last call of `next` saw no further entry, not even an incomplete one."""
    return not self._new

  def next(self) -> tuple[pathlib.Path, Signature] | None:
    """The next complete entry, or None if there is none, or if the next one is not complete yet.

    Raises:
      OSError: the folder cannot be read.
    """
    self._list()
    while self._new:
      path = self._folder / self._new[0]
      signature = signature_of(path)
      if signature is None:  # it has disappeared
        self._new.pop(0)
        continue
      return (path, signature) if self._is_complete(path, signature) else None
    return None

  def _list(self) -> None:
    modified, now = os.stat(self._folder).st_mtime_ns, time.monotonic()
    if modified == self._modified and now - self._listed_at < _LIST_SECONDS:
      return
    new, ignored = [], set()
    for entry in os.scandir(self._folder):
      if is_ignored(entry.name):
        ignored.add(entry.inode())
      elif entry.name not in self._done or (
          self._done[entry.name] and self._done[entry.name] != signature_of(self._folder / entry.name)):
        new.append(entry.name)
    is_settled = time.time() - modified / 1e9 > _TICK  # otherwise another entry may arrive, and it looks the same
    self._new, self._modified, self._listed_at = sorted(new), modified if is_settled else -1, now
    self._ignored = (self._ignored | ignored) if new else ignored

  def _is_complete(self, path: pathlib.Path, signature: Signature) -> bool:
    now = time.monotonic()
    before, since = self._watched.get(path.name, (None, now))
    if before != signature:
      self._watched[path.name], since = (signature, now), now
    settle = self._settle * (_FOLDERS_SETTLE if path.is_dir() else 1)
    if now - since >= settle or time.time() - signature[2] / 1e9 >= settle:
      return True
    try:
      return os.stat(path).st_ino in self._ignored
    except OSError:
      return False


def is_ignored(name: str) -> bool:
  """Whether the name says that an entry is not meant to be read, or not yet."""
  return name.startswith(".") or name.endswith(_IGNORED)


def signature_of(path: pathlib.Path) -> Signature | None:
  """What changes if an entry is written to, without reading it; None if it does not exist."""
  num, size, newest = 0, 0, 0
  try:
    if not path.is_dir():
      found = os.stat(path)
      return 1, found.st_size, found.st_mtime_ns
    newest = os.stat(path).st_mtime_ns
    for file in files_of(path):
      found = os.stat(file)
      num, size, newest = num + 1, size + found.st_size, max(newest, found.st_mtime_ns)
  except OSError:
    return None
  return num, size, newest


def files_of(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """The files of an entry: itself, or those below the folder that it is, whose names are not ignored."""
  if not path.is_dir():
    yield path
    return
  for folder, folders, names in os.walk(path):
    folders[:] = [name for name in folders if not is_ignored(name)]
    for name in names:
      if not is_ignored(name):
        yield pathlib.Path(folder, name)


def special(path: pathlib.Path) -> pathlib.Path | None:
  """What an entry is or holds that is no file and no folder, such as a pipe, which would be read for ever."""
  for file in files_of(path):
    if file.exists() and not file.is_file():
      return file
  return None


def digest(path: pathlib.Path) -> str:
  """SHA-256 over the names and contents of the files of an entry; empty if it does not exist."""
  if not path.is_dir():
    return cache.hash_file(path) or ""
  return cache.hash_files(path, sorted(files_of(path)))
