"""TFDS image classification data sets as arrays, decoded once and cached.

Prepared array_record folders are read without TensorFlow. The cache lies in
the prepared folder itself, or under ~/.cache/alma_jax where that is read-only,
and a start that finds it does not import TFDS.
"""
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np

from alma_jax.data import tfds_source
from alma_jax.data.tfds_source import download as _download
from alma_jax.errors import BadInput

_CACHE = "alma_jax_arrays"
_FORMAT = 1  # of the cache; a cache of another format is decoded anew
_SPLITS = {"train": "train", "test": "test"}


def load(name, data_dir):
  """Decodes (or finds decoded) the train and test split of a TFDS data set.

  Args:
    name: TFDS name, e.g. "mnist" or "emnist/letters".
    data_dir: folder of prepared data sets, never downloaded into; empty:
      $TFDS_DATA_DIR or ~/tensorflow_datasets, downloaded into as needed.

  Returns:
    (dict of x_train, y_train, x_test, y_test, SHA-256 of them).

  Raises:
    BadInput: not prepared, not preparable, or not image classification.
  """
  root, folder = tfds_source.find(name, data_dir)
  if folder is None:
    folder = _download(root, name)
  for cache in _cache_folders(folder):
    found = _read_cache(cache, folder)
    if found is not None:
      return found
  arrays = _decode(folder, name)
  from alma_jax.data import datasets
  fingerprint = datasets.fingerprint_of(arrays)
  for cache in _cache_folders(folder):
    if _write_cache(cache, folder, arrays, fingerprint):
      break
  return arrays, fingerprint


def _decode(folder, name):
  tfds = tfds_source.import_tfds()
  builder = tfds.builder_from_directory(folder)
  keys = builder.info.supervised_keys
  features = builder.info.features
  if not keys or len(keys) != 2 or not isinstance(features[keys[0]], tfds.features.Image) or (
      not isinstance(features[keys[1]], tfds.features.ClassLabel)):
    raise BadInput(f"the TFDS data set {name!r} is not image classification: "
                   "its supervised keys are not (image, class label).")
  missing = sorted(set(_SPLITS) - set(builder.info.splits))
  if missing:
    raise BadInput(f"the TFDS data set {name!r} has no split {', '.join(missing)}; "
                   f"it has {', '.join(builder.info.splits)}.")
  arrays = {}
  for split in _SPLITS:
    images, labels = _read_split(builder, split, keys)
    if len({image.shape for image in images}) != 1:
      raise BadInput(f"the images of the TFDS data set {name!r} differ in size.")
    arrays[f"x_{split}"] = np.stack(images)
    arrays[f"y_{split}"] = np.asarray(labels, np.int32)
  return arrays


def _read_split(builder, split, keys):
  """Lists of images (uint8 [H, W, C]) and labels, in stored order."""
  pairs = [(np.asarray(e[keys[0]]), int(e[keys[1]])) for e in tfds_source.examples(builder, split)]
  return [image for image, _ in pairs], [label for _, label in pairs]


def _cache_folders(folder):
  """Where the cache may lie, best first."""
  key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
  home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
  return folder / _CACHE, home / "alma_jax" / f"arrays-{folder.parent.name}-{key}"


def _read_cache(cache, folder):
  try:
    meta = json.loads((cache / "meta.json").read_text())
    if meta["format"] != _FORMAT or meta["stamp"] != tfds_source.stamp(folder):
      return None
    arrays = {key: np.load(cache / f"{key}.npy") for key in meta["arrays"]}
  except (OSError, ValueError, KeyError):
    return None
  return arrays, meta["fingerprint"]


def _write_cache(cache, folder, arrays, fingerprint):
  """Writes the cache whole or not at all; False where it cannot be written."""
  try:
    cache.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=cache.name, dir=cache.parent))
  except OSError:
    return False
  try:
    for key, array in arrays.items():
      np.save(temporary / f"{key}.npy", array)
    (temporary / "meta.json").write_text(json.dumps(dict(
        format=_FORMAT, stamp=tfds_source.stamp(folder), arrays=sorted(arrays), fingerprint=fingerprint)))
    if cache.exists():
      shutil.rmtree(cache)
    temporary.rename(cache)
    return True
  except OSError:  # a full disk, or another process was first
    shutil.rmtree(temporary, ignore_errors=True)
    return False
