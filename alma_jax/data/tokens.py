"""Trains or reads a byte-level tokenizer, and encodes documents as token ids."""
import json
import pathlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax import extras
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from tokenizers import Tokenizer

END = "<|endoftext|>"  # the only special token; it separates documents
_SECTION, _BATCH = 2**16, 2**22  # characters that are encoded as one text, and in one call
_SEAM = re.compile(r"(?<=\S)(?= \S)")  # where the ByteLevel pre-tokenizer always separates


class Encoded(NamedTuple):
  """Documents as token ids, with END before every document and after the last.

  Attributes:
    ids: uint16 (if V <= 65536) or int32 [num_tokens].
    starts: int64 [num_documents], the position of the END before each document.
  """
  ids: np.ndarray
  starts: np.ndarray


def train(documents: Iterable[bytes], vocab_size: int) -> "Tokenizer":
  """Trains a byte-level BPE tokenizer in which END has id 0. The result depends on the arguments alone.

  Args:
    documents: UTF-8, of the first mega-batch only.
    vocab_size: the number of units wanted, at least 257. If the documents yield fewer, a warning says how many.

  Returns:
    A tokenizer that encodes a literal END in a text like other text.
  """
  tokenizers = extras.load("tokenizers", "a language model")
  byte_level = tokenizers.pre_tokenizers.ByteLevel
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.train_from_iterator((document.decode() for document in documents), tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[END],
      initial_alphabet=byte_level.alphabet()))
  size = tokenizer.get_vocab_size()
  if size < vocab_size:
    warnings.warn(f"the vocabulary has {size} units instead of dataset.vocab_size={vocab_size}, because no other "
                  "pair of units occurs twice in the first mega-batch", stacklevel=2)
  return parse(tokenizer.to_str())


def parse(text: str) -> "Tokenizer":
  """The tokenizer of a JSON string such as `Corpus.tokenizer`, set up as it encodes a corpus.

  Raises:
    BadInput: the string is not a tokenizer, or END is not in its vocabulary.
  """
  tokenizers = extras.load("tokenizers", "a language model")
  try:
    tokenizer = tokenizers.Tokenizer.from_str(text)
  except Exception as error:  # the package raises no class of its own
    raise BadInput(f"the tokenizer is not JSON of the tokenizers package: {error}.") from error
  if tokenizer.token_to_id(END) is None:
    raise BadInput(f"the tokenizer has no unit {END}, which begins and ends every document; add it.")
  tokenizer.no_truncation()
  tokenizer.no_padding()
  # END becomes special even if the file has it as an ordinary unit: only a special token can be kept out of texts.
  tokenizer.add_special_tokens([END])
  tokenizer.encode_special_tokens = True
  return tokenizer


def read(path: str, vocab_size: int) -> "Tokenizer":
  """The tokenizer of a JSON file.

  Raises:
    BadInput: there is no such file, it cannot be used, or it has more than `vocab_size` units.
  """
  try:
    tokenizer = parse(pathlib.Path(path).expanduser().read_text(encoding="utf-8-sig"))
  except OSError as error:
    raise BadInput(f"dataset.tokenizer={path!r} cannot be read: {error.strerror}; "
                   "give a tokenizer JSON file, or leave it empty to train one.") from error
  except ValueError as error:  # BadInput, or a file that is not UTF-8
    raise BadInput(f"dataset.tokenizer={path!r} cannot be used: {error}") from error
  size = vocabulary_size(tokenizer)
  if size > vocab_size:
    raise BadInput(f"dataset.tokenizer={path!r} has {size} units, more than dataset.vocab_size={vocab_size}; "
                   f"set dataset.vocab_size={size}.")
  return tokenizer


def vocabulary_size(tokenizer: "Tokenizer") -> int:
  """1 + the largest id. This is the number of units if the ids have no gaps."""
  return 1 + max(tokenizer.get_vocab().values())


def end_of(tokenizer: "Tokenizer") -> int:
  """The id of END, which every tokenizer of `train` and `read` has."""
  return int(tokenizer.token_to_id(END))  # type: ignore[arg-type]


