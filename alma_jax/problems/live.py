"""Images and texts of live streams: only the examples that a stage can use are in memory."""
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import cache, datasets, feed, live_entries, memory, normalization, text, tokens, unpacking
from alma_jax.data.megabatches import Arrays, Arrived, Rows
from alma_jax.errors import BadInput
from alma_jax.problems import classification, contract, language_modeling, measures


class LiveSource(contract.Source):
  """What the sources of images and of texts share: the feed, and the rows that are in memory.

  Attributes:
    feed: data.feed.Feed.
    megabatches: megabatches.Arrived.
    fingerprint: of what a run cannot change: the test set, declared classes or the tokenizer, the first mega-batch.
  """

  def _open(self, config: Any, reader: feed.Reader, run: pathlib.Path | None) -> None:
    """Opens the feed of a run, and waits for the first mega-batch.

    Args:
      config: of the run, schema.ImageConfig or schema.TextConfig.
      reader: of its entries.
      run: folder of a run that goes on; None: a run that begins.

    Raises:
      BadInput: the folder cannot be used, or the stream has ended without a mega-batch.
    """
    folder, section = _folder(config), config.dataset
    self.feed = feed.Feed(folder, reader, settle=section.settle_seconds, idle=section.idle_seconds,
                          limit=config.stream.num_megabatches, run=run,
                          largest=unpacking.Limits(section.max_examples, section.max_bytes))
    for _ in self.feed.until(1):
      pass
    if not self.feed.lines:
      cause = (f"the file {feed.END} is there; remove it" if (folder / feed.END).exists() else
               f"none came within dataset.idle_seconds={section.idle_seconds:g}; raise it")
      raise BadInput(f"the live stream {str(folder)!r} has ended without a mega-batch that can be used, as {cause}, or "
                     "add entries.")

  def _remember(self, config: Any, val_fraction: float, held_out: np.ndarray | None = None) -> None:
    """Sets up the mega-batches, see megabatches.Arrived, and the memory."""
    arrived = self.megabatches = Arrived(self.feed, val_fraction, held_out)
    self.memory, self._rows = memory.make(config.stream, arrived, config.seed), Rows(self._read, arrived)

  def _read(self, t: int) -> Arrays:
    """The rows of mega-batch t."""
    raise NotImplementedError

  def _selected(self, data: memory.StageData, mesh: Mesh, *names: str) -> memory.StageData:
    """The data with a pool of the examples that its entries `names` list, which are numbered by their places in it."""
    parts = [getattr(data, name) for name in names]
    pool, places = self.select(np.concatenate(parts), mesh)
    numbered: Any = dict(zip(names, np.split(places, np.cumsum([len(part) for part in parts])[:-1])))
    return data._replace(pool=pool, **numbered)

  def notes(self, t: int) -> dict[str, Any]:
    """What metrics.jsonl says about the entry of mega-batch t, besides its metrics."""
    return {}

  def release(self, ends: tuple[int, ...]) -> None:
    """Forgets the examples that no stage after those that end at `ends` can use."""
    self._rows.keep(self.memory.needed(ends))


