"""Images that stand in for data sets which cannot be had, made from MNIST and CIFAR-10 or from noise.

They are made without a run's seed, because a data set is the same for all runs.
"""
from collections.abc import Callable

import numpy as np

from alma_jax.data import datasets, image_changes

VERSION = 1  # of all stand-ins; to be raised if their images change
_SIZE = 32
_DIGIT = 28  # height and width of images of MNIST
_AT_ONCE = 64  # images, so that the arrays of the computation stay in the processor's caches
_CROP = 16  # height and width of the part of a photo that becomes a background
_NEIGHBOUR = 21  # pixels from a digit to the one beside it
_SPLITS = ("train", "test")

# Of textures.
TEXTURES = ("banded", "chequered", "dotted", "zigzagged", "grid", "cracked", "blotchy", "ringed", "woven", "sprinkled")
_PER_CLASS = {"train": 2_000, "test": 1_000}
_LEVELS = {"blotchy": 0.0, "sprinkled": 1.1}  # noise above this level gets the second colour
_PERIOD = 64  # squares until their points repeat
_POINTS = np.random.default_rng([1, 3]).random((2, _PERIOD**2), np.float32)  # places of points in squares
_FIELD = 256  # height and width of the fields of noise that images take parts of


class Numbers:
  """Stand-in for SVHN: digits of MNIST in one colour on a part of a photo of CIFAR-10, with a neighbour cut off.

  Training images are made from training images alone, test images from test images.
  """

  def __init__(self, mnist: datasets.Dataset, cifar10: datasets.Dataset):
    self._digits = {"train": mnist.x_train, "test": mnist.x_test}
    self._photos = {"train": cifar10.x_train, "test": cifar10.x_test}
    self._drawn = {}
    for number, split in enumerate(_SPLITS):
      rng, num = np.random.default_rng([0, number]), len(self._digits[split])
      self._drawn[split] = dict(
          photo=rng.integers(len(self._photos[split]), size=num), corner=rng.integers(_SIZE - _CROP + 1, size=(num, 2)),
          shift=rng.integers(_SIZE - _DIGIT + 1, size=(num, 2)), neighbour=rng.integers(num, size=num),
          side=rng.choice([-_NEIGHBOUR, _NEIGHBOUR], num), contrast=rng.uniform(0.35, 0.7, num),
          tint=rng.uniform(-0.2, 0.2, (num, 3)))

  def images(self, split: str, index: np.ndarray) -> np.ndarray:
    """uint8 [n, 32, 32, 3] of the digits of a split at `index` [n]."""
    return in_parts(lambda some: self._make(split, some), index)

  def _make(self, split: str, index: np.ndarray) -> np.ndarray:
    drawn = {name: values[index] for name, values in self._drawn[split].items()}
    row, column = drawn["corner"].T
    photos = np.lib.stride_tricks.sliding_window_view(self._photos[split], (_CROP, _CROP), axis=(1, 2))
    ground = _doubled(photos[drawn["photo"], row, column].astype(np.float32) / 255)  # [n, 3, 32, 32]
    ink = np.maximum(self._placed(split, index, drawn["shift"]),
                     self._placed(split, drawn["neighbour"], drawn["shift"], drawn["side"]))[:, None]
    brightness = ground.mean((1, 2, 3))
    step = np.where(brightness > 0.5, -drawn["contrast"], drawn["contrast"])
    colour = np.clip((brightness + step)[:, None] + drawn["tint"], 0, 1).astype(np.float32)[..., None, None]
    return np.moveaxis(np.rint(255 * (ground + ink * (colour - ground))).astype(np.uint8), 1, -1)

  def _placed(self, split: str, index: np.ndarray, shift: np.ndarray, aside: int | np.ndarray = 0) -> np.ndarray:
    """Digits, float32 [n, 32, 32] from 0 to 1, at `shift` [n, 2] and further `aside` [n] pixels to the right."""
    rim = _NEIGHBOUR + _SIZE - _DIGIT
    canvas = np.zeros((len(index), *2 * (_DIGIT + 2 * rim,)), np.uint8)
    canvas[:, rim:rim + _DIGIT, rim:rim + _DIGIT] = self._digits[split][index][..., 0]
    parts = np.lib.stride_tricks.sliding_window_view(canvas, (_SIZE, _SIZE), axis=(1, 2))
    return parts[np.arange(len(index)), rim - shift[:, 0], rim - shift[:, 1] - aside].astype(np.float32) / 255


