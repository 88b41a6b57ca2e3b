"""Convolutions of stride 1 that keep the size of images, in the way that trains fastest on the device."""
import fractions

import jax
import jax.numpy as jnp

from alma_jax.types import Array

_OWN_GRAD_FROM = 16  # pixels of the shorter side; for smaller images XLA's gradient is no slower
_CACHED = 16 * 32 * 32  # pixels of the images that are copied at once, so that the copies stay in the cache


def convolve(x_BHWC: Array, kernel: Array) -> Array:
  """Convolution of stride 1 with a kernel [3, 3, C, F] -> [B, H, W, F]."""
  is_exported = not isinstance(x_BHWC.shape[0], int)  # for batches of any size, on any device
  return (_conv if is_exported or jax.default_backend() != "cpu" else _cpu_conv)(x_BHWC, kernel)


def _conv(x_BHWC: Array, kernel: Array) -> Array:
  return jax.lax.conv_general_dilated(x_BHWC, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@jax.custom_vjp
def _cpu_conv(x_BHWC: Array, kernel: Array) -> Array:
  """`_conv` with other ways to compute narrow convolutions and the gradients of large images."""
  return _narrow_conv(x_BHWC, kernel) if _is_narrow(kernel) else _conv(x_BHWC, kernel)


def _cpu_conv_forward(x_BHWC: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  return _cpu_conv(x_BHWC, kernel), (x_BHWC, kernel)


def _cpu_conv_backward(saved: tuple[Array, Array], grad_BHWF: Array) -> tuple[Array, Array]:
  x_BHWC, kernel = saved
  flipped = kernel[::-1, ::-1].swapaxes(2, 3)
  if _is_narrow(flipped):
    grad_BHWC = _narrow_conv(grad_BHWF, flipped)
  else:
    grad_BHWC, = jax.linear_transpose(lambda x: _conv(x, kernel), x_BHWC)(grad_BHWF)
  if min(x_BHWC.shape[1:3]) >= _OWN_GRAD_FROM:
    return grad_BHWC, _kernel_grad(x_BHWC, grad_BHWF)
  return grad_BHWC, *jax.linear_transpose(lambda kernel: _conv(x_BHWC, kernel), kernel)(grad_BHWF)


_cpu_conv.defvjp(_cpu_conv_forward, _cpu_conv_backward)


def _is_narrow(kernel: Array) -> bool:
  """Whether a convolution is faster as a matrix product on a CPU, as measured on images of 14x14 to 32x32 pixels.

  XLA computes one of 5 channels at about a third of the speed of one of 6.
  """
  channels, features = kernel.shape[2:]
  return ((channels * features <= 96 and channels <= 16 and (features <= 16 or channels <= 3))
          or (channels == 5 and features <= 24))


def _narrow_conv(x_BHWC: Array, kernel: Array) -> Array:
  """A 3x3 convolution of few channels -> [B, H, W, F]: XLA's convolution takes as long for 4 as for 16 on a CPU."""
  return (_conv_by_pairs if x_BHWC.shape[2] % 2 == 0 else _conv_by_pixels)(x_BHWC, kernel)


@jax.jit
def _conv_by_pairs(x_BHWC: Array, kernel: Array) -> Array:
  """Computes two neighbours at once: the matrices are larger, and with 4 channels it takes a sixth of the time."""
  return _product(x_BHWC, jnp.stack([jnp.pad(kernel, [(0, 0), (j, 1 - j), (0, 0), (0, 0)]) for j in range(2)], 3))


@jax.jit
def _conv_by_pixels(x_BHWC: Array, kernel: Array) -> Array:
  return _product(x_BHWC, kernel[..., None, :])


# The jitted functions that compute a convolution as a matrix product, by their names in a jaxpr, and the share of their
# multiply-adds that a convolution has. The rest multiply the zeros around a kernel.
PRODUCTS = {"_conv_by_pairs": fractions.Fraction(3, 4), "_conv_by_pixels": fractions.Fraction(1)}


def _product(x_BHWC: Array, kernel: Array) -> Array:
  """A convolution as a matrix product -> [B, H, W, F].

  A row of the first matrix has all pixels that a block of n neighbours of the output sees.

  Args:
    x_BHWC: the images; n divides W.
    kernel: [3, n+2, C, n, F], the weights of these pixels for each of the neighbours.
  """
  block, features = kernel.shape[3:]
  _, height, width, channels = x_BHWC.shape
  weights = kernel.reshape(-1, block * features)

  def few_images(x_BHWC: Array) -> Array:
    x = jnp.pad(x_BHWC, [(0, 0), (1, 1), (1, 1), (0, 0)])
    split = lambda x: x.reshape(x.shape[0], height + 2, width // block, block * channels)
    columns = jnp.concatenate([split(x[:, :, j:j + width]) for j in range(0, block + 2, block)], -1)
    pixels = jnp.concatenate([columns[:, i:i + height] for i in range(3)], -1)
    return (pixels.reshape(-1, len(weights)) @ weights).reshape(*x_BHWC.shape[:3], features)

  return jax.lax.map(few_images, _split(x_BHWC)).reshape(*x_BHWC.shape[:3], features)


def _kernel_grad(x_BHWC: Array, grad_BHWF: Array) -> Array:
  """Gradient [3, 3, C, F] with respect to the kernel of a 3x3 convolution of stride 1.

  Every few images take one matrix product, of the images shifted by rows with the gradient shifted by columns. The
  shifted copies stay in the cache. XLA computes a convolution with a window as large as the images, which takes twice
  as long on a CPU: a seventh of a training step of VGG19.
  """
  _, height, width, channels = x_BHWC.shape
  features = grad_BHWF.shape[-1]

  def add(total: Array, images: tuple[Array, Array]) -> tuple[Array, None]:
    x, grad = (jnp.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)]) for a in images)
    rows = jnp.concatenate([x[:, i:i + height, 1:-1] for i in range(3)], -1)
    columns = jnp.concatenate([grad[:, 1:-1, 2 - j:2 - j + width] for j in range(3)], -1)
    # Both are flattened, because a product of two matrices needs no transposed copies.
    return total + jax.lax.dot_general(
        rows.reshape(-1, 3 * channels), columns.reshape(-1, 3 * features), (((0,), (0,)), ((), ())),
        preferred_element_type=jnp.float32), None

  zeros = jnp.zeros((3 * channels, 3 * features), jnp.float32)
  total, _ = jax.lax.scan(add, zeros, (_split(x_BHWC), _split(grad_BHWF)))
  return total.reshape(3, channels, 3, features).transpose(0, 2, 1, 3).astype(x_BHWC.dtype)


def _split(x_BHWC: Array) -> Array:
  """The images in equal parts of as many as are copied at once, [parts, B / parts, H, W, C]."""
  num, height, width, _ = x_BHWC.shape
  most = max(1, _CACHED // (height * width))
  few = max((n for n in range(1, min(num, most) + 1) if num % n == 0), default=1)
  return x_BHWC.reshape(num // few, few, *x_BHWC.shape[1:])
