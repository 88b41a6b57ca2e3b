"""ResNet18 of constant width, the reference network of task streams (He et al., 2016; Veniat et al., 2021)."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import convolution, layers
from alma_jax.models.network import ImageModel
from alma_jax.types import Array

STRIDES = (1, 2, 2, 2)  # of the first block of each stage; that of the stem is 1
BLOCKS = 2  # in each stage
_POOL = 4  # pixels a side


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """ResNet18 of constant width."""
  name: str = "resnet"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  least_pixels: ClassVar[int] = 32

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return ResNet(self.width, num_classes, dtype, axis)


class ResNet(layers.Convolutional):
  """A convolution, four stages of two residual blocks, average pooling of 4x4 pixels, and one linear layer.

  With K classes and width c it has 147c² + 67c + FcK + K parameters on images of 3 channels, where F is the number of
  pixels after the pooling: 1 for images of 32x32.
  """
  parts: ClassVar[tuple[str, ...]] = ("stem", "stage0", "stage1", "stage2", "stage3", "output")

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 32."""
    x = self._conv(x_BHWC.astype(self.dtype), mask_B, train and "stem" not in self.frozen, "stem", 3, 1)
    x = nn.relu(x)
    for i, stride in enumerate(STRIDES):
      live = train and f"stage{i}" not in self.frozen
      for j in range(BLOCKS):
        x = self._block(x, mask_B, live, f"stage{i}_{j}", stride if not j else 1)
    return layers.Head(self.num_classes, self.dtype, name="output")(_average_pool(x))

  def _block(self, x: Array, mask_B: Array | None, train: bool, name: str, stride: int) -> Array:
    y = nn.relu(self._conv(x, mask_B, train, f"{name}_a", 3, stride))
    y = self._conv(y, mask_B, train, f"{name}_b", 3, 1)
    shortcut = x if stride == 1 else self._conv(x, mask_B, train, f"{name}_shortcut", 1, stride)
    return nn.relu(y + shortcut)

  def _conv(self, x: Array, mask_B: Array | None, train: bool, name: str, size: int, stride: int) -> Array:
    """Convolution without a bias, and batch norm."""
    shape = (size, size, x.shape[-1], self.width)
    kernel = self.param(f"{name}_kernel", layers.kernel_init, shape).astype(self.dtype)
    if (size, stride) == (3, 1):
      y = convolution.convolve(x, kernel)
    else:
      pad = ((size // 2,) * 2,) * 2
      y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return layers.BatchNorm(self.axis, name=f"{name}_bn")(y, 0.0, mask_B, train)


def _average_pool(x: Array) -> Array:
  """Means over bins of 4x4 pixels, [B, H, W, C] -> [B, H // 4, W // 4, C]; borders are dropped."""
  batch, height, width, channels = x.shape
  x = x[:, :height // _POOL * _POOL, :width // _POOL * _POOL]
  return x.reshape(batch, height // _POOL, _POOL, width // _POOL, _POOL, channels).mean((2, 4))
