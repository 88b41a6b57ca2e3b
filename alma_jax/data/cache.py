"""Caches of arrays on disk, so that a later start reads arrays instead of decoding or encoding files again.

A cache folder holds one entry: NAME.npy for each array, and meta.json, which describes the arrays and says what they
were made from. An entry is written to a temporary folder that is then renamed, so another process finds either a whole
entry or none.
"""
import hashlib
import json
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any, NamedTuple

import numpy as np

from alma_jax import files

_FORMAT = 3  # an entry of another format is made again
_READERS = 8  # files that are read at once: on a network file system most of the time of a read is latency

Arrays = dict[str, np.ndarray]


class Entry(NamedTuple):
  """What a cache folder holds.

  Attributes:
    arrays: the arrays by name.
    facts: JSON-able dict that belongs to the arrays.
  """
  arrays: Arrays
  facts: dict[str, Any]


def read(folder: pathlib.Path, made_from: Any, mapped: bool = False) -> Entry | None:
  """Reads the entry of a cache folder.

  Args:
    folder: the cache folder.
    made_from: JSON-able value; what the arrays would be made from now.
    mapped: whether to map the arrays from their files instead of reading them.

  Returns:
    The entry, or None if there is no entry, it is damaged, or its arrays were made from something else.
  """
  try:
    meta = files.parse_json((folder / "meta.json").read_text())
    if meta["format"] != _FORMAT or meta["made_from"] != json.loads(json.dumps(made_from)):  # tuples become lists
      return None
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None) for name in meta["arrays"]}
    return Entry(arrays, meta["facts"]) if _described(arrays) == meta["arrays"] else None
  except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
    return None


def write(folder: pathlib.Path, made_from: Any, entry: Entry) -> bool:
  """Writes an entry that `read` finds. An entry that was made from something else, or is damaged, is replaced.

  Returns:
    Whether the folder now holds such an entry. It does not if the disk is full or the folder cannot be written.
  """
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent, ignore_cleanup_errors=True) as temporary:
      made = pathlib.Path(temporary, "entry")
      made.mkdir()
      for name, array in entry.arrays.items():
        np.save(made / f"{name}.npy", array)
      (made / "meta.json").write_text(json.dumps(dict(
          format=_FORMAT, made_from=made_from, facts=entry.facts, arrays=_described(entry.arrays))))
      if read(folder, made_from, mapped=True) is None:  # else another process has written it, and may have mapped it
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
  except OSError:
    pass
  return read(folder, made_from, mapped=True) is not None


def load_or_make(folders: Sequence[pathlib.Path], made_from: Any, make: Callable[[], Entry],
                 mapped: bool = False) -> Entry:
  """Reads an entry from a cache folder, or makes it and writes it there.

  Args:
    folders: cache folders, the preferred one first. The entry is written to the first that can be written.
    made_from: JSON-able value that changes if the entry would.
    make: () -> Entry.
    mapped: whether to map the arrays from their files, if there are files.

  Returns:
    The entry; unless `make` gives one, its facts have a further item "fingerprint", `hash_arrays` of the arrays.
  """
  if entry := next(filter(None, (read(folder, made_from, mapped) for folder in folders)), None):
    return entry
  entry = make()
  if "fingerprint" not in entry.facts:
    entry.facts["fingerprint"] = hash_arrays(entry.arrays)
  written = next((folder for folder in folders if write(folder, made_from, entry)), None)
  return (mapped and written and read(written, made_from, mapped)) or entry


def home_folder(kind: str, name: str, key: Any) -> pathlib.Path:
  """The cache folder in the user's home for a JSON-able `key`; `kind` and `name` tell people what it holds."""
  readable = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[-40:]
  digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
  return files.cache_home() / f"{kind}-{readable}-{digest}"


def hash_files(folder: pathlib.Path, paths: Sequence[pathlib.Path]) -> str:
  """SHA-256 over the names and the contents of files, as hexadecimal digits.

  Sizes and times of modification do not suffice: unpacked archives, disk images and copies repeat them.

  Args:
    folder: the names are relative to it.
    paths: files below the folder, in a fixed order. A file that cannot be read counts as unreadable; whatever decodes
      it later reports the reason.
  """
  digest = hashlib.sha256()
  with ThreadPool(_READERS) as pool:
    for path, of_file in zip(paths, pool.imap(hash_file, paths, chunksize=16)):
      digest.update(json.dumps([path.relative_to(folder).as_posix(), of_file]).encode())
  return digest.hexdigest()


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
  """SHA-256 over the names, dtypes, shapes and contents of arrays, as hexadecimal digits."""
  digest = hashlib.sha256()
  for name in sorted(arrays):
    digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
    digest.update(np.ascontiguousarray(arrays[name]).data)
  return digest.hexdigest()


def hash_row(row: np.ndarray | bytes) -> int:
  """A hash of one example or document, to find equal ones. It differs from process to process."""
  return hash(row if isinstance(row, bytes) else row.tobytes())


def hash_file(path: pathlib.Path) -> str | None:
  """SHA-256 of a file as hexadecimal digits; None if it cannot be read."""
  try:
    with open(path, "rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()
  except OSError:
    return None


def _described(arrays: Arrays) -> dict[str, list[Any]]:
  """Dtype and shape of each array, as meta.json holds them."""
  return {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
