"""Data sets by name, as arrays in memory.

`load` returns numpy arrays and leaves no generator behind: the stream cuts
them into mega-batches, and the training set goes to the device once.
"""
import dataclasses
import hashlib
import pathlib
import warnings
import zipfile

import numpy as np

from alma_jax.data import folder_arrays, tfds_arrays
from alma_jax.errors import BadInput

# Per-channel mean and standard deviation of pixels scaled to [0, 1] (§0).
_KNOWN = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A classification data set.

  Attributes:
    x_train, x_test: uint8 or float32, [N, H, W, C] or [N, D].
    y_train, y_test: int32 [N], 0 to num_classes - 1.
    num_classes: K = 1 + largest label.
    normalization: (mean, std), each float32 [C] or [D] in units of x, or None:
      then the first mega-batch provides it.
    fingerprint: SHA-256 over the four arrays.
    class_names: of the classes from 0, where they are known.
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


def load(name, data_dir="", seed=0):
  """Loads a data set.

  Args:
    name: "digits", "mnist", "cifar10", "tfds:NAME", "npz:PATH" or "folder:DIR".
    data_dir: folder of prepared TFDS data sets; empty: $TFDS_DATA_DIR or
      ~/tensorflow_datasets, where TFDS may also download and prepare.
    seed: decides the train/test split of digits and of folders without one,
      and nothing else.

  Raises:
    BadInput: no such data set, or its arrays cannot be used.
  """
  kind, _, rest = name.partition(":")
  fingerprint = class_names = None
  if name == "digits":
    arrays = _digits(seed)
  elif name in _KNOWN or (kind == "tfds" and rest):
    arrays, fingerprint, class_names = tfds_arrays.load(rest or name, data_dir)
  elif kind == "npz" and rest:
    arrays = _npz(rest)
  elif kind == "folder" and rest:
    arrays, fingerprint, class_names = folder_arrays.load(rest, seed)
  else:
    raise BadInput(f"there is no data set {name!r}; there are digits, mnist, cifar10, "
                   "tfds:NAME, npz:PATH and folder:DIR.")
  made = from_arrays(name, arrays, _KNOWN.get(rest if kind == "tfds" else name), fingerprint)
  return dataclasses.replace(made, class_names=class_names and tuple(class_names))


def from_arrays(name, arrays, unit_normalization=None, fingerprint=None):
  """Checks four arrays and makes a `Dataset` of them.

  Args:
    name: what messages call it.
    arrays: dict of x_train, y_train, x_test, y_test; x uint8, or floats
      (stored as float32), [N, H, W], [N, H, W, C] or [N, D].
    unit_normalization: (mean, std) per channel for pixels in [0, 1], or None.
    fingerprint: SHA-256 of the arrays where it is known already.

  Raises:
    BadInput: an array is missing, empty, of the wrong length, shape or dtype,
      holds NaN, or labels that are no class numbers.
  """
  missing = [k for k in ARRAYS if k not in arrays]
  if missing:
    raise BadInput(f"{name} lacks the arrays {', '.join(missing)}; it holds "
                   f"{', '.join(sorted(arrays)) or 'nothing'}.")
  clean = {}
  for split in ("train", "test"):
    x, y = np.asarray(arrays[f"x_{split}"]), np.asarray(arrays[f"y_{split}"])
    clean[f"x_{split}"] = _check_examples(f"x_{split} of {name}", x)
    clean[f"y_{split}"] = _check_labels(f"y_{split} of {name}", y)
    if len(x) != len(y):
      raise BadInput(f"{name} has {len(x)} examples but {len(y)} labels in its {split} split.")
  if clean["x_train"].shape[1:] != clean["x_test"].shape[1:] or (
      clean["x_train"].dtype != clean["x_test"].dtype):
    raise BadInput(f"{name} has training examples of {_describe(clean['x_train'])} but test "
                   f"examples of {_describe(clean['x_test'])}.")
  num_classes = 1 + int(max(clean["y_train"].max(), clean["y_test"].max()))
  if num_classes < 2:
    raise BadInput(f"{name} has a single class; classification needs at least two.")
  empty = sorted(set(range(num_classes)) - set(clean["y_train"].tolist()))
  if empty:
    warnings.warn(f"{name} has no training example of class {', '.join(map(str, empty[:5]))}"
                  f"{' and others' if len(empty) > 5 else ''}; labels count classes from 0", stacklevel=2)
  normalization = None
  if unit_normalization is not None:
    normalization = tuple(np.asarray(v, np.float32) * np.float32(255) for v in unit_normalization)
  return Dataset(name, **clean, num_classes=num_classes, normalization=normalization,
                 fingerprint=fingerprint or fingerprint_of(clean))


def fingerprint_of(arrays):
  """SHA-256 over names, dtypes, shapes and contents of a dict of arrays."""
  digest = hashlib.sha256()
  for key in sorted(arrays):
    digest.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
    digest.update(np.ascontiguousarray(arrays[key]))
  return digest.hexdigest()


def _digits(seed):
  from sklearn.datasets import load_digits
  from sklearn.model_selection import train_test_split

  images, labels = load_digits(return_X_y=True)
  images = images.reshape(-1, 8, 8).astype(np.uint8)  # grey levels 0 to 16
  x_train, x_test, y_train, y_test = train_test_split(
      images, labels, test_size=0.2, stratify=labels, random_state=seed)
  return dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _npz(path):
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise BadInput(f"there is no file {str(path)!r} to read the data set from; name yours by dataset.name=npz:PATH.")
  try:
    with np.load(path, allow_pickle=False) as file:
      missing = [key for key in ARRAYS if key not in file.files]
      if missing:
        raise BadInput(f"{str(path)!r} lacks the arrays {', '.join(missing)}; it holds "
                       f"{', '.join(sorted(file.files)) or 'nothing'}.")
      return {key: file[key] for key in ARRAYS}
  except BadInput:
    raise
  except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
    raise BadInput(f"{str(path)!r} is not an .npz file of plain arrays: {error}.") from error


def _check_examples(what, x):
  if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
    raise BadInput(f"{what} has dtype {x.dtype}; uint8 and float32 are possible.")
  if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
    raise BadInput(f"{what} has shape {x.shape}; [N, H, W], [N, H, W, C] and [N, D] are possible.")
  if not len(x):
    raise BadInput(f"{what} is empty.")
  if x.dtype != np.uint8:
    x = x.astype(np.float32)
    if not np.isfinite(x).all():
      raise BadInput(f"{what} holds NaN or infinite values.")
  return x[..., None] if x.ndim == 3 else x


def _check_labels(what, y):
  if y.ndim != 1:
    raise BadInput(f"{what} has shape {y.shape}; labels are [N].")
  if not len(y):
    raise BadInput(f"{what} is empty.")
  if y.dtype.kind not in "iuf" or (y.dtype.kind == "f" and not np.array_equal(y, np.trunc(y))):
    raise BadInput(f"{what} holds {y.dtype} values that are not whole; labels count classes from 0.")
  if y.min() < 0:
    raise BadInput(f"{what} holds the negative label {y.min()}; labels count classes from 0.")
  if y.max() >= 2**20:
    raise BadInput(f"{what} holds the label {y.max()}, which would mean as many classes.")
  return y.astype(np.int32)


def _describe(x):
  return f"shape {x.shape[1:]} and dtype {x.dtype}"
