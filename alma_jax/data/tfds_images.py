"""Loads image classification data sets of TFDS as arrays, which are decoded once and cached.

The cache is a folder alma_jax_arrays in the prepared folder, or a folder in ~/.cache/alma_jax if the former cannot be
written. A start that finds it does not import TFDS.
"""
import pathlib
from typing import Any

import numpy as np

from alma_jax.data import cache, tfds_folder
from alma_jax.errors import BadInput

_CACHE = "alma_jax_arrays"
_SPLITS = ("train", "test")


def load(name: str, data_dir: str) -> tuple[cache.Arrays, str, list[str] | None]:
  """Decodes the train and the test split of a TFDS data set, or reads them from the cache.

  Args:
    name: TFDS name, see `tfds_folder.prepared`.
    data_dir: see `tfds_folder.prepared`.

  Returns:
    (dict of x_train, y_train, x_test, y_test, `cache.hash_arrays` of them, names of the classes or None). x are uint8
    [N, H, W, C], y int32 [N].

  Raises:
    BadInput: the data set cannot be found or prepared, or is not image classification.
  """
  folder = tfds_folder.prepared(name, data_dir)
  places = [folder / _CACHE, cache.home_folder("arrays", folder.parent.name, str(folder.resolve()))]
  entry = cache.load_or_make(places, tfds_folder.fingerprint(folder), lambda: cache.Entry(_decode(folder, name), {}))
  names = list(folder.glob("*.labels.txt"))  # TFDS writes one for every feature that is a class
  class_names = names[0].read_text().split("\n")[:-1] if len(names) == 1 else None
  return entry.arrays, entry.facts["fingerprint"], class_names


def _decode(folder: pathlib.Path, name: str) -> cache.Arrays:
  tfds = tfds_folder.import_tfds()
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


def _read_split(builder: Any, split: str, keys: tuple[str, str]) -> tuple[list[np.ndarray], list[int]]:
  """Images (uint8 [H, W, C]) and labels, in stored order."""
  pairs = [(np.asarray(e[keys[0]]), int(e[keys[1]])) for e in tfds_folder.examples(builder, split)]
  return [image for image, _ in pairs], [label for _, label in pairs]
