"""Copies the local folder of a run to a store while the run goes on; remote.py describes what the store holds.

`Mirror.take` keeps what is in the folder at one moment as hard links, which costs no space; files that grow are copied.
A thread then uploads the contents that the store lacks, and commits a manifest. Last of all it deletes what no file
needs any more. If moments come faster than they can be uploaded, some are left out.
"""
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import filelock

from alma_jax import messages
from alma_jax.errors import BadInput, InUse, Unsaved
from alma_jax.store import lease, local_copy, remote, run_files
from alma_jax.store.remote import CONTENTS, MANIFEST, MIRROR, File, Manifest, Remote

_GROWING = ("tensorboard", "wandb")  # folders whose files grow; .jsonl files do so too
_NAMED = (run_files.METRICS, "summary.json", run_files.PREDICTOR)  # also held by their names
_LATEST = "latest.json"  # names a version of a predictor, whose files have to be there first


@contextlib.contextmanager
def opened(address: str | os.PathLike[str], overwrite: bool = False) -> Iterator["Mirror"]:
  """The Mirror of an address, whose local folder is locked, leased and up to date.

  Args:
    address: as s3://bucket/runs/x.
    overwrite: whether the run that the store holds will be deleted, so that it is not fetched.

  Raises:
    BadInput: the address cannot be used, or another process uses it.
    Unsaved: the store cannot be reached.
  """
  place = Remote(address)
  with contextlib.ExitStack() as cleanup:
    try:
      with local_copy.locked(place.folder, "fetching", wait=True), _explained(place, is_begun=False):  # readers wait
        cleanup.enter_context(local_copy.locked(place.folder, "run"))
        with messages.sign(f"connecting to {place.address}"):
          held = lease.Lease(place, local_copy.own_id(place.folder))
        cleanup.callback(held.release)
        cleanup.callback(place.hurry)
        with messages.sign(f"fetching {place.address}"):
          mirror = Mirror(place, held, overwrite)
    except filelock.Timeout as error:
      raise InUse(f"the run folder {place.address} is in use by another process; wait until it ends, or choose another "
                  "folder.") from error
    cleanup.callback(mirror.close)
    yield mirror


