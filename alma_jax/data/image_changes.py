"""Fixed changes of the images of a task: [N, H, W, C] uint8 in and out."""
from collections.abc import Callable, Sequence

import numpy as np

from alma_jax import keys
from alma_jax.errors import BadInput
from alma_jax.messages import brief

Change = tuple[str | int | float, ...]  # the name of a function below, and its arguments

SIZE = 32  # height and width of the images of all streams but `digits`
IN_COLOUR = (SIZE, SIZE, 3)  # the shape of these images


def apply(x: np.ndarray, changes: Sequence[Change], seed: int) -> np.ndarray:
  """The images after all changes. `seed` decides the permutations of pixels."""
  for name, *values in changes:
    x = _CHANGES[str(name)][0](x, seed, *values)
  return np.ascontiguousarray(x)


def check(what: str, changes: Sequence[Change], image_shape: tuple[int, ...]) -> None:
  """Tries the changes on one image.

  Args:
    what: how messages refer to the task.
    changes: see Recipe.
    image_shape: (H, W, C).

  Raises:
    BadInput: a change is unknown, has other arguments, or needs another shape.
  """
  for change in changes:
    known = isinstance(change, tuple | list) and len(change) and isinstance(change[0], str) and change[0] in _CHANGES
    if not known:
      raise BadInput(f"{what} has the change {brief(change)}; possible are "
                     f"{', '.join(use for _, use in _CHANGES.values())}.")
    try:
      changed = apply(np.zeros((1, *image_shape), np.uint8), [tuple(change)], 0)
    except Exception as error:  # whatever the values are
      raise BadInput(f"{what} has the change {brief(tuple(change))}, which cannot be applied to images of "
                     f"{image_shape}; it should be {_CHANGES[str(change[0])][1]}.") from error
    if changed.shape[1:] != image_shape:
      raise BadInput(f"{what} has the change {brief(tuple(change))}, which turns images of {image_shape} into "
                     f"{changed.shape[1:]}; a change keeps the shape.")


def tiles(x: np.ndarray, seed: int, number: int, per_side: int = 4) -> np.ndarray:
  """Cuts images into per_side² tiles and permutes them by the permutation of this number."""
  num, height, width, channels = x.shape
  cut = x.reshape(num, per_side, height // per_side, per_side, width // per_side, channels).swapaxes(2, 3)
  order = keys.rng(seed, keys.PIXELS, number, per_side).permutation(per_side**2)
  cut = cut.reshape(num, per_side**2, *cut.shape[3:])[:, order].reshape(cut.shape)
  return cut.swapaxes(2, 3).reshape(x.shape)


def _permute(x: np.ndarray, seed: int, number: int) -> np.ndarray:
  """Permutes the pixels by the permutation of this number."""
  num, height, width, channels = x.shape
  order = keys.rng(seed, keys.PIXELS, number).permutation(height * width)
  return x.reshape(num, height * width, channels)[:, order].reshape(x.shape)


def _rotate(x: np.ndarray, seed: int, quarter_turns: int) -> np.ndarray:
  """Turns images counter-clockwise."""
  if not isinstance(quarter_turns, int):
    raise TypeError(f"{quarter_turns} quarter turns")
  return np.rot90(x, quarter_turns, axes=(1, 2))


def _grey(x: np.ndarray, seed: int) -> np.ndarray:
  """The luminance, in all channels."""
  return np.broadcast_to(luminance(x).astype(np.uint8)[..., None], x.shape)


def _colour(x: np.ndarray, seed: int, *colour: float) -> np.ndarray:
  """Gives dark pixels a colour, one number from 0 to 1 for each channel: img + (max - img)·c."""
  if len(colour) != x.shape[-1] or not all(0 <= value <= 1 for value in colour):
    raise ValueError(f"the colour {colour} for {x.shape[-1]} channels")
  levels = np.arange(256, dtype=np.float32)[:, None]
  table = np.rint(levels + (255 - levels) * np.asarray(colour, np.float32)[None]).astype(np.uint8)  # [256, C]
  return np.stack([table[x[..., c], c] for c in range(x.shape[-1])], -1)


def luminance(x: np.ndarray) -> np.ndarray:
  """float32 [N, H, W] of uint8 [N, H, W, 3], 0 to 255."""
  return x @ np.array([0.299, 0.587, 0.114], np.float32)


_CHANGES: dict[str, tuple[Callable[..., np.ndarray], str]] = {  # and how a change is written
    "permute": (_permute, "('permute', NUMBER)"), "tiles": (tiles, "('tiles', NUMBER)"),
    "rotate": (_rotate, "('rotate', QUARTER_TURNS)"), "invert": (lambda x, seed: 255 - x, "('invert',)"),
    "grey": (_grey, "('grey',)"),
    "colour": (_colour, "('colour', RED, GREEN, BLUE) with a number from 0 to 1 for each channel, or ('colour', GREY) "
                        "for images of one")}


def to_colour(x: np.ndarray) -> np.ndarray:
  """Images of at most 32x32 pixels, in the middle of black ones of 32x32 pixels and three channels."""
  rows, columns = (SIZE - x.shape[1]) // 2, (SIZE - x.shape[2]) // 2
  made = np.zeros((len(x), *IN_COLOUR), np.uint8)
  made[:, rows:rows + x.shape[1], columns:columns + x.shape[2]] = x
  return made


def bright(x: np.ndarray) -> np.ndarray:
  """Grey levels 0 to 16 as 0 to 255."""
  return np.rint(x * (255 / 16)).astype(np.uint8)


def resized(x: np.ndarray, size: int) -> np.ndarray:
  """Images uint8 [n, H, W, 1 or 3] as [n, size, size, 3], by bicubic interpolation."""
  made = np.zeros((len(x), size, size, 3), np.uint8)
  for i, image in enumerate(x):
    resized = resized_one(image.squeeze(-1) if x.shape[-1] == 1 else image, size)
    made[i] = resized if resized.ndim == 3 else resized[..., None]
  return made


def resized_one(image: np.ndarray, size: int) -> np.ndarray:
  """An image [H, W] or [H, W, 3] of uint8, resized to size x size by bicubic interpolation."""
  from PIL import Image
  return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC))
