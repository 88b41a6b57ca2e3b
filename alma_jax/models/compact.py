"""A small convolutional network that pools early, after the networks of speed records on CIFAR-10 (Jordan, 2024)."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import layers
from alma_jax.models.network import ImageModel
from alma_jax.types import Array

LEAST, MOST = 14, 28  # pixels a side that the first block takes, of images that have as many


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """A small convolutional network that pools early: for images of any size."""
  name: str = "compact"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = 9 * 16
  least_pixels: ClassVar[int] = 8

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return Compact(self.width, num_classes, dtype, axis)


class Compact(layers.Convolutional):
  """A strided convolution, two blocks that each halve the image, global mean pooling, and a linear layer.

  With width c, the stem has c channels and the blocks have 4c: Conv3x3, 2x2 max pooling, batch norm, GELU, Conv3x3,
  batch norm, GELU. The stem's stride s, 1, 2 or 4, leaves LEAST pixels a side if the image has them. If more than
  MOST are left, further convolutions of c channels with a pooling halve the image. With K classes it has
  468c² + (4Cs² + 4K + 34)c + K parameters on images of C channels that need none of these.
  """
  parts = ("stem", "block0", "block1", "output")  # see path.py

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 8."""
    side = min(x_BHWC.shape[1:3])
    stride = max(s for s in (1, 2, 4) if s == 1 or side >= LEAST * s)
    x_BHWC = self._normed(Stem(self.width, stride, self.dtype, name="stem")(x_BHWC.astype(self.dtype)),
                          mask_B, train, "stem")
    while min(x_BHWC.shape[1:3]) > MOST:
      x_BHWC = self._conv(x_BHWC, mask_B, train, f"stem_{min(x_BHWC.shape[1:3])}", self.width, pools=True)
    for i in range(2):
      for j in range(2):
        x_BHWC = self._conv(x_BHWC, mask_B, train, f"block{i}_{j}", 4 * self.width, pools=not j)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC.mean((1, 2)))

  def _conv(self, x_BHWC: Array, mask_B: Array | None, train: bool, name: str, width: int, pools: bool) -> Array:
    x_BHWC, _ = layers.Conv3x3(width, self.dtype, use_bias=False, name=f"{name}_conv")(x_BHWC)
    return self._normed(layers.max_pool2(x_BHWC) if pools else x_BHWC, mask_B, train, name)

  def _normed(self, x_BHWC: Array, mask_B: Array | None, train: bool, name: str) -> Array:
    live = train and name.partition("_")[0] not in self.frozen
    return nn.gelu(layers.BatchNorm(self.axis, name=f"{name}_bn")(x_BHWC, 0.0, mask_B, live))


class Stem(nn.Module):
  """2sx2s convolution of stride s without a bias: [B, H, W, C] -> [B, H // s, W // s, features].

  It is a product of matrices, because XLA's convolution of 3 channels takes several times as long on a CPU.
  """
  features: int
  stride: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x_BHWC: Array) -> Array:
    s, (height, width, channels) = self.stride, x_BHWC.shape[1:]
    kernel = self.param("kernel", layers.kernel_init, (2 * s, 2 * s, channels, self.features)).astype(self.dtype)
    # A row of the matrix has the pixels of 2s rows of the image. Those of a row lie side by side: two blocks of s.
    before, rows, columns = s // 2, height // s, width // s
    x = jnp.pad(x_BHWC, [(0, 0), (before, s - before), (before, s - before), (0, 0)])
    x = x[:, :(rows + 1) * s, :(columns + 1) * s].reshape(x.shape[0], rows + 1, s, columns + 1, s * channels)
    patches = [x[:, i:i + rows, k, j:j + columns] for i in range(2) for k in range(s) for j in range(2)]
    return jnp.concatenate(patches, -1) @ kernel.reshape(-1, self.features)