class Mirror:
  """What a store holds of a run, and the thread that brings it up to date.

  Attributes:
    address: of the run.
    folder: the local folder.
  """

  def __init__(self, place: Remote, held: lease.Lease, overwrite: bool):
    """See `opened`."""
    self.address, self.folder, self._place, self._lease = place.address, place.folder, place, held
    self._staging = self.folder / MIRROR / "staged"
    shutil.rmtree(self._staging, ignore_errors=True)
    self._owner = local_copy.own_id(self.folder)
    self._damaged: set[str] = set()
    self._sizes = place.sizes()
    self._there = _belonging(self._sizes)  # objects in the store, also those that a killed process has left
    self._base = self._begin(overwrite)  # the manifest in the store
    self._damaged |= {name for name, object_ in self._base.objects.items() if self._is_cut(object_, name)}
    self._is_equal = bool(self._base.files) and not overwrite and not (self.folder / local_copy.AHEAD).exists()
    self._overwrites = overwrite  # until the first manifest; if it is killed before that, the old run remains
    self._named: dict[str, File] = {}  # what the store holds by its name, as far as this session knows
    self._sums: dict[tuple[int, int, int], str] = {}  # {(inode, size, time): SHA-256}
    self._number = 0
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._last: concurrent.futures.Future[None] = concurrent.futures.Future()  # the upload of the last moment
    self._last.set_result(None)
    self._problem: Unsaved | None = None

  def take(self) -> None:
    """Keeps the folder as it is now, to be uploaded. No checkpoint may be in the making.

    Raises:
      Unsaved: something earlier could not be uploaded.
    """
    self._raise()
    if not self._overwrites:
      (self.folder / local_copy.AHEAD).touch()
    if self._last.cancel():  # it has not begun
      shutil.rmtree(self._staging / str(self._number))
    self._is_equal = False
    self._number += 1
    staged = self._staging / str(self._number)
    staged.mkdir(parents=True)
    for name in local_copy.mirrored(self.folder):
      _keep(self.folder / name, staged / name)
    self._last = self._thread.submit(self._work, staged)

  def finish(self) -> None:
    """Takes the folder as it is now, and waits until the store holds it.

    If `take` was never called and the folder was made equal to the store, only what is damaged there is uploaded.

    Raises:
      Unsaved: it could not be uploaded.
    """
    if self._is_equal:
      with _explained(self._place):
        self._repair()
      return
    self.take()
    self.wait()
    with _explained(self._place):
      self._confirm()
    (self.folder / local_copy.AHEAD).unlink(missing_ok=True)

  def check(self) -> None:
    """Raises Unsaved if another process has taken the run folder over."""
    if self._lease.is_lost:
      raise Unsaved(_taken_over(self._place))

  def wait(self) -> None:
    """Waits until the store holds what was taken.

    Raises:
      Unsaved: it could not be uploaded.
    """
    with messages.sign(f"uploading to {self.address}"):
      self._last.result()
    self._raise()

  def close(self) -> None:
    """Ends the thread; what it uploads at the moment may still arrive, if the store can be reached."""
    self._place.hurry()  # it may be trying again
    self._thread.shutdown(cancel_futures=True)
    shutil.rmtree(self._staging, ignore_errors=True)

  # ------------------------------------------------------------------ the beginning

  def _begin(self, overwrite: bool) -> Manifest:
    """Makes the local folder equal to the store, unless it goes on from it; returns the manifest of the store."""
    place = self._place
    if overwrite:
      (self.folder / local_copy.AHEAD).unlink(missing_ok=True)
    try:
      stored = place.manifest()
    except BadInput:
      if not overwrite:
        raise
      return self._made({})
    if stored is None:
      theirs = sorted({name.split("/")[0] for name in self._sizes} & set(run_files.WRITTEN))
      if theirs:
        raise BadInput(f"{self.address} holds {', '.join(theirs)}, but not from a run of alma_jax; choose another "
                       "--workdir.")
      if (self.folder / MANIFEST).exists() and not overwrite:
        raise BadInput(f"{self.address} is empty, although it has held the run whose local copy is {self.folder}; "
                       "delete the copy, or --overwrite the run, and it starts again.")
      return self._made({})
    if overwrite:
      return stored
    self._damaged = local_copy.equalize(place)
    if stored.owner != self._owner:  # from now on the local folder goes on from the store
      stored = self._made(stored.files)
      self._commit(stored)
    return stored

  # ------------------------------------------------------------------ the thread

  def _work(self, staged: pathlib.Path) -> None:
    try:
      if self._problem is None:
        with _explained(self._place):
          self._upload(staged)
    except Exception as error:  # it has to reach the main thread
      self._problem = error if isinstance(error, Unsaved) else Unsaved(
          _unsaved(self._place, f"{type(error).__name__}: {error}"))
    shutil.rmtree(staged, ignore_errors=True)

  def _upload(self, staged: pathlib.Path) -> None:
    """Brings the store to a moment of the folder."""
    paths = {name: staged / name for name in local_copy.mirrored(staged)}
    before, now = self._base, self._made({name: self._file(path) for name, path in paths.items()})
    sound = {object_ for name, object_ in before.objects.items() if name not in self._damaged}
    lacking = {object_: paths[name] for name, object_ in now.objects.items() if object_ not in sound}
    self._place.upload(lacking)
    if lacking or now.files != before.files:
      self._commit(now)
      self._base, self._damaged, self._overwrites = now, set(), False
      (self.folder / local_copy.AHEAD).touch()
    self._put({name: paths[name] for name in _named(now) if self._named.get(name) != now.files[name]})
    self._named = {name: now.files[name] for name in _named(now)}
    needed = {*now.objects.values(), *_named(now)}
    self._place.delete(self._there - needed)
    self._there = needed

  def _repair(self) -> None:
    """Uploads objects that are damaged or missing in the store again, if the folder has what they held."""
    files = self._base.files
    objects = {object_: name for name, object_ in self._base.objects.items() if name in self._damaged}
    objects |= {name: name for name in _named(self._base) if self._is_cut(name, name)}
    sound = {object_: self.folder / name for object_, name in objects.items()
             if local_copy.holds(self.folder / name, files[name])}
    if sound:
      self._lease.check()
      self._put(sound)
    if objects:
      messages.say(f"{len(sound)} of {len(objects)} damaged or missing objects of {self.address} were uploaded again "
                   f"from {self.folder}")

  def _is_cut(self, object_: str, name: str) -> bool:
    """Whether the store lacks an object, or it has another size than the file `name`. Its contents are not read."""
    return self._sizes.get(object_, -1) not in (None, self._base.files[name].size)

  def _put(self, paths: Mapping[str, pathlib.Path]) -> None:
    """Uploads objects from files; those that name others come last."""
    for are_last in (False, True):
      self._place.upload({name: path for name, path in paths.items() if name.endswith(_LATEST) == are_last})

  def _commit(self, manifest: Manifest) -> None:
    self._lease.check()
    self._place.commit(manifest)
    local_copy.remember(self.folder, manifest)

  def _confirm(self) -> None:
    """Makes sure that the manifest is the last one of this process; raises remote.Lost if it is not."""
    for _ in range(2):
      self._lease.check()
      if self._place.manifest() == self._base:
        return
      self._place.commit(self._base)  # a put of a former owner has arrived late
    raise remote.Lost

  def _made(self, files: Mapping[str, File]) -> Manifest:
    return Manifest(self._owner, files, time.time())

  def _file(self, path: pathlib.Path) -> File:
    stat = path.stat()
    key = stat.st_ino, stat.st_size, stat.st_mtime_ns
    if key not in self._sums:
      self._sums[key] = remote.digest(path)
    return File(stat.st_size, self._sums[key])

  def _raise(self) -> None:
    if self._problem is not None:
      raise self._problem


