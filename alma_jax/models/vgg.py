"""The paper's network for CIFAR-10: VGG19 of constant width with batch norm (docs/algorithms.md §7)."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.errors import BadInput
from alma_jax.models import layers, moe, wide
from alma_jax.models.network import ImageModel
from alma_jax.types import Array, Shape


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """VGG19 of constant width, with batch normalisation."""
  name: str = "vgg"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = 9
  least_pixels: ClassVar[int] = 2 ** len(layers.VGG_BLOCKS)

  @property
  def first_widths(self) -> tuple[int, ...]:
    return (self.width,) * wide.NUM_CONVS

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return VGG(self.width, num_classes, dtype, axis)

  def mixture(self, num_classes: int, dtype: Any, axis: str | None, size: int, gating: str) -> nn.Module:
    return moe.MoEVGG(self.width, num_classes, size, gating, dtype, axis)

  def widened(self, num_classes: int, dtype: Any, axis: str | None, widths: tuple[int, ...],
              residuals: tuple[int, ...]) -> nn.Module:
    return wide.WideVGG(widths, num_classes, dtype, axis, residuals)

  def check_shape(self, shape: Shape, widened: bool) -> None:
    super().check_shape(shape, widened)
    if widened and max(shape[:2]) >= 2 * self.least_pixels:
      raise BadInput(f"learner.name='ff' widens model.name='vgg' on images of {self.least_pixels} to "
                     f"{2 * self.least_pixels - 1} pixels a side, but this data set's examples have shape {shape}; use "
                     "model.name='mlp' or another learner.")


class VGG(layers.Convolutional):
  """16 times Conv3x3, batch norm and ReLU, with five 2x2 poolings; then one linear layer.

  With K classes and width c it has 135c²+(75+K)c+K parameters on 32x32x3 images.
  """
  parts = (*(f"block{i}" for i in range(len(layers.VGG_BLOCKS))), "output")  # see path.py

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 32."""
    x_BHWC = x_BHWC.astype(self.dtype)
    for i, num_convs in enumerate(layers.VGG_BLOCKS):
      live = train and f"block{i}" not in self.frozen
      x_BHWC = layers.vgg_block(x_BHWC, mask_B, live, self.width, num_convs, self.dtype, self.axis, f"block{i}")
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC)
