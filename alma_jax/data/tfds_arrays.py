"""TFDS image classification data sets as arrays, decoded once and cached.

Prepared array_record folders are read without TensorFlow. The cache lies in
the prepared folder itself, or under ~/.cache/alma_jax where that is read-only,
and a start that finds it does not import TFDS.
"""
import numpy as np

from alma_jax.data import array_cache, tfds_source
from alma_jax.data.tfds_source import download as _download
from alma_jax.errors import BadInput

_CACHE = "alma_jax_arrays"
_SPLITS = {"train": "train", "test": "test"}


def load(name, data_dir):
  """Decodes (or finds decoded) the train and test split of a TFDS data set.

  Args:
    name: TFDS name, e.g. "mnist" or "emnist/letters".
    data_dir: folder of prepared data sets, never downloaded into; empty:
      $TFDS_DATA_DIR or ~/tensorflow_datasets, downloaded into as needed.

  Returns:
    (dict of x_train, y_train, x_test, y_test, SHA-256 of them, names of the classes or None).

  Raises:
    BadInput: not prepared, not preparable, or not image classification.
  """
  root, folder = tfds_source.find(name, data_dir)
  if folder is None:
    folder = _download(root, name)
  places = [folder / _CACHE, array_cache.home_place(folder.parent.name, folder)]
  arrays, fingerprint = array_cache.cached(places, tfds_source.stamp(folder), lambda: _decode(folder, name))
  names = list(folder.glob("*.labels.txt"))  # TFDS writes one for every feature of classes
  return arrays, fingerprint, names[0].read_text().split("\n")[:-1] if len(names) == 1 else None


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
