"""Streams that change: from any data set of images or vectors, or from river's generators."""
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import itertools
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import numpy as np

from alma_jax import extras, keys
from alma_jax.config.fields import choice, declared, field
from alma_jax.config.registry import DATA_SETS, DRIFTS, IMAGES, register
from alma_jax.config.sections import DATA_DIR, Columns, DataSet
from alma_jax.data import datasets, drifting
from alma_jax.errors import BadInput


@register
@dataclasses.dataclass(frozen=True)
class Drift(drifting.Changing, Columns):
  """A stream that changes, made from the data set NAME: drift:mnist, drift:npz:PATH."""
  name: str = "drift"
  change: drifting.Drift = choice(DRIFTS[IMAGES], "stationary", "what changes over the stream")
  test_size: int = field(0, "most test examples; 0: all", at_least=0)
  data_dir: str = field("", DATA_DIR)
  image_size: int = field(
      0, "resize images to this width and height in pixels; 0: keep them, all must have one size", at_least=0)

  form: ClassVar[str] = "drift:NAME"

  def load(self) -> datasets.Dataset:
    data: datasets.Dataset = self._base.load()
    return data

  def blank(self) -> Any:
    return self._base.blank() or self.load()

  @property
  def is_downloaded(self) -> bool:
    return self._base.is_downloaded

  def stream(self, config: Any, data: Any = None) -> drifting.Stream:
    if data is None:
      data = self.load()
      datasets.warn_of_overlap(data)
    return drifting.Drawn(self.change, data, config.stream.num_megabatches, self.megabatch_size, config.seed,
                          self.test_size)

  def check(self, config: Any) -> None:
    """Raises BadInput if there is no such data set, or it is a stream already."""
    if self._base.protocol != DataSet.protocol:
      raise BadInput(f"dataset.name={self.name!r} is made of a stream, but should be made of a data set; name "
                     "one, as in drift:mnist or drift:npz:PATH.")

  @property
  def _base(self) -> Any:
    """The fields of the data set."""
    cls = DATA_SETS[IMAGES].of(self.path, "dataset.name=drift:NAME with NAME")
    same = {name: getattr(self, name) for name in declared(cls) if name in declared(Drift)}
    return cls(**same | {"name": self.path})


# The parameter of each generator that chooses its concept, and the number of its values.
_CONCEPTS = {
    "Agrawal": ("classification_function", 10), "LEDDrift": ("n_drift_features", 8),
    "Mixed": ("classification_function", 2), "RandomRBF": ("seed_model", 2**31), "RandomTree": ("seed_tree", 2**31),
    "SEA": ("variant", 4), "STAGGER": ("classification_function", 3), "Sine": ("classification_function", 4)}
# The parameters of generators that change with every example.
_SPEEDS: dict[str, dict[str, float]] = {
    "Hyperplane": {"mag_change": 1e-4, "n_drift_features": 10}, "RandomRBFDrift": {"change_speed": 1e-4}}
_USUAL = 3  # concepts


@register
@dataclasses.dataclass(frozen=True)
class River(drifting.Changing):
  """A table from one of river's generators, whose concept changes: river:Agrawal, river:SEA, ..."""
  name: str = "river"
  concepts: tuple[int, ...] = field(
      (), "numbers, from 0, of the generator's concepts, each for an equal part of the stream; empty: the first three. "
      "Hyperplane and RandomRBFDrift have none, because they change with every example", at_least=0)
  test_size: int = field(
      200, "test examples drawn with every mega-batch; those of one concept form one test set", at_least=1)

  form: ClassVar[str] = "river:GENERATOR"

  def stream(self, config: Any, data: Any = None) -> drifting.Stream:
    return Generated(self, config.stream.num_megabatches, config.seed)

  def check(self, config: Any) -> None:
    """Raises BadInput if there is no such generator or concept."""
    if self.path not in {**_CONCEPTS, **_SPEEDS}:
      raise BadInput(f"dataset.name={self.name!r} names no generator of river with a changing concept; use one of "
                     f"{', '.join(sorted({**_CONCEPTS, **_SPEEDS}))}.")
    extras.need(f"dataset.name={self.name!r}", "river")
    most = _CONCEPTS.get(self.path, ("", 0))[1]
    if any(each >= most for each in self.concepts) or len(self.concepts) > config.stream.num_megabatches:
      raise BadInput(f"dataset.concepts={self.concepts} should be at most stream.num_megabatches="
                     f"{config.stream.num_megabatches} numbers below {most}, the concepts of {self.path}; leave some "
                     "out.")

  def concept(self, t: int, num: int) -> int:
    """The concept of mega-batch t of `num`; t itself if every mega-batch has its own."""
    if self.path in _SPEEDS:
      return t
    concepts = self.concepts or range(min(_USUAL, num, _CONCEPTS[self.path][1]))
    return concepts[(t - 1) * len(concepts) // num]


class Generated(drifting.Stream):
  """The stream of a generator. Each mega-batch and its test examples are drawn together, then split at random."""

  def __init__(self, section: River, num: int, seed: int):
    self._section, self._num = section, num
    self._tests: dict[Hashable, list[drifting.Arrays]] = {}
    generator = functools.cache(lambda concept: _generator(section, concept, seed))
    parts, size = [], section.megabatch_size
    for t in range(1, num + 1):
      concept = 0 if section.path in _SPEEDS else self.test_at(t)
      rows = [*itertools.islice(generator(concept), size + section.test_size)]
      x = np.array([[float(value) for value in row.values()] for row, _ in rows], np.float32)
      y = np.array([int(label) for _, label in rows], np.int32)
      order = keys.rng(seed, keys.DRIFT, t).permutation(len(x))
      parts.append((x[order[:size]], y[order[:size]]))
      self._tests.setdefault(self.test_at(t), []).append((x[order[size:]], y[order[size:]]))
    x, y = map(np.concatenate, zip(*parts))
    x_test, y_test = self.test(num)
    made_by = [section.path, importlib.metadata.version("river")]
    num_classes = 1 + int(max(each.max() for each in (y, *(y for tests in self._tests.values() for _, y in tests))))
    self.dataset = datasets.Dataset(section.name, x, y, x_test, y_test, num_classes, None,
                                    hashlib.sha256(" ".join(made_by).encode()).hexdigest())

  def test_at(self, t: int) -> int:
    return self._section.concept(t, self._num)

  def test(self, t: int) -> drifting.Arrays:
    x, y = map(np.concatenate, zip(*self._tests[self.test_at(t)]))
    return x, y


def _generator(section: River, concept: int, seed: int) -> Iterator[Any]:
  """The examples of a concept, (dict of numbers, label)."""
  cls = getattr(extras.load("river.datasets.synth", f"dataset.name={section.name!r}"), section.path)
  own = int(keys.rng(seed, keys.CONCEPT, concept).integers(2**31))
  given: dict[str, Any] = {name: own for name in inspect.signature(cls).parameters if name.startswith("seed")}
  given |= _SPEEDS.get(section.path) or {_CONCEPTS[section.path][0]: concept}
  return iter(cls(**given))
