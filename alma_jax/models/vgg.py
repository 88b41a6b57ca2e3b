"""VGG19 of constant width with batch norm, the paper's CIFAR-10 network (§7)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers

BLOCKS = (2, 2, 4, 4, 4)  # convolutions before each of the five poolings
MIN_SIZE = 2 ** len(BLOCKS)


class VGG(nn.Module):
  """16 times Conv3x3-BN-ReLU with five 2x2 poolings, then one linear layer.

  135c²+(75+K)c+K parameters on 32x32x3 images, c = width, K classes.

  Attributes:
    axis: mesh axis that the batch is sharded over (for batch norm), or None.
  """
  width: int
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None

  convolutional = True

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """[B, H, W, C] float, H and W at least 32 -> logits_BK float32."""
    x = x_BHWC.astype(self.dtype)
    for i, num_convs in enumerate(BLOCKS):
      x = block(x, mask_B, train, self.width, num_convs, self.dtype, self.axis, f"block{i}")
    return layers.Head(self.num_classes, self.dtype, name="output")(x)


def block(x_BHWC, mask_B, train, width, num_convs, dtype, axis, name):
  """Some Conv3x3-BN-ReLU and a pooling, as submodules NAME_0_conv, NAME_0_bn, ... of the module that calls."""
  for i in range(num_convs):
    x_BHWC, bias = layers.Conv3x3(width, dtype, name=f"{name}_{i}_conv")(x_BHWC)
    x_BHWC = nn.relu(layers.BatchNorm(axis, name=f"{name}_{i}_bn")(x_BHWC, bias, mask_B, train))
  return layers.max_pool2(x_BHWC)
