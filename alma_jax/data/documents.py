"""Divides documents: holds out splits, cuts long documents, orders the stream, and bounds mega-batches.

A document is non-empty UTF-8 bytes.
"""
from collections.abc import Sequence

import numpy as np

from alma_jax import keys
from alma_jax.data import cache
from alma_jax.data.text_source import SPLITS, Documents
from alma_jax.errors import BadInput

_SHARE = 0.05  # share of the text that valid and test get each, if they are held out
_HOLD_OUT, _ORDER = 1, 2  # purposes of random numbers, after keys.STREAM
_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same text


def prepare(splits: Documents, num_megabatches: int, seed: int) -> Documents:
  """Holds out missing splits, cuts long training documents, and permutes them.

  A document longer than a mega-batch is cut into pieces of at most an eighth of a mega-batch, so that all mega-batches
  have one distribution.

  Args:
    splits: as `TextSource.read` returns them.
    num_megabatches: B.
    seed: decides the order of the training documents. What is held out is the same for every seed.

  Returns:
    Documents of "train" in the order of the stream, of "valid" and of "test".

  Raises:
    BadInput: there are fewer training documents than mega-batches, or too few to hold out a split.
  """
  splits = complete(splits)
  total = sum(map(len, splits["train"]))
  documents = cut_long(splits["train"], total / num_megabatches, total // (8 * num_megabatches))
  if len(documents) < num_megabatches:
    raise BadInput(f"stream.num_megabatches={num_megabatches} is more than the {len(documents)} documents and pieces "
                   "of documents that the training text can be divided into; lower it.")
  order = keys.rng(seed, keys.STREAM, _ORDER).permutation(len(documents))
  return {split: splits[split] for split in SPLITS} | {"train": [documents[i] for i in order]}


def complete(splits: Documents) -> Documents:
  """Holds out the splits that are missing; see `hold_out`."""
  missing = [split for split in SPLITS if split not in splits]
  return splits | hold_out(splits["train"], missing) if missing else splits


def num_seen(splits: Documents) -> int:
  """The number of test documents that are also training documents."""
  seen = {cache.hash_row(document.strip()) for document in splits["train"]}
  return sum(cache.hash_row(document.strip()) in seen for document in splits["test"])


def hold_out(documents: list[bytes], missing: list[str]) -> Documents:
  """Holds out 5 % of the bytes for each missing split, from the end of a permutation of the documents.

  Raises:
    BadInput: there is too little text.
  """
  total = sum(map(len, documents))
  if len(documents) < 20:
    documents = cut_long(documents, total / 20, total // 40)
  if len(documents) <= len(missing):
    raise BadInput(f"there is too little training text to hold out {' and '.join(missing)}: "
                   f"{len(documents)} {'piece' if len(documents) == 1 else 'pieces'}; "
                   "give more text, or a folder for each split.")
  order = keys.rng(_SPLIT_SEED, keys.STREAM, _HOLD_OUT).permutation(len(documents))
  ends = np.cumsum([len(documents[i]) for i in order])
  held, stop = {}, len(order)
  for place, split in enumerate(reversed(missing)):
    first = len(missing) - place  # documents that must remain
    target = total * (1 - _SHARE * (place + 1))
    start = first + int(np.argmin(np.abs(ends[first - 1:stop - 1] - target)))
    held[split] = [documents[i] for i in order[start:stop]]
    stop = start
  return {"train": [documents[i] for i in order[:stop]]} | held


def nearest_bounds(sizes: Sequence[int] | np.ndarray, num_parts: int) -> np.ndarray:
  """Divides a sequence of documents into consecutive parts, as equal in size as the documents allow.

  Args:
    sizes: int [n], the size of each document; n >= num_parts.
    num_parts: number of parts. Each gets at least one document.

  Returns:
    int64 [num_parts + 1]; part i consists of the documents bounds[i] to bounds[i + 1] - 1.
  """
  ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
  bounds = [0]
  for part in range(1, num_parts):
    first, last = bounds[-1] + 1, len(sizes) - num_parts + part
    target = ends[-1] * part / num_parts
    bounds.append(first + int(np.argmin(np.abs(ends[first:last + 1] - target))))
  return np.array([*bounds, len(sizes)], np.int64)


def cut_long(documents: Sequence[bytes], longest: float, piece: int) -> list[bytes]:
  """Cuts documents of more than `longest` bytes into pieces of at most `piece` bytes.

  Pieces have nearly equal sizes. They end at ends of lines if possible, else between two characters. A character is
  never cut, even if it has more than `piece` bytes.
  """
  piece, cut = max(piece, 1), []
  for document in documents:
    start = 0
    while len(document) > longest and len(document) - start > piece:
      rest = len(document) - start
      target = start + rest // -(-rest // piece)  # divides the rest into equal pieces
      line_end = document.rfind(b"\n", start + (target - start) // 2, target) + 1
      end = line_end or _character_end(document, start, target)
      cut.append(document[start:end])
      start = end
    cut.append(document[start:])
  return [document for document in cut if document]


def _character_end(document: bytes, start: int, target: int) -> int:
  """The last end of a character among start + 1 to target, or else the first one after them."""
  inside = lambda i: i < len(document) and document[i] & 0xC0 == 0x80
  end = next((i for i in range(target, start, -1) if not inside(i)), target)
  while inside(end):
    end += 1
  return end
