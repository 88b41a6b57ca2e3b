"""Documents of text: where they lie, what they say, how they are cut and divided.

A document is non-empty UTF-8 bytes. Finding looks at names, sizes and times
only, so that a cache of tokens can be used without reading any document.
"""
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.data import tfds_source
from alma_jax.errors import BadInput

SPLITS = ("train", "valid", "test")
_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val"), "test": ("test",)}
_SHARE = 0.05  # of the text, for each of valid and test where they must be cut off
_SPLIT, _ORDER = 1, 2  # after keys.STREAM: which documents are held out, the order of the others
_BOM = b"\xef\xbb\xbf"


class Source(NamedTuple):
  """Text that was found but not read.

  Attributes:
    stamp: JSON, what a cache is made from: places, names, sizes and times.
    read: () -> dict of split to documents, in the order of names or of
      storage. "train" is there, "valid" and "test" may be missing.
  """
  stamp: list
  read: Callable


def find(name, data_dir=""):
  """Finds the text named "text:DIR" or "tfds:NAME".

  Raises:
    BadInput: there is none (`read`: a document is no UTF-8, a split is empty).
  """
  kind, _, rest = name.partition(":")
  if kind == "text" and rest:
    return _find_files(pathlib.Path(rest).expanduser())
  if kind == "tfds" and rest:
    root, folder = tfds_source.find(rest, data_dir)
    folder = folder or tfds_source.download(root, rest)
    return Source([str(folder.resolve()), tfds_source.stamp(folder)], lambda: _read_tfds(folder, rest))
  raise BadInput(f"there is no text {name!r}; there are text:DIR and tfds:NAME.")


