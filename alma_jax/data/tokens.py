"""From documents to token ids: the tokenizer, and the cache of what it made.

Tokenizing is done once per text, seed, number of mega-batches and vocabulary:
a start that finds the cache maps its arrays and trains nothing.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import warnings

import numpy as np

from alma_jax.errors import BadInput

END = "<|endoftext|>"  # the only special token
_FORMAT = 1  # of the cache
_SECTION, _BATCH = 2**16, 2**22  # characters encoded as one text, and in one call
_SEAM = re.compile(r"(?<=\S)(?= \S)")  # where the ByteLevel pre-tokenizer always separates


def train(documents, vocab_size):
  """Trains a byte-level BPE whose id 0 is END; the same documents give the same one.

  Args:
    documents: UTF-8 bytes, of the first mega-batch only.
    vocab_size: wanted units, at least 257; told where there are fewer.

  Returns:
    tokenizers.Tokenizer; a literal END in a text is no special token to it.
  """
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.train_from_iterator((document.decode() for document in documents), trainers.BpeTrainer(
      vocab_size=vocab_size, min_frequency=2, show_progress=False, special_tokens=[END],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  size = tokenizer.get_vocab_size()
  if size < vocab_size:
    warnings.warn(f"the vocabulary has {size} of the dataset.vocab_size={vocab_size} units asked for: "
                  "the first mega-batch holds no more that occur twice", stacklevel=2)
  return parse(tokenizer.to_str())


def parse(text):
  """The Tokenizer of a JSON str (`Corpus.tokenizer`), as it encoded the corpus.

  Raises:
    BadInput: it is no tokenizer, or END is not in its vocabulary.
  """
  from tokenizers import Tokenizer

  try:
    tokenizer = Tokenizer.from_str(text)
  except Exception as error:  # the package raises no class of its own
    raise BadInput(f"the tokenizer is no JSON of the tokenizers package: {error}.") from error
  if tokenizer.token_to_id(END) is None:
    raise BadInput(f"the tokenizer has no unit {END}, which begins and ends every document; add it.")
  tokenizer.no_truncation()
  tokenizer.no_padding()
  # Also where the file has END as an ordinary unit: only special ones can be ignored in texts.
  tokenizer.add_special_tokens([END])
  tokenizer.encode_special_tokens = True
  return tokenizer


def read(path, vocab_size):
  """The Tokenizer of a file, with at most vocab_size units.

  Raises:
    BadInput: no such file, not usable, or its vocabulary is larger.
  """
  try:
    tokenizer = parse(pathlib.Path(path).expanduser().read_text(encoding="utf-8"))
  except OSError as error:
    raise BadInput(f"dataset.tokenizer={path!r} cannot be read: {error.strerror}; "
                   "give a tokenizer JSON file, or leave it empty to train one.") from error
  except ValueError as error:  # also what is no UTF-8
    raise BadInput(f"dataset.tokenizer={path!r} cannot be used: {error}") from error
  if vocabulary(tokenizer) > vocab_size:
    raise BadInput(f"dataset.tokenizer={path!r} has {vocabulary(tokenizer)} units, more than "
                   f"dataset.vocab_size={vocab_size}; raise that.")
  return tokenizer


def vocabulary(tokenizer):
  """1 + the largest id, the number of units where ids have no gaps."""
  return 1 + max(tokenizer.get_vocab().values())


def encode(tokenizer, documents, in_sections):
  """Token ids of documents one after another, each begun by END, and a last END.

  Args:
    tokenizer: of `train` or `read`.
    documents: UTF-8 bytes, n of them.
    in_sections: encode long documents piece by piece, which is exact only for
      tokenizers of `train`: they always separate a word from a space after it.

  Returns:
    (uint16 or int32 [num_tokens], int64 [n]: where each document's END stands).

  Raises:
    BadInput: the tokenizer has no units for a text.
  """
  dtype = np.uint16 if vocabulary(tokenizer) <= 2**16 else np.int32
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
  return np.concatenate([*parts, end]), np.cumsum(lengths) - lengths


def encode_one(tokenizer, text):
  """Token ids, a list, of a text that is no whole document.

  Raises:
    BadInput: the tokenizer has no units for it.
  """
  try:
    return tokenizer.encode(text, add_special_tokens=False).ids
  except Exception as error:  # as above
    raise BadInput(f"the tokenizer cannot encode {text!r}: {error}.") from error


def _batches(documents, in_sections):
  """Lists of (number of the document, text) of about _BATCH characters."""
  batch, size = [], 0
  for number, document in enumerate(documents):
    text, start = document.decode(), 0
    while start < len(text):
      found = _SEAM.search(text, start + _SECTION) if in_sections else None
      stop = found.start() if found else len(text)
      batch.append((number, text[start:stop]))
      size += stop - start
      start = stop
      if size >= _BATCH:
        yield batch
        batch, size = [], 0
  if batch:
    yield batch


def cache_folder(name, made_from):
  """Where the tokens of a text lie: one folder for each JSON `made_from`."""
  key = hashlib.sha256(json.dumps([_FORMAT, made_from]).encode()).hexdigest()[:16]
  home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
  return home / "alma_jax" / f"tokens-{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_')[-40:]}-{key}"


def read_cache(folder):
  """(tokenizer JSON, dict of memory-mapped arrays, dict of numbers), or None.

  Raises:
    BadInput: what lies there does not belong together.
  """
  try:
    described = (folder / "meta.json").read_text()
  except OSError:
    return None
  try:
    meta = json.loads(described)
    tokenizer = (folder / "tokenizer.json").read_bytes()
    arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r") for key in meta["arrays"]}
  except (OSError, ValueError, EOFError) as error:
    raise BadInput(f"the cache {str(folder)!r} is damaged ({error}); delete it.") from error
  if hashlib.sha256(tokenizer).hexdigest() != meta["tokenizer"] or any(
      [str(arrays[key].dtype), len(arrays[key])] != what for key, what in meta["arrays"].items()):
    raise BadInput(f"the cache {str(folder)!r} holds token ids of another vocabulary than its "
                   "tokenizer.json, or others than it was written with; delete it.")
  return tokenizer.decode(), arrays, meta["numbers"]


def write_cache(folder, tokenizer, arrays, numbers):
  """Writes what read_cache reads, whole or not at all."""
  temporary = None
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    for key, array in arrays.items():
      np.save(temporary / f"{key}.npy", array)
    (temporary / "tokenizer.json").write_bytes(tokenizer.encode())
    (temporary / "meta.json").write_text(json.dumps(dict(
        arrays={key: [str(array.dtype), len(array)] for key, array in arrays.items()},
        tokenizer=hashlib.sha256(tokenizer.encode()).hexdigest(), numbers=numbers)))
    if folder.exists() and not (folder / "meta.json").exists():
      shutil.rmtree(folder)  # a cache without it is none, and would be in the way for ever
    temporary.rename(folder)
  except OSError:  # not writable, a full disk, or another process was first
    if temporary:
      shutil.rmtree(temporary, ignore_errors=True)
