"""Loads a text as token ids, and cuts it into the windows that language models are trained on.

`load` finds the documents, divides them into mega-batches, trains a tokenizer on the first mega-batch and encodes all
documents. A window consists of L input tokens and the L target tokens that follow each of them.
"""
import dataclasses
import functools
import hashlib
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax import messages
from alma_jax.data import cache, documents, text_source, tokens
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from tokenizers import Tokenizer

END = tokens.END
SPLITS = text_source.SPLITS


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The token ids of the splits train, valid and test.

  Attributes:
    name: dataset.name of the config.
    tokenizer: JSON of the tokenizer; `tokens.parse` makes a tokenizer of it.
    vocab_size: V; ids are 0 to V - 1.
    end: id of END.
    tokens: by split, uint16 (if V <= 65536) or int32 [num_tokens], mapped from the cache. END stands before every
      document and after the last.
    starts: by split, int64 [num_documents], the position of the END before each document.
    parts: int64 [B + 1]; mega-batch t = 1..B consists of the training documents parts[t - 1] to parts[t] - 1.
    fingerprint: SHA-256 over tokens, starts, parts and tokenizer.
    num_seen: number of test documents that are also training documents.
  """
  name: str
  tokenizer: str
  vocab_size: int
  end: int
  tokens: dict[str, np.ndarray]
  starts: dict[str, np.ndarray]
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
    BadInput: there is no such text or tokenizer, the text is not UTF-8 or too short, or the cache is damaged.
  """
  given = tokens.read(dataset.tokenizer, dataset.vocab_size) if dataset.tokenizer else None
  source = dataset.source()
  made_from = [source.fingerprint, num_megabatches, seed, dataset.vocab_size,
               given and hashlib.sha256(given.to_str().encode()).hexdigest()]
  folder = cache.home_folder("tokens", dataset.name, made_from)
  whole = functools.cache(lambda: documents.complete(source.read()))
  entry = cache.read(folder, made_from, mapped=True)
  if entry is None:
    messages.say(f"encoding {dataset.name}, which is done once")
    splits = documents.prepare(whole(), num_megabatches, seed)
    entry = _encode(splits, num_megabatches, given, dataset.vocab_size)
    cache.write(folder, made_from, entry)
    entry = cache.read(folder, made_from, mapped=True) or entry
  # It has an entry of its own, because it depends neither on the tokenizer nor on the number of mega-batches.
  seen = cache.load_or_make([cache.home_folder("overlap", dataset.name, source.fingerprint)], source.fingerprint,
                            lambda: cache.Entry({}, dict(num_seen=documents.num_seen(whole()))))
  arrays = entry.arrays
  corpus = Corpus(dataset.name, tokens={split: arrays[split] for split in SPLITS},
                starts={split: np.array(arrays[f"{split}_starts"]) for split in SPLITS},
                parts=np.array(arrays["parts"]), **(entry.facts | dict(num_seen=seen.facts["num_seen"])))
  if corpus.num_seen:
    warnings.warn(f"{corpus.num_seen} of {len(corpus.starts['test'])} test documents of {dataset.name} "
                  f"{'is' if corpus.num_seen == 1 else 'are'} also in the training text, so the test perplexity is "
                  "too low", stacklevel=2)
  return corpus


def megabatch_windows(corpus: Corpus, t: int, length: int, cross_documents: bool) -> Windows:
  """The windows of mega-batch t = 1..B; see `windows`."""
  starts = corpus.starts["train"]
  first, last = corpus.parts[t - 1:t + 1]
  end = starts[last] if last < len(starts) else len(corpus.tokens["train"]) - 1
  return windows(starts[first:last], end, length, cross_documents, f"mega-batch {t}")


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
  every = windows(corpus.starts[split], len(corpus.tokens[split]) - 1, length, cross_documents, f"the split {split}")
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


def windows(starts: np.ndarray, end: int, length: int, cross_documents: bool, what: str) -> Windows:
  """Cuts documents into windows. Every token is a target once, except the END before the first document.

  Args:
    starts: int64 [n], the position of the END before each document.
    end: the position of the END after the last document.
    length: L, dataset.sequence_length.
    cross_documents: True: all documents are cut as one sequence of tokens. False: each document is cut separately,
      from the END before it to the END after it.
    what: how messages refer to these documents.

  Returns:
    The windows in order. L targets count in each, or fewer in the last window of a sequence.

  Raises:
    BadInput: there are fewer than L + 1 tokens.
  """
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
    ids: [num_tokens], `Corpus.tokens` of a split.
    start: int64 [N], `Windows.start`.
    length: L.
  """
  # The last token is END, so clipping the positions pads with END.
  return np.take(np.asarray(ids), start[:, None] + np.arange(length + 1), mode="clip").astype(np.int32)


def _encode(splits: text_source.Documents, num_megabatches: int, given: "Tokenizer | None",
            vocab_size: int) -> cache.Entry:
  """The token ids of a text, encoded by the given tokenizer or one trained on the first mega-batch."""
  parts = documents.nearest_bounds([len(document) for document in splits["train"]], num_megabatches)
  tokenizer = given or tokens.train(splits["train"][:parts[1]], vocab_size)
  arrays = {}
  for split in SPLITS:
    arrays[split], arrays[f"{split}_starts"] = tokens.encode(tokenizer, splits[split], in_sections=given is None)
  sizes = np.diff(arrays["train_starts"], append=len(arrays["train"]) - 1)
  if given:
    parts = documents.nearest_bounds(sizes, num_megabatches)
  elif num_megabatches > 1:  # the first mega-batch stays the one that the tokenizer was trained on
    parts[1:] = parts[1] + documents.nearest_bounds(sizes[parts[1]:], num_megabatches - 1)
  arrays["parts"] = parts
  text = tokenizer.to_str()
  fingerprint = cache.hash_arrays(arrays | {"tokenizer": np.frombuffer(text.encode(), np.uint8)})
  return cache.Entry(arrays, dict(tokenizer=text, vocab_size=tokens.vocabulary_size(tokenizer),
                                  end=tokenizer.token_to_id(END), fingerprint=fingerprint))
