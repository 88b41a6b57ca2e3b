"""The local folders of runs at addresses, and how what a store holds gets into them. Imports no jax."""
import contextlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Mapping

import filelock

from alma_jax.errors import BadInput
from alma_jax.files import parse_json, write_bytes
from alma_jax.runs import run_folder
from alma_jax.runs.remote import MANIFEST, MIRROR, File, Problem, Remote, digest

READ_PATIENCE = 30.0  # seconds for which commands that read a run try to reach a store
_LARGE = ("checkpoints", "pool", "predictor", "megabatches", "tensorboard", "wandb", "export")


def readable(path: str | os.PathLike[str]) -> pathlib.Path:
  """The local folder of a run that is to be read: the folder itself, or what is fetched from its address.

  Raises:
    BadInput: the address cannot be read, or holds no run.
  """
  return _fetch(path, whole=True)[0] if run_folder.is_address(path) else run_folder.local(path)


def readable_folders(path: str | os.PathLike[str], names: Iterable[str]) -> list[pathlib.Path]:
  """The run folders that a path stands for: itself, or those below it. Of an address, only small files are fetched.

  Args:
    path: folder or address.
    names: of files that make a folder a run folder.

  Raises:
    BadInput: the folder does not exist, or the path holds no run.
  """
  if run_folder.is_address(path):
    return _fetch(path, whole=False)
  folder = run_folder.local(path)
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r}.")
  if (folder / "config.json").exists():
    return [folder]
  found = sorted({file.parent for name in names for file in folder.rglob(name)})
  if not found:
    raise BadInput(f"{str(folder)!r} holds no run: there is no config.json in it or below it.")
  return found


def equalize(place: Remote, whole: bool = True) -> set[str]:
  """Makes the local folder equal to the store, unless it goes on from what the store holds.

  A folder of which no store is known goes on from a store without files: a run can be copied there by hand.

  Args:
    place: whose store has a manifest.
    whole: False leaves out checkpoints and other large files.

  Returns:
    The names of the files that are damaged in the store.
  """
  damaged: set[str] = set()
  fetched, manifest, ids = None, place.manifest(), known(place.folder)
  if manifest is None or manifest.id in ids or not (manifest.files or ids):
    return damaged
  remember(place.folder, [])
  while manifest is not None and manifest.id != fetched:
    wanted = {name: file for name, file in manifest.files.items() if whole or name.split("/")[0] not in _LARGE}
    _tidy(place.folder, manifest.files)
    damaged = place.fetch({name: file for name, file in wanted.items() if not _is(place.folder / name, file)})
    fetched = manifest.id
    if damaged:  # or the run has gone on meanwhile, and has replaced what was read
      manifest = place.manifest()
  if whole and fetched is not None:
    remember(place.folder, [fetched])
  return damaged


def known(folder: pathlib.Path) -> list[str]:
  """The ids of the manifests that the files in a local folder go on from."""
  try:
    ids = parse_json((folder / MIRROR / "known.json").read_bytes())
  except (OSError, ValueError):
    return []
  return ids if isinstance(ids, list) else []


def remember(folder: pathlib.Path, ids: list[str]) -> None:
  """Stores what `known` returns."""
  (folder / MIRROR).mkdir(parents=True, exist_ok=True)
  write_bytes(folder / MIRROR / "known.json", json.dumps(ids).encode())


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
  for top in run_folder.OURS:
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
      raise BadInput(f"there is no run at {place.address}: it has no {MANIFEST}.")
    return [_update(Remote(f"{place.address}/{name}", READ_PATIENCE), whole) for name in below]
  except Problem as problem:
    raise BadInput(f"{place.address} cannot be read: {str(problem).rstrip('.')}.") from problem


def _update(place: Remote, whole: bool) -> pathlib.Path:
  """Brings the local folder up to date, unless a run of this machine uses it or has left something newer."""
  with (locked(place.folder, "fetching", wait=True), contextlib.suppress(filelock.Timeout),
        locked(place.folder, "run")):
    warn_of(place, equalize(place, whole))
  return place.folder


def _is(path: pathlib.Path, file: File) -> bool:
  return path.is_file() and path.stat().st_size == file.size and digest(path) == file.sha256


def _tidy(folder: pathlib.Path, files: Mapping[str, File]) -> None:
  """Deletes what a run has left in a local folder and the store does not hold."""
  for top in run_folder.OURS:
    paths = [folder / top, *(folder / top).rglob("*")] if (folder / top).is_dir() else [folder / top]
    for path in reversed(paths):  # what is in a folder comes after it
      if path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):  # it is not empty
          path.rmdir()
      elif path.relative_to(folder).as_posix() not in files:
        path.unlink(missing_ok=True)


def _is_temporary(name: str) -> bool:
  return any(part.endswith(".tmp") or part.startswith(".tmp-") or ".orbax-checkpoint-tmp" in part
             for part in name.split("/"))
