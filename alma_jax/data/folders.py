"""Finds the examples in a folder: its splits, its classes, and the files that are not read. Decodes nothing.

Messages of BadInput begin with "it", which is the folder.
"""
import pathlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from alma_jax.data import image_file
from alma_jax.errors import BadInput

TRAIN, VALID, TEST = "train", "valid", "test"
_SPLIT = {"train": TRAIN, "training": TRAIN, "trn": TRAIN, "test": TEST, "testing": TEST, "tst": TEST, "val": VALID,
          "valid": VALID, "validation": VALID, "validate": VALID, "dev": VALID, "eval": VALID, "evaluation": VALID,
          "holdout": VALID}
_ALONE = {"train", "valid", "validation", "val", "test"}  # splits of text, even if alone
_ENDINGS = r"(set|sets|split|data|images|imgs)$"  # of the name of a split, as in train_set
_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx")
_MOST_NAMES = 5  # names that a message lists
_MOST_SPLITS = 3  # train, valid and test

Classes = dict[str, list[pathlib.Path]]  # paths of the images by class, both sorted


class Found(NamedTuple):
  """The images of a folder by class.

  Attributes:
    classes: the classes that have images.
    left_out: number of files that are not read, by suffix.
    empty: folders without files.
  """
  classes: Classes
  left_out: Counter[str]
  empty: list[pathlib.Path]

  def pairs(self) -> tuple[list[pathlib.Path], list[str]]:
    """(the images, the class of each)."""
    return ([file for files in self.classes.values() for file in files],
            [name for name, files in self.classes.items() for _ in files])



def split_of(name: str) -> str | None:
  """TRAIN, VALID or TEST if a folder's name stands for this split, such as Training or val_set; else None."""
  letters = re.sub(r"[\W_]", "", name.lower())
  return _SPLIT.get(letters) or _SPLIT.get(re.sub(_ENDINGS, "", letters))


