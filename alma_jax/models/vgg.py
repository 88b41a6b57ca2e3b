"""The paper's network for CIFAR-10: VGG19 of constant width with batch norm (docs/algorithms.md §7)."""
import flax.linen as nn
import jax.numpy as jnp

from alma_jax.models import layers
from alma_jax.types import Array

BLOCKS = (2, 2, 4, 4, 4)  # convolutions before each of the five poolings
MIN_SIZE = 2 ** len(BLOCKS)  # pixels a side


class VGG(nn.Module):
  """16 times Conv3x3, batch norm and ReLU, with five 2x2 poolings; then one linear layer.

  With K classes and width c it has 135c²+(75+K)c+K parameters on 32x32x3 images.

  Attributes:
    width: channels of every convolution.
    num_classes: K.
    dtype: of the computation.
    axis: the mesh axis that the batch is sharded over (for batch norm), or None.
    frozen: names of the parts whose batch norm is in evaluation mode in training, too.
  """
  width: int
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None
  frozen: tuple[str, ...] = ()

  convolutional = True
  parts = (*(f"block{i}" for i in range(len(BLOCKS))), "output")  # see path.py

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 32."""
    x_BHWC = x_BHWC.astype(self.dtype)
    for i, num_convs in enumerate(BLOCKS):
      live = train and f"block{i}" not in self.frozen
      x_BHWC = block(x_BHWC, mask_B, live, self.width, num_convs, self.dtype, self.axis, f"block{i}")
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC)


def block(x_BHWC: Array, mask_B: Array | None, train: bool, width: int, num_convs: int, dtype: jnp.dtype,
          axis: str | None, name: str) -> Array:
  """`num_convs` times Conv3x3, batch norm and ReLU, then a pooling: [B, H, W, C] -> [B, H//2, W//2, width].

  Called in a module, it creates the submodules NAME_0_conv, NAME_0_bn, NAME_1_conv, ... of that module.
  """
  for i in range(num_convs):
    x_BHWC, bias_C = layers.Conv3x3(width, dtype, name=f"{name}_{i}_conv")(x_BHWC)
    x_BHWC = nn.relu(layers.BatchNorm(axis, name=f"{name}_{i}_bn")(x_BHWC, bias_C, mask_B, train))
  return layers.max_pool2(x_BHWC)
