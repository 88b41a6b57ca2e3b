"""Loads images from folders by class: DIR/train/CLASS/*.png and DIR/test/CLASS/*.png, or DIR/CLASS/*.png.

Classes are numbered in the order of their folders' names. If all images are grey they have one channel, else all have
three. The images have one size, or are resized to one. They are decoded once and cached.
"""
import pathlib
import warnings
from collections import Counter

import numpy as np

from alma_jax import keys
from alma_jax.data import cache, folders, image_file, unpacking
from alma_jax.data.folders import Classes
from alma_jax.errors import BadInput

_SPLITS = (folders.TRAIN, folders.TEST)
_TEST_SHARE = 5  # without a test folder one image in 5 is held out
_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same images
_MOST_NAMES = 10  # names that a message lists
_COPIES = 2  # of the pixels, when they become one array
_DECODER = 2  # change it when files decode to other pixels than before


def load(path: str, image_size: int = 0) -> tuple[cache.Arrays, str | None, list[str]]:
  """Decodes the images of a folder, or reads them from the cache.

  If the folder has no folders train and test, one fifth of every class is held out as the test set, always the same.

  Args:
    path: the folder.
    image_size: width and height in pixels to which images are resized; 0: they have one size already.

  Returns:
    (dict of x_train, y_train, x_test, y_test, `cache.hash_arrays` of them or None if the test set was held out, names
    of the classes). x are [N, H, W, 1 or 3], 0 to 255, uint8, or float32 if an image has 16 bits; y are int32 [N].

  Raises:
    BadInput: there is no such folder, there are fewer than two classes, train and test have different classes, or
      images cannot be read or differ in size.
  """
  root = pathlib.Path(path).expanduser()
  if not root.is_dir():
    raise BadInput(f"there is no folder {str(root)!r} to read images from; name yours by dataset.name=folder:DIR.")
  parts = _split_folders(root)
  found = {split: _find_classes(folder) for split, folder in (parts or {"train": root}).items()}
  files = {split: of_split.classes for split, of_split in found.items()}
  if parts and files["train"].keys() != files["test"].keys():
    odd = sorted(files["train"].keys() ^ files["test"].keys())
    raise BadInput(f"the classes {', '.join(odd[:5])} of {str(root)!r} are not in both train and test; give both "
                   "the same classes.")
  every = [file for classes in files.values() for paths in classes.values() for file in paths]
  place = cache.home_folder("arrays", root.name, [str(root.resolve()), image_size])
  arrays, facts = cache.load_or_make(
      [place], [cache.hash_files(root, every), image_size, _DECODER], lambda: _decode(root, files, image_size))
  every_found = folders.Found({}, sum((each.left_out for each in found.values()), Counter()), sorted(
      str((parts.get(split, root) / name).relative_to(root)) for split, each in found.items() for name in each.empty))
  for remark in (*every_found.remarks(root), *_remarks(root, facts)):
    warnings.warn(remark, stacklevel=3)
  names = list(files["train"])
  return (arrays, facts["fingerprint"], names) if parts else (_hold_out(arrays), None, names)


def read_part(folder: pathlib.Path, image_size: int = 0) -> tuple[cache.Arrays, list[str], list[str]]:
  """Decodes the images of a folder DIR/CLASS/*.png, which may hold a single class; nothing is cached.

  Returns:
    (dict of x_train, y_train, as `load` returns them; names of the classes; what a user should know).

  Raises:
    BadInput: there are no images, or some cannot be read or differ in size.
  """
  found = folders.by_class(folder)
  if not found.classes:
    raise BadInput("it holds no images in folders by class, CLASS/*.png.")
  unpacking.check_contents(sum(map(len, found.classes.values())), 0)
  arrays, facts = _decode(folder, {"train": found.classes}, image_size)
  return arrays, list(found.classes), found.remarks(folder) + _remarks(folder, facts)


def stacked(images: list[np.ndarray]) -> np.ndarray:
  """Images [H, W, 1 or 3] of one size as [N, H, W, C], with one number of channels and one dtype for all."""
  return _stacked({"train": images})["x_train"]


