"""Streams whose distribution changes: the examples of each mega-batch, and the test set that goes with them.

A `Drift` describes a stream in two steps. `level` says how far the change has gone at mega-batch t of B. `shares` says
how frequent the classes are at a level; `changed` and `new` say what it does to the examples. docs/changing-streams.md
has an example.
"""
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config.fields import Section, field
from alma_jax.config.registry import DRIFTS, IMAGES, Registry, register
from alma_jax.config.sections import DataSet
from alma_jax.data.datasets import Dataset
from alma_jax.errors import BadInput

Arrays = tuple[np.ndarray, np.ndarray]  # x [N, ...] and y int32 [N]


class Draw(NamedTuple):
  """What `Drift.changed` gets besides the examples.

  Attributes:
    rng: random numbers for these examples.
    fixed: number from 1 -> a Generator that is the same at every mega-batch, e.g. for a permutation of the pixels.
    num_classes: K.
    limits: smallest and largest value of all examples.
    is_test: whether these are test examples.
  """
  rng: np.random.Generator
  fixed: Callable[[int], np.random.Generator]
  num_classes: int
  limits: tuple[Any, Any]
  is_test: bool


@dataclasses.dataclass(frozen=True)
class Drift(Section):
  """Base class of streams that change, for `dataset.change`. Override what changes.

  Attributes:
    problems: what the stream is for: images, which may be vectors.
    test_follows: whether `shares` applies to the test set too; otherwise it keeps the class shares of the data set.
  """
  name: str = ""

  registries: ClassVar[Mapping[str, Registry]] = DRIFTS
  problems: ClassVar[tuple[str, ...]] = (IMAGES,)
  test_follows: ClassVar[bool] = True

  def level(self, t: int, num: int) -> float:
    """How far the change has gone at mega-batch t of `num`. Mega-batches of one level share a test set."""
    return 0.0

  def shares(self, level: float, num_classes: int) -> np.ndarray:
    """How frequent each class is, as a multiple of its share of the data set; float [K], on any scale."""
    return np.ones(num_classes)

  def changed(self, x: np.ndarray, y: np.ndarray, level: float, draw: Draw) -> Arrays:
    """The examples at a level, of the same shape and dtype.

    By default, each example follows a new concept with probability `level`. At level 2, all follow the second one.
    """
    is_new = draw.rng.random(len(x)) < level
    if is_new.any():
      x, y = x.copy(), y.copy()
      x[is_new], y[is_new] = self.new(x[is_new], y[is_new], math.ceil(level), draw)
    return x, y

  def new(self, x: np.ndarray, y: np.ndarray, number: int, draw: Draw) -> Arrays:
    """The examples under a new concept; `number` counts the new concepts from 1."""
    return x, y


# ---------------------------------------------------------------------------- when it changes


@dataclasses.dataclass(frozen=True)
class Sudden(Drift):
  """Level 0 before the change, and 1 after it."""
  change_at: float = field(0.5, "share of the stream before the change", at_least=0, below=1)

  def level(self, t: int, num: int) -> float:
    return float(t > round(self.change_at * num))


@dataclasses.dataclass(frozen=True)
class Slow(Drift):
  """The level rises linearly, from 0 at the first mega-batch to 1 at the last."""

  def level(self, t: int, num: int) -> float:
    return (t - 1) / max(num - 1, 1)


@dataclasses.dataclass(frozen=True)
class Gradual(Drift):
  """The level is a sigmoid of t (Bifet et al., 2010)."""
  change_at: float = field(0.5, "share of the stream before the middle of the change", at_least=0, below=1)
  duration: float = field(0.5, "share of the stream in which the share of new examples rises from 12 to 88 %", above=0)

  def level(self, t: int, num: int) -> float:
    distance = (t - 0.5 - self.change_at * num) / (self.duration * num)
    return 1 / (1 + math.exp(min(-4 * distance, 500.0)))


