"""Language modelling on a live stream."""
import hashlib
import json
import pathlib
from collections.abc import Callable

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema, text_sections
from alma_jax.data import cache, live_texts, memory, rows, text, tokens
from alma_jax.data.megabatches import Arrived
from alma_jax.problems import language_modeling, measures
from alma_jax.problems.live_source import LiveSource, folder_of, numbered, opened


class LiveTexts(LiveSource, language_modeling.Texts):
  """The texts of a live run; see language_modeling.Texts, contract.Source and LiveSource."""
  def __init__(self, config: schema.TextConfig, run: pathlib.Path | None = None):
    """Waits for the first mega-batch; `run`: folder of a run that goes on, None for a run that begins.

    Raises:
      BadInput: the folder cannot be used.
    """
    c = config.dataset
    self.untrained = None
    self._metrics, self._watches = measures.tried(measures.chosen(config), measures.blank_text), config.log.drift > 0
    self._reader = live_texts.TextReader(folder_of(config), c)
    self.feed = opened(config, self._reader, run)
    self.corpus = self._corpus(c)
    self.has_test = "test" in self.corpus.tokens
    self._held_out = {split: text.split_windows(self.corpus, split, c.sequence_length, c.cross_documents, c.eval_tokens)
                      for split in self.corpus.tokens}
    self._most_tested = -(-c.eval_tokens // c.sequence_length)
    arrived = self.megabatches = Arrived(
        self.feed, 0.0, held_out=np.arange(len(self._held_out["valid"].start), dtype=np.int32))
    self.memory = memory.make(config.stream, arrived, config.seed)
    self._rows = rows.Rows(self._read, arrived.where, arrived.first)
    self.fingerprint = self.corpus.fingerprint
    self.problem, self.example_shape = language_modeling.of_meta(config, self.meta())
    self.files = {"tokenizer.json": self.corpus.tokenizer}

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with a pool of their training windows, which are numbered by their places in it."""
    pool, _ = self.select(np.concatenate([data.train, data.memory]), mesh)
    train, remembered = numbered(data.train, data.memory)
    return data._replace(pool=pool, val_pool=self._pool("valid", mesh), train=train, memory=remembered)

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[language_modeling.HostPool, np.ndarray]:
    """(a pool of these training windows on the host, their places in it, int32)."""
    del mesh
    ids, length = self._rows.take(examples)
    start = np.arange(len(ids), dtype=np.int64) * ids.shape[1]
    places, = numbered(examples)
    return language_modeling.HostPool(ids.reshape(-1), text.Windows(start, length)), places

  def _windows(self, which: np.ndarray) -> tuple[np.ndarray, Callable[[slice], np.ndarray]]:
    ids, length = self._rows.take(which)
    return length, lambda rows: ids[rows]

  def _read(self, t: int) -> rows.Arrays:
    """(tokens int32 [N, L + 1], number of targets that count int32 [N]) of the windows of mega-batch t."""
    arrays = self.feed.arrays(t)
    found = self._reader.windows(live_texts.Encoded(arrays["ids"], arrays["starts"]))
    return text.gather(arrays["ids"], found.start, self.problem.sequence_length), found.length

  def _corpus(self, c: text_sections.Text) -> text.Corpus:
    """The tokenizer, and the text that is held out."""
    tokenizer = self._reader.tokenizer(self.feed.lines)
    encoded = {split: self._reader.encode(tokenizer, found) for split, found in self._reader.held_out.items()}
    if "valid" not in encoded:
      arrays = self.feed.arrays(1)
      encoded["valid"] = live_texts.Encoded(arrays["valid"], arrays["valid_starts"])
    written, hashes = tokenizer.to_str(), {split: cache.hash_arrays(each._asdict()) for split, each in encoded.items()}
    known = [written, hashes, self.feed.lines[0]["content"]]
    return text.Corpus(c.name, written, tokens.vocabulary_size(tokenizer), tokens.end_of(tokenizer),
                       {split: each.ids for split, each in encoded.items()},
                       {split: each.starts for split, each in encoded.items()}, np.zeros(1, np.int64),
                       hashlib.sha256(json.dumps(known).encode()).hexdigest())
