"""The labelled images that tasks are drawn from: data sets, or stand-ins made from MNIST and CIFAR-10."""
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from alma_jax.config.fields import listed
from alma_jax.data import cache, datasets, image_changes, stand_ins, tfds_folder
from alma_jax.data.image_changes import IN_COLOUR, SIZE, bright, resized, resized_one, to_colour
from alma_jax.errors import BadInput

TFDS = {"svhn": "svhn_cropped", "fashion": "fashion_mnist", "dtd": "dtd", "cifar100": "cifar100"}
_FAMILIES = {"mnist": "digits", "digits": "digits", "digits32": "digits", "cifar10": "cifar", "cifar100": "cifar",
             "svhn": "house numbers", "fashion": "clothes", "dtd": "texture"}
_OF_ONES_OWN = ("tfds:", "npz:", "folder:")


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """Labelled images, which are made when they are asked for.

  Attributes:
    name: how tasks call it; a stand-in's name ends in "-like".
    family: see TaskInfo.
    class_names: names of the classes 0, 1, ...
    labels: {"train" or "test": int32 [N]}.
    image_shape: (H, W, C).
    images: (split, indices [n]) -> uint8 [n, H, W, C]; an image depends on its index alone.
    fingerprint: changes if labels or images would.
  """
  name: str
  family: str
  class_names: tuple[str, ...]
  labels: Mapping[str, np.ndarray]
  image_shape: tuple[int, ...]
  images: Callable[[str, np.ndarray], np.ndarray]
  fingerprint: str

  @functools.cached_property
  def by_class(self) -> dict[str, list[np.ndarray]]:
    """{split: the indices of each class, ascending}."""
    return {split: [np.flatnonzero(y == label) for label in range(len(self.class_names))]
            for split, y in self.labels.items()}


class Sources(dict[str, Source]):
  """The sources by name. Each is loaded once, when it is first asked for."""

  def __init__(self, data_dir: str, kind: str, given: Mapping[str, datasets.Dataset] | None = None,
               image_size: int = 0):
    """`data_dir`, `kind` (`sources`) and `image_size` are fields of the section `dataset`; `given`: task_streams.make.
    """
    self._data_dir, self._kind, self._given, self._image_size = data_dir, kind, given or {}, image_size

  def need(self, names: Iterable[str]) -> None:
    """Checks that the sources can be had as they are asked for.

    Raises:
      BadInput: sources=real, and one of them is not prepared.
    """
    missing = [TFDS[name] for name in names if name in TFDS and not self._is_real(name)]
    if self._kind == "real" and missing:
      raise BadInput(f"dataset.sources='real' needs the TFDS data sets {', '.join(missing)}, which are not prepared in "
                     f"{str(tfds_folder.root_of(self._data_dir))!r}; prepare them there, or set "
                     "dataset.sources=auto for stand-ins.")

  def __missing__(self, name: str) -> Source:
    """The source of a name: one of those above, or a data set of datasets.py.

    Raises:
      BadInput: there is no such data set, or it cannot be used.
    """
    self.need([name])
    self[name] = source = self._make(name)
    return source

  def _make(self, name: str) -> Source:
    if name == "dtd" and self._is_real(name):
      return _real_textures(tfds_folder.root_of(self._data_dir))
    if name in TFDS and self._is_real(name):
      return _of_dataset(name, self._dataset(f"tfds:{TFDS[name]}"))
    match name:
      case "svhn":
        mnist, cifar = self["mnist"], self._dataset("cifar10")
        return _stand_in(name, mnist, stand_ins.Numbers(self._dataset("mnist"), cifar).images, cifar.fingerprint)
      case "fashion":
        cifar10 = self["cifar10"]
        return _stand_in(name, cifar10, lambda split, index: stand_ins.in_parts(
            lambda some: stand_ins.edges(cifar10.images(split, some)), index))
      case "cifar100":
        cifar10 = self["cifar10"]
        return _stand_in(name, cifar10, lambda split, index: image_changes.tiles(cifar10.images(split, index), 0, 0))
      case "dtd":
        made = _textures()
        return Source("dtd-like", _FAMILIES[name], stand_ins.TEXTURES, made.labels, IN_COLOUR, made.images,
                      f"textures {stand_ins.VERSION}")
      case "digits" | "digits32":
        digits = self._dataset("digits")
        return _of_dataset(name, dataclasses.replace(
            digits, x_train=bright(digits.x_train), x_test=bright(digits.x_test)))
    if name not in (*_FAMILIES, *self._given) and not any(
        name.startswith(kind) and name != kind for kind in _OF_ONES_OWN):
      raise BadInput(f"there is no data set {name!r} to draw tasks from; there are {listed(_FAMILIES)}, tfds:NAME, "
                     "npz:PATH and folder:DIR.")
    return _of_dataset(name, self._dataset(name))

  def _dataset(self, name: str) -> datasets.Dataset:
    try:
      size = self._image_size if name.startswith("folder:") else 0  # its files may have several sizes
      return self._given[name] if name in self._given else _load(name, self._data_dir, size)
    except BadInput as error:  # tasks name their data sets otherwise than runs do
      raise BadInput(str(error).replace("dataset.name=", "data=")) from error

  def _is_real(self, name: str) -> bool:
    return self._kind != "stand_ins" and tfds_folder.is_prepared(TFDS[name], self._data_dir)


