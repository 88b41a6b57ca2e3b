"""Run folders at addresses, as s3://bucket/runs/x: what a store holds of them.

A run at an address works in a local folder, which mirror.py copies to the store and local_copy.py from it. It holds
  .mirror/contents/SHA256   the contents of a file
  .mirror/manifest.json     {"owner", "time", "sha256", "files": {NAME: [size, SHA-256]}}
  .mirror/lease.json        who writes, see lease.py
  metrics.jsonl, summary.json, predictor/...   copies for other programs; alma_jax does not read them
Contents never change, and a single put makes a new manifest the current one. Therefore the manifest always stands for
one moment of the local folder, whatever was uploaded before or after it. Imports no jax.
"""
import concurrent.futures
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from alma_jax import extras, messages
from alma_jax.errors import BadInput, reason
from alma_jax.files import parse_json, usable
from alma_jax.store import run_files

MIRROR = ".mirror"  # a folder of the store, and of the local folder
CONTENTS, MANIFEST, LEASE = f"{MIRROR}/contents", f"{MIRROR}/manifest.json", f"{MIRROR}/lease.json"
PATIENCE = 300.0  # seconds for which a run tries to reach a store
_LARGE = 2**22  # bytes; a smaller object should arrive within the patience of a reader
_AT_ONCE = 8  # transfers
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
_FINAL = (PermissionError, FileNotFoundError, FileExistsError, IsADirectoryError, NotImplementedError, ValueError,
          TypeError)  # trying again does not help

_RAISE = object()
_Result = TypeVar("_Result")


class Problem(Exception):
  """A store cannot be used; the message is the reason, without a full stop.

  Attributes:
    is_final: whether it is not the network, e.g. a bucket that does not exist.
  """

  def __init__(self, reason: str, is_final: bool):
    super().__init__(reason)
    self.is_final = is_final


class Lost(Exception):
  """Another process has taken over the lease of a run folder in a store."""


class File(NamedTuple):
  """A file of a run folder in a store: its size in bytes and its SHA-256."""
  size: int
  sha256: str


class Manifest(NamedTuple):
  """The files that a run folder in a store consists of, by their names.

  Attributes:
    owner: id of the local folder that was uploaded, see local_copy.own_id.
    files: {name: File}.
    time: when it was made, seconds since the epoch, by the clock of the machine that made it.
  """
  owner: str
  files: Mapping[str, File]
  time: float

  @property
  def objects(self) -> dict[str, str]:
    """{name: object with its contents}. A file that is kept twice has two objects, in case one is damaged."""
    return {name: f"{CONTENTS}/{file.sha256}{'-copy' if run_files.COPIES in name.split('/') else ''}"
            for name, file in self.files.items()}

  def encoded(self) -> bytes:
    """The contents of MANIFEST."""
    tree = dict(owner=self.owner, time=self.time, sha256=run_files.digest_of(self.files), files=self.files)
    return (json.dumps(tree, indent=0) + "\n").encode()


def parse_manifest(data: bytes) -> Manifest:
  """The manifest that MANIFEST holds; raises ValueError, TypeError, KeyError or AttributeError if it is damaged."""
  tree = parse_json(data)
  if tree["sha256"] != run_files.digest_of(tree["files"]):
    raise ValueError("its checksum is another one")
  files = {name: File(*file) for name, file in tree["files"].items()}
  for name in files:
    if name.split("/")[0] not in run_files.WRITTEN or ".." in name.split("/"):
      raise ValueError(f"it names {name!r}")
  return Manifest(tree["owner"], files, float(tree["time"]))


