"""Decoded images on disk, so that a second start reads arrays instead of pictures."""
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np

_FORMAT = 1  # of the cache; a cache of another format is made anew


def cached(places, stamp, decode):
  """What `decode` returns, or returned once.

  Args:
    places: folders where the cache may lie, best first; the first that can be
      written is used.
    stamp: JSON that changes when what is decoded does.
    decode: () -> dict of arrays.

  Returns:
    (dict of arrays, SHA-256 of them).
  """
  stamp = json.loads(json.dumps(stamp))
  for place in places:
    found = _read(place, stamp)
    if found is not None:
      return found
  arrays = decode()
  from alma_jax.data import datasets
  fingerprint = datasets.fingerprint_of(arrays)
  for place in places:
    if _write(place, stamp, arrays, fingerprint):
      break
  return arrays, fingerprint


def home_place(name, folder):
  """A place for the cache of `folder` among the user's own files."""
  key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
  home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
  return home / "alma_jax" / f"arrays-{name}-{key}"


def _read(place, stamp):
  try:
    meta = json.loads((place / "meta.json").read_text())
    if meta["format"] != _FORMAT or meta["stamp"] != stamp:
      return None
    arrays = {key: np.load(place / f"{key}.npy") for key in meta["arrays"]}
  except (OSError, EOFError, ValueError, KeyError):
    return None
  return arrays, meta["fingerprint"]


def _write(place, stamp, arrays, fingerprint):
  """Writes the cache whole or not at all; False where it cannot be written."""
  try:
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=place.name, dir=place.parent))
  except OSError:
    return False
  try:
    for key, array in arrays.items():
      np.save(temporary / f"{key}.npy", array)
    (temporary / "meta.json").write_text(json.dumps(dict(
        format=_FORMAT, stamp=stamp, arrays=sorted(arrays), fingerprint=fingerprint)))
    if place.exists():
      shutil.rmtree(place)
    temporary.rename(place)
    return True
  except OSError:  # a full disk, or another process was first
    shutil.rmtree(temporary, ignore_errors=True)
    return False
