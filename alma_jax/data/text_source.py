"""Finds the documents of a text, in .txt files or in a TFDS data set, and reads them.

A document is non-empty UTF-8 bytes. `find` reads the files only to compute a fingerprint; if the tokens of the same
files are cached, no document is decoded.
"""
import pathlib
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from alma_jax.data import cache, folders, text_line, tfds_folder
from alma_jax.errors import BadInput

SPLITS = ("train", "valid", "test")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

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


def find(name: str, data_dir: str = "") -> TextSource:
  """Finds a text.

  Args:
    name: "text:DIR" or "tfds:NAME".
    data_dir: see `tfds_folder.prepared`.

  Raises:
    BadInput: there is no such text.
  """
  kind, _, rest = name.partition(":")
  if kind == "text" and rest:
    return _find_files(pathlib.Path(rest).expanduser())
  if kind == "tfds" and rest:
    folder = tfds_folder.prepared(rest, data_dir)
    return TextSource([str(folder.resolve()), tfds_folder.fingerprint(folder)], lambda: _read_tfds(folder, rest))
  raise BadInput(f"there is no text {name!r}; there are text:DIR and tfds:NAME.")


def _find_files(folder: pathlib.Path) -> TextSource:
  if folder.is_file():
    raise BadInput(f"{str(folder)!r} is a file; name the folder of the .txt files by dataset.name=text:DIR.")
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} to read text from; name yours by dataset.name=text:DIR.")
  parts = folders.text_splits(folder)
  if parts and len(parts) < len(SPLITS):
    raise BadInput(f"{str(folder)!r} has no folder {' and no folder '.join(s for s in SPLITS if s not in parts)}; "
                   "give train, valid and test, or rename "
                   f"{folders.listed(sorted(path.name for path in parts.values()))} if these are no splits.")
  if parts:
    folders.warn_of_others(folder, [parts[split] for split in SPLITS], (text_line.DOCUMENT,))
  files = {split: _text_files(parts[split]) for split in SPLITS} if parts else {"train": _text_files(folder)}
  hashes = {split: cache.hash_files(folder, paths) for split, paths in files.items()}
  return TextSource([str(folder.resolve()), hashes], lambda: _read_files(folder, files))


def _text_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """The .txt files in a folder at any depth, sorted by name."""
  paths, others = folders.divided(folders.visible(folder), (text_line.DOCUMENT,))
  if not paths:
    what = f" ({folders.left_out(folder, others)})" if others else ""
    raise BadInput(f"{str(folder)!r} holds no .txt file{what}; name a folder of UTF-8 text by dataset.name=text:DIR.")
  if others:
    warnings.warn(f"{folders.left_out(folder, others)}; only .txt files count as text", stacklevel=4)
  return sorted(paths, key=lambda path: path.relative_to(folder).as_posix())


def _read_files(folder: pathlib.Path, files: dict[str, list[pathlib.Path]]) -> Documents:
  try:
    return {split: _checked(f"the split {split} of {str(folder)!r}", (
        (f"the file {str(path)!r}", path.read_bytes()) for path in paths)) for split, paths in files.items()}
  except OSError as error:
    raise BadInput(f"{str(folder)!r} cannot be read: {error}.") from error


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
  return {split: _checked(f"the split {of_tfds} of the TFDS data set {name!r}", (
      (f"example {i} of the split {of_tfds} of {name!r}", example[key])
      for i, example in enumerate(tfds_folder.examples(builder, of_tfds))))
          for split, of_tfds in stored.items() if of_tfds}


def _checked(what: str, named: Iterable[tuple[str, bytes | str]]) -> list[bytes]:
  """The documents that are not blank, as UTF-8.

  Args:
    what: how messages refer to all of them.
    named: (how messages refer to a document, its text).
  """
  documents = []
  for name, text in named:
    encoded = text.encode() if isinstance(text, str) else bytes(text)
    try:
      decoded = encoded.decode()
    except UnicodeDecodeError as error:
      raise BadInput(f"{name} is not UTF-8: byte {error.start} is 0x{encoded[error.start]:02x}; "
                     "convert it to UTF-8.") from error
    if decoded.removeprefix("\ufeff").strip():
      documents.append(encoded.removeprefix(_BYTE_ORDER_MARK))
  if not documents:
    raise BadInput(f"{what} holds no text: every document is blank.")
  return documents
