"""What a predictor takes, from its predictor.json, and the examples that it is given. Imports no jax."""
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.config.sections import Metric
from alma_jax.data import examples, image_file
from alma_jax.data.form import Form
from alma_jax.data.labels import Classes


class Labelled(NamedTuple):
  """New data that a predictor is scored on.

  Attributes:
    name: how the user calls them.
    batches: number of examples -> the labelled examples in batches of so many.
    overlap: hashes of the examples -> how many of them are in the stream of the run, or None if it is not known.
    metrics: to measure besides those that every predictor has.
  """
  name: str
  batches: Callable[[int], Iterable[examples.Examples]]
  overlap: Callable[[Sequence[int]], int | None]
  metrics: Sequence[Metric]


def form_of(facts: Mapping[str, Any]) -> Form:
  """The form of a predictor's examples, from the entries of its predictor.json."""
  return Form(tuple(facts["example_shape"]), np.dtype(facts["dtype"]), facts["image_size"],
              owner="the predictor takes")


def classes_of(facts: Mapping[str, Any]) -> Classes:
  """The classes of a predictor; its names are empty if it has none."""
  return Classes("the predictor", tuple(facts.get("class_names") or ()), facts["classes"])


def read(paths: Sequence[str], reader: examples.Reader, size: int) -> Iterator[examples.Examples]:
  """Yields the examples of files and folders in batches, and warns of what is not read. Image files come last.

  Args:
    paths: of the files and folders.
    reader: of the predictor.
    size: examples of a batch, at most.

  Raises:
    BadInput: one of them cannot be read, or does not fit the predictor.
  """
  images = []
  for path in (pathlib.Path(name).expanduser() for name in paths):
    if path.is_file() and path.suffix.lower() in image_file.suffixes() and not reader.labelled:
      images.append(path)
      continue
    with examples.named(repr(str(path))):
      for batch in reader.batches(path, size):
        for remark in batch.remarks:
          warnings.warn(remark, stacklevel=2)
        yield batch
  with examples.named(repr(str(images[0])) if len(images) == 1 else "the images"):
    yield from reader.images(images, size=size)


def count(paths: Sequence[str]) -> int | None:
  """The number of examples in files, for the progress; None if it is not known before they are read."""
  are_images = all(pathlib.Path(path).suffix.lower() in image_file.suffixes() for path in paths)
  return len(paths) if are_images else None
