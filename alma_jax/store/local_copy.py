"""The local folders of runs at addresses, and how what a store holds gets into them. Imports no jax."""
import contextlib
import json
import os
import pathlib
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import filelock

from alma_jax.errors import BadInput
from alma_jax.files import parse_json, write_bytes
from alma_jax.store import lease, run_files
from alma_jax.store.remote import MANIFEST, MIRROR, File, Manifest, Problem, Remote, digest

_TIME, _HOLDER = "time", "holder"  # in MIRROR of the local folder
READ_PATIENCE = 30.0  # seconds for which commands that read a run try to reach a store
_LARGE = ("checkpoints", "pool", "predictor", "megabatches", "tensorboard", "wandb", "export")
_ONCE = ("checkpoints", "pool")  # folders whose files are written once, and deleted when newer ones replace them
_LOADING = 24 * 3600.0  # seconds for which a command may go on reading large files that it has fetched


class Known(NamedTuple):
  """What the files in a local folder go on from.

  Attributes:
    ids: of manifests; several while it is not known which one is current.
    is_ahead: whether a session has begun to change the folder since, and has not uploaded its last moment.
  """
  ids: list[str]
  is_ahead: bool


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
  found = sorted({file.parent for name in names for file in folder.rglob(name)})
  if not found:
    raise BadInput(f"{str(folder)!r} holds no run: there is no config.json in it or below it.")
  return found


def equalize(place: Remote, whole: bool = True, is_reader: bool = False) -> set[str]:
  """Makes the local folder equal to the store, unless it goes on from what the store holds.

  If it does, because a session was killed or could not upload, it keeps what it has; but what it lacks of the store's
  files, and each damaged one of those that are written once, is fetched. Therefore the newest sound checkpoint of the
  local folder is never older than that of the store. A folder of which no store is known goes on from a store without
  files: a run can be copied there by hand.

  Args:
    place: whose store has a manifest.
    whole: False leaves out checkpoints and other large files.
    is_reader: whether other commands may be loading large files of the folder, which are not deleted then.

  Returns:
    The names of the files that are damaged in the store.
  """
  damaged: set[str] = set()
  fetched, manifest, before = None, place.manifest(), known(place.folder)
  if manifest is None or (not manifest.files and (not before.ids or manifest.id in before.ids)):
    return damaged
  while manifest is not None and manifest.id != fetched:
    is_known = manifest.id in before.ids
    is_ahead = is_known and before.is_ahead
    if not is_known:
      remember(place.folder, [])
    if not is_ahead:
      _tidy(place.folder, manifest, is_reader)
      is_saved = any(_step(name) >= 0 for name in manifest.files)
      write_bytes(place.folder / MIRROR / _TIME, str(manifest.time if is_saved else None).encode())
    differ = {name: file for name, file in manifest.files.items() if whole or name.split("/")[0] not in _LARGE
              if not _is(place.folder / name, file) and (not is_ahead or _is_needed(place.folder, name))}
    if differ and is_known and not is_ahead and whole:
      warnings.warn(f"{place.folder} lacks files of {place.address}, or has others ({len(differ)} of "
                    f"{len(manifest.files)}), which are fetched again", stacklevel=2)
    damaged, fetched = place.fetch(differ), manifest.id
    if whole and not is_known:
      remember(place.folder, [fetched])
    if damaged:  # or the run has gone on meanwhile, and has replaced what was read
      manifest = place.manifest()
  return damaged


def known(folder: pathlib.Path) -> Known:
  """What the files in a local folder go on from."""
  try:
    tree = parse_json((folder / MIRROR / "known.json").read_bytes())
    return Known(list(tree["ids"]), bool(tree["is_ahead"]))
  except (OSError, ValueError, TypeError, KeyError):
    return Known([], False)


def remember(folder: pathlib.Path, ids: list[str], is_ahead: bool = False) -> None:
  """Stores what `known` returns."""
  (folder / MIRROR).mkdir(parents=True, exist_ok=True)
  write_bytes(folder / MIRROR / "known.json", json.dumps(Known(ids, is_ahead)._asdict()).encode())
  if is_ahead:
    (folder / MIRROR / _TIME).unlink(missing_ok=True)


