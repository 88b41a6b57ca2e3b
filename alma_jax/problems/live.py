"""Images and texts of live streams: only the examples that a stage can use are in memory."""
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema, text_sections
from alma_jax.data import cache, datasets, examples, feed, live_entries, memory, normalization, text, tokens, unpacking
from alma_jax.data.megabatches import Arrays, Arrived, Rows
from alma_jax.errors import BadInput
from alma_jax.problems import classification, language_modeling, measures


class LiveSource:
  """What the sources of images and of texts share: the feed, and the rows that are in memory.

  Attributes:
    feed: data.feed.Feed.
    megabatches: megabatches.Arrived.
    memory: memory.Memory.
    fingerprint: of what a run cannot change: the test set, declared classes or the tokenizer, the first mega-batch.
  """
  feed: feed.Feed
  memory: memory.Memory
  problem: Any
  fingerprint: str
  _rows: Rows

  def num_outputs_after(self, t: int) -> int:
    """How many outputs a network needs for the labels up to mega-batch t."""
    del t
    return self.problem.num_outputs

  def set_outputs(self, num: int) -> None:
    """Changes the problem to networks with so many outputs."""
    del num

  def notes(self, t: int) -> dict[str, Any]:
    """What metrics.jsonl says about the entry of mega-batch t, besides its metrics."""
    del t
    return {}

  def release(self, ends: tuple[int, ...]) -> None:
    """Forgets the examples that no stage after those that end at `ends` can use."""
    self._rows.keep(self.memory.needed(ends))


class LiveImages(LiveSource, classification.Images):
  """The images of a live run; see classification.Images, contract.Source and LiveSource.

  The number of classes grows with the stream, unless DIR/classes.txt declares them.
  """

  def __init__(self, config: schema.ImageConfig, run: pathlib.Path | None = None):
    """Waits for the first mega-batch; `run`: folder of a run that goes on, None for a run that begins.

    Raises:
      BadInput: the folder cannot be used.
    """
    section: Any = config.dataset  # live.Images
    self.files: dict[str, str] = {}
    folder = _folder(config)
    columns = examples.Columns(section.image_column, section.label_column)
    self._metrics = measures.tried(measures.chosen(config), measures.blank_images(2))
    self._config, self._reader = config, live_entries.ImageReader(folder, section.image_size, config.seed, columns)
    self.has_test = self._reader.test is not None
    if config.stream.untrained_error == "model" and self._reader.test is None:
      raise BadInput(f"stream.untrained_error='model' needs a test set, {str(folder / live_entries.TEST)!r}; give one, "
                     "or set stream.untrained_error=chance.")
    self.feed = _opened(config, self._reader, run)
    arrived = self.megabatches = Arrived(self.feed, config.stream.val_fraction)
    self.memory = memory.make(config.stream, arrived, config.seed)
    first = self.feed.lines[0]
    if "mean" not in first:
      first |= normalization.made(self.feed.arrays(1)["x"][arrived.part(1)[0]]).entries()
    self.constants = normalization.of_entries(first)
    self.fingerprint = self._fingerprint()
    self._rows = Rows(lambda t: (self.feed.arrays(t)["x"], self.feed.arrays(t)["y"]), arrived)
    self.set_outputs(self.num_outputs_after(1))

  def num_outputs_after(self, t: int) -> int:
    """K after mega-batch t; at least 2."""
    return max(2, len(self._reader.classes(self.feed.lines, t)))

  def set_outputs(self, num: int) -> None:
    """Changes the problem to the first K classes."""
    first, names = self.feed.lines[0], self._reader.classes(self.feed.lines)[:num]
    x = np.zeros((0, *first["example_shape"]), first["dtype"])
    test = self._reader.test
    x_test = x if test is None else test.x
    y_test = np.zeros(0, np.int32) if test is None else self._reader.test_labels(names)
    self.dataset = datasets.Dataset(self._config.dataset.name, x, np.zeros(0, np.int32), x_test, y_test, num,
                                    None, self.fingerprint, tuple(names))
    self.problem, self.example_shape = classification.of_meta(self._config, self.meta())
    stream: Any = self._config.stream
    self.untrained = self.problem.chance if stream.untrained_error == "chance" else None

  def notes(self, t: int) -> dict[str, Any]:
    """What metrics.jsonl says about the entry of mega-batch t, besides its metrics: classes that are new."""
    new = self.feed.lines[t - 1]["new_classes"]
    return {"new_classes": new} if new and t > 1 else {}

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with one pool, which holds their examples alone; they are numbered by their places in it."""
    parts = data.train, data.val, data.memory
    pool, _ = self.select(np.concatenate(parts), mesh)
    train, val, remembered = _numbered(*parts)
    return data._replace(pool=pool, val_pool=pool, train=train, val=val, memory=remembered)

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[classification.Pool, np.ndarray]:
    """(a pool with these training examples at its beginning, their places in it, int32)."""
    x, y = self._rows.take(examples)
    places, = _numbered(examples)
    return classification.make_pool(_padded(x), _padded(y), *self.constants, mesh), places

  def _images(self, which: np.ndarray) -> np.ndarray:
    return self._rows.take(which)[0]

  def _labels(self, which: np.ndarray) -> tuple[np.ndarray, Sequence[str]]:
    return self._rows.take(which)[1], self._reader.classes(self.feed.lines)

  def _fingerprint(self) -> str:
    test, first = self._reader.test, self.feed.lines[0]
    of_test = test and cache.hash_arrays(dict(x=test.x, names=np.char.encode(test.names, "utf-8")))
    known = [self._reader.declared, of_test, first["content"]]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


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
    self._reader = live_entries.TextReader(_folder(config), c)
    self.feed = _opened(config, self._reader, run)
    self.corpus = self._corpus(c)
    self.has_test = "test" in self.corpus.tokens
    self._held_out = {split: text.split_windows(self.corpus, split, c.sequence_length, c.cross_documents, c.eval_tokens)
                      for split in self.corpus.tokens}
    self._most_tested = -(-c.eval_tokens // c.sequence_length)
    arrived = self.megabatches = Arrived(
        self.feed, 0.0, held_out=np.arange(len(self._held_out["valid"].start), dtype=np.int32))
    self.memory = memory.make(config.stream, arrived, config.seed)
    self._rows = Rows(self._read, arrived)
    self.fingerprint = self.corpus.fingerprint
    self.problem, self.example_shape = language_modeling.of_meta(config, self.meta())
    self.files = {"tokenizer.json": self.corpus.tokenizer}

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with a pool of their training windows, which are numbered by their places in it."""
    pool, _ = self.select(np.concatenate([data.train, data.memory]), mesh)
    train, remembered = _numbered(data.train, data.memory)
    return data._replace(pool=pool, val_pool=self._pool("valid", mesh), train=train, memory=remembered)

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[language_modeling.HostPool, np.ndarray]:
    """(a pool of these training windows on the host, their places in it, int32)."""
    del mesh
    ids, length = self._rows.take(examples)
    start = np.arange(len(ids), dtype=np.int64) * ids.shape[1]
    places, = _numbered(examples)
    return language_modeling.HostPool(ids.reshape(-1), text.Windows(start, length)), places

  def _windows(self, which: np.ndarray) -> tuple[np.ndarray, Callable[[slice], np.ndarray]]:
    ids, length = self._rows.take(which)
    return length, lambda rows: ids[rows]

  def _read(self, t: int) -> Arrays:
    """(tokens int32 [N, L + 1], number of targets that count int32 [N]) of the windows of mega-batch t."""
    arrays = self.feed.arrays(t)
    found = self._reader.windows(live_entries.Encoded(arrays["ids"], arrays["starts"]))
    return text.gather(arrays["ids"], found.start, self.problem.sequence_length), found.length

  def _corpus(self, c: text_sections.Text) -> text.Corpus:
    """The tokenizer, and the text that is held out."""
    tokenizer = self._reader.tokenizer(self.feed.lines)
    encoded = {split: self._reader.encode(tokenizer, found) for split, found in self._reader.held_out.items()}
    if "valid" not in encoded:
      arrays = self.feed.arrays(1)
      encoded["valid"] = live_entries.Encoded(arrays["valid"], arrays["valid_starts"])
    written, hashes = tokenizer.to_str(), {split: cache.hash_arrays(each._asdict()) for split, each in encoded.items()}
    known = [written, hashes, self.feed.lines[0]["content"]]
    return text.Corpus(c.name, written, tokens.vocabulary_size(tokenizer), tokens.end_of(tokenizer),
                       {split: each.ids for split, each in encoded.items()},
                       {split: each.starts for split, each in encoded.items()}, np.zeros(1, np.int64),
                       hashlib.sha256(json.dumps(known).encode()).hexdigest())