def _split_folders(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """The folders train and test by name; empty if the folders in `root` are the classes."""
  parts = folders.splits(root)
  if not parts:
    return {}
  named = folders.listed(part.name for part in parts.values())
  missing = [split for split in _SPLITS if split not in parts]
  if missing == [folders.TEST] and folders.VALID in parts:
    raise BadInput(f"{str(root)!r} has the folders {named}, but no folder test; rename {parts[folders.VALID].name} to "
                   "test, as validation examples are held out of every mega-batch (stream.val_fraction).")
  if missing:
    raise BadInput(f"{str(root)!r} has {'a folder' if len(parts) == 1 else 'the folders'} {named}, but no folder "
                   f"{missing[0]}; give both, or only one folder for each class.")
  parts = {split: parts[split] for split in _SPLITS}
  folders.warn_of_others(root, parts.values(), image_file.suffixes(),
                         ", and validation examples are held out of every mega-batch (stream.val_fraction)")
  return parts


def _find_classes(folder: pathlib.Path) -> folders.Found:
  found = folders.by_class(folder)
  if len(found.classes) < 2:
    num = len(found.classes)
    raise BadInput(f"{str(folder)!r} holds images of {num} class{'es' * (num != 1)}; give at least two classes, each "
                   "in its own folder: DIR/CLASS/*.png, or DIR/train/CLASS/*.png and DIR/test/CLASS/*.png.")
  return found


def _remarks(root: pathlib.Path, facts: dict[str, int]) -> list[str]:
  """What a user should know about decoded images."""
  known = {"num_transparent": "transparent parts, which become white",
           "num_frames": "several frames or pages, and only the first is read"}
  return [f"{num} of the images of {str(root)!r} {'has' if num == 1 else 'have'} {what}"
          for name, what in known.items() if (num := facts[name])]


def _decode(root: pathlib.Path, files: dict[str, Classes], image_size: int) -> cache.Entry:
  """x and y of every split in `files`, and the numbers of images with transparent parts and with several frames."""
  images: dict[str, list[np.ndarray]] = {}
  labels: dict[str, list[int]] = {}
  bad: list[str] = []
  num_transparent, num_frames, first, other, num_bytes = 0, 0, None, None, 0
  for split, classes in files.items():
    images[split], labels[split] = [], []
    for label, path in ((label, path) for label, paths in enumerate(classes.values()) for path in paths):
      try:
        decoded = image_file.read(path, image_size)
      except BadInput as error:
        bad.append(f"{path.relative_to(root)} ({error})")
        continue
      shape = decoded.pixels.shape[:2]
      first = first or (shape, path)
      if shape != first[0]:
        other = other or (shape, path)
        continue
      num_bytes += decoded.pixels.nbytes
      _check_size(root, num_bytes)
      num_transparent += decoded.had_transparency
      num_frames += decoded.has_frames
      images[split].append(decoded.pixels)
      labels[split].append(label)
  if bad:
    more = f" and {len(bad) - _MOST_NAMES} more" if len(bad) > _MOST_NAMES else ""
    raise BadInput(f"{str(root)!r} holds {len(bad)} image file{'s' * (len(bad) > 1)} that cannot be used, "
                   f"{', '.join(bad[:_MOST_NAMES])}{more}; repair, convert (to 8 bits a channel) or remove them.")
  if first and other:
    ((height, width), path), (shape, another) = first, other
    raise BadInput(f"images differ in size: {str(path)!r} has {width}x{height} pixels, {str(another)!r} "
                   f"{shape[1]}x{shape[0]}; set dataset.image_size=N to resize all to NxN.")
  arrays = _stacked(images) | {f"y_{split}": np.array(of_split, np.int32) for split, of_split in labels.items()}
  return cache.Entry(arrays, dict(num_transparent=num_transparent, num_frames=num_frames))


def _check_size(root: pathlib.Path, num_bytes: int) -> None:
  try:
    unpacking.check_contents(0, num_bytes, _COPIES, f"{str(root)!r}")
  except unpacking.TooMuch:
    raise
  except BadInput as error:
    raise BadInput(f"{error}; give fewer or smaller images, or set dataset.image_size=N.") from error


def _stacked(images: dict[str, list[np.ndarray]]) -> cache.Arrays:
  """{x_SPLIT: [N, H, W, C]} of the images of each split, with one number of channels and one dtype for all."""
  every = [image for of_split in images.values() for image in of_split]
  shape = (*every[0].shape[:2], max(image.shape[-1] for image in every))
  dtype = np.result_type(*{image.dtype for image in every})
  return {f"x_{split}": np.stack([np.broadcast_to(image, shape) for image in of_split], dtype=dtype)
          for split, of_split in images.items()}


def _hold_out(arrays: cache.Arrays) -> cache.Arrays:
  """Moves one fifth of every class, at least one image, to the test set."""
  x_N, y_N = arrays["x_train"], arrays["y_train"]
  is_held_N = np.zeros(len(y_N), bool)
  for label in range(y_N.max() + 1):
    order = keys.rng(_SPLIT_SEED, keys.STREAM, label).permutation(np.flatnonzero(y_N == label))
    is_held_N[order[:max(1, len(order) // _TEST_SHARE)]] = True
  if not np.isin(np.arange(y_N.max() + 1), y_N[~is_held_N]).all():
    raise BadInput("a class has a single image, which leaves none to train on; give every class at least two.")
  return dict(x_train=x_N[~is_held_N], y_train=y_N[~is_held_N], x_test=x_N[is_held_N], y_test=y_N[is_held_N])
