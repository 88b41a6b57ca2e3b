"""Images and vectors of a stream that changes (data/drifting.py)."""
from collections.abc import Hashable
from typing import Any

import numpy as np

from alma_jax.config import schema
from alma_jax.data import datasets
from alma_jax.data.megabatches import Megabatches
from alma_jax.problems import classification


class Changing(classification.Images):
  """The mega-batches of a stream in their order, each with its own test set."""
  is_changing = True

  def test_at(self, t: int) -> Hashable:
    return self._stream.test_at(t)

  def test_arrays(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    return self._stream.test(t)

  def _loaded(self, config: schema.ImageConfig, data: Any) -> datasets.Dataset:
    section: Any = config.dataset
    self._stream = section.stream(config, data)
    dataset: datasets.Dataset = self._stream.dataset
    return dataset

  def _cut(self, config: schema.ImageConfig) -> Megabatches:
    section: Any = config.dataset
    return Megabatches(np.arange(config.stream.num_megabatches + 1) * section.megabatch_size,
                       config.stream.val_fraction)
