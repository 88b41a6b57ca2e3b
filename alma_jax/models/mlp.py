"""The paper's MNIST network: two hidden layers of equal width (ALGORITHMS §7)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers


class MLP(nn.Module):
  """Flatten, two ReLU layers of `width` units, linear output of `num_classes`.

  h²+(D+1+K)h+K + h parameters with D inputs, h = width, K classes: 26,506 for
  MNIST at width 32.
  """
  width: int
  num_classes: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x_B, mask_B, train):
    """[B, ...] float -> logits_BK float32. The mask and `train` change nothing."""
    del mask_B, train
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for i in range(2):
      x_BD = nn.relu(layers.Dense(self.width, self.dtype, name=f"hidden{i}")(x_BD))
    return layers.Dense(self.num_classes, self.dtype, name="output")(x_BD).astype(jnp.float32)
