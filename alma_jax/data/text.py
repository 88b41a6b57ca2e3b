"""Text as a stream of mega-batches: token ids, and the windows trained on.

`load` finds the documents, divides them into mega-batches, trains a tokenizer
on the first of these and encodes all. A window is L inputs and the L targets
that follow them; `gather` reads many at once.
"""
import dataclasses
import hashlib
import sys
from typing import NamedTuple

import numpy as np

from alma_jax.data import datasets, documents, tokens
from alma_jax.errors import BadInput

END = tokens.END
SPLITS = documents.SPLITS


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Token ids of three splits.

  Attributes:
    name: as in the config.
    tokenizer: JSON of the tokenizer; `tokens.parse` makes one of it.
    vocab_size: V; ids are 0 to V - 1.
    end: id of END.
    tokens: dict of split to uint16 (V <= 65536) or int32 [num_tokens], mapped
      from the cache: documents one after another, each begun by END, and one
      END after the last.
    starts: dict of split to int64 [num_documents], where each one's END stands.
    parts: int64 [B + 1]; mega-batch t = 1..B is the training documents
      parts[t - 1] : parts[t].
    fingerprint: SHA-256 over tokens, starts, parts and tokenizer.
  """
  name: str
  tokenizer: str
  vocab_size: int
  end: int
  tokens: dict[str, np.ndarray]
  starts: dict[str, np.ndarray]
  parts: np.ndarray
  fingerprint: str


class Windows(NamedTuple):
  """Inputs tokens[start : start + L], targets one further, the first `length` of which count.

  Attributes:
    start: int64 [N].
    length: int32 [N], 1 to L.
  """
  start: np.ndarray
  length: np.ndarray


def load(dataset, num_megabatches, seed):
  """Loads a text, from the cache of tokens where it has been encoded before.

  Args:
    dataset: has name ("text:DIR" or "tfds:NAME"), data_dir (of TFDS),
      vocab_size (wanted), tokenizer (path of a JSON file; empty: train one).
    num_megabatches: B.
    seed: decides the order of the training documents, and what is held out
      where the text has no valid or test split.

  Raises:
    BadInput: no such text, not UTF-8, not enough of it, or no such tokenizer.
  """
  given = tokens.read(dataset.tokenizer, dataset.vocab_size) if dataset.tokenizer else None
  source = documents.find(dataset.name, dataset.data_dir)
  cache = tokens.cache_folder(dataset.name, [
      source.stamp, num_megabatches, seed, dataset.vocab_size,
      given and hashlib.sha256(given.to_str().encode()).hexdigest()])
  found = tokens.read_cache(cache)
  if found is None:
    print(f"encoding {dataset.name}, which is done once", file=sys.stderr, flush=True)
    made = _encode(documents.prepare(source.read(), num_megabatches, seed), num_megabatches, given,
                   dataset.vocab_size)
    tokens.write_cache(cache, *made)
    found = tokens.read_cache(cache) or made
  tokenizer, arrays, numbers = found
  return Corpus(dataset.name, tokenizer, tokens={split: arrays[split] for split in SPLITS},
                starts={split: np.array(arrays[f"{split}_starts"]) for split in SPLITS},
                parts=np.array(arrays["parts"]), **numbers)


def megabatch_windows(corpus, t, length, cross_documents):
  """Windows of mega-batch t = 1..B; see `windows`."""
  starts = corpus.starts["train"]
  first, last = corpus.parts[t - 1:t + 1]
  end = starts[last] if last < len(starts) else len(corpus.tokens["train"]) - 1
  return windows(starts[first:last], end, length, cross_documents, f"mega-batch {t}")


def split_windows(corpus, split, length, cross_documents, max_tokens=0):
  """Windows of "valid" or "test"; see `windows`.

  Args:
    max_tokens: 0, or how many targets may count: then windows evenly spaced
      over the split, always the same, and at least one.
  """
  every = windows(corpus.starts[split], len(corpus.tokens[split]) - 1, length, cross_documents,
                  f"the split {split}")
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


def windows(starts, end, length, cross_documents, what):
  """Cuts documents into windows: each token but the first END is a target once.

  Args:
    starts: int64 [n], where the END before each document stands.
    end: where the END after the last one stands.
    length: L, dataset.sequence_length.
    cross_documents: cut all documents as one run of tokens; otherwise each by
      itself, from the END before it to the END after it.
    what: what messages call these documents.

  Returns:
    Windows, in order; all but the last of a run (or document) count L targets.

  Raises:
    BadInput: there are fewer than L + 1 tokens.
  """
  num_tokens = int(end - starts[0]) + 1
  if num_tokens < length + 1:
    raise BadInput(f"the text of {what} has only {num_tokens} tokens, fewer than one window of "
                   f"dataset.sequence_length={length} and its last target.")
  bounds = np.array([starts[0], end]) if cross_documents else np.append(starts, end)
  targets = np.diff(bounds)
  per_run = -(-targets // length)
  run = np.repeat(np.arange(len(targets)), per_run)
  done = length * (np.arange(len(run)) - np.repeat(np.cumsum(per_run) - per_run, per_run))
  return Windows(bounds[run] + done, np.minimum(length, targets[run] - done).astype(np.int32))


def gather(ids, start, length):
  """int32 [N, L + 1]: the tokens of windows, END past the end of the array.

  Args:
    ids: [num_tokens], Corpus.tokens of a split.
    start: int64 [N].
    length: L.
  """
  # The last token is an END, so that clipping pads with it.
  return np.take(np.asarray(ids), start[:, None] + np.arange(length + 1), mode="clip").astype(np.int32)


def _encode(splits, num_megabatches, given, vocab_size):
  """(tokenizer JSON, arrays, numbers) of a text, as the cache holds them."""
  parts = documents.nearest_bounds([len(document) for document in splits["train"]], num_megabatches)
  tokenizer = given or tokens.train(splits["train"][:parts[1]], vocab_size)
  arrays = {}
  for split in SPLITS:
    arrays[split], arrays[f"{split}_starts"] = tokens.encode(tokenizer, splits[split], in_sections=given is None)
  sizes = np.diff(arrays["train_starts"], append=len(arrays["train"]) - 1)
  if given:
    parts = documents.nearest_bounds(sizes, num_megabatches)
  elif num_megabatches > 1:  # the first one stays what the tokenizer was trained on
    parts[1:] = parts[1] + documents.nearest_bounds(sizes[parts[1]:], num_megabatches - 1)
  text = tokenizer.to_str()
  fingerprint = datasets.fingerprint_of(
      arrays | {"parts": parts, "tokenizer": np.frombuffer(text.encode(), np.uint8)})
  return text, arrays | {"parts": parts}, dict(
      vocab_size=tokens.vocabulary(tokenizer), end=tokenizer.token_to_id(END), fingerprint=fingerprint)
