"""Loads a text as token ids, and cuts it into the windows that language models are trained on.

`load` finds the documents, holds out the splits that are missing, orders the stream, divides it into mega-batches,
trains a tokenizer on the first mega-batch and encodes all documents. A window consists of L input tokens and the L
target tokens that follow each of them.
"""
import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax import extras, keys, messages
from alma_jax.data import cache, tokens
from alma_jax.data.text_files import SPLITS, Documents
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from tokenizers import Tokenizer

END = tokens.END
_FORMAT = 1  # of what is cached; raise it if that changes
_SHARE = 0.05  # share of the text that valid and test get each, if they are held out
_HOLD_OUT, _ORDER = 1, 2  # purposes of random numbers, after keys.STREAM
_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same text


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The token ids of the splits train, valid and test.

  Attributes:
    name: dataset.name of the config.
    tokenizer: JSON of the tokenizer; `tokens.parse` makes a tokenizer of it.
    vocab_size: V; ids are 0 to V - 1.
    end: id of END.
    splits: the documents of each split; their ids are mapped from the cache.
    parts: int64 [B + 1]; mega-batch t = 1..B consists of the training documents parts[t - 1] to parts[t] - 1.
    fingerprint: SHA-256 over splits, parts and tokenizer.
    num_seen: number of test documents that are also training documents.
  """
  name: str
  tokenizer: str
  vocab_size: int
  end: int
  splits: dict[str, tokens.Encoded]
  parts: np.ndarray
  fingerprint: str
  num_seen: int = 0


class Windows(NamedTuple):
  """The places of N windows in an array of token ids. (models.switch.Windows holds the ids themselves.)

  Attributes:
    start: int64 [N]; window i has the inputs start[i] to start[i] + L - 1, and the targets one position later.
    length: int32 [N], 1 to L; the first length[i] targets count.
  """
  start: np.ndarray
  length: np.ndarray


def load(dataset: Any, num_megabatches: int, seed: int) -> Corpus:
  """Loads a text. If it was encoded before, its token ids are mapped from the cache.

  Args:
    dataset: the section `dataset` of the config, a data.sets.texts.Stored.
    num_megabatches: B.
    seed: decides the order of the training documents.

  Raises:
    BadInput: there is no such text or tokenizer, or the text is not UTF-8 or too short.
  """
  given = tokens.read(dataset.tokenizer, dataset.vocab_size) if dataset.tokenizer else None
  source = dataset.source()
  made_from = [source.fingerprint, num_megabatches, seed, dataset.vocab_size,
               given and hashlib.sha256(given.to_str().encode()).hexdigest(), _FORMAT]

  def encoded() -> cache.Entry:
    extras.need("a language model", "tokenizers")
    messages.say(f"encoding {dataset.name}, which is done once")
    whole = complete(source.read())
    entry = _encode(prepare(whole, num_megabatches, seed), num_megabatches, given, dataset.vocab_size)
    seen = {cache.hash_row(document.strip()) for document in whole["train"]}
    num_seen = sum(cache.hash_row(document.strip()) in seen for document in whole["test"])
    return entry._replace(facts=entry.facts | dict(num_seen=num_seen))

  arrays, facts = cache.load_or_make(
      [cache.home_folder("tokens", dataset.name, made_from)], made_from, encoded, mapped=True)
  splits = {split: tokens.Encoded(arrays[split], np.array(arrays[f"{split}_starts"])) for split in SPLITS}
  corpus = Corpus(dataset.name, splits=splits, parts=np.array(arrays["parts"]), **facts)
  if corpus.num_seen:
    warnings.warn(f"{corpus.num_seen} of {len(splits['test'].starts)} test documents of {dataset.name} "
                  f"{'is' if corpus.num_seen == 1 else 'are'} also in the training text, so the test perplexity is "
                  "too low", stacklevel=2)
  return corpus


def megabatch_windows(corpus: Corpus, t: int, length: int, cross_documents: bool) -> Windows:
  """The windows of mega-batch t = 1..B; see `windows`."""
  (ids, starts), (first, last) = corpus.splits["train"], corpus.parts[t - 1:t + 1]
  end = starts[last] if last < len(starts) else len(ids) - 1
  return windows(tokens.Encoded(ids[:end + 1], starts[first:last]), length, cross_documents, f"mega-batch {t}")


def split_windows(corpus: Corpus, split: str, length: int, cross_documents: bool, max_tokens: int = 0) -> Windows:
  """The windows of "valid" or "test"; see `windows`.

  Args:
    corpus: the text.
    split: "valid" or "test".
    length: L.
    cross_documents: see `windows`.
    max_tokens: how many targets may count. Windows are then chosen evenly over the split, always the same, and at
      least one. 0: all windows.
  """
  every = windows(corpus.splits[split], length, cross_documents, f"the split {split}")
  num, counted = len(every.start), int(every.length.sum())
  if not max_tokens or counted <= max_tokens:
    return every
  some = max(1, num * max_tokens // counted)
  while True:
    chosen = (2 * np.arange(some) + 1) * num // (2 * some)
    excess = int(every.length[chosen].sum()) - max_tokens
    if excess <= 0 or some == 1:
      return Windows(every.start[chosen], every.length[chosen])
    some = max(1, some - max(1, excess // length))


def windows(documents: tokens.Encoded, length: int, cross_documents: bool, what: str) -> Windows:
  """Cuts documents into windows. Every token is a target once, except the END before the first document.

  Args:
    documents: those to cut; what stands before the first of them is left out.
    length: L, dataset.sequence_length.
    cross_documents: True: all documents are cut as one sequence of tokens. False: each document is cut separately,
      from the END before it to the END after it.
    what: how messages refer to these documents.

  Returns:
    The windows in order. L targets count in each, or fewer in the last window of a sequence.

  Raises:
    BadInput: there are fewer than L + 1 tokens.
  """
  starts, end = documents.starts, len(documents.ids) - 1
  num_tokens = int(end - starts[0]) + 1
  if num_tokens < length + 1:
    raise BadInput(f"the text of {what} has only {num_tokens} tokens, but one window needs {length + 1}; give more "
                   f"text, or lower dataset.sequence_length={length}.")
  bounds = np.array([starts[0], end]) if cross_documents else np.append(starts, end)
  targets = np.diff(bounds)
  num_windows = -(-targets // length)  # of each sequence
  sequence = np.repeat(np.arange(len(targets)), num_windows)
  done = length * (np.arange(len(sequence)) - np.repeat(np.cumsum(num_windows) - num_windows, num_windows))
  return Windows(bounds[sequence] + done, np.minimum(length, targets[sequence] - done).astype(np.int32))


def gather(ids: np.ndarray, start: np.ndarray, length: int) -> np.ndarray:
  """The tokens of windows, int32 [N, L + 1]. Positions past the end of the array are END.

  Args:
    ids: [num_tokens], of a split.
    start: int64 [N], `Windows.start`.
    length: L.
  """
  # The last token is END, so clipping the positions pads with END.
  return np.take(np.asarray(ids), start[:, None] + np.arange(length + 1), mode="clip").astype(np.int32)


def _encode(splits: Documents, num_megabatches: int, given: "Tokenizer | None",
            vocab_size: int) -> cache.Entry:
  """The token ids of a text, encoded by the given tokenizer or one trained on the first mega-batch."""
  parts = nearest_bounds([len(document) for document in splits["train"]], num_megabatches)
  tokenizer = given or tokens.train(splits["train"][:parts[1]], vocab_size)
  arrays = {}
  for split in SPLITS:
    arrays[split], arrays[f"{split}_starts"] = tokens.encode(tokenizer, splits[split], in_sections=given is None)
  sizes = np.diff(arrays["train_starts"], append=len(arrays["train"]) - 1)
  if given:
    parts = nearest_bounds(sizes, num_megabatches)
  elif num_megabatches > 1:  # the first mega-batch stays the one that the tokenizer was trained on
    parts[1:] = parts[1] + nearest_bounds(sizes[parts[1]:], num_megabatches - 1)
  arrays["parts"] = parts
  text = tokenizer.to_str()
  fingerprint = cache.hash_arrays(arrays | {"tokenizer": np.frombuffer(text.encode(), np.uint8)})
  return cache.Entry(arrays, dict(tokenizer=text, vocab_size=tokens.vocabulary_size(tokenizer),
                                  end=tokenizer.token_to_id(END), fingerprint=fingerprint))


# ------------------------------------------------------------------ documents


def prepare(splits: Documents, num_megabatches: int, seed: int) -> Documents:
  """Cuts long training documents, and permutes them.

  A document longer than a mega-batch is cut into pieces of at most an eighth of a mega-batch, so that all mega-batches
  have one distribution.

  Args:
    splits: documents of "train", "valid" and "test".
    num_megabatches: B.
    seed: decides the order of the training documents.

  Returns:
    The same, those of "train" in the order of the stream.

  Raises:
    BadInput: there are fewer training documents than mega-batches.
  """
  total = sum(map(len, splits["train"]))
  documents = cut_long(splits["train"], total / num_megabatches, total // (8 * num_megabatches))
  if len(documents) < num_megabatches:
    raise BadInput(f"stream.num_megabatches={num_megabatches} is more than the {len(documents)} documents and pieces "
                   "of documents that the training text can be divided into; lower it.")
  order = keys.rng(seed, keys.STREAM, _ORDER).permutation(len(documents))
  return {split: splits[split] for split in SPLITS} | {"train": [documents[i] for i in order]}


def complete(splits: Documents) -> Documents:
  """The documents of a text_files.TextSource with the splits that it lacks, always the same; see `hold_out`."""
  missing = [split for split in SPLITS if split not in splits]
  return splits | hold_out(splits["train"], missing) if missing else splits


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
