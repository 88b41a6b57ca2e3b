"""Copies the local folder of a run to a store while the run goes on; remote.py describes what the store holds.

`Mirror.take` keeps what is in the folder at one moment as hard links, which costs no space; files that grow are copied.
A thread then uploads what has changed, and commits a manifest. Last of all it deletes the objects that no file needs
any more. If moments come faster than they can be uploaded, some are left out.
"""
import contextlib
import os
import pathlib
import shutil
import threading
from collections.abc import Iterable, Iterator

import filelock

from alma_jax import messages
from alma_jax.errors import BadInput, InUse, Unsaved
from alma_jax.files import write_bytes
from alma_jax.store import lease, local_copy, remote, run_files
from alma_jax.store.remote import CHANGED, MANIFEST, MIRROR, File, Manifest, Remote

_GROWING = ("tensorboard", "wandb")  # folders whose files grow; .jsonl files do so too
_STAGED, _SESSION = "staged", "session"  # in MIRROR of the local folder


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
      with local_copy.locked(place.folder, "fetching", wait=True):  # readers wait meanwhile
        cleanup.enter_context(local_copy.locked(place.folder, "run"))
        with messages.sign(f"connecting to {place.address}"):
          held = lease.Lease(place)
        cleanup.callback(held.release)
        cleanup.callback(place.hurry)
        with messages.sign(f"fetching {place.address}"):
          mirror = Mirror(place, held, overwrite)
    except filelock.Timeout as error:
      raise InUse(f"the run folder {place.address} is in use by another process; wait until it ends, or choose another "
                  "folder.") from error
    except remote.Problem as problem:
      if problem.is_final:
        raise BadInput(f"{place.address} cannot be used: {str(problem).rstrip('.')}.") from problem
      raise Unsaved(_unsaved(place, str(problem))) from problem
    except remote.Lost as error:
      raise Unsaved(_taken_over(place)) from error
    cleanup.callback(mirror.close)
    yield mirror


def session(folder: pathlib.Path) -> str | None:
  """The id of the Mirror that has opened a local folder last; None: the folder is not there."""
  try:
    return (folder / MIRROR / _SESSION).read_text()
  except OSError:
    return None


