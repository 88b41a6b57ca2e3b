"""Run folders at addresses, as s3://bucket/runs/x: the objects that a store holds of them.

A run at an address works in a local folder, which mirror.py copies to the store and local_copy.py from it. It holds
  NAME                          a file of the run folder, under its own name
  .mirror/changed/NAME-SHA256   a file whose name is taken by the contents that the manifest refers to
  .mirror/manifest.json         {"id", "time", "sha256", "files": {NAME: [size, SHA-256, object]}}
  .mirror/lease.json            who writes, see lease.py
An object that the manifest refers to is never replaced. A single put makes a new manifest the current one. Therefore
the manifest always stands for one moment of the local folder, whatever was uploaded before or after it. Imports no jax.
"""
import concurrent.futures
import datetime
import errno
import hashlib
import json
import os
import pathlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from alma_jax import extras, messages
from alma_jax.errors import BadInput
from alma_jax.files import parse_json, usable
from alma_jax.store import run_files
from alma_jax.store.outage import Outage

MIRROR = ".mirror"  # a folder of the store, and of the local folder
CHANGED, MANIFEST, LEASE = f"{MIRROR}/changed", f"{MIRROR}/manifest.json", f"{MIRROR}/lease.json"
PATIENCE = 300.0  # seconds for which a run tries to reach a store
_SMALL = 2**22  # bytes; an object below it should arrive within the patience of a reader
_AT_ONCE = 8  # transfers
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_FINAL = (PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError, NotImplementedError, ValueError,
          TypeError)  # trying again does not help

_RAISE = object()

_Result = TypeVar("_Result")


class Problem(Exception):
  """A store cannot be used; the message is the reason.

  Attributes:
    is_final: whether it is not the network, e.g. a bucket that does not exist.
  """

  def __init__(self, reason: str, is_final: bool):
    super().__init__(reason)
    self.is_final = is_final


class Lost(Exception):
  """Another process has taken over the lease of a run folder in a store."""


class File(NamedTuple):
  """A file of a run folder in a store: its size in bytes, its SHA-256, and the name of its object."""
  size: int
  sha256: str
  object: str


class Manifest(NamedTuple):
  """The files that a run folder in a store consists of, by their names.

  Attributes:
    id: no other manifest has it.
    time: when it was made, seconds since the epoch, by the clock of the machine that made it.
  """
  id: str
  files: Mapping[str, File]
  time: float


