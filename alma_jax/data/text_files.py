"""Reads texts by the same rules for every command: .txt and .jsonl files, and folders of them. Imports no jax.

A .txt file is one document. In a .jsonl file each line is a document: a string, or an object with a string `text`.
Documents are UTF-8. A byte order mark and blank documents are dropped. Messages of BadInput begin with "it".
"""
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from alma_jax.data import cache, folders, unpacking
from alma_jax.data.examples import named
from alma_jax.errors import BadInput
from alma_jax.files import parse_json

SUFFIXES = (".txt", ".jsonl")
SPLITS = ("train", "valid", "test")
_KINDS = "a .txt file, a .jsonl file, or a folder of them"
_FIELD = "text"  # of the objects in lines


Documents = dict[str, list[bytes]]  # by split; a document is non-empty UTF-8


class Document(NamedTuple):
  """A text and where it comes from; `row` counts the lines of a .jsonl file from 0, and is -1 for a .txt file."""
  source: str
  row: int
  text: bytes


class TextSource(NamedTuple):
  """A text that was found but not read.

  Attributes:
    fingerprint: JSON-able value that changes with the place, the names or the contents of the files.
    read: () -> documents by split, in the order of file names or of storage. "train" is there, "valid" and "test" may
      be missing. Raises BadInput if a document is not UTF-8, or all documents of a split are blank.
  """
  fingerprint: list[Any]
  read: Callable[[], Documents]


def source(path: pathlib.Path) -> TextSource:
  """Finds the text of a run in a file, a folder, or folders train, valid and test. It is read only to hash it.

  Raises:
    BadInput: there is no such text.
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
      folders.warn_of_others(path, [parts[split] for split in SPLITS], SUFFIXES)
  files = {}
  for split in SPLITS if parts else SPLITS[:1]:
    part = parts.get(split, path)
    with named(repr(str(part))):
      files[split] = files_of(part)
  root = path if path.is_dir() else path.parent
  hashes = {split: cache.hash_files(root, of_split) for split, of_split in files.items()}

  def read_all() -> Documents:
    documents: Documents = {split: [] for split in files}
    for split, of_split in files.items():
      for file in of_split:
        with named(repr(str(file))):
          documents[split] += [document.text for document in of_file(file)]
    check_not_blank(repr(str(path)), documents)
    return documents

  return TextSource([str(path.resolve()), hashes], read_all)


def check_not_blank(what: str, documents: Documents) -> None:
  """Raises BadInput if all documents of a split are blank."""
  blank = [split for split, of_split in documents.items() if not of_split]
  if blank:
    raise BadInput(f"the split {blank[0]} of {what} holds no text: every document is blank.")


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
  """The files of text in a folder at any depth, by their names, or the file itself. Warns of other files.

  Raises:
    BadInput: there is none.
  """
  if not path.exists():
    raise BadInput(f"there is no such file or folder; give {_KINDS}.")
  files, others = folders.divided(folders.visible(path) if path.is_dir() else [path], SUFFIXES)
  if not files:
    raise BadInput(f"it is of a kind that cannot be read here; give {_KINDS}.")
  if others:
    warnings.warn(f"{folders.left_out(path, others)}; only .txt and .jsonl files are text", stacklevel=3)
  return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def read(path: pathlib.Path) -> Iterator[Document]:
  """Yields the documents of a file or folder.

  Raises:
    BadInput: a file cannot be read or is not UTF-8, a line is no document, or there are none.
  """
  num = 0
  for file in files_of(path):
    if file == path:
      documents = of_file(file)
    else:
      with named(repr(str(file.relative_to(path)))):
        documents = of_file(file)
    num += len(documents)
    yield from documents
  if not num:
    raise BadInput("it holds no text: every document is blank.")


def of_file(path: pathlib.Path) -> list[Document]:
  """The documents of a file that are not blank; see `read`."""
  try:
    unpacking.check_contents(0, path.stat().st_size)
    content = path.read_bytes()
  except OSError as error:
    raise BadInput(f"it cannot be read: {error.strerror}.") from error
  text = decoded(content)
  if path.suffix.lower() == ".txt":
    documents = [Document(str(path), -1, text.encode())]
  else:
    documents = [Document(str(path), i, _of_line(line, i)) for i, line in enumerate(text.split("\n")) if line.strip()]
  return [document for document in documents if document.text.decode().strip()]


def decoded(content: bytes) -> str:
  """UTF-8 as a string, without a byte order mark."""
  try:
    return content.decode().removeprefix("\ufeff")
  except UnicodeDecodeError as error:
    raise BadInput(f"it is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}; convert it to UTF-8."
                   ) from error


def _of_line(line: str, number: int) -> bytes:
  """The document of a line. Halves of characters, which JSON can hold and UTF-8 cannot, are replaced by "?"."""
  try:
    entry = parse_json(line, halves=True)
  except ValueError as error:
    raise BadInput(f"its line {number + 1} is not JSON ({error}); repair it.") from error
  text = entry.get(_FIELD) if isinstance(entry, dict) else entry
  if not isinstance(text, str):
    raise BadInput(f"its line {number + 1} is neither a string nor an object with a string {_FIELD!r}; write "
                   "one or the other.")
  return text.encode("utf-8", "replace")