class Mirror:
  """What a store holds of a run, and the thread that brings it up to date.

  Attributes:
    address: of the run.
    folder: the local folder.
  """

  def __init__(self, place: Remote, held: lease.Lease, overwrite: bool):
    """See `opened`."""
    self.address, self.folder, self._place, self._lease = place.address, place.folder, place, held
    self._staging = self.folder / MIRROR / _STAGED
    shutil.rmtree(self._staging, ignore_errors=True)
    self._damaged: set[str] = set()
    self._base = self._begin(overwrite)
    self._is_equal = bool(self._base.files) and not overwrite and not local_copy.known(self.folder).is_ahead
    self._ids = [] if overwrite else [self._base.id]  # if it is killed before it commits, the old run remains
    write_bytes(self.folder / MIRROR / _SESSION, remote.new_id().encode())
    self._sums: dict[tuple[int, int, int], str] = {}  # {(inode, size, time): SHA-256}
    self._is_tidy = False
    self._own_names = not held.is_inherited  # the former owner may still put objects under the names of its files
    self._number = 0
    self._changed = threading.Condition()
    self._next: pathlib.Path | None = None  # the moment to upload next
    self._is_busy = self._is_closed = False
    self._problem: str | None = None
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()

  def take(self) -> None:
    """Keeps the folder as it is now, to be uploaded. No checkpoint may be in the making.

    Raises:
      Unsaved: something earlier could not be uploaded.
    """
    with self._changed:
      self._raise()
      if not self._number:
        local_copy.remember(self.folder, self._ids, is_ahead=True)
        self._is_equal = False
      self._number += 1
      staged = self._staging / str(self._number)
      staged.mkdir(parents=True)
      for name in local_copy.mirrored(self.folder):
        _keep(self.folder / name, staged / name)
      if self._next is not None:
        shutil.rmtree(self._next)
      self._next = staged
      self._changed.notify_all()

  def finish(self) -> None:
    """Takes the folder as it is now, and waits until the store holds it, each file under its own name.

    Nothing is uploaded if `take` was never called and the folder was made equal to the store.

    Raises:
      Unsaved: it could not be uploaded.
    """
    if self._is_equal:
      return
    self.take()
    self.wait()
    if any(file.object != name for name, file in self._base.files.items()):
      self._own_names = True
      self.take()
      self.wait()
    try:
      self._confirm()
    except remote.Lost as error:
      raise Unsaved(_taken_over(self._place)) from error
    except remote.Problem as problem:
      raise Unsaved(_unsaved(self._place, str(problem))) from problem
    local_copy.remember(self.folder, [self._base.id])

  def check(self) -> None:
    """Raises Unsaved if another process has taken the run folder over."""
    if self._lease.is_lost:
      raise Unsaved(_taken_over(self._place))

  def wait(self) -> None:
    """Waits until the store holds what was taken.

    Raises:
      Unsaved: it could not be uploaded.
    """
    with messages.sign(f"uploading to {self.address}"), self._changed:
      self._changed.wait_for(lambda: self._problem or not (self._is_busy or self._next))
      self._raise()

  def close(self) -> None:
    """Ends the thread; what it uploads at the moment may still arrive, if the store can be reached."""
    self._place.hurry()  # it may be trying again
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
    self._thread.join()
    shutil.rmtree(self._staging, ignore_errors=True)

  # ------------------------------------------------------------------ the beginning

  def _begin(self, overwrite: bool) -> Manifest:
    """Makes the local folder equal to the store, unless it goes on from it; returns the manifest."""
    place = self._place
    try:
      stored = place.manifest()
    except BadInput:
      if not overwrite:
        raise
      stored = Manifest("", {}, 0.0)
    if stored is None:
      self._refuse_lost(overwrite)
      stored = remote.made({})
      place.commit(stored)
      local_copy.remember(self.folder, [stored.id], is_ahead=True)
    elif not overwrite:
      self._damaged = local_copy.equalize(place)
      local_copy.warn_of(place, self._damaged)
    return stored

  def _refuse_lost(self, overwrite: bool) -> None:
    """Raises BadInput if a store without a manifest holds files, or has held the run of the local folder."""
    found = sorted({name.split("/")[0] for name in self._place.names()} & set(run_files.WRITTEN))
    if found:
      raise BadInput(f"{self.address} holds {', '.join(found)}, but not from a run of alma_jax; choose another "
                     "--workdir.")
    if local_copy.known(self.folder).ids and not overwrite:
      raise BadInput(f"{self.address} is empty, although it has held the run whose local copy is {self.folder}; delete "
                     "the copy, or --overwrite the run, and it starts again.")

  # ------------------------------------------------------------------ the thread

  def _work(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._is_closed or self._next)
        if self._is_closed:
          return
        staged, self._next, self._is_busy = self._next, None, True
      assert staged is not None
      try:
        self._upload(staged)
        problem = None
      except remote.Lost:
        problem = _taken_over(self._place)
      except remote.Problem as error:
        problem = _unsaved(self._place, str(error))
      except Exception as error:  # it has to reach the main thread
        problem = _unsaved(self._place, f"{type(error).__name__}: {error}")
      shutil.rmtree(staged, ignore_errors=True)
      with self._changed:
        self._problem, self._is_busy = problem, False
        self._changed.notify_all()
        if problem is not None:
          return

  def _upload(self, staged: pathlib.Path) -> None:
    """Brings the store to a moment of the folder."""
    files, paths = {}, {}
    for name in local_copy.mirrored(staged):
      file = self._plan(name, staged / name)
      files[name] = file
      if file != self._base.files.get(name) or name in self._damaged:
        paths[file.object] = staged / name
    if files != self._base.files or paths:
      self._place.upload(paths)
      manifest = remote.made(files)
      self._lease.check()
      # It may be killed before it knows of its success.
      local_copy.remember(self.folder, [*self._ids, manifest.id], is_ahead=True)
      self._place.commit(manifest)
      self._ids = [manifest.id]
      local_copy.remember(self.folder, self._ids, is_ahead=True)
      before, self._base, self._damaged = self._base, manifest, set()
      self._place.delete(_unused({file.object for file in before.files.values()}, manifest))
    if not self._is_tidy:  # objects that a process has left which was killed
      self._place.delete(_unused(self._place.names(), self._base))
      self._is_tidy = True

  def _confirm(self) -> None:
    """Makes sure that the manifest is the last one of this process; raises remote.Lost if it is not."""
    for _ in range(2):
      self._lease.check()
      stored = self._place.manifest()
      if stored is not None and stored.id == self._base.id:
        return
      self._place.commit(self._base)  # a put of a former owner has arrived late
    raise remote.Lost

  def _plan(self, name: str, path: pathlib.Path) -> File:
    """How the store should hold a file: under its name, unless other contents are or may arrive there."""
    stat, known = path.stat(), self._base.files.get(name)
    key = stat.st_ino, stat.st_size, stat.st_mtime_ns
    if key not in self._sums:
      self._sums[key] = remote.digest(path)
    sha256 = self._sums[key]
    is_same = known is not None and known.sha256 == sha256
    is_there = known is not None and known.object == name
    is_taken = is_there and not is_same if self._own_names else not (is_there and is_same)
    return File(stat.st_size, sha256, f"{CHANGED}/{name}-{sha256[:12]}" if is_taken else name)

  def _raise(self) -> None:
    if self._problem is not None:
      raise Unsaved(self._problem)


def _unused(names: Iterable[str], manifest: Manifest) -> list[str]:
  """The objects among `names` that belong to the run folder, and that neither a file needs nor has the name of.

  Those of another run, whose address is below, do not belong to it.
  """
  names, needed = list(names), {file.object for file in manifest.files.values()}
  others = tuple(name.removesuffix(MANIFEST) for name in names if name.endswith(f"/{MANIFEST}"))
  return [name for name in names if name not in needed and name not in manifest.files and not name.startswith(others)
          and (name.startswith(f"{CHANGED}/") or name.split("/")[0] in run_files.WRITTEN)]


def _keep(path: pathlib.Path, staged: pathlib.Path) -> None:
  staged.parent.mkdir(parents=True, exist_ok=True)
  grows = path.suffix == ".jsonl" or any(folder in path.parts for folder in _GROWING)
  if not grows:
    with contextlib.suppress(OSError):  # a file system without hard links
      os.link(path, staged)
      return
  shutil.copyfile(path, staged)


def _unsaved(place: Remote, reason: str) -> str:
  return (f"{place.address} cannot be written: {reason.rstrip('.')}. What was saved before is kept in {place.folder}, "
          "and the same command goes on from there once the address can be reached again.")


def _taken_over(place: Remote) -> str:
  return (f"another process has taken over the run folder {place.address}, which this one could not reach for a while; "
          f"it goes on there, and what this one has saved since is in {place.folder}.")
