"""The VGG that Firefly widens: every convolution has a width of its own (docs/algorithms.md §4)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers
from alma_jax.types import Array

NUM_CONVS = sum(layers.VGG_BLOCKS)


class WideVGG(nn.Module):
  """VGG19 with convolutions of `widths` channels, without biases, for images of 32 to 63 pixels a side.

  It has sum_i (9 c_{i-1} c_i + 2 c_i) + K c_16 + K parameters, where c_0 are the channels of the images, and those of
  the residual layers.

  Attributes:
    widths: channels of each convolution.
    num_classes: K.
    dtype: of the computation.
    axis: the mesh axis that the batch is sharded over (for batch norm), or None.
    residuals: channels of the residual layer behind each convolution, 0 for none; empty: none anywhere.
  """
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None
  residuals: tuple[int, ...] = ()

  convolutional = True
  # Whether a pooling follows each convolution.
  pools = tuple(i + 1 == num for num in layers.VGG_BLOCKS for i in range(num))

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float."""
    x_BHWC = x_BHWC.astype(self.dtype)
    for i, (width, pool) in enumerate(zip(self.widths, self.pools)):
      x_BHWC, shift = layers.Conv3x3(width, self.dtype, use_bias=False, name=f"hidden{i}")(x_BHWC)
      x_BHWC = nn.relu(layers.BatchNorm(self.axis, name=f"norm{i}")(x_BHWC, shift, mask_B, train))
      x_BHWC = layers.max_pool2(x_BHWC) if pool else x_BHWC
      if self.residuals and self.residuals[i]:
        x_BHWC = layers.Residual(self.residuals[i], self.dtype, self.axis, name=f"residual{i}")(x_BHWC, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC)
