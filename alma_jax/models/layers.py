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


class Head(Dense):
  """The output layer, of a flattened [B, ...]: logits [B, K] float32. Sows its inputs, "features"."""

  @nn.compact
  def __call__(self, x_B):
    x_BD = x_B.reshape(x_B.shape[0], -1)
    self.sow("features", "penultimate", x_BD.astype(jnp.float32))
    return super().__call__(x_BD).astype(jnp.float32)


class Residual(nn.Module):
  """x + out . relu(into(x)), of x [B, D] or [B, H, W, C], where `into` is linear or a 3x3 convolution and batch norm.

  Attributes:
    num: units or channels between.
    axis: see BatchNorm.
  """
  num: int
  dtype: jnp.dtype
  axis: str | None

  @nn.compact
  def __call__(self, x, mask_B, train):
    if x.ndim == 2:
      y = Dense(self.num, self.dtype, name="into")(x)
    else:
      y, shift = Conv3x3(self.num, self.dtype, use_bias=False, name="into")(x)
      y = BatchNorm(self.axis, name="norm")(y, shift, mask_B, train)
    out = self.param("out", kernel_init, (self.num, x.shape[-1])).astype(self.dtype)
    return x + nn.relu(y) @ out


class Conv3x3(nn.Module):
  """3x3 convolution [B, H, W, C] -> [B, H, W, features], and its bias [features] or 0 to be added."""
  features: int
  dtype: jnp.dtype = jnp.float32
  use_bias: bool = True

  @nn.compact
  def __call__(self, x_BHWC):
    channels = x_BHWC.shape[-1]
    kernel = self.param("kernel", kernel_init, (3, 3, channels, self.features)).astype(self.dtype)
    bias = self.param("bias", bias_init(9 * channels), (self.features,)) if self.use_bias else 0.0
    return convolve(x_BHWC.astype(self.dtype), kernel), bias


def convolve(x_BHWC, kernel):
  """Same-size convolution with a kernel [3, 3, C, F], in the way that trains fastest here."""
  return (_cpu_conv if jax.default_backend() == "cpu" else _conv)(x_BHWC, kernel)


def _conv(x_BHWC, kernel):
  return jax.lax.conv_general_dilated(x_BHWC, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def _cpu_conv(x_BHWC, kernel):
  """`_conv` with the gradient of its kernel by `_kernel_grad`."""
  return _conv(x_BHWC, kernel)


def _cpu_conv_backward(saved, grad):
  x, kernel = saved
  grad_x, = jax.linear_transpose(lambda x: _conv(x, kernel), x)(grad)
  if min(x.shape[1:3]) >= _OWN_GRAD_FROM:
    return grad_x, _kernel_grad(x, grad)
  return grad_x, *jax.linear_transpose(lambda kernel: _conv(x, kernel), kernel)(grad)


_cpu_conv.defvjp(lambda x, kernel: (_conv(x, kernel), (x, kernel)), _cpu_conv_backward)

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

  It takes the bias of the convolution before it: in training the batch's mean
  takes that along, so it changes nothing but the running mean, and adding it to
  the images would cost a copy of them. So does a mask, hence None.

  Attributes:
    axis: mesh axis that the batch is sharded over, or None.
  """
  axis: str | None
  epsilon: float = 1e-5
  decay: float = 0.9

  @nn.compact
  def __call__(self, x_BHWC, shift_C, mask_B, train):
    """Normalises x + shift, [B, H, W, C]; `mask_B` bool tells examples from padding, None: there is none."""
    channels = x_BHWC.shape[-1]
    scale = self.param("scale", nn.initializers.ones, (channels,))
    bias = self.param("bias", nn.initializers.zeros, (channels,))
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
    if train:
      x32 = x_BHWC.astype(jnp.float32)
      if mask_B is None:
        num = jnp.int32(x_BHWC.shape[0])
      else:
        x32, num = jnp.where(mask_B[:, None, None, None], x32, 0.0), jnp.sum(mask_B)
      total, squares, count = sharding.psum(
          (x32.sum((0, 1, 2)), (x32 * x32).sum((0, 1, 2)), num * x_BHWC.shape[1] * x_BHWC.shape[2]), self.axis)
      mean = total / count
      var = jnp.maximum(squares / count - mean * mean, 0.0)
      if not self.is_initializing():
        running_mean.value = self.decay * running_mean.value + (1 - self.decay) * (mean + shift_C)
        running_var.value = self.decay * running_var.value + (1 - self.decay) * var
    else:
      mean, var = running_mean.value - shift_C, running_var.value
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
