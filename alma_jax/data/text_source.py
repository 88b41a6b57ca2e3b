"""Finds the documents of a text, in files or in a TFDS data set, and reads them.

A document is non-empty UTF-8 bytes. `of_files` reads the files only to compute a fingerprint; if the tokens of the same
files are cached, no document is decoded.
"""
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from alma_jax.data import cache, folders, text_files, tfds_folder
from alma_jax.data.examples import named
from alma_jax.errors import BadInput

SPLITS = ("train", "valid", "test")

Documents = dict[str, list[bytes]]  # by split


class TextSource(NamedTuple):
  """A text that was found but not read.

  Attributes:
    fingerprint: JSON-able value that changes with the place, the names or the contents of the files.
    read: () -> documents by split, in the order of file names or of storage. "train" is there, "valid" and "test" may
      be missing. Raises BadInput if a document is not UTF-8, or all documents of a split are blank.
  """
  fingerprint: list[Any]
  read: Callable[[], Documents]


def of_tfds(name: str, data_dir: str) -> TextSource:
  """A TFDS data set; see `tfds_folder.prepared` for the arguments and errors."""
  folder = tfds_folder.prepared(name, data_dir)
  return TextSource([str(folder.resolve()), tfds_folder.fingerprint(folder)], lambda: _read_tfds(folder, name))


def of_files(path: pathlib.Path) -> TextSource:
  """A file, or the files of a folder.

  Raises:
    BadInput: there is no such file or folder, or it holds no text.
  """
  if not path.exists():
    raise BadInput(f"there is no file or folder {str(path)!r} to read text from; name yours by dataset.name=text:DIR.")
  with named(repr(str(path))):
    parts = folders.text_splits(path) if path.is_dir() else {}
    if parts and len(parts) < len(SPLITS):
      missing = " and no folder ".join(split for split in SPLITS if split not in parts)
      raise BadInput(f"it has no folder {missing}; give train, valid and test, or rename "
                     f"{folders.listed(sorted(part.name for part in parts.values()))} if these are no splits.")
    if parts:
      folders.warn_of_others(path, [parts[split] for split in SPLITS], text_files.SUFFIXES)
  files = {}
  for split, part in (parts or {"train": path}).items():
    with named(repr(str(part))):
      files[split] = text_files.files_of(part)
  root = path if path.is_dir() else path.parent
  hashes = {split: cache.hash_files(root, files[split]) for split in SPLITS if split in files}
  return TextSource([str(path.resolve()), hashes], lambda: _read_files(path, files))


def _read_files(path: pathlib.Path, files: dict[str, list[pathlib.Path]]) -> Documents:
  documents: Documents = {split: [] for split in SPLITS if split in files}
  for split, of_split in documents.items():
    for file in files[split]:
      with named(repr(str(file))):
        of_split += [document.text for document in text_files.of_file(file)]
  _check_not_blank(repr(str(path)), documents)
  return documents


def _check_not_blank(what: str, documents: Documents) -> None:
  blank = [split for split, of_split in documents.items() if not of_split]
  if blank:
    raise BadInput(f"the split {blank[0]} of {what} holds no text: every document is blank.")


def _read_tfds(folder: pathlib.Path, name: str) -> Documents:
  tfds = tfds_folder.import_tfds()
  builder = tfds.builder_from_directory(folder)
  features = builder.info.features
  texts = [key for key, feature in features.items() if isinstance(feature, tfds.features.Text)]
  if "text" not in texts and len(texts) != 1:
    raise BadInput(f"the TFDS data set {name!r} is not plain text: it has "
                   f"{'no' if not texts else 'several'} text features among {', '.join(sorted(features))}.")
  key = "text" if "text" in texts else texts[0]
  stored = {split: next((n for n in builder.info.splits if folders.split_of(n) == split), None) for split in SPLITS}
  if stored["train"] is None:
    raise BadInput(f"the TFDS data set {name!r} has no split train; it has {', '.join(builder.info.splits)}.")
  documents: Documents = {}
  for split, of_tfds in stored.items():
    if of_tfds is None:
      continue
    of_split = documents[split] = []
    for i, example in enumerate(tfds_folder.examples(builder, of_tfds)):
      with named(f"example {i} of the split {of_tfds} of {name!r}"):
        text = text_files.decoded(example[key].encode() if isinstance(example[key], str) else bytes(example[key]))
      if text.strip():
        of_split.append(text.encode())
  _check_not_blank(f"the TFDS data set {name!r}", documents)
  return documents
