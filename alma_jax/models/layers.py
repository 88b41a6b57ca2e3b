"""Layers whose details the paper's code fixes: initialisation, batch norm, pooling."""
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import sharding

# U(±1/sqrt(fan_in)): torch's default for the weights of dense and conv layers.
kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def bias_init(fan_in):
  """torch's default for biases: U(±1/sqrt(fan_in))."""
  bound = 1 / np.sqrt(fan_in)
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


class Dense(nn.Module):
  """Linear layer [B, fan_in] -> [B, features] with bias, initialised as torch does.

  The kernel is [features, fan_in], the transpose of Flax's: its gradient then
  needs no transposed copy of the inputs, a third of that product's time on a
  CPU.
  """
  features: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x_BD):
    fan_in = x_BD.shape[1]
    init = lambda key, shape: kernel_init(key, shape[::-1]).T
    kernel = self.param("kernel", init, (self.features, fan_in)).astype(self.dtype)
    bias = self.param("bias", bias_init(fan_in), (self.features,)).astype(self.dtype)
    return jax.lax.dot_general(x_BD.astype(self.dtype), kernel, (((1,), (1,)), ((), ()))) + bias[None]


def conv3x3(features, channels, dtype, name):
  """3x3 convolution [B, H, W, channels] -> [B, H, W, features] with bias."""
  conv = _cpu_conv if jax.default_backend() == "cpu" else None
  return nn.Conv(features, (3, 3), dtype=dtype, name=name, kernel_init=kernel_init,
                 bias_init=bias_init(9 * channels), conv_general_dilated=conv)


def _cpu_conv(x_BHWC, kernel, strides, padding, **options):
  """`lax.conv_general_dilated` of a 3x3 kernel, stride 1, same size; its kernel's gradient by `_kernel_grad`."""
  conv = lambda x, k: jax.lax.conv_general_dilated(x, k, strides, padding, **options)
  if min(x_BHWC.shape[1:3]) < _OWN_GRAD_FROM:
    return conv(x_BHWC, kernel)

  def backward(saved, grad):
    x, k = saved
    return *jax.vjp(lambda x: conv(x, k), x)[1](grad), _kernel_grad(x, grad)

  own = jax.custom_vjp(conv)
  own.defvjp(lambda x, k: (conv(x, k), (x, k)), backward)
  return own(x_BHWC, kernel)


_OWN_GRAD_FROM = 16  # pixels; for smaller images XLA's way is no slower


def _kernel_grad(x_BHWC, grad_BHWF):
  """Gradient [3, 3, C, F] of a 3x3 convolution of stride 1 and same size by its kernel.

  One matrix product for every few images, of the images shifted by rows with
  the gradient shifted by columns: the shifted copies stay in the cache. XLA's
  way, a convolution with a window as large as the images, takes twice as long on
  a CPU, a seventh of VGG19's training step.
  """
  num, height, width, channels = x_BHWC.shape
  features, few = grad_BHWF.shape[-1], math.gcd(num, 16)

  def add(total, images):
    x, grad = (jnp.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)]) for a in images)
    rows = jnp.concatenate([x[:, i:i + height, 1:-1] for i in range(3)], -1)
    columns = jnp.concatenate([grad[:, 1:-1, 2 - j:2 - j + width] for j in range(3)], -1)
    # Flat, for a product of matrices needs no transposed copy of them.
    return total + jax.lax.dot_general(
        rows.reshape(-1, 3 * channels), columns.reshape(-1, 3 * features), (((0,), (0,)), ((), ())),
        preferred_element_type=jnp.float32), None

  split = lambda a: a.reshape(num // few, few, *a.shape[1:])
  zeros = jnp.zeros((3 * channels, 3 * features), jnp.float32)
  total, _ = jax.lax.scan(add, zeros, (split(x_BHWC), split(grad_BHWF)))
  return total.reshape(3, channels, 3, features).transpose(0, 2, 1, 3).astype(x_BHWC.dtype)


class BatchNorm(nn.Module):
  """Batch norm over real examples only, on however many devices.

  Flax's own averages the devices' masked means, which is wrong as soon as the
  padding of a partial batch is not spread evenly; here sums and counts are
  added up and divided once. Statistics are float32. As in Flax, the running
  variance is the biased one (torch keeps the unbiased).

  Attributes:
    axis: mesh axis that the batch is sharded over, or None.
  """
  axis: str | None
  epsilon: float = 1e-5
  decay: float = 0.9

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """Normalises [B, H, W, C]; `mask_B` bool tells examples from padding."""
    channels = x_BHWC.shape[-1]
    scale = self.param("scale", nn.initializers.ones, (channels,))
    bias = self.param("bias", nn.initializers.zeros, (channels,))
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
    if train:
      x32 = x_BHWC.astype(jnp.float32)
      kept = jnp.where(mask_B[:, None, None, None], x32, 0.0)
      count = jnp.sum(mask_B) * (x_BHWC.shape[1] * x_BHWC.shape[2])
      total, squares, count = sharding.psum(
          (kept.sum((0, 1, 2)), (kept * kept).sum((0, 1, 2)), count), self.axis)
      mean = total / count
      var = jnp.maximum(squares / count - mean * mean, 0.0)
      if not self.is_initializing():
        running_mean.value = self.decay * running_mean.value + (1 - self.decay) * mean
        running_var.value = self.decay * running_var.value + (1 - self.decay) * var
    else:
      mean, var = running_mean.value, running_var.value
    gain = scale * jax.lax.rsqrt(var + self.epsilon)
    offset = bias - mean * gain
    lift = lambda c: c.astype(x_BHWC.dtype)[None, None, None]
    return x_BHWC * lift(gain) + lift(offset)


def max_pool2(x_BHWC):
  """2x2 max pooling, odd borders dropped: [B, H, W, C] -> [B, H//2, W//2, C].

  Four slices and a maximum: the gradient of `nn.max_pool` (select-and-scatter)
  took four times as long on a CPU.
  """
  height, width = x_BHWC.shape[1] // 2 * 2, x_BHWC.shape[2] // 2 * 2
  x = x_BHWC[:, :height, :width]
  x = jnp.maximum(x[:, 0::2], x[:, 1::2])
  return jnp.maximum(x[:, :, 0::2], x[:, :, 1::2])