def num_bytes(tokenizer: "Tokenizer") -> np.ndarray:
  """UTF-8 bytes of the text that each token stands for, float64 [V]; NaN: they are not known.

  A byte-level tokenizer writes every byte of a text as one character, so they are the characters of its units. END is
  no text: it has none. A tokenizer that changes the text before it cuts it, or drops a part, does not tell.
  """
  found, tree = np.full(vocabulary_size(tokenizer), np.nan), json.loads(tokenizer.to_str())
  if not _is_byte_level(tree):
    return found
  for unit, number in tree["model"]["vocab"].items():
    found[number] = len(unit)
  for added in tree["added_tokens"]:
    strips = added["lstrip"] or added["rstrip"]  # spaces around it, which then belong to no token
    found[added["id"]] = 0 if added["content"] == END else np.nan if strips else len(added["content"].encode())
  return found


def _is_byte_level(tree: dict[str, Any]) -> bool:
  """Whether the units of a tokenizer, as its JSON describes it, hold every byte of a text as one character."""
  from tokenizers import pre_tokenizers

  model, step = tree["model"], tree["pre_tokenizer"] or {"type": None}
  *before, last = step["pretokenizers"] if step["type"] == "Sequence" else [step]
  return (tree["normalizer"] is None and model["type"] == "BPE" and {*pre_tokenizers.ByteLevel.alphabet()} <= {
      *model["vocab"]} and not model["continuing_subword_prefix"] and not model["end_of_word_suffix"]
          and last["type"] == "ByteLevel" and not last["add_prefix_space"]
          and all(each["type"] == "Digits" or (each["type"] == "Split" and each["behavior"] != "Removed")
                  for each in before))


def encode(tokenizer: "Tokenizer", documents: Sequence[bytes], in_sections: bool) -> Encoded:
  """Encodes documents as one array of token ids.

  Args:
    tokenizer: of `train` or `read`.
    documents: n documents, UTF-8.
    in_sections: whether to encode long documents section by section. This gives the same ids only with a tokenizer of
      `train`, which always separates a word from the space after it.

  Raises:
    BadInput: the tokenizer has no units for a text.
  """
  dtype = np.uint16 if vocabulary_size(tokenizer) <= 2**16 else np.int32
  end = np.array([tokenizer.token_to_id(END)], dtype)
  lengths, parts, previous = np.ones(len(documents), np.int64), [], -1
  for batch in _batches(documents, in_sections):
    try:
      encodings = tokenizer.encode_batch_fast([text for _, text in batch], add_special_tokens=False)
    except Exception as error:  # the package raises no class of its own
      raise BadInput(f"the tokenizer cannot encode the text: {error}; is it byte-level?") from error
    for (document, _), encoding in zip(batch, encodings):
      ids = np.array(encoding.ids, dtype)
      if (ids == end).any():
        raise BadInput(f"the tokenizer uses {END} for parts of the text as well; give one that does not.")
      parts += [ids] if document == previous else [end, ids]
      lengths[document] += len(ids)
      previous = document
  return Encoded(np.concatenate([*parts, end]), np.cumsum(lengths) - lengths)


def encode_one(tokenizer: "Tokenizer", text: str) -> list[int]:
  """Token ids of a text without END.

  Raises:
    BadInput: the tokenizer has no units for the text.
  """
  try:
    return tokenizer.encode(text, add_special_tokens=False).ids
  except Exception as error:  # as above
    raise BadInput(f"the tokenizer cannot encode {text!r}: {error}.") from error


def _batches(documents: Sequence[bytes], in_sections: bool) -> Iterator[list[tuple[int, str]]]:
  """Yields lists of (number of the document, text) with about _BATCH characters each."""
  batch, size = [], 0
  for number, document in enumerate(documents):
    text, start = document.decode(), 0
    while start < len(text):
      seam = _SEAM.search(text, start + _SECTION) if in_sections else None
      stop = seam.start() if seam else len(text)
      batch.append((number, text[start:stop]))
      size += stop - start
      start = stop
      if size >= _BATCH:
        yield batch
        batch, size = [], 0
  if batch:
    yield batch