_load, _textures = functools.lru_cache(maxsize=16)(datasets.load), functools.cache(stand_ins.Textures)


def _of_dataset(name: str, data: datasets.Dataset) -> Source:
  """A data set as a source. Those that the streams use become 32x32 pixels of three channels."""
  arrays = {"train": data.x_train, "test": data.x_test}
  check_images(f"the data set {name!r}", data.x_train.shape, data.x_train.dtype)
  if name not in _FAMILIES:
    datasets.warn_of_overlap(data)
  as_stored = name == "digits" or name not in _FAMILIES

  def images(split: str, index: np.ndarray) -> np.ndarray:
    x = arrays[split][index]
    return x if as_stored else to_colour(resized(x, 28) if name == "digits32" else x)

  class_names = data.class_names or tuple(map(str, range(data.num_classes)))
  return Source(name, _FAMILIES.get(name, name), class_names, {"train": data.y_train, "test": data.y_test},
                data.x_train.shape[1:] if as_stored else IN_COLOUR, images, data.fingerprint)


def check_images(what: str, shape: Sequence[int], dtype: np.dtype) -> None:
  """Checks that tasks can consist of examples; `shape` is that of all, and `what` is how the message calls them.

  Raises:
    BadInput: they are not images of bytes.
  """
  if len(shape) != 4:
    raise BadInput(f"{what} has examples of shape {tuple(shape[1:])}; tasks consist of images [H, W] or [H, W, C] of "
                   "dtype uint8.")
  if dtype != np.uint8:
    raise BadInput(f"{what} has images of dtype {dtype}; tasks consist of images of dtype uint8, which (x * "
                   "255).round().astype('uint8') makes of pixels from 0 to 1.")


def _stand_in(name: str, base: Source, images: Callable[[str, np.ndarray], np.ndarray], further: str = "") -> Source:
  """A source with the labels of another one."""
  return Source(f"{name}-like", _FAMILIES[name], base.class_names, base.labels, IN_COLOUR, images,
                f"{name} {stand_ins.VERSION} {base.fingerprint} {further}")


def _real_textures(root: pathlib.Path) -> Source:
  """DTD: the middle square of each image, resized. The training part is TFDS's train and validation."""
  folder = tfds_folder.prepared("dtd", str(root))

  def make() -> cache.Entry:
    builder = tfds_folder.import_tfds().builder_from_directory(folder)
    arrays = {}
    for split in ("train", "test"):
      parts = ("train", "validation") if split == "train" else ("test",)
      examples = [example for part in parts for example in tfds_folder.examples(builder, part)]
      squares = []
      for image in (np.asarray(example["image"]) for example in examples):
        top, left = ((length - min(image.shape[:2])) // 2 for length in image.shape[:2])
        squares.append(image[top:top + min(image.shape[:2]), left:left + min(image.shape[:2])])
      arrays[f"x_{split}"] = np.stack([resized_one(square, SIZE) for square in squares])
      arrays[f"y_{split}"] = np.array([e["label"] for e in examples], np.int32)
    return cache.Entry(arrays, {})

  made_from = [tfds_folder.fingerprint(folder), SIZE]
  entry = cache.load_or_make([folder / f"alma_jax_arrays_{SIZE}", cache.home_folder("arrays", "dtd", made_from)],
                             made_from, make)
  data = datasets.from_arrays("dtd", entry.arrays, fingerprint=entry.facts["fingerprint"])
  return _of_dataset("dtd", dataclasses.replace(data, class_names=tfds_folder.class_names(folder)))
