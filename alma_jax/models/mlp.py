"""The paper's MNIST network: two hidden layers (docs/algorithms.md §7)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers


class MLP(nn.Module):
  """Flatten, ReLU layers of `widths` units, linear output of `num_classes`.

  h²+(D+1+K)h+K + h parameters with D inputs, two widths h, K classes: 26,506 for
  MNIST at width 32. Firefly widens it, and puts residual layers behind hidden
  ones (`residuals`: their units, 0: none; empty: nowhere).
  """
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  residuals: tuple[int, ...] = ()

  convolutional = False
  pools = (False, False)  # after which layers the image is halved

  @nn.compact
  def __call__(self, x_B, mask_B, train):
    """[B, ...] float -> logits_BK float32. The mask and `train` change nothing."""
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for i, width in enumerate(self.widths):
      x_BD = nn.relu(layers.Dense(width, self.dtype, name=f"hidden{i}")(x_BD))
      if self.residuals and self.residuals[i]:
        x_BD = layers.Residual(self.residuals[i], self.dtype, None, name=f"residual{i}")(x_BD, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BD)
