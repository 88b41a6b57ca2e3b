"""The digits of scikit-learn, of which one fifth of every class is the test set.

They are cached, because importing scikit-learn takes a third of the time of starting up.
"""
import importlib.metadata

import numpy as np

from alma_jax.data import cache
from alma_jax.data.datasets import Dataset, from_arrays

_SPLIT_SEED = 0  # the same for every run, so that runs of several seeds are tested on the same digits


def load(name: str, data_dir: str = "", image_size: int = 0) -> Dataset:
  """The digits; see datasets.load."""
  del data_dir, image_size
  made_from = ["scikit-learn", importlib.metadata.version("scikit-learn"), _SPLIT_SEED]

  def make() -> cache.Entry:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype(np.uint8)  # grey levels 0 to 16
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=_SPLIT_SEED)
    return cache.Entry(dict(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test), {})

  entry = cache.load_or_make([cache.home_folder("arrays", "digits", made_from)], made_from, make)
  return from_arrays(name, entry.arrays)
