"""The folder of a predictor that is replaced while others read it.

    predictor/latest.json           {"version": NAME, "sha256": {FILE: hexadecimal}}
    predictor/load.py               loads the version that latest.json names
    predictor/000004-1a2b3c4d/...   a version: all files of one predictor, which never change
    predictor/task-0003/...         the same for each task of a stream of tasks

When a version is complete, latest.json is replaced by one rename of a file: this is atomic on every file system that a
run folder can be on, also on mounted buckets and network folders, many of which have no symbolic links and do not
rename a folder as a whole. The version before the last one is kept for readers that have just read its name, and the
sums tell a reader whether it has read whole files. Imports no jax.
"""
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from alma_jax.errors import BadInput
from alma_jax.files import parse_json, write_bytes
from alma_jax.predictors import description

LATEST, FACTS, PROGRAM, WEIGHTS = "latest.json", description.NAME, "predictor.stablehlo", "weights.npz"
TOKENIZER, LOADER, CARD = "tokenizer.json", "load.py", "model_card.md"
_TRIES, _PAUSE = 5, 0.2  # how often a predictor that changes meanwhile is read, and seconds between


class Stored(NamedTuple):
  """The files of one predictor.

  Attributes:
    version: name of the version; "" for a folder that `alma export` has written.
    files: {name: contents}.
    description: what its predictor.json says.
  """
  version: str
  files: Mapping[str, bytes]
  description: description.Description


def stored(files: Mapping[str, bytes], version: str = "") -> Stored:
  """The files {name: contents} of a predictor; raises BadInput if predictor.json cannot be used."""
  return Stored(version, files, description.parse(files[FACTS]))


def publish(root: pathlib.Path, number: int, files: Mapping[str, bytes]) -> str:
  """Replaces the predictor in a folder; one process writes at a time.

  Args:
    root: folder of the predictor; it is made if it does not exist.
    number: of the version, e.g. of the stage.
    files: {name: contents} of the version. LOADER is also written to `root`.

  Returns:
    Name of the version.

  Raises:
    OSError: the folder cannot be written; the predictor before stays.
  """
  sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
  total = hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()
  version = f"{number:06d}-{total[:8]}"
  root.mkdir(parents=True, exist_ok=True)
  before = latest_version(root)
  if before == version:
    return version
  shutil.rmtree(root / version, ignore_errors=True)  # left by a process that was killed
  (root / version).mkdir()
  for name, data in files.items():
    write_bytes(root / version / name, data)
  loader = files.get(LOADER)
  if loader is not None and not ((root / LOADER).exists() and (root / LOADER).read_bytes() == loader):
    write_bytes(root / LOADER, loader)
  write_bytes(root / LATEST, (json.dumps(dict(version=version, sha256=sums), indent=2) + "\n").encode())
  for entry in root.iterdir():
    if entry.is_dir() and entry.name not in (version, before):
      shutil.rmtree(entry, ignore_errors=True)
  return version


def of_task(root: pathlib.Path, t: int) -> pathlib.Path:
  """The folder of the predictor of task t, from 0, in that of a run on a stream of tasks."""
  return root / f"task-{t + 1:04d}"


def latest_version(root: pathlib.Path) -> str | None:
  """Name of the version that is current, or None if there is none that can be read."""
  try:
    return _pointer(root)[0]
  except (OSError, ValueError):
    return None


def holds_predictor(root: pathlib.Path) -> bool:
  """Whether a folder holds a predictor: one that is replaced, or one that `alma export` has written."""
  return (root / LATEST).is_file() or (root / FACTS).is_file()


def read(root: pathlib.Path) -> Stored:
  """Reads the current predictor of a folder, or the one that `alma export` has written there.

  Raises:
    BadInput: there is none, or it is damaged.
  """
  for attempt in range(_TRIES):
    try:
      return _read(root)
    except (OSError, ValueError) as error:  # another version has replaced it meanwhile, or it is damaged
      problem: Exception = error
      if not (root / LATEST).is_file():
        break  # nobody replaces it
      if attempt + 1 < _TRIES:
        time.sleep(_PAUSE)
  if not holds_predictor(root):
    raise BadInput(f"there is no predictor in {root}; alma export --workdir RUN --out DIR writes one.")
  raise BadInput(f"the predictor in {root} cannot be read ({_reason(problem)}); delete the folder, and export it again "
                 "(alma export, or the run's own command).") from problem


def _read(root: pathlib.Path) -> Stored:
  if not (root / LATEST).is_file():
    names = [name for name in (FACTS, PROGRAM, WEIGHTS, TOKENIZER) if (root / name).is_file()]
    missing = {FACTS, PROGRAM, WEIGHTS} - set(names)
    if missing:
      raise ValueError(f"{sorted(missing)[0]} is missing")
    found = stored({name: (root / name).read_bytes() for name in names})
    return found._replace(files=_verified(found.files, found.description.sha256))
  version, sums = _pointer(root)
  files = _verified({name: (root / version / name).read_bytes() for name in sums}, sums)
  if {FACTS, PROGRAM} - files.keys():
    raise ValueError(f"{LATEST} lacks {FACTS} or {PROGRAM}")
  return stored(files, version)


def _verified(files: Mapping[str, bytes], sums: Mapping[str, Any]) -> Mapping[str, bytes]:
  """The files; raises ValueError if one with a SHA-256 in `sums` is not what was written."""
  for name, data in files.items():
    if name in sums and hashlib.sha256(data).hexdigest() != sums[name]:
      raise ValueError(f"{name} is not what was written")
  return files


def _pointer(root: pathlib.Path) -> tuple[str, dict[str, str]]:
  """(version, {file: SHA-256}) of latest.json; both are names inside the folder."""
  tree = parse_json((root / LATEST).read_text())
  version, sums = (tree.get("version"), tree.get("sha256")) if isinstance(tree, dict) else (None, None)
  if not isinstance(version, str) or not isinstance(sums, dict):
    raise ValueError(f"{LATEST} does not name a version")
  for name in (version, *sums):
    if name in ("", "..") or pathlib.PurePath(name).name != name:
      raise ValueError(f"{LATEST} names {name!r}, which is not in the folder")
  return version, sums


def _reason(error: Exception) -> str:
  return (error.strerror or "") if isinstance(error, OSError) else str(error)