@dataclasses.dataclass(frozen=True)
class Phases(Drift):
  """The level rises by 1 in each equal part of the stream, from 0 to `num_levels` - 1, then starts again from 0."""
  phases: int = field(6, "number of equal parts of the stream", at_least=2)

  num_levels: ClassVar[int] = 2

  def level(self, t: int, num: int) -> float:
    return float((t - 1) * self.phases // num % self.num_levels)

  def check(self, config: Any) -> None:
    """Raises BadInput if there are more phases than mega-batches."""
    if self.phases > config.stream.num_megabatches:
      raise BadInput(f"dataset.phases={self.phases} exceeds stream.num_megabatches={config.stream.num_megabatches}; "
                     "lower it.")


# ---------------------------------------------------------------------------- what changes


@dataclasses.dataclass(frozen=True)
class Permuted(Drift):
  """The pixels of an image or the columns of a table are permuted."""

  def new(self, x: np.ndarray, y: np.ndarray, number: int, draw: Draw) -> Arrays:
    flat = x.reshape(len(x), -1, x.shape[-1] if x.ndim == 4 else 1)
    order = draw.fixed(number).permutation(flat.shape[1])
    return flat[:, order].reshape(x.shape), y


@dataclasses.dataclass(frozen=True)
class Relabelled(Drift):
  """Every class gets the label of another class."""
  labels: str = field(
      "next", "new label of class y: y + 1, and 0 for the last (`next`), or the next in a random cycle of all classes "
      "(`random`)", choices=("next", "random"))

  def new(self, x: np.ndarray, y: np.ndarray, number: int, draw: Draw) -> Arrays:
    if self.labels == "next":
      return x, (y + number) % draw.num_classes
    cycle = draw.fixed(number).permutation(draw.num_classes)
    following = np.empty_like(cycle)
    following[cycle] = np.roll(cycle, -1)
    return x, following[y]


# ---------------------------------------------------------------------------- the streams


@register
@dataclasses.dataclass(frozen=True)
class Stationary(Drift):
  """Nothing changes."""
  name: str = "stationary"


@register
@dataclasses.dataclass(frozen=True)
class Permute(Sudden, Permuted):
  """From one mega-batch on, the pixels are permuted."""
  name: str = "permute"


@register
@dataclasses.dataclass(frozen=True)
class Relabel(Sudden, Relabelled):
  """From one mega-batch on, every class has the label of another one."""
  name: str = "relabel"


@register
@dataclasses.dataclass(frozen=True)
class Invert(Sudden):
  """From one mega-batch on, the contrast is inverted."""
  name: str = "invert"

  def new(self, x: np.ndarray, y: np.ndarray, number: int, draw: Draw) -> Arrays:
    low, high = draw.limits
    return low + (high - x), y


@register
@dataclasses.dataclass(frozen=True)
class Rotate(Slow):
  """The images turn slowly counter-clockwise; empty corners get the smallest value of all images."""
  name: str = "rotate"
  degrees: float = field(90.0, "angle at the end of the stream")

  def changed(self, x: np.ndarray, y: np.ndarray, level: float, draw: Draw) -> Arrays:
    if x.ndim != 4:
      raise BadInput(f"dataset.change='rotate' turns images, but the examples have shape {x.shape[1:]}; choose another "
                     "drift, such as permute.")
    return rotated(x, level * self.degrees, draw.limits[0]), y


@register
@dataclasses.dataclass(frozen=True)
class Classes(Phases):
  """New classes arrive at the beginning of each phase, in the order of their numbers."""
  name: str = "classes"
  phases: int = 5

  def level(self, t: int, num: int) -> float:
    return 1 + (t - 1) * self.phases // num

  def shares(self, level: float, num_classes: int) -> np.ndarray:
    return (np.arange(num_classes) * self.phases < level * num_classes).astype(float)


@register
@dataclasses.dataclass(frozen=True)
class Noise(Sudden):
  """Some training labels are drawn at random, from all classes. Test labels stay correct."""
  name: str = "noise"
  change_at: float = 0.0
  strength: float = field(0.2, "share of the labels that are drawn at random", at_least=0, at_most=1)

  def level(self, t: int, num: int) -> float:
    return self.strength * super().level(t, num)

  def new(self, x: np.ndarray, y: np.ndarray, number: int, draw: Draw) -> Arrays:
    return x, y if draw.is_test else draw.rng.integers(draw.num_classes, size=len(y))


@register
@dataclasses.dataclass(frozen=True)
class Imbalance(Sudden):
  """The shares of the classes fall geometrically from the first class to the last. The test set stays balanced."""
  name: str = "imbalance"
  change_at: float = 0.0
  test_follows: ClassVar[bool] = False
  ratio: float = field(100.0, "how many times more frequent the first class is than the last", at_least=1)

  def shares(self, level: float, num_classes: int) -> np.ndarray:
    return self.ratio ** (-level * np.linspace(0, 1, num_classes))


@register
@dataclasses.dataclass(frozen=True)
class Shares(Phases):
  """In every other phase, the last classes are frequent instead of the first; the test set follows."""
  name: str = "shares"
  ratio: float = field(10.0, "how many times more frequent the most frequent class is than the rarest", at_least=1)

  def shares(self, level: float, num_classes: int) -> np.ndarray:
    return self.ratio ** -np.abs(level - np.linspace(0, 1, num_classes))


@register
@dataclasses.dataclass(frozen=True)
class RecurInputs(Phases, Permuted):
  """The pixels are permuted in every other phase."""
  name: str = "recur_inputs"


@register
@dataclasses.dataclass(frozen=True)
class RecurLabels(Phases, Relabelled):
  """The labels change in every other phase."""
  name: str = "recur_labels"


@register
@dataclasses.dataclass(frozen=True)
class Concepts(Phases, Relabelled):
  """Three concepts in turn, each for a phase: the labels y, y + 1 and y + 2, or y and two random cycles."""
  name: str = "concepts"
  num_levels: ClassVar[int] = 3


@register
@dataclasses.dataclass(frozen=True)
class Mix(Gradual, Relabelled):
  """A growing share of the examples has new labels: a gradual change between two concepts."""
  name: str = "mix"


@register
@dataclasses.dataclass(frozen=True)
class MixInputs(Gradual, Permuted):
  """A growing share of the examples has permuted pixels."""
  name: str = "mix_inputs"


def rotated(x: np.ndarray, degrees: float, fill: Any) -> np.ndarray:
  """Images [N, H, W, C], turned counter-clockwise around their centre, with bilinear interpolation."""
  height, width = x.shape[1:3]
  row, column = np.mgrid[:height, :width]
  sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
  down, right = row - (height - 1) / 2, column - (width - 1) / 2
  place = (down * cosine + right * sine + (height - 1) / 2, right * cosine - down * sine + (width - 1) / 2)
  row, column = (np.round(each, 9) for each in place)  # a right angle takes whole pixels
  made = np.zeros(x.shape, np.float32)
  for r, c in ((r, c) for r in (np.floor(row), np.floor(row) + 1) for c in (np.floor(column), np.floor(column) + 1)):
    weight = ((1 - abs(row - r)) * (1 - abs(column - c))).astype(np.float32)[..., None]
    inside = ((r >= 0) & (r < height) & (c >= 0) & (c < width))[..., None]
    pixels = x[:, r.clip(0, height - 1).astype(int), c.clip(0, width - 1).astype(int)]
    made += weight * np.where(inside, pixels, fill)
  return made.astype(x.dtype) if x.dtype.kind == "f" else np.rint(made).astype(x.dtype)


# ---------------------------------------------------------------------------- a stream of a run


class Stream:
  """A stream whose distribution changes.

  Attributes:
    dataset: Dataset; its training examples are those of all mega-batches in turn, its test set is that of the last
      mega-batch.
  """
  dataset: Dataset

  def test_at(self, t: int) -> Hashable:
    """A key of the test set of mega-batch t: equal for mega-batches that share one."""
    raise NotImplementedError

  def test(self, t: int) -> Arrays:
    """The test examples of mega-batch t."""
    raise NotImplementedError


class Drawn(Stream):
  """A stream drawn from a data set.

  The examples of a class come in random order, and a second time only when all of them have been used.
  """

  def __init__(self, drift: Drift, data: Dataset, num: int, size: int, seed: int, test_size: int = 0):
    """Draws all mega-batches.

    Args:
      drift: what changes.
      data: the data set.
      num: number of mega-batches.
      size: examples of each.
      seed: decides the mega-batches, the permutations and the random cycles of labels, but not the choice of test
        examples.
      test_size: most test examples; 0: all.

    Raises:
      BadInput: the drift is not for such examples.
    """
    self._drift, self._data, self._num, self._seed = drift, data, num, seed
    self._limits = min(data.x_train.min(), data.x_test.min()), max(data.x_train.max(), data.x_test.max())
    self._order = keys.rng(0, keys.DRIFT_TEST).permutation(len(data.x_test))[:test_size or None]
    self._known: tuple[float, Arrays] | None = None  # a level, and its test set
    queues = _by_class(data.y_train, keys.rng(seed, keys.DRIFT).permutation(len(data.y_train)))
    used = dict.fromkeys(queues, 0)
    x = np.empty((num * size, *data.x_train.shape[1:]), data.x_train.dtype)
    y = np.empty(num * size, np.int32)
    for t in range(1, num + 1):
      rng, level, part = keys.rng(seed, keys.DRIFT, t), drift.level(t, num), slice((t - 1) * size, t * size)
      shares = drift.shares(level, data.num_classes)[[*queues]] * [len(queues[k]) for k in queues]
      if not shares.sum():
        raise BadInput(f"dataset.change={drift.name!r} leaves no class at mega-batch {t}; number the classes from 0.")
      labels = rng.choice([*queues], size, p=shares / shares.sum())
      which = np.empty(size, np.int64)
      for k in np.unique(labels).tolist():
        places, start = np.flatnonzero(labels == k), used[k]
        which[places] = queues[k][(start + np.arange(len(places))) % len(queues[k])]
        used[k] = start + len(places)
      x[part], y[part] = self._changed(data.x_train[which], data.y_train[which], level, rng, False)
    x_test, y_test = self.test(num)
    self.dataset = dataclasses.replace(data, x_train=x, y_train=y, x_test=x_test, y_test=y_test, test_files=(),
                                       test_rows=())

  def test_at(self, t: int) -> float:
    return self._drift.level(t, self._num)

  def test(self, t: int) -> Arrays:
    level, data = self.test_at(t), self._data
    if self._known is None or self._known[0] != level:
      shares = self._drift.shares(level, data.num_classes) if self._drift.test_follows else np.ones(data.num_classes)
      kept = [examples[:math.ceil(len(examples) * shares[k] / shares.max() - 1e-9)]
              for k, examples in _by_class(data.y_test, self._order).items()]
      which = np.sort(np.concatenate(kept))
      if not len(which):
        raise BadInput(f"dataset.change={self._drift.name!r} leaves no test example at mega-batch {t}; give the data "
                       "set test examples of all classes.")
      self._known = level, self._changed(data.x_test[which], data.y_test[which], level,
                                         keys.rng(self._seed, keys.DRIFT_TEST, 1), True)
    return self._known[1]

  def _changed(self, x: np.ndarray, y: np.ndarray, level: float, rng: np.random.Generator, is_test: bool) -> Arrays:
    fixed = lambda number: keys.rng(self._seed, keys.CONCEPT, number)
    num, given = self._data.num_classes, x
    x, y = self._drift.changed(x, y, level, Draw(rng, fixed, num, self._limits, is_test))
    if (x.shape, x.dtype) != (given.shape, given.dtype) or y.shape != x.shape[:1] or y.min() < 0 or y.max() >= num:
      raise BadInput(f"dataset.change={self._drift.name!r} turns x {given.dtype} {given.shape} of {num} classes into x "
                     f"{x.dtype} {x.shape} with labels {y.shape} from {y.min()} to {y.max()}; keep shapes, dtype and "
                     "classes.")
    return x, y.astype(np.int32)


def _by_class(y: np.ndarray, order: np.ndarray) -> dict[int, np.ndarray]:
  """{class: its examples in this order}."""
  return {k: order[y[order] == k] for k in np.unique(y[order]).tolist()}


@dataclasses.dataclass(frozen=True)
class Changing(DataSet):
  """Base class of data sets that change during a run."""
  megabatch_size: int = field(400, "examples of a mega-batch", at_least=2)

  protocol: ClassVar[Any] = "alma_jax.protocols.offline:Changing"

  def stream(self, config: Any, data: Any = None) -> Stream:
    """The stream of a run; `data` is what `blank` returned, None: loads the data."""
    raise NotImplementedError

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterable[Any]:
    examples: Iterable[Any] = self.stream(config).dataset.x_train.astype(form.dtype, copy=False)
    return examples

  def tested(self, config: Any, task: int | None) -> tuple[Any, str]:
    data = self.stream(config).dataset
    return data.tested, data.fingerprint
