"""Images that stand in for data sets which cannot be had, made from MNIST and CIFAR-10.

They are made without a run's seed, because a data set is the same for all runs.
"""
from collections.abc import Callable

import numpy as np

from alma_jax.data import datasets, image_changes

VERSION = 1  # of all stand-ins; to be raised if their images change
_SIZE = 32
_DIGIT = 28  # height and width of images of MNIST
_AT_ONCE = 64  # images
_CROP = 16  # height and width of the part of a photo that becomes a background
_NEIGHBOUR = 21  # pixels from a digit to the one beside it
_SPLITS = ("train", "test")


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
