"""Random flips and crops of training images, computed inside the jitted training step (docs/algorithms.md §0)."""
import jax
import jax.numpy as jnp

from alma_jax.types import Array, Key

PAD = 4  # pixels
BLACK = -1.9  # about the value of a black pixel after normalisation


def flip_and_crop(key: Key, x_BHWC: Array, offset: int | Array, total: int) -> Array:
  """Pads every image by 4 pixels, crops it at random to its old size, and flips it with probability 1/2.

  Args:
    key: PRNG key of this batch.
    x_BHWC: normalised images, this device's part of the batch.
    offset: position of the first of these images in the whole batch.
    total: size of the whole batch. Random numbers are drawn for the whole batch, so that the augmentation of an image
      does not depend on the number of devices.

  Returns:
    Augmented images, same shape and dtype.
  """
  num, height, width, _ = x_BHWC.shape
  crop_key, flip_key = jax.random.split(key)
  corner_B2 = jax.random.randint(crop_key, (total, 2), 0, 2 * PAD + 1)
  flip_B = jax.random.bernoulli(flip_key, 0.5, (total,))
  corner_B2, flip_B = (jax.lax.dynamic_slice_in_dim(a, offset, num) for a in (corner_B2, flip_B))
  padded_BHWC = jnp.pad(x_BHWC, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), constant_values=BLACK)
  row_BH = corner_B2[:, :1] + jnp.arange(height)[None]
  step_1W = jnp.arange(width)[None]
  column_BW = corner_B2[:, 1:] + jnp.where(flip_B[:, None], width - 1 - step_1W, step_1W)
  return padded_BHWC[jnp.arange(num)[:, None, None], row_BH[:, :, None], column_BW[:, None, :]]
