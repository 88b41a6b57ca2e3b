"""Loads classification data sets by name, as arrays in memory.

Each kind of data set is a class in sets/; `from_arrays` checks its arrays. Texts are loaded by text.py.
"""
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from alma_jax.config.fields import declared
from alma_jax.config.registry import DATA_SETS, IMAGES
from alma_jax.config.sections import DataSet
from alma_jax.data import cache, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.data.examples import Examples, named, of_arrays
from alma_jax.data.form import Form
from alma_jax.errors import BadInput

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


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
    test_files: of the test examples, if each has a file of its own.
    test_rows: of the test examples in the file that they are held out of; empty: they are all of a part.
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
  test_files: tuple[str, ...] = ()
  test_rows: tuple[int, ...] = ()

  @property
  def tested(self) -> Examples:
    """The test examples."""
    labels = class_labels.Labels(self.y_test, self.class_names, self.class_names is not None)
    return of_arrays(self.name, self.x_test, labels, self.test_files, self.test_rows)


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
  cls = DATA_SETS[IMAGES].of(name, "dataset.name")
  given = dict(data_dir=data_dir, image_size=image_size)
  section: DataSet = cls(name=name, **{field: value for field, value in given.items() if field in declared(cls)})
  dataset: Dataset = section.load()
  return dataset


def from_arrays(name: str, arrays: Mapping[str, Any],
                unit_normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
                fingerprint: str | None = None, held_out: str = "test") -> Dataset:
  """Checks four arrays and makes a `Dataset` of them.

  Args:
    name: how messages refer to the data set.
    arrays: x_train and x_test, y_train and y_test; labels are arrays or labels.Labels.
    unit_normalization: mean and standard deviation of each channel, for pixels in [0, 1]; None: unknown.
    fingerprint: `cache.hash_arrays` of the checked arrays; None: it is computed.
    held_out: the part to take as the test part, e.g. "val" for the arrays x_val and y_val.

  Raises:
    BadInput: an array is missing or cannot be used, or two of them do not belong together.
  """
  missing = [k for k in (*ARRAYS[:2], f"x_{held_out}", f"y_{held_out}") if k not in arrays]
  if missing:
    raise BadInput(f"{name} lacks the arrays {', '.join(missing)}; it holds "
                   f"{', '.join(sorted(arrays)) or 'nothing'}.")
  clean, labels, form = {}, [], Form()
  for split in ("train", held_out):
    with named(f"x_{split} of {name}"):
      x = _array(arrays[f"x_{split}"])
      clean[f"x_{split}"] = form.fit(x)
    with named(f"y_{split} of {name}"):
      y = arrays[f"y_{split}"]
      # numpy would turn the numbers of a list that also holds names into names
      y = np.asarray(y, object) if isinstance(y, list | tuple) and not isinstance(y, class_labels.Labels) else y
      labels.append(y if isinstance(y, class_labels.Labels) else class_labels.read(_array(y)))
    if len(x) != len(labels[-1].numbers):
      raise BadInput(f"{name} has {len(x)} examples but {len(labels[-1].numbers)} labels in its {split} split; give "
                     "one label for each.")
    form = Form(clean["x_train"].shape[1:], clean["x_train"].dtype, owner="the training set has")
  with named(name):
    train, test = class_labels.of_parts(*labels)
  for one, other in class_labels.alike(train.names or ()):
    warnings.warn(f"the classes {one!r} and {other!r} of {name} have similar names; if they are one class, give them "
                  "the same name", stacklevel=3)
  clean = dict(x_train=clean["x_train"], y_train=train.numbers, x_test=clean[f"x_{held_out}"], y_test=test.numbers)
  num_classes = 1 + int(max(train.numbers.max(), test.numbers.max()))
  if num_classes < 2:
    raise BadInput(f"{name} has a single class; classification needs at least two.")
  empty = sorted(set(range(num_classes)) - set(train.numbers.tolist()))
  if empty:
    warnings.warn(f"{name} has no training example of class {', '.join(map(str, empty[:5]))}"
                  f"{' and others' if len(empty) > 5 else ''}; labels count classes from 0", stacklevel=2)
  normalization = None
  if unit_normalization is not None:
    mean, std = (np.asarray(v, np.float32) * np.float32(255) for v in unit_normalization)
    normalization = mean, std
  return Dataset(name, clean["x_train"], clean["y_train"], clean["x_test"], clean["y_test"], num_classes, normalization,
                 fingerprint or cache.hash_arrays(clean), train.names and train.names[:num_classes])


def warn_of_overlap(dataset: Dataset) -> None:
  """Warns if test examples are also in the training set."""
  tested = [cache.hash_row(x) for x in dataset.x_test]
  seen = set(tested).intersection(map(cache.hash_row, dataset.x_train))
  num = sum(each in seen for each in tested)
  if num:
    warnings.warn(f"{num} of {len(tested)} test examples of {dataset.name} {'is' if num == 1 else 'are'} also in "
                  "the training set, so the test error is too low", stacklevel=3)


def _array(given: Any) -> np.ndarray:
  try:
    return np.asarray(given)
  except ValueError as error:  # lists of different lengths
    raise BadInput(f"it is no array ({unpacking.first_line(error)}).") from error