def saved(folder: pathlib.Path) -> float | None:
  """When a fetched moment was uploaded, seconds since the epoch; None: a session of this machine made what is there."""
  try:
    return float((folder / MIRROR / _TIME).read_text())
  except (OSError, ValueError):
    return None


def holder(folder: pathlib.Path) -> str | None:
  """The machine that ran a fetched run when a command has looked; None: none did, or that was long ago."""
  path = folder / MIRROR / _HOLDER
  try:
    return path.read_text() if time.time() - path.stat().st_mtime < lease.SECONDS else None
  except OSError:
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
  found = []
  for top in run_files.WRITTEN:
    paths = [folder / top, *(folder / top).rglob("*")] if (folder / top).is_dir() else [folder / top]
    found += [name for path in paths if not path.is_symlink() and path.is_file()
              for name in [path.relative_to(folder).as_posix()] if not _is_temporary(name)]
  return sorted(found)


def warn_of(place: Remote, damaged: set[str]) -> None:
  """Warns of files that are damaged in a store."""
  for name in sorted(damaged):
    warnings.warn(f"{place.address}/{name} is damaged or missing", stacklevel=2)


def _fetch(path: str | os.PathLike[str], whole: bool) -> list[pathlib.Path]:
  place = Remote(path, READ_PATIENCE)
  try:
    if place.manifest() is not None:
      return [_update(place, whole)]
    suffix = f"/{MANIFEST}"
    below = [] if whole else [name.removesuffix(suffix) for name in place.names() if name.endswith(suffix)]
    if not below:
      raise BadInput(f"there is no run at {place.address}; check the name of the bucket, and the path.")
    return [_update(Remote(f"{place.address}/{name}", READ_PATIENCE), whole) for name in below]
  except Problem as problem:
    raise BadInput(f"{place.address} cannot be read: {str(problem).rstrip('.')}.") from problem


def _update(place: Remote, whole: bool) -> pathlib.Path:
  """Brings the local folder up to date, unless a run of this machine uses it or has left something newer.

  Unless it is fetched to be loaded, the machine that runs it is noted as well.
  """
  with (locked(place.folder, "fetching", wait=True), contextlib.suppress(filelock.Timeout),
        locked(place.folder, "run")):
    warn_of(place, equalize(place, whole, is_reader=True))
  if not whole:
    host, path = lease.holder(place), place.folder / MIRROR / _HOLDER
    path.unlink(missing_ok=True)
    if host is not None:
      write_bytes(path, host.encode())
  return place.folder


def _is(path: pathlib.Path, file: File) -> bool:
  return path.is_file() and path.stat().st_size == file.size and digest(path) == file.sha256


def _is_needed(folder: pathlib.Path, name: str) -> bool:
  """Whether a local folder that is ahead of the store should fetch a file that it lacks, or has otherwise."""
  return name.split("/")[0] in _ONCE or (not (folder / name).exists() and name != run_files.DIVERGED)


def _tidy(folder: pathlib.Path, manifest: Manifest, is_reader: bool) -> None:
  """Deletes what a run has left in a local folder and the store does not hold.

  A reader keeps large files for a while, unless they are newer checkpoints than those of the store.
  """
  newest, late = max(map(_step, manifest.files), default=-1), time.time() - _LOADING
  for top in run_files.WRITTEN:
    paths = [folder / top, *(folder / top).rglob("*")] if (folder / top).is_dir() else [folder / top]
    for path in reversed(paths):  # what is in a folder comes after it
      name = path.relative_to(folder).as_posix()
      if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # it is not empty
          path.rmdir()
      elif name not in manifest.files and path.exists() and not (
          is_reader and top in _LARGE and _step(name) <= newest and path.stat().st_mtime > late):
        path.unlink(missing_ok=True)


def _step(name: str) -> int:
  """The number of the checkpoint that a file belongs to; -1: it is another file."""
  parts = name.split("/")
  return int(parts[1]) if parts[0] == "checkpoints" and parts[1].isdigit() else -1


def _is_temporary(name: str) -> bool:
  return any(part.endswith(".tmp") or part.startswith(".tmp-") or ".orbax-checkpoint-tmp" in part
             for part in name.split("/"))
