"""Images in folders by class as arrays: DIR/train/CLASS/*.png and DIR/test/CLASS/*.png, or DIR/CLASS/*.png.

Classes are numbered in the order of their folders' names. Pictures are made grey
where all of them are, else RGB, and have to be of one size. They are decoded once
and cached.
"""
import pathlib

import numpy as np

from alma_jax import keys
from alma_jax.data import array_cache
from alma_jax.errors import BadInput

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_TEST_SHARE = 5  # one of so many is held out where there is no test folder
_GREY, _COLOUR = ("1", "L"), ("P", "RGB", "RGBA", "LA", "CMYK", "YCbCr")  # Pillow's modes of 8 bits


def load(path, seed):
  """Decodes (or finds decoded) the images of a folder.

  Args:
    path: the folder.
    seed: decides which fifth of every class is the test set where there is
      none.

  Returns:
    (dict of x_train, y_train, x_test, y_test, SHA-256 of them or None where the
    seed decided, names of the classes).

  Raises:
    BadInput: no such folder, fewer than two classes, classes that differ
      between train and test, or images that cannot be read or differ in size.
  """
  root = pathlib.Path(path).expanduser()
  if not root.is_dir():
    raise BadInput(f"there is no folder {str(root)!r} to read images from; name yours by dataset.name=folder:DIR.")
  parts = {split: root / split for split in ("train", "test") if (root / split).is_dir()}
  if len(parts) == 1:
    raise BadInput(f"{str(root)!r} has a folder {', '.join(parts)} and not the other of train and test; give both, or "
                   "a folder for each class alone.")
  files = {split: _files(folder) for split, folder in (parts or {"train": root}).items()}
  if parts and files["train"].keys() != files["test"].keys():
    odd = sorted(files["train"].keys() ^ files["test"].keys())
    raise BadInput(f"the classes {', '.join(odd[:5])} of {str(root)!r} are not in both train and test.")
  stamp = [[split, name, str(file.relative_to(root)), file.stat().st_size, file.stat().st_mtime_ns]
           for split, classes in files.items() for name, paths in classes.items() for file in paths]
  arrays, fingerprint = array_cache.cached(
      [array_cache.home_place(root.name, root)], stamp, lambda: _decode(files))
  names = list(files["train"])
  return (arrays, fingerprint, names) if parts else (_hold_out(arrays, seed), None, names)


def _files(folder):
  """{class: paths}, both sorted."""
  classes = {entry.name: sorted(p for p in entry.rglob("*") if p.suffix.lower() in _SUFFIXES)
             for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")}
  classes = {name: paths for name, paths in classes.items() if paths}
  if len(classes) < 2:
    raise BadInput(f"{str(folder)!r} holds images of {len(classes)} classes; each class wants a folder of its own, "
                   "DIR/CLASS/*.png or DIR/train/CLASS/*.png and DIR/test/CLASS/*.png.")
  return classes


def _decode(files):
  from PIL import Image, UnidentifiedImageError

  def read(path):
    try:
      with Image.open(path) as image:
        if image.mode not in _GREY + _COLOUR:
          raise BadInput(f"{str(path)!r} has pixels of the kind {image.mode!r}; 8 bits a channel are possible.")
        return image.mode in _GREY, np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as error:
      raise BadInput(f"{str(path)!r} is no image that can be read: {error}.") from error

  arrays, sizes, grey = {}, {}, True
  for split, classes in files.items():
    images, labels = [], []
    for label, paths in enumerate(classes.values()):
      for path in paths:
        is_grey, image = read(path)
        grey &= is_grey
        sizes.setdefault(image.shape, path)
        if len(sizes) > 1:
          (first, one), (second, other) = sizes.items()
          raise BadInput(f"images differ in size: {str(one)!r} has {first[1]}x{first[0]} pixels, {str(other)!r} "
                         f"{second[1]}x{second[0]}; scale them to one.")
        images.append(image)
        labels.append(label)
    arrays[f"x_{split}"], arrays[f"y_{split}"] = np.stack(images), np.array(labels, np.int32)
  return {name: array[..., :1] if grey and name.startswith("x") else array for name, array in arrays.items()}


def _hold_out(arrays, seed):
  """A fifth of every class, at least one, as the test set."""
  x, y = arrays["x_train"], arrays["y_train"]
  held = np.zeros(len(y), bool)
  for label in range(y.max() + 1):
    mine = keys.rng(seed, keys.STREAM, label).permutation(np.flatnonzero(y == label))
    held[mine[:max(1, len(mine) // _TEST_SHARE)]] = True
  if not np.isin(np.arange(y.max() + 1), y[~held]).all():
    raise BadInput("a class has a single image, which leaves none to train on; give every class at least two.")
  return dict(x_train=x[~held], y_train=y[~held], x_test=x[held], y_test=y[held])
