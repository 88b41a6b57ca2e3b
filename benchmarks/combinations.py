"""Digits on coloured backgrounds, rotated: combinations of three factors, of which a third is held out.

A network that composes what it knows of each factor recognises a digit in a combination that it has never seen; one
that knows combinations alone does not. The label is the digit.
"""
from typing import NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.data import image_changes
from alma_jax.data.datasets import Dataset
from alma_jax.errors import BadInput

COLOURS = ((0.6, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.7), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))
ROTATIONS = (0, 30, 60, 90)  # degrees; a 6 turned by 180 degrees would be a 9

_HELD_OUT, _TRAIN, _TEST = (106, 0), (106, 1), (106, 2)  # purposes of random numbers, apart from those of keys.py


class Images(NamedTuple):
  """Images of known factors.

  Attributes:
    x: uint8 [N, H, W, 3].
    y: int32 [N], digits.
    colour: int32 [N], numbers in COLOURS.
    rotation: int32 [N], numbers in ROTATIONS.
  """
  x: np.ndarray
  y: np.ndarray
  colour: np.ndarray
  rotation: np.ndarray


class Combinations(NamedTuple):
  """A data set of combinations.

  Attributes:
    train: Images of the combinations that are not held out.
    seen: the test Images in such combinations.
    unseen: the same test images in the same order, each in a combination that is held out.
    held_out: bool [10, C, R], of digits, colours and rotations.
  """
  train: Images
  seen: Images
  unseen: Images
  held_out: np.ndarray


def held_out(seed: int, num_digits: int = 10) -> np.ndarray:
  """Which combinations are held out, bool [num_digits, C, R].

  For each digit a third of the pairs of a colour and a rotation are, two colours for each rotation. Every digit is
  therefore seen in every colour and in every rotation.
  """
  rng, grids = keys.rng(seed, *_HELD_OUT), []
  for _ in range(num_digits):
    colour, rotation = rng.permutation(len(COLOURS)), rng.permutation(len(ROTATIONS))
    grids.append((colour[:, None] + rotation[None]) % 3 == 0)
  return np.array(grids)


def make(data: Dataset, seed: int, num_train: int = 20_000, num_test: int = 5_000) -> Combinations:
  """Draws images of digits, and a combination for each of them.

  Args:
    data: grey digits, uint8 [N, H, W, 1]: mnist or digits.
    seed: decides the images, their order, and the combinations.
    num_train, num_test: numbers of images. All are taken if there are fewer.

  Raises:
    BadInput: `data` are no grey images of 8 bits.
  """
  if data.x_train.dtype != np.uint8 or data.x_train.shape[-1] != 1 or data.x_train.ndim != 4:
    raise BadInput(f"{data.name} has images of shape {data.x_train.shape[1:]} and dtype {data.x_train.dtype}; "
                   "combinations are made from grey images of 8 bits, such as mnist.")
  out, rng = held_out(seed, data.num_classes), keys.rng(seed, *_TRAIN)
  which = rng.permutation(len(data.x_train))[:num_train]
  train = _drawn(data.x_train[which], data.y_train[which], ~out, rng)
  rng = keys.rng(seed, *_TEST)
  which = rng.permutation(len(data.x_test))[:num_test]
  x, y = data.x_test[which], data.y_test[which]
  return Combinations(train, _drawn(x, y, ~out, rng), _drawn(x, y, out, rng), out)


def _drawn(x: np.ndarray, y: np.ndarray, allowed: np.ndarray, rng: np.random.Generator) -> Images:
  """The images, each in an allowed combination, which is drawn uniformly."""
  colour, rotation = np.zeros(len(y), np.int32), np.zeros(len(y), np.int32)
  for digit in range(len(allowed)):
    mine = np.flatnonzero(y == digit)
    pairs = np.argwhere(allowed[digit])
    colour[mine], rotation[mine] = pairs[rng.integers(len(pairs), size=len(mine))].T
  return Images(_changed(x, colour, rotation), y, colour, rotation)


def _changed(x: np.ndarray, colour: np.ndarray, rotation: np.ndarray) -> np.ndarray:
  """Images uint8 [N, H, W, 1], turned counter-clockwise, on a background of their colours, as uint8 [N, H, W, 3]."""
  from scipy import ndimage  # importing it takes a sixth of the time of starting up

  made = np.zeros((*x.shape[:3], 3), np.uint8)
  brightest = x.max()
  for number, degrees in enumerate(ROTATIONS):
    mine = np.flatnonzero(rotation == number)
    turned = ndimage.rotate(x[mine, ..., 0].astype(np.float32), degrees, (2, 1), reshape=False, order=1)
    scaled = np.rint(turned * (255 / brightest)).clip(0, 255).astype(np.uint8)  # scikit-learn's digits end at 16
    made[mine] = scaled[..., None]
  for number, rgb in enumerate(COLOURS):
    mine = colour == number
    made[mine] = image_changes.apply(made[mine], [("colour", *rgb)], 0)
  return made