def _named(manifest: Manifest) -> list[str]:
  """The files that a store also holds by their names."""
  return [name for name in manifest.files if name.split("/")[0] in _NAMED]


def _belonging(names: Iterable[str]) -> set[str]:
  """The objects among `names` that belong to this run folder, and not to another run below its address."""
  names = list(names)
  others = tuple(name.removesuffix(MANIFEST) for name in names if name.endswith(f"/{MANIFEST}"))
  return {name for name in names if not name.startswith(others)
          and (name.startswith(f"{CONTENTS}/") or name.split("/")[0] in run_files.WRITTEN)}


def _keep(path: pathlib.Path, staged: pathlib.Path) -> None:
  staged.parent.mkdir(parents=True, exist_ok=True)
  grows = path.suffix == ".jsonl" or any(folder in path.parts for folder in _GROWING)
  if not grows:
    with contextlib.suppress(OSError):  # a file system without hard links
      os.link(path, staged)
      return
  shutil.copyfile(path, staged)


@contextlib.contextmanager
def _explained(place: Remote, is_begun: bool = True) -> Iterator[None]:
  """Turns what the store refuses into Unsaved, or into BadInput if a run has not begun and could never begin."""
  try:
    yield
  except remote.Lost as error:
    raise Unsaved(_taken_over(place)) from error
  except remote.Problem as problem:
    if problem.is_final and not is_begun:
      raise BadInput(f"{place.address} cannot be used: {problem}.") from problem
    raise Unsaved(_unsaved(place, problem)) from problem


def _unsaved(place: Remote, reason: Any) -> str:
  return (f"{place.address} cannot be written: {reason}. What was saved before is kept in {place.folder}, and the same "
          "command goes on from there once the address can be reached again.")


def _taken_over(place: Remote) -> str:
  return (f"another process has taken over the run folder {place.address}, which this one could not reach for a while; "
          f"it goes on there, and what this one has saved since is in {place.folder}.")
