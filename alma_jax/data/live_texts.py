"""The entries of a live stream of text; text_files.py says what they can be.

The tokenizer is trained on the first mega-batch, unless the config names one. Validation text is DIR/valid, or else a
twentieth of the first mega-batch. DIR/test is the fixed test set.
"""
import pathlib
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alma_jax.config import text_sections
from alma_jax.data import cache, documents, feed, text, text_files, tokens
from alma_jax.data.examples import named
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from tokenizers import Tokenizer

class Encoded(NamedTuple):
  """Documents as token ids; see text.Corpus."""
  ids: np.ndarray
  starts: np.ndarray


class TextReader:
  """Reads entries of text; see feed.Reader.

  Attributes:
    held_out: documents of the folders DIR/valid and DIR/test, by split, as far as they exist.
  """
  notes: Mapping[str, type[Any]] = types.MappingProxyType(dict(num=int))

  def __init__(self, folder: pathlib.Path, config: text_sections.Text):
    """Reads DIR/valid and DIR/test.

    Raises:
      BadInput: one of them or the tokenizer cannot be used.
    """
    self._config = config
    self._given = tokens.read(config.tokenizer, config.vocab_size) if config.tokenizer else None
    self._parsed: Tokenizer | None = None
    self.held_out = {split: found for split in ("valid", "test") if (found := _read_split(folder, split))}
    self._tested = {cache.hash_row(document.strip()) for document in self.held_out.get("test", ())}

  def read(self, path: pathlib.Path, lines: list[feed.Line]) -> feed.Read:
    """The token ids of an entry; its notes are num (of windows), and tokenizer of the first mega-batch."""
    found = [document.text for document in text_files.read(path)]
    digest = cache.hash_arrays({f"{i:09d}": np.frombuffer(document, np.uint8) for i, document in enumerate(found)})
    num_seen = sum(cache.hash_row(document.strip()) in self._tested for document in found)
    if num_seen == len(found):
      raise BadInput("all its documents are also in the test text.")
    remarks = [f"{num_seen} of {len(found)} documents {'is' if num_seen == 1 else 'are'} also in the test text, so its "
               "perplexity is too low"]
    arrays, notes = {}, {}
    if lines:
      tokenizer = self.tokenizer(lines)
    else:
      splits = {"train": found}
      if "valid" not in self.held_out:
        splits = documents.hold_out(found, ["valid"])
      tokenizer = self._given or tokens.train(splits["train"], self._config.vocab_size)
      notes["tokenizer"] = tokenizer.to_str()
      found = splits["train"]
      if "valid" in splits:
        arrays["valid"], arrays["valid_starts"] = self.encode(tokenizer, splits["valid"])
    arrays["ids"], arrays["starts"] = self.encode(tokenizer, found)
    num = len(self.windows(Encoded(arrays["ids"], arrays["starts"])).start)
    return feed.Read(arrays, dict(num=num, **notes), digest, tuple(remarks) if num_seen else ())

  def tokenizer(self, lines: list[feed.Line]) -> "Tokenizer":
    """The tokenizer of the stream."""
    if self._parsed is None:
      self._parsed = self._given or tokens.parse(str(lines[0].get("tokenizer")))
    return self._parsed

  def encode(self, tokenizer: "Tokenizer", found: list[bytes]) -> Encoded:
    """Token ids of documents; raises BadInput if the tokenizer has no units for them."""
    return Encoded(*tokens.encode(tokenizer, found, in_sections=self._given is None))

  def windows(self, encoded: Encoded) -> text.Windows:
    """The windows of an entry; raises BadInput if it is too short for one."""
    c = self._config
    return text.windows(encoded.starts, len(encoded.ids) - 1, c.sequence_length, c.cross_documents, "the entry")


def _read_split(folder: pathlib.Path, split: str) -> list[bytes]:
  """The documents of DIR/SPLIT, a folder or a file; none if it does not exist."""
  paths = [folder / f"{split}{suffix}" for suffix in ("", *text_files.SUFFIXES)]
  paths = [path for path in paths if path.exists()]
  if len(paths) > 1:
    raise BadInput(f"there are both {str(paths[0])!r} and {str(paths[1])!r}; keep one of them.")
  if not paths:
    return []
  with named(repr(str(paths[0]))):
    return [document.text for document in text_files.read(paths[0])]
