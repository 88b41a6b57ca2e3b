"""CIFAR augmentation, in normalised space and inside the jitted step (§0)."""
import jax
import jax.numpy as jnp

PAD = 4  # pixels
BLACK = -1.9  # about what a black pixel is after normalisation


def flip_and_crop(key, x_BHWC, offset, total):
  """Per image: pad by 4, crop at random to the old size, flip with p = 1/2.

  Args:
    key: PRNG key of this batch.
    x_BHWC: normalised images, this device's part of the batch.
    offset: position of the first of them in the whole batch.
    total: size of the whole batch; random numbers are drawn for all of it, so
      that an image's augmentation does not depend on the number of devices.

  Returns:
    Augmented images, same shape and dtype.
  """
  num, height, width, _ = x_BHWC.shape
  crop_key, flip_key = jax.random.split(key)
  corner = jax.random.randint(crop_key, (total, 2), 0, 2 * PAD + 1)
  flip = jax.random.bernoulli(flip_key, 0.5, (total,))
  corner, flip = (jax.lax.dynamic_slice_in_dim(a, offset, num) for a in (corner, flip))
  padded = jnp.pad(x_BHWC, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), constant_values=BLACK)
  rows = corner[:, :1] + jnp.arange(height)[None]
  steps = jnp.arange(width)[None]
  columns = corner[:, 1:] + jnp.where(flip[:, None], width - 1 - steps, steps)
  return padded[jnp.arange(num)[:, None, None], rows[:, :, None], columns[:, None, :]]
