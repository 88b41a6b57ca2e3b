"""Layers whose details the paper's code decides: initialisation, batch norm, pooling (docs/algorithms.md §0)."""
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.models import convolution
from alma_jax.parallel import sharding
from alma_jax.types import Array

# U(±1/sqrt(fan_in)): the default of torch for the weights of dense layers and convolutions.
kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


VGG_BLOCKS = (2, 2, 4, 4, 4)  # convolutions before each of the five poolings of VGG19


def bias_init(fan_in: int) -> Callable[..., Array]:
  """U(±1/sqrt(fan_in)): the default of torch for biases."""
  bound = 1 / np.sqrt(fan_in)
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


class Convolutional(nn.Module):
  """Base class of networks of convolutions with batch norm, all of whose parts can be trained alone (see path.py).

  Attributes:
    width: channels, of all convolutions or of the narrowest.
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


class Dense(nn.Module):
  """Linear layer [B, fan_in] -> [B, features] with bias, initialised as torch does.

  The kernel is [features, fan_in], the transpose of Flax's kernel. Its gradient then needs no transposed copy of the
  inputs, which would take a third of that product's time on a CPU.

  Attributes:
    features: number of outputs.
    dtype: of the computation.
    matrix: name of the kernel. `muon` takes a `kernel` for a matrix, and leaves one of another name to Adam.
  """
  features: int
  dtype: jnp.dtype = jnp.float32
  matrix: str = "kernel"

  @nn.compact
  def __call__(self, x_BD: Array) -> Array:
    fan_in = x_BD.shape[1]
    init = lambda key, shape: kernel_init(key, shape[::-1]).T
    kernel = self.param(self.matrix, init, (self.features, fan_in)).astype(self.dtype)
    bias = self.param("bias", bias_init(fan_in), (self.features,)).astype(self.dtype)
    return jax.lax.dot_general(x_BD.astype(self.dtype), kernel, (((1,), (1,)), ((), ()))) + bias[None]


class Head(Dense):
  """The last layer of a network: flattens [B, ...] and returns logits, float32 [B, K].

  It sows its inputs, float32 [B, D], under "features".
  """

  @nn.compact
  def __call__(self, x_B: Array) -> Array:
    x_BD = x_B.reshape(x_B.shape[0], -1)
    self.sow("features", "penultimate", x_BD.astype(jnp.float32))
    return super().__call__(x_BD).astype(jnp.float32)


class Residual(nn.Module):
  """x + out · relu(into(x)), for x [B, D] or [B, H, W, C].

  `into` is a linear layer for x [B, D], and a 3x3 convolution with batch norm for images.

  Attributes:
    num: units or channels between `into` and `out`.
    axis: see BatchNorm.
  """
  num: int
  dtype: jnp.dtype
  axis: str | None

  @nn.compact
  def __call__(self, x: Array, mask_B: Array | None, train: bool) -> Array:
    if x.ndim == 2:
      y = Dense(self.num, self.dtype, name="into")(x)
    else:
      y, shift_C = Conv3x3(self.num, self.dtype, use_bias=False, name="into")(x)
      y = BatchNorm(self.axis, name="norm")(y, shift_C, mask_B, train)
    out = self.param("out", kernel_init, (self.num, x.shape[-1])).astype(self.dtype)
    return x + nn.relu(y) @ out


class Conv3x3(nn.Module):
  """3x3 convolution of stride 1 that keeps the size of images: [B, H, W, C] -> [B, H, W, features].

  Returns (images without the bias, the bias): the bias is [features], or 0 without `use_bias`. The caller adds it, or
  gives it to BatchNorm.
  """
  features: int
  dtype: jnp.dtype = jnp.float32
  use_bias: bool = True

  @nn.compact
  def __call__(self, x_BHWC: Array) -> tuple[Array, Array | float]:
    channels = x_BHWC.shape[-1]
    kernel = self.param("kernel", kernel_init, (3, 3, channels, self.features)).astype(self.dtype)
    bias = self.param("bias", bias_init(9 * channels), (self.features,)) if self.use_bias else 0.0
    return convolution.convolve(x_BHWC.astype(self.dtype), kernel), bias


class BatchNorm(nn.Module):
  """Batch norm over the real examples of a batch, on any number of devices.

  Flax's layer averages the masked means of the devices, which is wrong if the padding of a partial batch is not spread
  evenly. Here sums and counts are added up and divided once. Statistics are float32. As in Flax, the running variance
  is the biased one (torch keeps the unbiased one).

  The layer takes the bias of the convolution before it, because adding the bias to the images would cost a copy of
  them: in training the bias shifts the mean of the batch by the same amount, so it changes nothing but the running
  mean.

  Attributes:
    axis: the mesh axis that the batch is sharded over, or None.
    epsilon: added to the variance.
    decay: the share of the running statistics that a batch keeps.
  """
  axis: str | None
  epsilon: float = 1e-5
  decay: float = 0.9

  @nn.compact
  def __call__(self, x_BHWC: Array, shift_C: Array | float, mask_B: Array | None, train: bool) -> Array:
    """Normalises x + shift.

    Args:
      x_BHWC: the images.
      shift_C: the bias of the convolution before this layer; 0 if it has none.
      mask_B: bool; False for examples that only pad the batch. None: the batch has no padding.
      train: whether to normalise by the statistics of the batch, and to update the running ones.
    """
    channels = x_BHWC.shape[-1]
    scale_C = self.param("scale", nn.initializers.ones, (channels,))
    bias_C = self.param("bias", nn.initializers.zeros, (channels,))
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
    if train:
      mean_C, var_C = self._batch_statistics(x_BHWC, mask_B)
      if not self.is_initializing():
        running_mean.value = self.decay * running_mean.value + (1 - self.decay) * (mean_C + shift_C)
        running_var.value = self.decay * running_var.value + (1 - self.decay) * var_C
    else:
      mean_C, var_C = running_mean.value - shift_C, running_var.value
    gain_C = scale_C * jax.lax.rsqrt(var_C + self.epsilon)
    offset_C = bias_C - mean_C * gain_C
    lift = lambda c: c.astype(x_BHWC.dtype)[None, None, None]
    return x_BHWC * lift(gain_C) + lift(offset_C)

  def _batch_statistics(self, x_BHWC: Array, mask_B: Array | None) -> tuple[Array, Array]:
    """Mean and biased variance [C] of the real examples on all devices."""
    x32 = x_BHWC.astype(jnp.float32)
    if mask_B is None:
      num = jnp.int32(x_BHWC.shape[0])
    else:
      x32, num = jnp.where(mask_B[:, None, None, None], x32, 0.0), jnp.sum(mask_B)
    total_C, squares_C, count = sharding.psum(
        (x32.sum((0, 1, 2)), (x32 * x32).sum((0, 1, 2)), num * x_BHWC.shape[1] * x_BHWC.shape[2]), self.axis)
    mean_C = total_C / count
    return mean_C, jnp.maximum(squares_C / count - mean_C * mean_C, 0.0)


def max_pool2(x_BHWC: Array) -> Array:
  """2x2 max pooling that drops odd borders: [B, H, W, C] -> [B, H//2, W//2, C].

  It is the maximum of four slices, because the gradient of `nn.max_pool` (select-and-scatter) took four times as long
  on a CPU.
  """
  height, width = x_BHWC.shape[1] // 2 * 2, x_BHWC.shape[2] // 2 * 2
  x = x_BHWC[:, :height, :width]
  x = jnp.maximum(x[:, 0::2], x[:, 1::2])
  return jnp.maximum(x[:, :, 0::2], x[:, :, 1::2])


def vgg_block(x_BHWC: Array, mask_B: Array | None, train: bool, width: int, num_convs: int, dtype: jnp.dtype,
              axis: str | None, name: str) -> Array:
  """`num_convs` times Conv3x3, batch norm and ReLU, then a pooling: [B, H, W, C] -> [B, H//2, W//2, width].

  Called in a module, it creates the submodules NAME_0_conv, NAME_0_bn, NAME_1_conv, ... of that module.
  """
  for i in range(num_convs):
    x_BHWC, bias_C = Conv3x3(width, dtype, name=f"{name}_{i}_conv")(x_BHWC)
    x_BHWC = nn.relu(BatchNorm(axis, name=f"{name}_{i}_bn")(x_BHWC, bias_C, mask_B, train))
  return max_pool2(x_BHWC)