class Remote:
  """A folder of a store.

  Attributes:
    address: as s3://bucket/runs/x.
    folder: the local folder that belongs to it.
    guard: () -> None, called before anything is deleted, and before anything is tried again, which may be long after
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
    self._is_reader = patience is not None
    # An outage is that of all calls together, so that objects do not wait in turn.
    self._answered = -math.inf  # when a call was answered last
    self._down_since: float | None = None  # None: no call has failed since then
    self._has_said = False  # whether the person at the terminal knows of the outage
    fsspec = extras.load("fsspec", self.address)
    if scheme in _PACKAGES:
      extras.need(self.address, _PACKAGES[scheme])
    options = dict(auto_mkdir=True) if scheme in run_files.LOCAL else {}
    try:
      self._fs, self._root = fsspec.core.url_to_fs(self.address, use_listings_cache=False, **options)
    except (ValueError, ImportError) as error:
      raise BadInput(f"{self.address} cannot be used ({reason(error)}); give a folder, or an address as "
                     "s3://BUCKET/PATH or gs://BUCKET/PATH.") from error

  def hurry(self) -> None:
    """From now on nothing is tried again."""
    self._patience = 0.0

  def read(self, name: str, is_patient: bool = True) -> bytes | None:
    """The contents of an object, or None if there is none."""
    return self._try(lambda: self._fs.cat_file(self._path(name)), missing=None, is_patient=is_patient)

  def write(self, name: str, data: bytes, is_patient: bool = True) -> None:
    """Replaces an object, whole or not at all."""
    self._try(lambda: self._fs.pipe_file(self._path(name), data), is_patient=is_patient)

  def create(self, name: str, data: bytes) -> bool:
    """Writes an object unless there is one; returns whether it was written."""
    try:
      self._try(lambda: self._fs.pipe_file(self._path(name), data, mode="create"))
    except Problem as problem:
      if isinstance(problem.__cause__, FileExistsError):
        return False
      raise
    return True

  def upload(self, files: Mapping[str, pathlib.Path]) -> None:
    """Writes objects from local files {object: path}."""
    _each(lambda name: self._try(lambda: self._fs.put_file(str(files[name]), self._path(name))), files)

  def delete(self, names: Iterable[str]) -> None:
    """Deletes objects, if they exist."""
    def delete(name: str) -> None:
      self.guard()
      self._fs.rm_file(self._path(name))

    _each(lambda name: self._try(lambda: delete(name), missing=None), names)

  def sizes(self) -> dict[str, int | None]:
    """{name: bytes} of all objects; None: the store does not say how large they are."""
    found = self._try(lambda: self._fs.find(self._root, detail=True), missing={})
    return {path[len(self._root):].lstrip("/"): found[path].get("size") for path in sorted(found)}

  def manifest(self) -> Manifest | None:
    """The current manifest, or None if there is none.

    Raises:
      BadInput: it is damaged.
    """
    data = self.read(MANIFEST)
    try:
      return None if data is None else parse_manifest(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      raise BadInput(f"{self.address}/{MANIFEST} is not what a run has written; restore it, or --overwrite the run."
                     ) from error

  def commit(self, manifest: Manifest) -> None:
    """Makes a manifest the current one."""
    self.write(MANIFEST, manifest.encoded())

  def fetch(self, manifest: Manifest, names: Iterable[str]) -> set[str]:
    """Writes files into the local folder.

    A damaged one is written as it is: the run notices it as it notices damage of a local folder.

    Args:
      manifest: the files.
      names: which of them to write.

    Returns:
      The names of those that are damaged or missing in the store.
    """
    objects = manifest.objects
    files: dict[str, list[str]] = {}  # of each object; checkpoints share contents
    for name in names:
      files.setdefault(objects[name], []).append(name)
    are_sound = _each(lambda object_: self._fetched(object_, files[object_], manifest.files[files[object_][0]]), files)
    return {name for object_, is_sound in zip(files, are_sound) if not is_sound for name in files[object_]}

  def _fetched(self, object_: str, names: list[str], file: File) -> bool:
    """Writes the contents of an object to the files of these names; returns whether they are sound."""
    paths = [self.folder / name for name in names]
    temporaries = [path.with_name(f".{path.name}.tmp") for path in paths]
    for path in paths:
      path.parent.mkdir(parents=True, exist_ok=True)
    for is_last in (False, True):
      if not self._try(lambda: (self._fs.get_file(self._path(object_), str(temporaries[0])), True)[1], missing=False,
                       is_large=file.size >= _LARGE):
        for path in (temporaries[0], *paths):
          path.unlink(missing_ok=True)
        return False
      if (is_sound := digest(temporaries[0]) == file.sha256) or is_last:
        break
    for temporary in temporaries[1:]:
      shutil.copyfile(temporaries[0], temporary)
    for temporary, path in zip(temporaries, paths):
      with open(temporary, "rb") as written:
        os.fsync(written.fileno())
      temporary.replace(path)
    return is_sound

  def _path(self, name: str) -> str:
    return f"{self._root}/{name}"

  def _try(self, work: Callable[[], _Result], missing: Any = _RAISE, is_patient: bool = True,
           is_large: bool = False) -> _Result:
    """What `work` returns; it is called again while the store cannot be reached.

    Args:
      work: () -> anything.
      missing: what to return if there is no such object; by default that is a Problem.
      is_patient: whether it is called again.
      is_large: whether it may take longer than the patience of a reader.

    Raises:
      Lost: `guard` has raised it before another call.
      Problem: anything else; its cause is the exception of the store's package.
    """
    began, pause = time.monotonic(), 0.2
    while True:
      try:
        if pause > 0.2:
          self.guard()
        left = self._patience - (time.monotonic() - began)
        result = work() if is_large or not self._is_reader else _within(left, work)
        self._reached()
        return result
      except Lost:
        raise
      except Exception as error:  # libraries raise many kinds
        if isinstance(error, FileNotFoundError) and missing is not _RAISE:
          self._reached()
          return missing
        is_final = (isinstance(error, _FINAL) or "Credentials" in type(error).__name__ or
                    getattr(error, "errno", None) == errno.EINVAL or getattr(error, "is_final", False))
        if is_final or not is_patient:
          raise Problem(reason(error), is_final) from error
        since = self._down_since  # another thread may reach the store at any moment
        if since is None:
          since = self._down_since = max(began, self._answered)
        lasts = time.monotonic() - min(began, since)
        if lasts + pause > self._patience:
          raise Problem(reason(error), is_final) from error
        if lasts > 2 and not self._has_said:
          self._has_said = True
          messages.say(f"{self.address} cannot be reached ({reason(error)}); trying again for "
                       f"{messages.duration(self._patience)}")
        time.sleep(pause)
        pause = min(2 * pause, 15.0)

  def _reached(self) -> None:
    self._answered, self._down_since, self._has_said = time.monotonic(), None, False


def digest(path: pathlib.Path) -> str:
  """SHA-256 of a file."""
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _within(seconds: float, work: Callable[[], _Result]) -> _Result:
  """What `work` returns; raises TimeoutError if it takes longer. It then goes on until the process ends."""
  done: concurrent.futures.Future[_Result] = concurrent.futures.Future()

  def call() -> None:
    try:
      done.set_result(work())
    except BaseException as error:
      done.set_exception(error)

  threading.Thread(target=call, daemon=True).start()
  concurrent.futures.wait([done], max(seconds, 0.0))
  if not done.done():
    raise TimeoutError("it does not answer")
  return done.result()


def _each(work: Callable[[str], _Result], names: Iterable[str]) -> list[_Result]:
  """Calls a function for each name, several at once; after an exception, which is raised, no further ones begin."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    return list(pool.map(work, names))


def _split(address: str | os.PathLike[str]) -> tuple[str, list[str]]:
  """(scheme, parts) of an address; pathlib reduces its two slashes to one."""
  scheme, rest = str(address).split(":/", 1)
  parts = [part for part in rest.split("/") if part]
  if not parts or any(part in (".", "..") for part in parts) or re.search(r"[\x00-\x1f*?\[\]]", rest):
    raise BadInput(f"{str(address)!r} is not an address of a folder; write it as s3://BUCKET/PATH.")
  return scheme.lower(), parts
