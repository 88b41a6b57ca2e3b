"""Fixed changes of the images of a task: [N, H, W, C] uint8 in and out."""
from collections.abc import Callable, Sequence

import numpy as np

from alma_jax import keys
from alma_jax.data.task_types import Change
from alma_jax.errors import BadInput
from alma_jax.messages import brief


def apply(x: np.ndarray, changes: Sequence[Change], seed: int) -> np.ndarray:
  """The images after all changes. `seed` decides the permutations of pixels."""
  for name, *values in changes:
    x = _CHANGES[str(name)](x, seed, *values)
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
      raise BadInput(f"{what} has the change {brief(change)}; possible are {', '.join(_USES.values())}.")
    try:
      changed = apply(np.zeros((1, *image_shape), np.uint8), [tuple(change)], 0)
    except Exception as error:  # whatever the values are
      raise BadInput(f"{what} has the change {brief(tuple(change))}, which cannot be applied to images of "
                     f"{image_shape}; it should be {_USES[str(change[0])]}.") from error
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


def _invert(x: np.ndarray, seed: int) -> np.ndarray:
  return 255 - x


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


_CHANGES: dict[str, Callable[..., np.ndarray]] = {
    "permute": _permute, "tiles": tiles, "rotate": _rotate, "invert": _invert, "grey": _grey, "colour": _colour}
_USES = {"permute": "('permute', NUMBER)", "tiles": "('tiles', NUMBER)", "rotate": "('rotate', QUARTER_TURNS)",
         "invert": "('invert',)", "grey": "('grey',)",
         "colour": "('colour', RED, GREEN, BLUE) with a number from 0 to 1 for each channel, or ('colour', GREY) for "
                   "images of one"}
