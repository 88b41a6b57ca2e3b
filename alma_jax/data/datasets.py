"""Loads classification data sets by name, as arrays in memory.

`load` reads the arrays of a source (this module, image_folder.py, tfds_images.py), and `from_arrays` checks them. Texts
are loaded by text.py.
"""
import dataclasses
import importlib.metadata
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from alma_jax.data import cache, image_folder, tfds_images, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.errors import BadInput


class _Known(NamedTuple):
  """What is known of a data set without reading it: images uint8 [N, *shape] of 10 classes.

  `mean` and `std` are those of each channel, for pixels scaled to [0, 1] (docs/algorithms.md §0).
  """
  num_train: int
  num_test: int
  shape: tuple[int, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]


_KNOWN = {
    "mnist": _Known(60_000, 10_000, (28, 28, 1), (0.1307,), (0.3081,)),
    "cifar10": _Known(50_000, 10_000, (32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
_NUM_CLASSES = 10
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same digits
_LARGEST, _SMALLEST = 1e30, 1e-35  # of the largest absolute values of float features from which constants are made
_MOST_CHANNELS = 4  # grey, grey with alpha, RGB, RGBA


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A classification data set of K classes.

  Attributes:
    name: how messages refer to it.
    x_train, x_test: uint8 or float32, [N, H, W, C] or [N, D].
    y_train, y_test: int32 [N], 0 to K - 1.
    num_classes: K, which is 1 + the largest label.
    normalization: (mean, std) of x, float32 [C] or [D]; None: they are computed from the first mega-batch.
    fingerprint: `cache.hash_arrays` of the four arrays.
    class_names: names of the classes 0 to K - 1; None: unknown.
  """
  name: str
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  normalization: tuple[np.ndarray, np.ndarray] | None
  fingerprint: str
  class_names: tuple[str, ...] | None = None


def load(name: str, data_dir: str = "", image_size: int = 0) -> Dataset:
  """Loads a data set.

  Args:
    name: "digits", "mnist", "cifar10", "tfds:NAME", "tfds:NAME:VERSION", "npz:PATH" or "folder:DIR".
    data_dir: folder of prepared TFDS data sets. Empty: $TFDS_DATA_DIR or ~/tensorflow_datasets, where a missing data
      set is downloaded and prepared.
    image_size: for "folder:DIR", width and height in pixels to which images are resized; 0: they have one size already.

  Raises:
    BadInput: there is no such data set, or its arrays cannot be used.
  """
  kind, _, rest = name.partition(":")
  fingerprint = class_names = None
  if name == "digits":
    arrays = _load_digits()
  elif name in _KNOWN or (kind == "tfds" and rest):
    arrays, fingerprint, class_names = tfds_images.load(rest or name, data_dir)
  elif kind == "npz" and rest:
    arrays = _load_npz(rest)
  elif kind == "folder" and rest:
    arrays, fingerprint, class_names = image_folder.load(rest, image_size)
    for one, other in class_labels.alike(class_names):
      warnings.warn(f"the classes {one!r} and {other!r} of {rest!r} have similar names; if they are one class, merge "
                    "their folders", stacklevel=2)
  else:
    raise BadInput(f"there is no data set {name!r}; there are digits, mnist, cifar10, "
                   "tfds:NAME, npz:PATH and folder:DIR.")
  known = _known(name)
  dataset = from_arrays(name, arrays, known and (known.mean, known.std), fingerprint)
  return dataclasses.replace(dataset, class_names=tuple(class_names) if class_names else None)


def blank(name: str) -> Dataset | None:
  """A data set of the same shapes and dtypes, whose pixels are 0 and take no memory; None if `name` is not known.

  With it a run's costs are computed before its data are there.
  """
  known = _known(name)
  if known is None:
    return None
  arrays: dict[str, np.ndarray] = {}
  for split, num in ("train", known.num_train), ("test", known.num_test):
    arrays[f"x_{split}"] = np.broadcast_to(np.uint8(0), (num, *known.shape))
    arrays[f"y_{split}"] = np.arange(num) % _NUM_CLASSES
  return from_arrays(name, arrays, (known.mean, known.std), fingerprint="blank")


def _known(name: str) -> _Known | None:
  """What is known about a data set; all its TFDS versions hold the same images."""
  kind, _, rest = name.partition(":")
  return _KNOWN.get(rest.partition(":")[0] if kind == "tfds" else name)


def from_arrays(name: str, arrays: Mapping[str, np.ndarray],
                unit_normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
                fingerprint: str | None = None) -> Dataset:
  """Checks four arrays and makes a `Dataset` of them.

  Args:
    name: how messages refer to the data set.
    arrays: x_train, y_train, x_test, y_test. x are uint8 or floats (stored as float32), [N, H, W], [N, H, W, C] or
      [N, D]; y are whole numbers [N].
    unit_normalization: mean and standard deviation of each channel, for pixels in [0, 1]; None: unknown.
    fingerprint: `cache.hash_arrays` of the checked arrays; None: it is computed.

  Raises:
    BadInput: an array is missing or empty, its length, shape or dtype does not fit, x holds NaN or infinite values, or
      y holds values that are not class numbers.
  """
  missing = [k for k in ARRAYS if k not in arrays]
  if missing:
    raise BadInput(f"{name} lacks the arrays {', '.join(missing)}; it holds "
                   f"{', '.join(sorted(arrays)) or 'nothing'}.")
  clean = {}
  for split in ("train", "test"):
    x, y = (_array(name, f"{part}_{split}", arrays) for part in "xy")
    clean[f"x_{split}"] = check_examples(f"x_{split} of {name}", x)
    clean[f"y_{split}"] = check_labels(f"y_{split} of {name}", y)
    if split == "train" and unit_normalization is None and (reason := too_small(f"x_train of {name}", x)):
      raise BadInput(reason)
    if len(x) != len(y):
      raise BadInput(f"{name} has {len(x)} examples but {len(y)} labels in its {split} split; give one label for each.")
  if clean["x_train"].shape[1:] != clean["x_test"].shape[1:] or (
      clean["x_train"].dtype != clean["x_test"].dtype):
    raise BadInput(f"{name} has training examples of {_describe(clean['x_train'])} but test "
                   f"examples of {_describe(clean['x_test'])}; they should be alike.")
  num_classes = 1 + int(max(clean["y_train"].max(), clean["y_test"].max()))
  if num_classes < 2:
    raise BadInput(f"{name} has a single class; classification needs at least two.")
  empty = sorted(set(range(num_classes)) - set(clean["y_train"].tolist()))
  if empty:
    warnings.warn(f"{name} has no training example of class {', '.join(map(str, empty[:5]))}"
                  f"{' and others' if len(empty) > 5 else ''}; labels count classes from 0", stacklevel=2)
  normalization = None
  if unit_normalization is not None:
    mean, std = (np.asarray(v, np.float32) * np.float32(255) for v in unit_normalization)
    normalization = mean, std
  return Dataset(name, clean["x_train"], clean["y_train"], clean["x_test"], clean["y_test"], num_classes, normalization,
                 fingerprint or cache.hash_arrays(clean))


def warn_of_overlap(dataset: Dataset) -> None:
  """Warns if test examples are also in the training set."""
  tested = [cache.hash_row(x) for x in dataset.x_test]
  seen = set(tested).intersection(map(cache.hash_row, dataset.x_train))
  num = sum(each in seen for each in tested)
  if num:
    warnings.warn(f"{num} of {len(tested)} test examples of {dataset.name} {'is' if num == 1 else 'are'} also in "
                  "the training set, so the test error is too low", stacklevel=3)


def _load_digits() -> cache.Arrays:
  """The digits of scikit-learn, of which one fifth of every class is the test set.

  They are cached, because importing scikit-learn takes a third of the time of starting up.
  """
  made_from = ["scikit-learn", importlib.metadata.version("scikit-learn"), _SPLIT_SEED]

  def make() -> cache.Entry:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)  # grey levels 0 to 16
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=_SPLIT_SEED)
    return cache.Entry(dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test), {})

  return cache.load_or_make([cache.home_folder("arrays", "digits", made_from)], made_from, make).arrays


def _load_npz(name: str) -> cache.Arrays:
  """The four arrays of an .npz file."""
  path = pathlib.Path(name).expanduser()
  if not path.is_file():
    raise BadInput(f"there is no file {str(path)!r} to read the data set from; name yours by dataset.name=npz:PATH.")
  try:
    arrays, names = unpacking.read_npz(path, ARRAYS)
  except BadInput as error:
    raise BadInput(f"{str(path)!r} is not an .npz file of plain arrays: {error}; write it by np.savez with arrays of "
                   "numbers.") from error
  missing = [key for key in ARRAYS if key not in arrays]
  if missing:
    raise BadInput(f"{str(path)!r} lacks the arrays {', '.join(missing)}; it holds {', '.join(names) or 'nothing'}.")
  others = [name for name in names if name not in ARRAYS]
  if others:
    warnings.warn(f"{', '.join(others)} of {str(path)!r} {'is' if len(others) == 1 else 'are'} not used: only "
                  f"{', '.join(ARRAYS)} are read, and validation examples are held out of every mega-batch "
                  "(stream.val_fraction)", stacklevel=3)
  return arrays


def check_examples(what: str, x: np.ndarray) -> np.ndarray:
  """The examples as uint8 or float32, [N, H, W, C] or [N, D].

  Raises:
    BadInput: they have another dtype or shape, there are none, or values are not finite, or too large for float32.
      `what` names them.
  """
  if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
    raise BadInput(f"{what} has dtype {x.dtype}; uint8 and floats are possible.")
  if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
    raise BadInput(f"{what} has shape {x.shape}; [N, H, W], [N, H, W, C] and [N, D] are possible.")
  # Feature maps such as [N, 4, 4, 512] have their channels last: the width is as small as the height.
  if x.ndim == 4 and x.shape[1] in (1, 3, 4) and min(x.shape[2:]) > _MOST_CHANNELS:
    raise BadInput(f"{what} has shape {x.shape}, which looks like [N, C, H, W]; images are [N, H, W, C], as "
                   "numpy.moveaxis(x, 1, -1) returns them.")
  if not len(x):
    raise BadInput(f"{what} is empty; give at least one example.")
  if x.dtype != np.uint8:
    if not np.isfinite(x).all():
      raise BadInput(f"{what} holds NaN or infinite values; replace or remove them.")
    largest = _largest(x)
    if (largest > _LARGEST).any():
      raise BadInput(_off_scale(what, x, largest, largest > _LARGEST))
    x = x.astype(np.float32)
  return x[..., None] if x.ndim == 3 else x


def too_small(what: str, x: np.ndarray) -> str | None:
  """A sentence if values of a channel or column are too small to make normalisation constants of them; else None.

  It concerns only the data that the first constants come from. `x` has the dtype in which it was given.
  """
  if x.dtype == np.uint8:
    return None
  largest = _largest(x)
  bad = (largest > 0) & (largest < _SMALLEST)
  return _off_scale(what, x, largest, bad) if bad.any() else None


def _largest(x: np.ndarray) -> np.ndarray:
  """The largest absolute value of each channel or column [C]; of images without channels [1]."""
  axes = tuple(range(x.ndim - (x.ndim in (2, 4))))
  return np.atleast_1d(np.maximum(x.max(axes).astype(np.float64), -x.min(axes).astype(np.float64)))


def _off_scale(what: str, x: np.ndarray, largest: np.ndarray, bad: np.ndarray) -> str:
  i = int(np.flatnonzero(bad)[0])
  where = f" in its {'channel' if x.ndim == 4 else 'column'} {i}" if len(largest) > 1 else ""
  return (f"{what} has values up to {largest[i]:.2g}{where}, but float32 can normalise values from {_SMALLEST:g} to "
          f"{_LARGEST:g}; {'divide' if largest[i] > 1 else 'multiply'} them by a constant.")


def check_labels(what: str, y: np.ndarray) -> np.ndarray:
  """The labels as int32 [N].

  Raises:
    BadInput: there are none, or they do not count classes from 0. `what` names them.
  """
  if y.ndim != 1:
    raise BadInput(f"{what} has shape {y.shape}; labels are [N].")
  if not len(y):
    raise BadInput(f"{what} is empty; give one label for each example.")
  if y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and not np.array_equal(y, np.trunc(y))):
    raise BadInput(f"{what} holds {y.dtype} values that are not whole; labels count classes from 0.")
  if y.min() < 0:
    raise BadInput(f"{what} holds the negative label {y.min()}; labels count classes from 0.")
  if y.max() >= 2**20:
    raise BadInput(f"{what} holds the label {y.max()}, but labels count classes from 0 and should be below {2**20}.")
  return y.astype(np.int32)


def _array(name: str, part: str, arrays: Mapping[str, Any]) -> np.ndarray:
  try:
    return np.asarray(arrays[part])
  except ValueError as error:  # lists of different lengths
    raise BadInput(f"{part} of {name} is no array ({unpacking.first_line(error)}).") from error


def _describe(x: np.ndarray) -> str:
  return f"shape {x.shape[1:]} and dtype {x.dtype}"