class Remote:
  """A folder of a store.

  Attributes:
    address: as s3://bucket/runs/x.
    folder: the local folder that belongs to it.
    guard: () -> None, called before anything is deleted, and before a change is tried again, which may be long after
      the first time. It raises Lost, or Problem if the store cannot be reached.
  """

  def __init__(self, address: str | os.PathLike[str], patience: float | None = None):
    """Connects to nothing yet.

    Args:
      address: of a run folder, or of a folder that holds run folders.
      patience: of a reader, seconds for which a call tries to reach the store, and waits for what is small; None:
        PATIENCE, and the store's package decides how long one try may take.

    Raises:
      BadInput: it is not valid, or its package is missing.
    """
    scheme, parts = _split(address)
    rest = "/".join(parts)
    self.address = f"{scheme}:///{rest}" if scheme in run_files.LOCAL else f"{scheme}://{rest}"
    self.folder = usable(run_files.copies() / scheme / rest)
    self.guard: Callable[[], None] = lambda: None
    self._patience = PATIENCE if patience is None else patience
    self._waits = patience is None
    self._outage = Outage()
    fsspec = extras.load("fsspec", self.address)
    if scheme in _PACKAGES:
      extras.need(self.address, _PACKAGES[scheme])
    options = dict(auto_mkdir=True) if scheme in run_files.LOCAL else {}
    try:
      self._fs, self._root = fsspec.core.url_to_fs(self.address, use_listings_cache=False, **options)
    except (ValueError, ImportError) as error:
      raise BadInput(f"{self.address} cannot be used ({str(error).rstrip('.')}); give a folder, or an address as "
                     "s3://BUCKET/PATH or gs://BUCKET/PATH.") from error

  def hurry(self) -> None:
    """From now on nothing is tried again."""
    self._patience = 0.0

  def read(self, name: str, is_patient: bool = True) -> bytes | None:
    """The contents of an object, or None if there is none."""
    return self._try(lambda: self._fs.cat_file(self._path(name)), missing=None, is_patient=is_patient, is_small=True)

  def changed(self, name: str) -> float | None:
    """When an object was written, seconds since the epoch by the clock of the store; None: it does not say."""
    try:
      found = self._try(lambda: self._fs.modified(self._path(name)), missing=None, is_small=True)
    except Problem as problem:
      if isinstance(problem.__cause__, NotImplementedError):
        return None
      raise
    return None if found is None else (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()

  def write(self, name: str, data: bytes, is_patient: bool = True) -> None:
    """Replaces an object, whole or not at all."""
    self._try(lambda: self._fs.pipe_file(self._path(name), data), is_patient=is_patient, guard=self.guard)

  def create(self, name: str, data: bytes) -> bool:
    """Writes an object unless there is one; returns whether it was written."""
    try:
      self._try(lambda: self._fs.pipe_file(self._path(name), data, mode="create"))
    except FileExistsError:
      return False
    return True

  def upload(self, files: Mapping[str, pathlib.Path]) -> None:
    """Writes objects from local files {object: path}."""
    put = lambda name: self._fs.put_file(str(files[name]), self._path(name))
    _each(lambda name: self._try(lambda: put(name), guard=self.guard), files)

  def delete(self, names: Iterable[str]) -> None:
    """Deletes objects, if they exist."""
    def delete(name: str) -> None:
      self.guard()
      self._fs.rm_file(self._path(name))

    _each(lambda name: self._try(lambda: delete(name), missing=None), names)

  def names(self) -> list[str]:
    """The names of all objects."""
    found = self._try(lambda: self._fs.find(self._root), missing=[], is_small=True)
    return sorted(path[len(self._root):].lstrip("/") for path in found)

  def manifest(self) -> Manifest | None:
    """The current manifest, or None if there is none.

    Raises:
      BadInput: it is damaged.
    """
    data = self.read(MANIFEST)
    if data is None:
      return None
    try:
      return _parse(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      raise BadInput(f"{self.address}/{MANIFEST} is not what a run has written; restore it, or --overwrite the run."
                     ) from error

  def commit(self, manifest: Manifest) -> None:
    """Makes a manifest the current one."""
    files = {name: list(file) for name, file in manifest.files.items()}
    tree = dict(id=manifest.id, time=manifest.time, sha256=_digest_of(files), files=files)
    self.write(MANIFEST, (json.dumps(tree, indent=0) + "\n").encode())

  def fetch(self, files: Mapping[str, File]) -> set[str]:
    """Writes files into the local folder; returns the names of those that are damaged or missing in the store.

    A damaged one is written as it is: the run notices it as it notices damage of a local folder.
    """
    damaged: set[str] = set()
    _each(lambda name: None if self._fetched(name, files[name]) else damaged.add(name), files)
    return damaged

  def _fetched(self, name: str, file: File) -> bool:
    path = self.folder / name
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
      found = self._try(lambda: (self._fs.get_file(self._path(file.object), str(temporary)), True)[1], missing=False,
                        is_small=file.size < _SMALL)
      if not found:
        temporary.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return False
      is_sound = digest(temporary) == file.sha256
      _sync(temporary)
      temporary.replace(path)
      if is_sound:
        return True
    return False

  def _path(self, name: str) -> str:
    return f"{self._root}/{name}"

  def _try(self, work: Callable[[], _Result], missing: Any = _RAISE, is_patient: bool = True,
           guard: Callable[[], None] = lambda: None, is_small: bool = False) -> _Result:
    """What `work` returns; it is called again while the store cannot be reached.

    Args:
      work: () -> anything.
      missing: what to return if there is no such object; by default that is a Problem.
      is_patient: whether it is called again.
      guard: called before it is called again.
      is_small: whether a reader gives up a call that takes longer than its patience.

    Raises:
      FileExistsError: there is such an object.
      Lost: `guard` has raised it.
      Problem: anything else.
    """
    began, pause, is_again = time.monotonic(), 0.2, False
    while True:
      try:
        if is_again:
          guard()
        is_again = True
        left = self._patience - (time.monotonic() - began)
        found = work() if self._waits or not is_small else _within(left, work)
        self._outage.end()
        return found
      except FileExistsError:
        self._outage.end()
        raise
      except Lost:
        raise
      except Exception as error:  # libraries raise many kinds
        if isinstance(error, FileNotFoundError) and missing is not _RAISE:
          self._outage.end()
          return missing
        is_final = (isinstance(error, _FINAL) or "Credentials" in type(error).__name__ or
                    getattr(error, "errno", None) == errno.EINVAL or getattr(error, "is_final", False))
        if is_final or not is_patient:
          raise Problem(_reason(error), is_final) from error
        lasts = self._outage.lasts(began)
        if lasts + pause > self._patience:
          raise Problem(_reason(error), is_final) from error
        if lasts > 2 and self._outage.is_news(self._patience):
          messages.say(f"{self.address} cannot be reached ({_reason(error)}); trying again for "
                       f"{messages.duration(self._patience)}")
        time.sleep(pause)
        pause = min(2 * pause, 15.0)


def digest(path: pathlib.Path) -> str:
  """SHA-256 of a file."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def new_id() -> str:
  """An id that no other manifest or process has."""
  return uuid.uuid4().hex


def _within(seconds: float, work: Callable[[], _Result]) -> _Result:
  """What `work` returns; raises TimeoutError if it takes longer. It then goes on until the process ends."""
  done: concurrent.futures.Future[_Result] = concurrent.futures.Future()

  def call() -> None:
    try:
      done.set_result(work())
    except BaseException as error:
      done.set_exception(error)

  threading.Thread(target=call, daemon=True).start()
  try:
    return done.result(max(seconds, 0.0))
  except TimeoutError as error:
    if done.done():
      raise
    raise TimeoutError("it does not answer") from error


def _sync(path: pathlib.Path) -> None:
  with open(path, "rb") as file:
    os.fsync(file.fileno())


def _each(work: Callable[[str], Any], names: Iterable[str]) -> None:
  """Calls a function for each name, several at once; raises the first exception when all have ended."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    futures = [pool.submit(work, name) for name in names]
    done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
    if any(future.exception() for future in done):
      pool.shutdown(cancel_futures=True)
  for future in futures:
    if not future.cancelled():
      future.result()


def _split(address: str | os.PathLike[str]) -> tuple[str, list[str]]:
  """(scheme, parts) of an address; pathlib reduces its two slashes to one."""
  scheme, rest = str(address).split(":/", 1)
  parts = [part for part in rest.split("/") if part]
  if not parts or any(part in (".", "..") for part in parts) or re.search(r"[\x00-\x1f*?\[\]]", rest):
    raise BadInput(f"{str(address)!r} is not an address of a folder; write it as s3://BUCKET/PATH.")
  return scheme.lower(), parts


def _parse(data: bytes) -> Manifest:
  tree = parse_json(data)
  if tree["sha256"] != _digest_of(tree["files"]):
    raise ValueError("its checksum is another one")
  files = {name: File(*file) for name, file in tree["files"].items()}
  for name in files:
    if name.split("/")[0] not in run_files.WRITTEN or ".." in name.split("/"):
      raise ValueError(f"it names {name!r}")
  return Manifest(tree["id"], files, float(tree["time"]))


def made(files: Mapping[str, File]) -> Manifest:
  """A new Manifest of these files."""
  return Manifest(uuid.uuid4().hex, files, time.time())


def _digest_of(files: Any) -> str:
  return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()



def _reason(error: BaseException) -> str:
  text = (str(error).strip().splitlines() or [""])[0][:200]
  return text or type(error).__name__
