"""The local folders of runs at addresses, and how what a store holds gets into them. Imports no jax.

The folder .mirror of a local folder holds
  owner           its id, which the manifests have that are made from it
  manifest.json   the last manifest that was uploaded from it or fetched into it
  ahead           is there while the folder may hold more than the store: a session has begun to change it
  lease.json      the lease in the store when a command has looked, see lease.py
"""
import contextlib
import os
import pathlib
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator

import filelock

from alma_jax.errors import BadInput
from alma_jax.files import write_bytes
from alma_jax.store import lease, remote, run_files
from alma_jax.store.remote import LEASE, MANIFEST, MIRROR, File, Manifest, Problem, Remote

AHEAD, _OWNER = f"{MIRROR}/ahead", f"{MIRROR}/owner"
READ_PATIENCE = 30.0  # seconds for which commands that read a run try to reach a store
_LARGE = ("checkpoints", "pool", "predictor", "megabatches", "tensorboard", "wandb", "export")
_ONCE = ("checkpoints", "pool")  # folders whose files are written once, and deleted when newer ones replace them
_LOADING = 24 * 3600.0  # seconds for which a command may go on reading large files that it has fetched


def readable(path: str | os.PathLike[str]) -> pathlib.Path:
  """The local folder of a run that is to be read: the folder itself, or what is fetched from its address.

  Raises:
    BadInput: the address cannot be read, or holds no run.
  """
  return _fetch(path, whole=True)[0] if run_files.is_address(path) else run_files.local(path)


def readable_folders(path: str | os.PathLike[str], names: Iterable[str]) -> list[pathlib.Path]:
  """The run folders that a path stands for: itself, or those below it. Of an address, only small files are fetched.

  Args:
    path: folder or address.
    names: of files that make a folder a run folder.

  Raises:
    BadInput: the folder does not exist, or the path holds no run.
  """
  if run_files.is_address(path):
    return _fetch(path, whole=False)
  folder = run_files.local(path)
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r}.")
  if (folder / run_files.CONFIG).exists():
    return [folder]
  folders = sorted({file.parent for name in names for file in folder.rglob(name)})
  if not folders:
    raise BadInput(f"{str(folder)!r} holds no run: there is no config.json in it or below it.")
  return folders


def equalize(place: Remote, whole: bool = True, is_reader: bool = False) -> set[str]:
  """Makes the local folder equal to the store, unless it goes on from what the store holds.

  If it does, because a session was killed or could not upload, it keeps what it has; but what it lacks of the store's
  files, and each damaged one of those that are written once, is fetched. Therefore the newest sound checkpoint of the
  local folder is never older than that of the store.

  Args:
    place: whose store has a manifest.
    whole: False leaves out checkpoints and other large files.
    is_reader: whether other commands may be loading large files of the folder, which are not deleted then.

  Returns:
    The names of the files that are damaged in the store, of which there is a warning each.
  """
  folder, manifest = place.folder, place.manifest()
  damaged: set[str] = set()
  fetched: Manifest | None = None
  while manifest is not None and manifest != fetched:
    is_own = manifest.owner == own_id(folder)
    is_ahead = is_own and (folder / AHEAD).exists()
    if not is_ahead:
      (folder / AHEAD).unlink(missing_ok=True)
      _tidy(folder, manifest, is_reader)
    differ = [name for name, file in manifest.files.items() if whole or name.split("/")[0] not in _LARGE
              if not holds(folder / name, file) and (not is_ahead or _is_needed(folder, name))]
    if differ and is_own and not is_ahead and whole:
      warnings.warn(f"{folder} lacks files of {place.address}, or has others ({len(differ)} of {len(manifest.files)}), "
                    "which are fetched again", stacklevel=2)
    damaged, fetched = place.fetch(manifest, differ), manifest
    remember(folder, manifest)
    if damaged:  # or the run has gone on meanwhile, and has replaced what was read
      manifest = place.manifest()
  for name in sorted(damaged):
    warnings.warn(f"{place.address}/{name} is damaged or missing", stacklevel=2)
  return damaged


def own_id(folder: pathlib.Path) -> str:
  """The id of a local folder, which is made if there is none.

  No other folder has it, so that processes with the same id see the same folder.
  """
  if not (folder / _OWNER).is_file():
    (folder / MIRROR).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / _OWNER, uuid.uuid4().hex.encode())
  return (folder / _OWNER).read_text()


def remember(folder: pathlib.Path, manifest: Manifest) -> None:
  """Stores the manifest that the files in a local folder are equal to, or go on from."""
  write_bytes(folder / MANIFEST, manifest.encoded())