def in_parts(make: Callable[[np.ndarray], np.ndarray], index: np.ndarray) -> np.ndarray:
  """make(index) in parts, so that the arrays of the computation stay in the processor's caches.

  Args:
    make: indices [n] -> uint8 [n, 32, 32, 3].
    index: indices [n].
  """
  made = np.zeros((len(index), _SIZE, _SIZE, 3), np.uint8)
  for start in range(0, len(index), _AT_ONCE):
    made[start:start + _AT_ONCE] = make(index[start:start + _AT_ONCE])
  return made


def edges(x: np.ndarray) -> np.ndarray:
  """Stand-in for Fashion-MNIST: grey images of the lengths of the gradients (Sobel), the longest being white.

  Args:
    x: uint8 [n, H, W, 3].

  Returns:
    uint8 of the same shape, with equal channels.
  """
  grey = np.pad(image_changes.luminance(x), ((0, 0), (1, 1), (1, 1)), mode="edge")
  smooth = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:], grey[:, :, :-2] + 2 * grey[:, :, 1:-1] + grey[:, :, 2:]
  length = np.hypot(smooth[0][:, :, 2:] - smooth[0][:, :, :-2], smooth[1][:, 2:] - smooth[1][:, :-2])
  length *= 255 / np.maximum(length.max((1, 2), keepdims=True), 1)
  return np.repeat(np.rint(length).astype(np.uint8)[..., None], 3, -1)


def _doubled(x: np.ndarray) -> np.ndarray:
  """Images [..., H, W] at twice the size, by linear interpolation."""
  for axis in (-1, -2):
    x = x.swapaxes(axis, -1)
    padded = np.concatenate([x[..., :1], x, x[..., -1:]], -1)
    pair = 0.75 * x + 0.25 * padded[..., :-2], 0.75 * x + 0.25 * padded[..., 2:]
    x = np.stack(pair, -1).reshape(*x.shape[:-1], 2 * x.shape[-1]).swapaxes(axis, -1)
  return x


class Textures:
  """Stand-in for the Describable Textures Dataset: procedural textures of ten classes.

  Every image has its own orientation, frequency, phase, distortion, two colours, brightness and noise; its class
  decides the pattern. An image depends on its split and index alone.

  Attributes:
    labels: {split: int32 [N]}.
  """

  def __init__(self) -> None:
    self.labels: dict[str, np.ndarray] = {}
    self._drawn: dict[str, dict[str, np.ndarray]] = {}
    self._fields: dict[str, dict[str, np.ndarray]] = {}  # of each split, so that no test image repeats a training image
    for number, (split, per_class) in enumerate(_PER_CLASS.items()):
      num = per_class * len(TEXTURES)
      rng = np.random.default_rng([1, number])
      self.labels[split] = (np.arange(num) % len(TEXTURES)).astype(np.int32)
      light = rng.uniform(0.05, 0.4, (num, 1)), rng.uniform(0.6, 0.95, (num, 1))
      colours = np.stack([np.clip(side + rng.uniform(-0.25, 0.25, (num, 3)), 0, 1) for side in light], 1)
      swapped = rng.random(num) < 0.5
      colours[swapped] = colours[swapped, ::-1]
      drawn = dict(
          angle=rng.uniform(0, 2 * np.pi, num), frequency=rng.uniform(2.5, 6, num), phase=rng.uniform(0, 1, (num, 2)),
          bend=rng.uniform(0, 0.12, num), corner=rng.integers(_FIELD - 2 * _SIZE + 1, size=(num, 2)),
          noise=rng.uniform(0.03, 0.15, num), colours=colours)
      self._drawn[split] = {name: v.astype(np.int32 if name == "corner" else np.float32) for name, v in drawn.items()}
      noise = rng.standard_normal((3, _FIELD, _FIELD), np.float32)
      self._fields[split] = dict(noise=noise, bend=_smoothed(noise[:2], 6), blotchy=_smoothed(noise[2], 3),
                                 sprinkled=_smoothed(noise[2], 1))

  def images(self, split: str, index: np.ndarray) -> np.ndarray:
    """uint8 [n, 32, 32, 3] of the images of a split at `index` [n]."""
    made = np.zeros((len(index), _SIZE, _SIZE, 3), np.uint8)
    labels = self.labels[split][index]
    for label in np.unique(labels):
      places = np.flatnonzero(labels == label)
      for start in range(0, len(places), _AT_ONCE):
        some = places[start:start + _AT_ONCE]
        drawn = {name: values[index[some]] for name, values in self._drawn[split].items()}
        made[some] = _of_class(TEXTURES[label], drawn, self._fields[split])
    return made


