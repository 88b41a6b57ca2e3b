"""Loads image classification data sets of TFDS as arrays. Images are decoded once and cached.

The cache is the folder alma_jax_arrays in the prepared folder, or a folder in ~/.cache/alma_jax if that cannot be
written. With a cache, TFDS is not imported.
"""
import dataclasses
import pathlib
from typing import ClassVar, NamedTuple

import numpy as np

from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import DATA_DIR, DataSet
from alma_jax.data import cache, tfds_folder
from alma_jax.data.datasets import Dataset, from_arrays
from alma_jax.data.labels import Labels
from alma_jax.errors import BadInput


class _Facts(NamedTuple):
  """What is known of a data set without reading it: images uint8 [N, *shape] of 10 classes.

  `mean` and `std` are those of each channel, for pixels scaled to [0, 1] (docs/algorithms.md §0).
  """
  num_train: int
  num_test: int
  shape: tuple[int, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]


_FACTS = {
    "mnist": _Facts(60_000, 10_000, (28, 28, 1), (0.1307,), (0.3081,)),
    "cifar10": _Facts(50_000, 10_000, (32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
_NUM_CLASSES = 10
_CACHE = "alma_jax_arrays"
_SPLITS = ("train", "test")


@register
@dataclasses.dataclass(frozen=True)
class TFDS(DataSet):
  """Any TFDS data set for image classification."""
  name: str = "tfds"
  data_dir: str = field("", DATA_DIR)

  form: ClassVar[str] = "tfds:NAME"

  def load(self) -> Dataset:
    name = self.name.removeprefix("tfds:")
    folder, facts = tfds_folder.prepared(name, self.data_dir), _facts(name)
    places = [folder / _CACHE, cache.home_folder("arrays", folder.parent.name, str(folder.resolve()))]
    entry = cache.load_or_make(places, tfds_folder.fingerprint(folder), lambda: cache.Entry(_decode(folder, name), {}))
    names = tfds_folder.class_names(folder)
    labels = {f"y_{split}": Labels(entry.arrays[f"y_{split}"], names, names is not None) for split in _SPLITS}
    return from_arrays(self.name, entry.arrays | labels, facts and (facts.mean, facts.std), entry.facts["fingerprint"])

  def blank(self) -> Dataset | None:
    facts, known = _facts(self.name), not self.data_dir or self._is_prepared
    if facts is None or not known:  # nothing is downloaded into a folder that the config names
      return None
    arrays: dict[str, np.ndarray] = {}
    for split, num in ("train", facts.num_train), ("test", facts.num_test):
      arrays[f"x_{split}"] = np.broadcast_to(np.uint8(0), (num, *facts.shape))  # takes no memory
      arrays[f"y_{split}"] = np.arange(num) % _NUM_CLASSES
    return from_arrays(self.name, arrays, (facts.mean, facts.std), fingerprint="blank")

  @property
  def is_downloaded(self) -> bool:
    return not self.data_dir and _facts(self.name) is not None and not self._is_prepared

  @property
  def _is_prepared(self) -> bool:
    return tfds_folder.is_prepared(self.name.removeprefix("tfds:"), self.data_dir)


@register
@dataclasses.dataclass(frozen=True)
class MNIST(TFDS):
  """MNIST, from TFDS."""
  name: str = "mnist"

  form: ClassVar[str] = "mnist"


@register
@dataclasses.dataclass(frozen=True)
class CIFAR10(TFDS):
  """CIFAR-10, from TFDS."""
  name: str = "cifar10"

  form: ClassVar[str] = "cifar10"


def _facts(name: str) -> _Facts | None:
  """What is known about a data set; all its TFDS versions hold the same images."""
  return _FACTS.get(name.removeprefix("tfds:").partition(":")[0])


def _decode(folder: pathlib.Path, name: str) -> cache.Arrays:
  tfds = tfds_folder.import_tfds()
  builder = tfds.builder_from_directory(folder)
  keys = builder.info.supervised_keys
  features = builder.info.features
  if not keys or len(keys) != 2 or not isinstance(features[keys[0]], tfds.features.Image) or (
      not isinstance(features[keys[1]], tfds.features.ClassLabel)):
    raise BadInput(f"the TFDS data set {name!r} is not image classification: "
                   "its supervised keys are not (image, class label); name another.")
  missing = sorted(set(_SPLITS) - set(builder.info.splits))
  if missing:
    raise BadInput(f"the TFDS data set {name!r} has no split {', '.join(missing)}; "
                   f"it has {', '.join(builder.info.splits)}.")
  arrays = {}
  for split in _SPLITS:
    pairs = [(np.asarray(e[keys[0]]), int(e[keys[1]])) for e in tfds_folder.examples(builder, split)]
    images, labels = zip(*pairs)
    if len({image.shape for image in images}) != 1:
      raise BadInput(f"the images of the TFDS data set {name!r} differ in size; name a data set with "
                       "images of one size.")
    arrays[f"x_{split}"] = np.stack(images)
    arrays[f"y_{split}"] = np.asarray(labels, np.int32)
  return arrays
