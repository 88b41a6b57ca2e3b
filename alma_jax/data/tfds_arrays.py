"""TFDS image classification data sets as arrays, decoded once and cached.

Prepared array_record folders are read without TensorFlow. The cache lies in
the prepared folder itself, or under ~/.cache/alma_jax where that is read-only,
and a start that finds it does not import TFDS.
"""
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np

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
  root = pathlib.Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
  folder = _prepared_folder(root, name)
  if folder is None and data_dir:
    raise BadInput(f"dataset.data_dir={data_dir!r} holds no prepared TFDS data set {name!r} "
                   f"(no {root / name}/VERSION/dataset_info.json); leave it empty to download.")
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


def _prepared_folder(root, name):
  """The newest prepared version below root/name, or None."""
  versions = [info.parent for info in (root / name).glob("*/dataset_info.json")]
  if not versions and "/" not in name:  # a data set of configurations: the only one, if one
    configs = {info.parent.parent for info in (root / name).glob("*/*/dataset_info.json")}
    if len(configs) > 1:
      raise BadInput(f"{root / name} holds the configurations "
                     f"{', '.join(sorted(c.name for c in configs))}; name one as tfds:{name}/CONFIG.")
    versions = [info.parent for info in (root / name).glob("*/*/dataset_info.json")]
  key = lambda folder: [int(part) if part.isdigit() else -1 for part in folder.name.split(".")]
  return max(versions, key=key, default=None)


def _download(root, name):
  _need_tensorflow(f"{root} holds no prepared {name!r}, and preparing it")
  tfds = _import_tfds()
  try:
    builder = tfds.builder(name, data_dir=root)
  except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
    raise BadInput(f"TFDS knows no data set {name!r} ({_first_line(error)}).") from error
  try:
    builder.download_and_prepare(file_format="array_record")
  except Exception as error:  # whatever the network, the disk or the builder raise
    raise BadInput(f"TFDS could not download and prepare {name!r} into {root}: "
                   f"{_first_line(error)}") from error
  return pathlib.Path(builder.data_dir)


def _decode(folder, name):
  tfds = _import_tfds()
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
    images, labels = _read_split(tfds, builder, split, keys)
    if len({image.shape for image in images}) != 1:
      raise BadInput(f"the images of the TFDS data set {name!r} differ in size.")
    arrays[f"x_{split}"] = np.stack(images)
    arrays[f"y_{split}"] = np.asarray(labels, np.int32)
  return arrays


def _read_split(tfds, builder, split, keys):
  """Lists of images (uint8 [H, W, C]) and labels, in stored order."""
  if builder.info.file_format and builder.info.file_format.value == "array_record":
    source = builder.as_data_source(split)
    pairs = []
    for start in range(0, len(source), 1024):
      batch = source.__getitems__(range(start, min(start + 1024, len(source))))
      pairs += [(example[keys[0]], example[keys[1]]) for example in batch]
  else:
    _need_tensorflow(f"{builder.data_dir} is in {builder.info.file_format.value} format, and reading it")
    config = tfds.ReadConfig(interleave_cycle_length=1)
    stored = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    pairs = [(e[keys[0]], e[keys[1]]) for e in tfds.as_numpy(stored)]
  return [np.asarray(image) for image, _ in pairs], [int(label) for _, label in pairs]


def _need_tensorflow(what):
  if importlib.util.find_spec("tensorflow") is None:
    raise BadInput(f"{what} needs TensorFlow; run `pip install tensorflow-cpu` and try again.")


def _import_tfds():
  try:
    import tensorflow_datasets
  except ImportError as error:
    raise BadInput(f"reading TFDS data needs a package that is missing ({_first_line(error)}); "
                   "run `pip install -r requirements.txt`.") from error
  return tensorflow_datasets


def _cache_folders(folder):
  """Where the cache may lie, best first."""
  key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
  home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
  return folder / _CACHE, home / "alma_jax" / f"arrays-{folder.parent.name}-{key}"


def _stamp(folder):
  """What the cache was made from: names, sizes and times of the prepared files."""
  files = sorted(p for p in folder.iterdir() if p.is_file())
  return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]


def _read_cache(cache, folder):
  try:
    meta = json.loads((cache / "meta.json").read_text())
    if meta["format"] != _FORMAT or meta["stamp"] != _stamp(folder):
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
        format=_FORMAT, stamp=_stamp(folder), arrays=sorted(arrays), fingerprint=fingerprint)))
    if cache.exists():
      shutil.rmtree(cache)
    temporary.rename(cache)
    return True
  except OSError:  # a full disk, or another process was first
    shutil.rmtree(temporary, ignore_errors=True)
    return False


def _first_line(error):
  lines = str(error).strip().splitlines()
  return lines[0] if lines else type(error).__name__