def _of_class(name: str, drawn: dict[str, np.ndarray], fields: dict[str, np.ndarray]) -> np.ndarray:
  """Images of one class, uint8 [n, 32, 32, 3]."""
  row, column = drawn["corner"].T
  unit = (np.arange(_SIZE, dtype=np.float32) + 0.5) / _SIZE
  bend = _parts(fields["bend"], row, column) * drawn["bend"][:, None, None]  # [2, n, 32, 32]
  y, x = unit[:, None] + bend[0], unit[None] + bend[1]
  cosine, sine, frequency = (values[:, None, None] for values in (
      np.cos(drawn["angle"]), np.sin(drawn["angle"]), drawn["frequency"]))
  u = frequency * (cosine * x + sine * y) + drawn["phase"][:, :1, None]
  v = frequency * (cosine * y - sine * x) + drawn["phase"][:, 1:, None]
  share = _PATTERNS[name](u, v) if name in _PATTERNS else _step(_parts(fields[name], row, column) - _LEVELS[name], 4)
  first, second = np.moveaxis(drawn["colours"], 0, -1)[..., None, None]  # [3, n, 1, 1]
  noise = _parts(fields["noise"], row + _SIZE, column + _SIZE) * drawn["noise"][:, None, None]  # [3, n, 32, 32]
  made = first + share * (second - first) + noise
  return np.moveaxis(np.rint(255 * made.clip(0, 1)).astype(np.uint8), 0, -1)


def _parts(field: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
  """Parts of 32x32 of a field [..., H, W] at rows and columns [n]: [..., n, 32, 32]."""
  return np.lib.stride_tricks.sliding_window_view(field, (_SIZE, _SIZE), axis=(-2, -1))[..., row, column, :, :]


def _wave(u: np.ndarray) -> np.ndarray:
  return np.sin(2 * np.pi * u)


def _step(value: np.ndarray, steepness: float) -> np.ndarray:
  """0 below 0, 1 above, with a slope between."""
  return np.clip(0.5 + steepness * value, 0, 1)


def _from_middle(u: np.ndarray) -> np.ndarray:
  """Distance to the middle of the cell [i, i + 1) that holds u, 0 to 0.5."""
  return np.abs(u - np.floor(u) - 0.5)


def _cracked(u: np.ndarray, v: np.ndarray) -> np.ndarray:
  """Lines between the cells of points, one point at random in every square (Worley)."""
  near = np.full(u.shape, 9, np.float32)
  second = near.copy()
  for i in (-1, 0, 1):
    for j in (-1, 0, 1):
      a, b = np.floor(u) + i, np.floor(v) + j
      square = (a.astype(np.int32) % _PERIOD) * _PERIOD + b.astype(np.int32) % _PERIOD
      distance = np.hypot(a + _POINTS[0].take(square) - u, b + _POINTS[1].take(square) - v)
      near, second = np.minimum(near, distance), np.minimum(second, np.maximum(near, distance))
  return _step(second - near - 0.15, 6)


_PATTERNS = {
    "banded": lambda u, v: 0.5 + 0.5 * _wave(u),
    "chequered": lambda u, v: _step(_wave(u / 1.4) * _wave(v / 1.4), 4),
    "dotted": lambda u, v: _step(0.28 - np.hypot(_from_middle(u), _from_middle(v)), 6),
    "zigzagged": lambda u, v: _step(_wave(u + 1.2 * _from_middle(v)), 2),
    "grid": lambda u, v: _step(0.13 - np.minimum(_from_middle(u), _from_middle(v)), 8),
    "cracked": _cracked,
    "ringed": lambda u, v: 0.5 + 0.5 * _wave(2 * np.hypot(_from_middle(u / 3), _from_middle(v / 3)) * 3),
    "woven": lambda u, v: np.where(
        (np.floor(u) + np.floor(v)) % 2 == 0, 1 - 2 * _from_middle(u), 2 * _from_middle(v)),
}


def _smoothed(noise: np.ndarray, width: int) -> np.ndarray:
  """Noise [..., H, W], averaged over neighbours twice (the field is a torus), with a deviation of 1."""
  for _ in range(2):
    for axis in (-2, -1):
      noise = np.stack([np.roll(noise, i, axis) for i in range(-width, width + 1)]).mean(0)
  return noise / noise.std((-2, -1), keepdims=True)
