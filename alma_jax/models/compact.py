"""A small convolutional network that pools early, after the networks of speed records on CIFAR-10 (Jordan, 2024)."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import layers
from alma_jax.models.network import ImageModel
from alma_jax.types import Array

SIZE = 2  # pixels a side of the first convolution


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """A small convolutional network that pools early: for photos of any size."""
  name: str = "compact"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = 9 * 16
  least_pixels: ClassVar[int] = 8

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return Compact(self.width, num_classes, dtype, axis)


class Compact(nn.Module):
  """A 2x2 convolution, three blocks that each halve the image, global max pooling, and a linear layer.

  A block is Conv3x3, 2x2 max pooling, batch norm, GELU, Conv3x3, batch norm, GELU. With width c, the blocks have c, 4c
  and 4c channels. With K classes it has 486c² + (4C + 4K + 37)c + K parameters on images of C channels.

  Attributes:
    width: c.
    num_classes: K.
    dtype: of the computation.
    axis: the mesh axis that the batch is sharded over (for batch norm), or None.
    frozen: names of the parts whose batch norm is in evaluation mode in training, too.
  """
  width: int
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None
  frozen: tuple[str, ...] = ()

  convolutional = True
  parts = ("stem", "block0", "block1", "block2", "output")  # see path.py

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 8."""
    x_BHWC = Stem(self.width, self.dtype, name="stem")(x_BHWC.astype(self.dtype))
    for i, width in enumerate((self.width, 4 * self.width, 4 * self.width)):
      live = train and f"block{i}" not in self.frozen
      for j in range(2):
        x_BHWC, _ = layers.Conv3x3(width, self.dtype, use_bias=False, name=f"block{i}_{j}_conv")(x_BHWC)
        if not j:
          x_BHWC = layers.max_pool2(x_BHWC)
        x_BHWC = nn.gelu(layers.BatchNorm(self.axis, name=f"block{i}_{j}_bn")(x_BHWC, 0.0, mask_B, live))
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC.max((1, 2)))


class Stem(nn.Module):
  """2x2 convolution of stride 1 with a bias: [B, H, W, C] -> [B, H, W, features].

  It is a product of matrices, because XLA's convolution of 3 channels takes several times as long on a CPU.
  """
  features: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x_BHWC: Array) -> Array:
    height, width, channels = x_BHWC.shape[1:]
    kernel = self.param("kernel", layers.kernel_init, (SIZE, SIZE, channels, self.features)).astype(self.dtype)
    bias = self.param("bias", layers.bias_init(SIZE * SIZE * channels), (self.features,)).astype(self.dtype)
    x = jnp.pad(x_BHWC, [(0, 0), (0, SIZE - 1), (0, SIZE - 1), (0, 0)])
    squares = jnp.concatenate([x[:, i:i + height, j:j + width] for i in range(SIZE) for j in range(SIZE)], -1)
    return squares @ kernel.reshape(-1, self.features) + bias[None, None, None]