def _folder(config: schema.RunConfig) -> pathlib.Path:
  """DIR of `live:DIR`.

  Raises:
    BadInput: there is no such folder.
  """
  folder = pathlib.Path(config.dataset.path).expanduser()
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} of a live stream; name yours by dataset.name=live:DIR.")
  return folder


def _opened(config: schema.RunConfig, reader: feed.Reader, run: pathlib.Path | None) -> feed.Feed:
  """The feed of a run, once its first mega-batch has arrived.

  Args:
    config: of the run.
    reader: of its entries.
    run: folder of a run that goes on; None: a run that begins.

  Raises:
    BadInput: the folder cannot be used, or the stream has ended without a mega-batch.
  """
  folder = _folder(config)
  section: Any = config.dataset  # sections.Live
  found = feed.Feed(folder, reader, settle=section.settle_seconds, idle=section.idle_seconds,
                    limit=config.stream.num_megabatches, run=run,
                    largest=unpacking.Limits(section.max_examples, section.max_bytes))
  if not found.wait(1):
    cause = (f"the file {feed.END} is there; remove it" if (folder / feed.END).exists() else
             f"none came within dataset.idle_seconds={section.idle_seconds:g}; raise it")
    raise BadInput(f"the live stream {str(folder)!r} has ended without a mega-batch that can be used, as {cause}, or "
                   "add entries.")
  return found


def _numbered(*parts: np.ndarray) -> list[np.ndarray]:
  """The parts of examples, int32, by their places in a pool that holds them one after the other."""
  ends = np.cumsum([len(part) for part in parts])
  return np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])


def _padded(array: np.ndarray) -> np.ndarray:
  """[N, ...] -> [M, ...], with zeros at the end; M is a power of two, so that programs are compiled for few sizes."""
  made = np.zeros((1 << (len(array) - 1).bit_length(), *array.shape[1:]), array.dtype)
  made[:len(array)] = array
  return made
