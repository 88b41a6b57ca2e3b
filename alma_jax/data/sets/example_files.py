"""Your own data: files and folders, npz:PATH and folder:DIR, as examples.py lists them, and arrays that you pass.

If there is no test part, one fifth of every class is held out, always the same. Images of folders are decoded once and
cached. They have one channel if all are grey, and three otherwise.
"""
import dataclasses
import itertools
import pathlib
import warnings
from typing import Any, ClassVar

import numpy as np

from alma_jax import keys
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import Columns, DataSet
from alma_jax.data import cache, examples, folders, image_file, unpacking
from alma_jax.data import labels as class_labels
from alma_jax.data.datasets import ARRAYS, Dataset, from_arrays
from alma_jax.data.examples import TEST, TRAIN
from alma_jax.data.form import Form
from alma_jax.data.labels import Labels
from alma_jax.errors import BadInput

_PARTS = (TRAIN, TEST)
_TEST_SHARE = 5  # without a test part one example in 5 is held out
_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same examples
_DECODER = 2  # change it when files decode to other pixels than before


@dataclasses.dataclass(frozen=True)
class Stored(Columns):
  """Base class of data sets in a file or a folder."""

  def load(self) -> Dataset:
    kind, _, rest = self.name.partition(":")
    root, size = pathlib.Path(rest).expanduser(), self.image_size
    if not root.exists():
      raise BadInput(f"there is no {'folder' if kind == 'folder' else 'file'} {str(root)!r} to read the data set from; "
                     f"name yours by dataset.name={type(self).form}.")
    if root.is_dir() != (kind == "folder"):
      what, other = ("folder", "folder") if root.is_dir() else ("file", "npz")
      raise BadInput(f"dataset.name={self.name!r} names a {what}; use dataset.name={other}:{rest}.")
    fingerprint = None
    with examples.named(repr(str(root))):
      parts = _folders_of(root) if root.is_dir() else {}
      if root.is_dir() and not any(map(examples.tables_of, parts.values() or [root])):
        arrays, fingerprint = _images(root, parts or {TRAIN: root}, size)
      else:
        arrays = _tables(root, parts, examples.Reader(
            Form(image_size=size), image_column=self.image_column, label_column=self.label_column))
      if "x_test" not in arrays:
        arrays, fingerprint = _hold_out(arrays), None
      test_files, test_rows = tuple(map(str, arrays.pop("files_test", ()))), tuple(arrays.pop("rows_test", ()))
    return dataclasses.replace(from_arrays(self.name, arrays, fingerprint=fingerprint), test_files=test_files,
                               test_rows=test_rows)


@register
@dataclasses.dataclass(frozen=True)
class NPZ(Stored):
  """Your own arrays: an .npz or .parquet file."""
  name: str = "npz"

  form: ClassVar[str] = "npz:PATH"


@register
@dataclasses.dataclass(frozen=True)
class Folder(Stored):
  """Your own images in folders by class."""
  name: str = "folder"
  image_size: int = field(
      0, "resize images to this width and height in pixels; 0: keep them, all must have one size", at_least=0)

  form: ClassVar[str] = "folder:DIR"


@register
@dataclasses.dataclass(frozen=True)
class Given(DataSet):
  """The arrays that you pass to alma_jax.run."""
  name: str = "data"

  def load(self) -> Dataset:
    raise BadInput("dataset.name='data' stands for arrays that you pass in Python, as in alma_jax.run(config, "
                   "data=(x_train, y_train, x_test, y_test)); pass them, or name another data set.")

  def tested(self, config: Any, task: int | None) -> tuple[Any, str | None]:
    raise BadInput("the run was made from arrays in Python, which it does not keep.")