def saved(folder: pathlib.Path) -> float | None:
  """When the checkpoint in a local folder was uploaded, seconds since the epoch; None: it has none or a newer one."""
  try:
    manifest = remote.parse_manifest((folder / MANIFEST).read_bytes())
  except (OSError, ValueError, TypeError, KeyError, AttributeError):
    return None
  is_saved = any(_step(name) >= 0 for name in manifest.files)
  return manifest.time if is_saved and not (folder / AHEAD).exists() else None


def holder(folder: pathlib.Path) -> str | None:
  """The machine that ran a fetched run when a command has looked; None: none did, or that was long ago."""
  with contextlib.suppress(FileNotFoundError):
    return lease.holder((folder / LEASE).read_bytes(), own_id(folder))
  return None


@contextlib.contextmanager
def locked(folder: pathlib.Path, name: str, wait: bool = False) -> Iterator[None]:
  """A context in which no other process of this machine holds the lock of this name.

  Raises:
    filelock.Timeout: another one does, and `wait` is false.
  """
  (folder / MIRROR).mkdir(parents=True, exist_ok=True)
  with filelock.FileLock(folder / MIRROR / f"{name}.lock", timeout=-1 if wait else 0):
    yield


def mirrored(folder: pathlib.Path) -> list[str]:
  """The names of the files of a local folder that belong to its run; none that is being written."""
  return sorted(name for name, path in _paths(folder) if not path.is_symlink() and path.is_file()
                and not _is_temporary(name))


def _fetch(path: str | os.PathLike[str], whole: bool) -> list[pathlib.Path]:
  place = Remote(path, READ_PATIENCE)
  try:
    if place.manifest() is not None:
      return [_update(place, whole)]
    suffix = f"/{MANIFEST}"
    below = [] if whole else [name.removesuffix(suffix) for name in place.sizes() if name.endswith(suffix)]
    if not below:
      raise BadInput(f"there is no run at {place.address}; check the name of the bucket, and the path.")
    return [_update(Remote(f"{place.address}/{name}", READ_PATIENCE), whole) for name in below]
  except Problem as problem:
    raise BadInput(f"{place.address} cannot be read: {problem}.") from problem


def _update(place: Remote, whole: bool) -> pathlib.Path:
  """Brings the local folder up to date, unless a run of this machine uses it or has left something newer.

  Unless it is fetched to be loaded, its lease is fetched as well.
  """
  with (locked(place.folder, "fetching", wait=True), contextlib.suppress(filelock.Timeout),
        locked(place.folder, "run")):
    equalize(place, whole, is_reader=True)
  if not whole:
    (place.folder / LEASE).unlink(missing_ok=True)
    if (held := place.read(LEASE)) is not None:
      write_bytes(place.folder / LEASE, held)
  return place.folder


def holds(path: pathlib.Path, file: File) -> bool:
  """Whether a local file has the contents of a file of a manifest."""
  return path.is_file() and path.stat().st_size == file.size and remote.digest(path) == file.sha256


def _is_needed(folder: pathlib.Path, name: str) -> bool:
  """Whether a local folder that is ahead of the store should fetch a file that it lacks, or has otherwise."""
  return name.split("/")[0] in _ONCE or (not (folder / name).exists() and name not in (
      run_files.DIVERGED, run_files.STOPPED))


def _tidy(folder: pathlib.Path, manifest: Manifest, is_reader: bool) -> None:
  """Deletes what a run has left in a local folder and the store does not hold.

  A reader keeps large files for a while, unless they are newer checkpoints than those of the store.
  """
  newest, late = max(map(_step, manifest.files), default=-1), time.time() - _LOADING
  for name, path in reversed([*_paths(folder)]):  # what is in a folder comes after it
    if path.is_dir() and not path.is_symlink():
      with contextlib.suppress(OSError):  # it is not empty
        path.rmdir()
    elif name not in manifest.files and path.exists() and not (
        is_reader and name.split("/")[0] in _LARGE and _step(name) <= newest and path.stat().st_mtime > late):
      path.unlink(missing_ok=True)


def _paths(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
  """(name, path) of all that a run may have written into a folder; some may not exist."""
  for top in run_files.WRITTEN:
    for path in (folder / top, *(folder / top).rglob("*")):
      yield path.relative_to(folder).as_posix(), path


def _step(name: str) -> int:
  """The number of the checkpoint that a file belongs to; -1: it is another file."""
  parts = name.split("/")
  return int(parts[1]) if parts[0] == "checkpoints" and parts[1].isdigit() else -1


def _is_temporary(name: str) -> bool:
  return any(part.endswith(".tmp") or part.startswith(".tmp-") or ".orbax-checkpoint-tmp" in part
             for part in name.split("/"))
