"""The VGG that Firefly widens: a width per layer (docs/algorithms.md §4)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers, vgg

NUM_CONVS = sum(vgg.BLOCKS)


class WideVGG(nn.Module):
  """VGG19 with convolutions of `widths` channels, without bias, for images of 32 to 63 pixels.

  sum_i (9 c_{i-1} c_i + 2 c_i) + K c_16 + K parameters, c_0 the channels of the
  images, and those of the residual layers, see mlp.MLP.
  """
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None
  residuals: tuple[int, ...] = ()

  convolutional = True
  pools = tuple(i + 1 == num for num in vgg.BLOCKS for i in range(num))

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """[B, H, W, C] float -> logits_BK float32."""
    x = x_BHWC.astype(self.dtype)
    for i, (width, pool) in enumerate(zip(self.widths, self.pools)):
      x, shift = layers.Conv3x3(width, self.dtype, use_bias=False, name=f"hidden{i}")(x)
      x = nn.relu(layers.BatchNorm(self.axis, name=f"norm{i}")(x, shift, mask_B, train))
      x = layers.max_pool2(x) if pool else x
      if self.residuals and self.residuals[i]:
        x = layers.Residual(self.residuals[i], self.dtype, self.axis, name=f"residual{i}")(x, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x)