def _folders_of(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """The folders train and test by name; empty if the folders in `root` are the classes."""
  parts = folders.splits(root)
  if not parts:
    return {}
  there = folders.listed(part.name for part in parts.values())
  missing = [split for split in _PARTS if split not in parts]
  if missing == [TEST] and folders.VALID in parts:
    raise BadInput(f"it has the folders {there}, but no folder test; rename {parts[folders.VALID].name} to test, "
                   "because validation examples are held out of every mega-batch (stream.val_fraction).")
  if missing:
    raise BadInput(f"it has {'a folder' if len(parts) == 1 else 'the folders'} {there}, but no folder {missing[0]}; "
                   "give both, or a folder for each class and no others.")
  parts = {split: parts[split] for split in _PARTS}
  folders.warn_of_others(root, parts.values(), image_file.suffixes(),
                         ", and validation examples are held out of every mega-batch (stream.val_fraction)")
  return parts


def _images(root: pathlib.Path, parts: dict[str, pathlib.Path], image_size: int) -> tuple[dict[str, Any], str]:
  """(x, y and files of every part, `cache.hash_arrays` of x and y) of images by class."""
  found = {split: folders.by_class(folder) for split, folder in parts.items()}
  classes = list(found[TRAIN].classes)
  if not classes:
    raise BadInput("it holds no images in folders by class; give them as DIR/CLASS/*.png, or as DIR/train/CLASS/*.png "
                   "and DIR/test/CLASS/*.png.")
  for of_part in found.values():
    class_labels.check_same(classes, of_part.classes)
  pairs = {split: of_part.pairs() for split, of_part in found.items()}
  files = [file for each, _ in pairs.values() for file in each]

  def make() -> cache.Entry:
    labels = [label for _, each in pairs.values() for label in each]
    (read,) = examples.Reader(Form(image_size=image_size)).images(files, root, classes=labels)
    assert read.labels is not None
    start, arrays = 0, {}
    for split, (each, _) in pairs.items():
      arrays[f"x_{split}"] = read.x[start:start + len(each)]
      arrays[f"y_{split}"] = read.labels.numbers[start:start + len(each)]
      start += len(each)
    return cache.Entry(arrays, dict(num_transparent=read.decoded[0], num_frames=read.decoded[1]))

  place = cache.home_folder("arrays", root.name, [str(root.resolve()), image_size])
  arrays, facts = cache.load_or_make([place], [cache.hash_files(root, files), image_size, _DECODER], make)
  decoded = facts["num_transparent"], facts["num_frames"]
  for remark in (*folders.remarks(root, found.values()), *examples.image_remarks(root, decoded)):
    warnings.warn(remark, stacklevel=4)
  labels = {f"y_{split}": Labels(arrays[f"y_{split}"], tuple(classes), True) for split in parts}
  return {**arrays, **labels, **{f"files_{split}": each for split, (each, _) in pairs.items()}}, facts["fingerprint"]


def _tables(root: pathlib.Path, parts: dict[str, pathlib.Path], reader: examples.Reader) -> dict[str, Any]:
  """x and y of an .npz or a .parquet file, or of folders of them; of its parts, if it has some."""
  arrays = unpacking.arrays_of(root) if root.suffix.lower() == ".npz" and not root.is_dir() else []
  has_parts = examples.has_parts(arrays) and not reader.image_column and not reader.label_column
  used = ARRAYS if has_parts or not arrays else tuple(reader.chosen(arrays, "array"))
  others = [name for name in arrays if name not in used]
  if others:
    warnings.warn(f"{', '.join(others)} of {str(root)!r} {'is' if len(others) == 1 else 'are'} not used: only "
                  f"{', '.join(used)} are read, and validation examples are held out of every mega-batch "
                  "(stream.val_fraction)", stacklevel=4)
  if has_parts:
    parts = dict.fromkeys(_PARTS, root)
  made: dict[str, Any] = {}
  for split, path in (parts or {TRAIN: root}).items():
    read = dataclasses.replace(reader, part=split if path == root else "").whole(path)
    made |= {f"x_{split}": read.x, f"y_{split}": read.labels}
  return made


def _hold_out(arrays: dict[str, Any]) -> dict[str, Any]:
  """Moves one fifth of every class, at least one example, to the test set."""
  x_N, labels = arrays["x_train"], arrays["y_train"]
  y_N = labels.numbers
  is_held_N = np.zeros(len(y_N), bool)
  for label in range(y_N.max() + 1):
    order = keys.rng(_SPLIT_SEED, keys.STREAM, label).permutation(np.flatnonzero(y_N == label))
    is_held_N[order[:max(1, len(order) // _TEST_SHARE)]] = True
  if not np.isin(y_N[is_held_N], y_N[~is_held_N]).all():
    raise BadInput("it has a class with a single example, so none is left to train on; give every class at least two."
                   )
  return dict(x_train=x_N[~is_held_N], y_train=labels._replace(numbers=y_N[~is_held_N]),
              x_test=x_N[is_held_N], y_test=labels._replace(numbers=y_N[is_held_N]),
              files_test=list(itertools.compress(arrays.get("files_train", ()), is_held_N)),
              rows_test=np.flatnonzero(is_held_N).tolist())
