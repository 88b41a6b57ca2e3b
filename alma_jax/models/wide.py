"""The networks that Firefly widens: a width per layer (ALGORITHMS §4)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers, vgg

NUM_CONVS = sum(vgg.BLOCKS)


class WideMLP(nn.Module):
  """The MLP with hidden layers of `widths` units."""
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32

  pools = (False, False)  # after which layers the image is halved

  @nn.compact
  def __call__(self, x_B, mask_B, train):
    """[B, ...] float -> logits_BK float32. The mask and `train` change nothing."""
    del mask_B, train
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for i, width in enumerate(self.widths):
      x_BD = nn.relu(layers.Dense(width, self.dtype, name=f"layer{i}")(x_BD))
    return layers.Dense(self.num_classes, self.dtype, name="output")(x_BD).astype(jnp.float32)


class WideVGG(nn.Module):
  """VGG19 with convolutions of `widths` channels, without bias, for images of 32 to 63 pixels.

  sum_i (9 c_{i-1} c_i + 2 c_i) + K c_16 + K parameters, c_0 the channels of the images.
  """
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None

  pools = tuple(i + 1 == num for num in vgg.BLOCKS for i in range(num))

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """[B, H, W, C] float -> logits_BK float32."""
    x = x_BHWC.astype(self.dtype)
    for i, (width, pool) in enumerate(zip(self.widths, self.pools)):
      x, shift = layers.Conv3x3(width, self.dtype, use_bias=False, name=f"layer{i}")(x)
      x = nn.relu(layers.BatchNorm(self.axis, name=f"norm{i}")(x, shift, mask_B, train))
      x = layers.max_pool2(x) if pool else x
    x_BD = x.reshape(x.shape[0], -1)
    return layers.Dense(self.num_classes, self.dtype, name="output")(x_BD).astype(jnp.float32)
