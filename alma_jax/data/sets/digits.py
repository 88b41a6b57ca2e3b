"""The digits of scikit-learn. One fifth of every class is the test set.

The arrays are cached, because importing scikit-learn takes a third of the start-up time.
"""
import dataclasses
import importlib.metadata

import numpy as np

from alma_jax.config.registry import register
from alma_jax.config.sections import DataSet
from alma_jax.data import cache
from alma_jax.data.datasets import Dataset, from_arrays

_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same digits


@register
@dataclasses.dataclass(frozen=True)
class Digits(DataSet):
  """scikit-learn's digits, 8x8 pixels; bundled."""
  name: str = "digits"

  def load(self) -> Dataset:
    made_from = ["scikit-learn", importlib.metadata.version("scikit-learn"), _SPLIT_SEED]
    entry = cache.load_or_make([cache.home_folder("arrays", "digits", made_from)], made_from, _make)
    return from_arrays(self.name, entry.arrays)


def _make() -> cache.Entry:
  from sklearn.datasets import load_digits
  from sklearn.model_selection import train_test_split
  images, labels = load_digits(return_X_y=True)
  images = images.reshape(-1, 8, 8).astype(np.uint8)  # grey levels 0 to 16
  x_train, x_test, y_train, y_test = train_test_split(
      images, labels, test_size=0.2, stratify=labels, random_state=_SPLIT_SEED)
  return cache.Entry(dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test), {})