def prepare(splits, num_megabatches, seed):
  """Cuts off what splits are missing, cuts long documents, and permutes training.

  A document longer than a mega-batch is cut to at most an eighth of one, so
  that mega-batches are of one distribution.

  Args:
    splits: as `Source.read` returns them.
    num_megabatches: B.
    seed: decides what is held out, and the order of the stream.

  Returns:
    Dict of documents of "train", in the order of the stream, "valid", "test".

  Raises:
    BadInput: fewer training documents than mega-batches, or too few to hold out.
  """
  missing = [split for split in SPLITS if split not in splits]
  splits = splits | _hold_out(splits["train"], missing, seed) if missing else splits
  total = sum(map(len, splits["train"]))
  documents = cut_long(splits["train"], total / num_megabatches, total // (8 * num_megabatches))
  if len(documents) < num_megabatches:
    raise BadInput(f"stream.num_megabatches={num_megabatches} is more than the {len(documents)} documents and pieces "
                   "of documents that the training text can be divided into.")
  order = keys.rng(seed, keys.STREAM, _ORDER).permutation(len(documents))
  return {split: splits[split] for split in SPLITS} | {"train": [documents[i] for i in order]}


def nearest_bounds(sizes, num_parts):
  """Divides documents into parts of sizes as equal as their boundaries allow.

  Args:
    sizes: int [n] of the documents, n >= num_parts.
    num_parts: how many parts; each has a document.

  Returns:
    int64 [num_parts + 1]; part i is the documents bounds[i] : bounds[i + 1].
  """
  ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
  bounds = [0]
  for part in range(1, num_parts):
    first, last = bounds[-1] + 1, len(sizes) - num_parts + part
    target = ends[-1] * part / num_parts
    bounds.append(first + int(np.argmin(np.abs(ends[first:last + 1] - target))))
  return np.array([*bounds, len(sizes)], np.int64)


def cut_long(documents, longest, piece):
  """Documents of more than `longest` bytes cut into pieces of at most `piece` bytes.

  Pieces are nearly equal and end at line ends where they can (else between two
  characters; one character is never cut, however small `piece` is).
  """
  piece, cut = max(piece, 1), []
  for document in documents:
    start = 0
    while len(document) > longest and len(document) - start > piece:
      rest = len(document) - start
      target = start + rest // -(-rest // piece)  # the rest in equal pieces
      line_end = document.rfind(b"\n", start + (target - start) // 2, target) + 1
      end = line_end or _character_end(document, start, target)
      cut.append(document[start:end])
      start = end
    cut.append(document[start:])
  return [document for document in cut if document]


def _character_end(document, start, target):
  """The last end of a character in start + 1 : target, or the first after it."""
  inside = lambda i: i < len(document) and document[i] & 0xC0 == 0x80
  end = next((i for i in range(target, start, -1) if not inside(i)), target)
  while inside(end):
    end += 1
  return end


def _hold_out(documents, missing, seed):
  """Takes each missing split, 5 % of the bytes, from the end of a permutation."""
  total = sum(map(len, documents))
  if len(documents) < 20:
    documents = cut_long(documents, total / 20, total // 40)
  if len(documents) <= len(missing):
    raise BadInput(f"there is too little training text to hold out {' and '.join(missing)}: "
                   f"{len(documents)} {'piece' if len(documents) == 1 else 'pieces'}; "
                   "give more text, or each split its own.")
  order = keys.rng(seed, keys.STREAM, _SPLIT).permutation(len(documents))
  ends = np.cumsum([len(documents[i]) for i in order])
  held, stop = {}, len(order)
  for place, split in enumerate(reversed(missing)):
    first = len(missing) - place  # documents that must remain
    target = total * (1 - _SHARE * (place + 1))
    start = first + int(np.argmin(np.abs(ends[first - 1:stop - 1] - target)))
    held[split] = [documents[i] for i in order[start:stop]]
    stop = start
  return {"train": [documents[i] for i in order[:stop]]} | held


def _find_files(folder):
  if folder.is_file():
    raise BadInput(f"{str(folder)!r} is a file; dataset.name=text:DIR names the folder that .txt files lie in.")
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} to read text from; name yours by dataset.name=text:DIR.")
  files = {}
  for split in SPLITS:
    there = [name for name in _NAMES[split] if (folder / name).is_dir()]
    if len(there) > 1:
      raise BadInput(f"{str(folder)!r} has the folders {' and '.join(there)} for one split; keep one of them.")
    if there:
      files[split] = _text_files(folder / there[0])
  if not files:
    files["train"] = _text_files(folder)
  elif len(files) < len(SPLITS):
    raise BadInput(f"{str(folder)!r} has no folder {' and no folder '.join(s for s in SPLITS if s not in files)}; "
                   "give train, valid and test, or .txt files without any of them.")
  stamp = [[split, str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns]
           for split, paths in files.items() for path in paths]
  return Source([str(folder.resolve()), stamp], lambda: _read_files(folder, files))


def _read_files(folder, files):
  try:
    return {split: _checked(f"the split {split} of {str(folder)!r}", (
        (f"the file {str(path)!r}", path.read_bytes()) for path in paths)) for split, paths in files.items()}
  except OSError as error:
    raise BadInput(f"{str(folder)!r} cannot be read: {error}.") from error


def _text_files(folder):
  paths = sorted((path for path in folder.rglob("*.txt") if path.is_file()),
                 key=lambda path: path.relative_to(folder).as_posix())
  if not paths:
    raise BadInput(f"{str(folder)!r} holds no .txt file; name a folder of UTF-8 text by dataset.name=text:DIR.")
  return paths


def _read_tfds(folder, name):
  tfds = tfds_source.import_tfds()
  builder = tfds.builder_from_directory(folder)
  features = builder.info.features
  texts = [key for key, feature in features.items() if isinstance(feature, tfds.features.Text)]
  if "text" not in texts and len(texts) != 1:
    raise BadInput(f"the TFDS data set {name!r} is not plain text: it has "
                   f"{'no' if not texts else 'several'} text features among {', '.join(sorted(features))}.")
  key = "text" if "text" in texts else texts[0]
  stored = {split: next((n for n in _NAMES[split] if n in builder.info.splits), None) for split in SPLITS}
  if stored["train"] is None:
    raise BadInput(f"the TFDS data set {name!r} has no split train; it has {', '.join(builder.info.splits)}.")
  return {split: _checked(f"the split {stored[split]} of the TFDS data set {name!r}", (
      (f"example {i} of the split {stored[split]} of {name!r}", example[key])
      for i, example in enumerate(tfds_source.examples(builder, stored[split]))))
          for split in SPLITS if stored[split]}


def _checked(where, named):
  """The documents among (what to call it, bytes or str): UTF-8, and not blank."""
  documents = []
  for what, text in named:
    text = text.encode() if isinstance(text, str) else bytes(text)
    try:
      decoded = text.decode()
    except UnicodeDecodeError as error:
      raise BadInput(f"{what} is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}; "
                     "convert it to UTF-8.") from error
    if decoded.removeprefix("\ufeff").strip():
      documents.append(text.removeprefix(_BOM))
  if not documents:
    raise BadInput(f"{where} holds no text: every document is blank.")
  return documents
