"""Image classification on a live stream: only the examples that a stage can use are in memory."""
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import cache, datasets, examples, live_images, memory, normalization, rows
from alma_jax.data.megabatches import Arrived
from alma_jax.errors import BadInput
from alma_jax.problems import classification, measures
from alma_jax.problems.live_source import LiveSource, folder_of, numbered, opened, padded


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
    folder = folder_of(config)
    columns = examples.Columns(section.image_column, section.label_column)
    self._metrics = measures.tried(measures.chosen(config), measures.blank_images(2))
    self._config, self._reader = config, live_images.ImageReader(folder, section.image_size, config.seed, columns)
    self.has_test = self._reader.test is not None
    if config.stream.untrained_error == "model" and self._reader.test is None:
      raise BadInput(f"stream.untrained_error='model' needs a test set, {str(folder / live_images.TEST)!r}; give one, "
                     "or set stream.untrained_error=chance.")
    self.feed = opened(config, self._reader, run)
    arrived = self.megabatches = Arrived(self.feed, config.stream.val_fraction)
    self.memory = memory.make(config.stream, arrived, config.seed)
    first = self.feed.lines[0]
    if "mean" not in first:
      first |= normalization.made(self.feed.arrays(1)["x"][arrived.part(1)[0]]).entries()
    self.constants = normalization.of_entries(first)
    self.fingerprint = self._fingerprint()
    self._rows = rows.Rows(lambda t: (self.feed.arrays(t)["x"], self.feed.arrays(t)["y"]), arrived.where, arrived.first)
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
    train, val, remembered = numbered(*parts)
    return data._replace(pool=pool, val_pool=pool, train=train, val=val, memory=remembered)

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[classification.Pool, np.ndarray]:
    """(a pool with these training examples at its beginning, their places in it, int32)."""
    x, y = self._rows.take(examples)
    places, = numbered(examples)
    return classification.make_pool(padded(x), padded(y), *self.constants, mesh), places

  def _images(self, which: np.ndarray) -> np.ndarray:
    return self._rows.take(which)[0]

  def _labels(self, which: np.ndarray) -> tuple[np.ndarray, Sequence[str]]:
    return self._rows.take(which)[1], self._reader.classes(self.feed.lines)

  def _fingerprint(self) -> str:
    test, first = self._reader.test, self.feed.lines[0]
    of_test = test and cache.hash_arrays(dict(x=test.x, names=np.char.encode(test.names, "utf-8")))
    known = [self._reader.declared, of_test, first["content"]]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()
