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

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """[B, H, W, C] float, H and W at least 32 -> logits_BK float32."""
    x = x_BHWC.astype(self.dtype)
    for block, num_convs in enumerate(BLOCKS):
      for i in range(num_convs):
        name = f"block{block}_{i}"
        x, bias = layers.Conv3x3(self.width, self.dtype, name=f"{name}_conv")(x)
        x = nn.relu(layers.BatchNorm(self.axis, name=f"{name}_bn")(x, bias, mask_B, train))
      x = layers.max_pool2(x)
    x_BD = x.reshape(x.shape[0], -1)
    return layers.Dense(self.num_classes, self.dtype, name="output")(x_BD).astype(jnp.float32)