class LiveImages(LiveSource, classification.Images):
  """The images of a live run. The number of classes grows with the stream, unless DIR/classes.txt declares them."""

  def __init__(self, config: Any, run: pathlib.Path | None = None):
    """Waits for the first mega-batch; `run`: folder of a run that goes on, None for a run that begins.

    Raises:
      BadInput: the folder cannot be used.
    """
    section, folder = config.dataset, _folder(config)
    self._metrics = measures.tried(measures.chosen(config), measures.blank_images(2))
    self._reader = image_reader(config)
    self.has_test = self._reader.test is not None
    if config.stream.untrained_error == "model" and self._reader.test is None:
      raise BadInput(f"stream.untrained_error='model' needs a test set, {str(folder / live_entries.TEST)!r}; give one, "
                     "or set stream.untrained_error=chance.")
    self._open(config, self._reader, run)
    self._remember(config, config.stream.val_fraction)
    first = self.feed.lines[0]
    if "mean" not in first:
      first |= normalization.made(self._read(1)[0][self.megabatches.part(1)[0]]).entries()
    self.constants = normalization.of_entries(first)
    test, named = self._reader.test, self.meta()
    x, y = np.zeros((0, *named["example_shape"]), named["dtype"]), np.zeros(0, np.int32)
    x_test, y_test = (x, y) if test is None else (test.x, self._reader.test_labels(named["class_names"]))
    of_test = test and cache.hash_arrays(dict(x=test.x, names=np.char.encode(test.names, "utf-8")))
    declared = self._reader.declared and self._reader.declared.names
    known = [declared, of_test, first["content"]]
    self.fingerprint = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    self.dataset = datasets.Dataset(section.name, x, y, x_test, y_test, named["num_classes"], None, self.fingerprint,
                                    tuple(named["class_names"]))
    self.problem, self.example_shape = self.of_meta(config, named)
    self.problem.warn_of_shift(self.example_shape)
    self.untrained = self.problem.chance if config.stream.untrained_error == "chance" else None

  def meta(self, ends: Sequence[int] = ()) -> dict[str, Any]:
    """The classes are those up to the last mega-batch of the stage, or up to the first one.

    K is at least 2. Before a second class has come, its name is empty, as no label is.
    """
    first, lines = self.feed.lines[0], self.feed.lines
    num = max(2, len(self._reader.classes(lines, ends[-1] if ends else 1)))
    names = self._reader.classes(lines)[:num]
    return dict(num_classes=num, example_shape=first["example_shape"], dtype=first["dtype"],
                class_names=[*names, *[""] * (num - len(names))])

  def score(self, prediction: measures.Prediction, t: int = 1) -> measures.Entry:
    """By the classes that the prediction knows."""
    names = self._reader.classes(self.feed.lines)[:prediction[1].shape[-1]]
    return classification.scored(self._metrics, prediction, self._reader.test_labels(names), names)

  def notes(self, t: int) -> dict[str, Any]:
    """Classes that are new."""
    new = self.feed.lines[t - 1]["new_classes"]
    return {"new_classes": new} if new and t > 1 else {}

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with one pool, which holds their examples alone."""
    data = self._selected(data, mesh, "train", "val", "memory")
    return data._replace(val_pool=data.pool)

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[classification.Pool, np.ndarray]:
    """(a pool with these training examples at its beginning, their places in it, int32)."""
    x, y = classification.padded(self._rows.take(examples))
    pool = classification.make_pool(x, y, *self.constants, mesh)
    return pool, np.arange(len(examples), dtype=np.int32)

  def _images(self, which: np.ndarray) -> np.ndarray:
    return self._rows.take(which)[0]

  def _labels(self, which: np.ndarray) -> tuple[np.ndarray, Sequence[str]]:
    return self._rows.take(which)[1], self._reader.classes(self.feed.lines)

  def _read(self, t: int) -> Arrays:
    arrays = self.feed.arrays(t)
    return arrays["x"], arrays["y"]


class LiveTexts(LiveSource, language_modeling.Texts):
  """The texts of a live run."""

  def __init__(self, config: schema.TextConfig, run: pathlib.Path | None = None):
    """Waits for the first mega-batch; `run`: folder of a run that goes on, None for a run that begins.

    Raises:
      BadInput: the folder cannot be used.
    """
    self._measure(config)
    self._reader = live_entries.TextReader(_folder(config), config.dataset)
    self._open(config, self._reader, run)
    self._remember(config, 0.0, self._use(config, self._corpus(config.dataset.name)))

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with a pool of their training windows."""
    return self._selected(data, mesh, "train", "memory")._replace(val_pool=self._pool("valid", mesh))

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[language_modeling.HostPool, np.ndarray]:
    """(a pool of these training windows on the host, their places in it, int32)."""
    ids, length = self._rows.take(examples)
    start = np.arange(len(ids), dtype=np.int64) * ids.shape[1]
    pool = language_modeling.HostPool(ids.reshape(-1), text.Windows(start, length))
    return pool, np.arange(len(ids), dtype=np.int32)

  def _windows(self, which: np.ndarray) -> tuple[np.ndarray, Callable[[slice], np.ndarray]]:
    ids, length = self._rows.take(which)
    return length, lambda rows: ids[rows]

  def _read(self, t: int) -> Arrays:
    """(tokens int32 [N, L + 1], number of targets that count int32 [N]) of the windows of mega-batch t."""
    arrays = self.feed.arrays(t)
    found = self._reader.windows(tokens.Encoded(arrays["ids"], arrays["starts"]))
    return text.gather(arrays["ids"], found.start, self.problem.sequence_length), found.length

  def _corpus(self, name: str) -> text.Corpus:
    """The tokenizer, and the text that is held out."""
    tokenizer = self._reader.tokenizer(self.feed.lines)
    encoded = {split: self._reader.encode(tokenizer, found) for split, found in self._reader.held_out.items()}
    if "valid" not in encoded:
      arrays = self.feed.arrays(1)
      encoded["valid"] = tokens.Encoded(arrays["valid"], arrays["valid_starts"])
    written, hashes = tokenizer.to_str(), {split: cache.hash_arrays(each._asdict()) for split, each in encoded.items()}
    known = [written, hashes, self.feed.lines[0]["content"]]
    return text.Corpus(name, written, tokens.vocabulary_size(tokenizer), tokens.end_of(tokenizer), encoded,
                       np.zeros(1, np.int64), hashlib.sha256(json.dumps(known).encode()).hexdigest())


def image_reader(config: Any) -> live_entries.ImageReader:
  """The reader of the images of a live run; raises BadInput if DIR, its classes or its test set cannot be used."""
  section = config.dataset
  return live_entries.ImageReader(_folder(config), config.seed, section.image_size, section.image_column,
                                  section.label_column)


def _folder(config: schema.RunConfig) -> pathlib.Path:
  """DIR of `live:DIR`; raises BadInput if there is no such folder."""
  folder = pathlib.Path(config.dataset.path).expanduser()
  if not folder.is_dir():
    raise BadInput(f"there is no folder {str(folder)!r} of a live stream; name yours by dataset.name=live:DIR.")
  return folder