def splits(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """The folders of splits of images in `root`; empty if its folders are the classes.

  Folders are splits if their names stand for two different splits. If there is only one such name, a folder that holds
  images and has other folders beside it is a class: train (a vehicle), or valid beside invalid. But a folder test may
  hold images without labels. Names that contain the name of a split, such as seg_train, count if there are no others
  and no folder holds images itself. A folder around all folders of a split is skipped, as in seg_train/seg_train/CLASS.

  Raises:
    BadInput: two folders are one split.
  """
  named = _named(root)
  if len(named) < 2:
    loosely, every = _named(root, _loosely), _folders(root)
    if len(loosely) > 1 and len(every) == sum(map(len, loosely.values())) and not any(map(_loose, every)):
      named = loosely
  if len(named) == 1 and TEST not in named:
    ((first, *more),) = named.values()
    if not more and len(_folders(root)) > 1 and (_loose(first) or next(visible(first), None) is None):
      return {}
  _check_one_each({split: found for split, found in named.items() if split != VALID})  # VALID is not used
  return {split: _innermost(found[0]) for split, found in named.items()}


def text_splits(root: pathlib.Path) -> dict[str, pathlib.Path]:
  """The folders of splits of text in `root`; empty if its folders are topics.

  Folders are splits if their names stand for all three, or if one has a common name, such as train or val. If some are
  missing and the names are others, such as training and testing, folders beside them show that all are topics.

  Raises:
    BadInput: two folders are one split.
  """
  named = _named(root)
  likely = [path for found in named.values() for path in found]
  if len(named) < len({*_SPLIT.values()}) and not {path.name.lower() for path in likely} & _ALONE and (
      len(named) < 2 or len(_folders(root)) > len(likely)):
    if len(named) > 1:
      warnings.warn(f"{listed(sorted(path.name for path in likely))} of {str(root)!r} are read as topics of one text, "
                    "like the folders beside them; if they are splits, rename them to train, valid and test",
                    stacklevel=4)
    return {}
  _check_one_each(named)
  return {split: found[0] for split, found in named.items()}


def warn_of_others(root: pathlib.Path, used: Collection[pathlib.Path], suffixes: Collection[str],
                   hint: str = "") -> None:
  """Warns if `root` holds files with one of `suffixes` that are in none of the folders `used`."""
  others = [path.name for path in sorted(root.iterdir())
            if not any(each.is_relative_to(path) for each in used) and holds(path, suffixes)]
  if others:
    warnings.warn(f"{listed(others)} of {str(root)!r} {'is' if len(others) == 1 else 'are'} not used: only "
                  f"{listed(path.name for path in used)} are read{hint}", stacklevel=5)


def _named(root: pathlib.Path, split_of: Callable[[str], str | None] = split_of) -> dict[str, list[pathlib.Path]]:
  """The folders in `root` whose names stand for a split, by split."""
  named: dict[str, list[pathlib.Path]] = {}
  for folder in _folders(root):
    if split := split_of(folder.name):
      named.setdefault(split, []).append(folder)
  return named


def _loosely(name: str) -> str | None:
  """The split whose name a folder's name contains."""
  return next(filter(None, map(_SPLIT.get, re.split(r"[\W_\d]+", name.lower()))), None)


def _innermost(folder: pathlib.Path) -> pathlib.Path:
  """The folder that holds several folders, or a folder of images."""
  while not _loose(folder) and len(inside := _folders(folder)) == 1 and not _loose(inside[0]):
    folder = inside[0]
  return folder


def by_class(folder: pathlib.Path) -> Found:
  """The images in folders by class, `folder`/CLASS/*.png, or deeper, but all at one depth.

  `folder` is a split already, or has none, so a folder in it that is called like one is a class if there are others
  beside it, or if it holds images itself.

  Raises:
    BadInput: it is unclear which folders are the classes, or no file of a class can be read.
  """
  parts = splits(folder)
  if len(parts) > 1 or (parts and len(_folders(folder)) == 1 and not _loose(*parts.values())):
    raise BadInput(f"its {'folder' if len(parts) == 1 else 'folders'} "
                   f"{listed(sorted(part.relative_to(folder).as_posix() for part in parts.values()))} "
                   f"{'looks like a split' if len(parts) == 1 else 'look like splits'} where the folders of classes "
                   "should be; move the folders of classes up, or rename these folders if they are classes.")
  classes: Classes = {}
  skipped: Counter[str] = Counter()
  empty = []
  for of_class in _folders(folder):
    images, others = divided(visible(of_class), image_file.suffixes())
    skipped += others
    if images:
      classes[of_class.name] = images
    elif others:
      raise BadInput(f"its class {of_class.name!r} has no images, but files that are not read ({_kinds(others)}); "
                     "convert them, for example to PNG, or move the folder away if it is not a class.")
    else:
      empty.append(of_class)
  _check_depths(folder, classes)
  _check_sub_folders(folder, classes)
  return Found(classes, skipped, empty)


def holds(path: pathlib.Path, suffixes: Collection[str]) -> bool:
  """Whether a file has one of the suffixes, or a folder holds such a file at any depth."""
  if _is_hidden(path.name):
    return False
  return any(file.suffix.lower() in suffixes for file in (visible(path) if path.is_dir() else [path]))


def visible(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """The files below a folder, at any depth, without hidden files and those of operating systems.

  A link to a folder is not followed but counts as a file, as with pathlib.Path.rglob. `folder` itself may be a link.
  """
  for path in sorted(folder.iterdir()):
    if _is_hidden(path.name):
      continue
    if path.is_dir() and not path.is_symlink():
      yield from visible(path)
    else:
      yield path


def divided(files: Iterable[pathlib.Path], suffixes: Collection[str]) -> tuple[list[pathlib.Path], Counter[str]]:
  """(the sorted files whose suffix, in lower case, is one of `suffixes`; numbers of the others by suffix)."""
  found, others = [], Counter[str]()
  for file in files:
    suffix = file.suffix.lower()
    if suffix in suffixes:
      found.append(file)
    else:
      others["linked folder(s)" if file.is_dir() else suffix or "without a suffix"] += 1
  return sorted(found), others


def left_out(folder: pathlib.Path, others: Counter[str]) -> str:
  """A clause that says how many files are not read, as in "12 files of 'DIR' are not read (10 .txt, 2 .heic)"."""
  num = others.total()
  return f"{num} file{'s' * (num != 1)} of {str(folder)!r} {'is' if num == 1 else 'are'} not read ({_kinds(others)})"


def remarks(root: pathlib.Path, parts: Collection[Found]) -> list[str]:
  """Warnings about a folder, from what its parts hold, or it itself."""
  others = sum((part.left_out for part in parts), Counter[str]())
  empty = sorted(str(folder.relative_to(root)) for part in parts for folder in part.empty)
  found = [left_out(root, others)] if others else []
  if empty:
    found.append(f"{listed(empty)} of {str(root)!r} {'is' if len(empty) == 1 else 'are'} empty and not used as a class")
  return found


def _kinds(others: Counter[str]) -> str:
  return listed((f"{num} {suffix}" for suffix, num in others.most_common()), and_=", ")


def listed(names: Iterable[str], and_: str = " and ") -> str:
  """E.g. "a, b and c", or "a, b, c, d, e and 7 more"."""
  shown = list(names)
  more = f"{len(shown) - _MOST_NAMES} more" if len(shown) > _MOST_NAMES else None
  shown = [*shown[:_MOST_NAMES], more] if more else shown
  return and_.join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _check_one_each(named: dict[str, list[pathlib.Path]]) -> None:
  for same in named.values():
    if len(same) > 1:
      raise BadInput(f"it has the folders {listed(folder.name for folder in same)} for the same split; keep one of "
                     "them.")


def _check_depths(folder: pathlib.Path, classes: Classes) -> None:
  """Refuses images at different depths, including images beside the folders of classes."""
  of_depth: dict[int, pathlib.Path] = {}
  for path in (path for paths in (_loose(folder) if classes else [], *classes.values()) for path in paths):
    of_depth.setdefault(len(path.parts), path)
  if len(of_depth) > 1:
    first, second = (str(of_depth[depth].relative_to(folder)) for depth in sorted(of_depth)[:2])
    raise BadInput(f"it holds images at different depths, such as {first!r} and {second!r}; put all images at the same "
                   "depth, DIR/CLASS/*.png.")


def _check_sub_folders(folder: pathlib.Path, classes: Classes) -> None:
  """Refuses folders that all have the same subfolders, or that hold splits: either level may be the classes."""
  depth = len(folder.parts) + 1
  inside = {name: {path.parts[depth] for path in paths if len(path.parts) > depth + 1}
            for name, paths in classes.items()}
  shared = set.intersection(*inside.values()) if len(inside) > 1 else set()
  # As many folders as there are splits may be splits, of which one lacks a class.
  is_same = len(inside) <= _MOST_SPLITS or all(names == shared for names in inside.values())
  halves = next((names for names in inside.values() if len({*map(split_of, names)} - {None}) > 1), None)
  if halves or (len(shared) > 1 and is_same):
    raise BadInput(f"its folders {listed(classes)} hold{'s' * (len(classes) == 1)} the folders "
                   f"{listed(sorted(halves or shared))}, so it is unclear which are the classes; use "
                   "DIR/train/CLASS/*.png and DIR/test/CLASS/*.png, or DIR/CLASS/*.png without subfolders.")


def _folders(root: pathlib.Path) -> list[pathlib.Path]:
  return sorted(path for path in root.iterdir() if path.is_dir() and not _is_hidden(path.name))


def _loose(folder: pathlib.Path) -> list[pathlib.Path]:
  """The images that lie directly in a folder."""
  return sorted(path for path in folder.iterdir() if path.suffix.lower() in image_file.suffixes() and not path.is_dir()
                and not _is_hidden(path.name))


def _is_hidden(name: str) -> bool:
  return name.startswith(".") or name.lower() in _OF_SYSTEMS
