"""Times ways to compute a convolution of stride 1 and the gradient of its 3x3 kernel on a CPU.

    python benchmarks/convolutions.py
    python benchmarks/convolutions.py --batch 32 --pixels 16 --channels 16 64

Prints medians in milliseconds. All ways are checked against XLA's convolution.
"""
import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.models import convolution

WINOGRAD_KERNEL = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
Array = jax.Array
xla = convolution._conv


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--batch", type=int, default=128)
  parser.add_argument("--pixels", type=int, default=8)
  parser.add_argument("--channels", type=int, nargs=2, default=(64, 64), metavar=("IN", "OUT"))
  parser.add_argument("--repeats", type=int, default=15)
  given = parser.parse_args()
  (into, out), rng = given.channels, np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  x, kernel = draw(given.batch, given.pixels, given.pixels, into), draw(3, 3, into, out)
  grad = draw(given.batch, given.pixels, given.pixels, out)
  print("| | forward | kernel gradient |\n| --- | ---: | ---: |")
  for name, (forward, backward) in WAYS.items():
    cells = [measured(way, WAYS["XLA's convolution"][i], given.repeats, *arrays)
             for i, (way, arrays) in enumerate(((forward, (x, kernel)), (backward, (x, grad))))]
    print(f"| {name} | {' | '.join(cells)} |")


def measured(way: Callable[..., Array] | None, reference: Callable[..., Array] | None, repeats: int, *arrays: Array
             ) -> str:
  """The median time of a way, which has to give what the reference gives."""
  if way is None or reference is None:
    return ""
  compiled, expected = jax.jit(way), reference(*arrays)
  np.testing.assert_allclose(compiled(*arrays), expected, atol=1e-4 * float(jnp.abs(expected).max()))
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    compiled(*arrays).block_until_ready()
    times.append(time.perf_counter() - start)
  return f"{1e3 * np.median(times):.1f} ms"


def xla_gradient(x: Array, grad: Array) -> Array:
  kernel = jax.ShapeDtypeStruct((3, 3, x.shape[-1], grad.shape[-1]), x.dtype)
  return jax.linear_transpose(lambda kernel: xla(x, kernel), kernel)(grad)[0]


def padded(x: Array) -> Array:
  return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


def columns(x: Array) -> Array:
  """[B, H + 2, W, 3 C]: each pixel with its neighbours on both sides."""
  return jnp.concatenate([padded(x)[:, :, j:j + x.shape[2]] for j in range(3)], -1)


def across(a: Array, b: Array) -> Array:
  """aᵀ b, over all pixels of all images."""
  return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def rows(x: Array, kernel: Array) -> Array:
  height, out = x.shape[1], kernel.shape[3]
  y = jnp.einsum("nhwc,cd->nhwd", columns(x), kernel.transpose(1, 2, 0, 3).reshape(-1, 3 * out))
  return sum(y[:, i:i + height, :, i * out:(i + 1) * out] for i in range(3))


def rows_gradient(x: Array, grad: Array) -> Array:
  found = jnp.stack([across(columns(x)[:, i:i + x.shape[1]], grad) for i in range(3)])
  return found.reshape(3, 3, x.shape[-1], -1)


def nine(x: Array, kernel: Array) -> Array:
  _, height, width, _ = x.shape
  return sum(padded(x)[:, i:i + height, j:j + width] @ kernel[i, j] for i in range(3) for j in range(3))


def nine_gradient(x: Array, grad: Array) -> Array:
  _, height, width, _ = x.shape
  return jnp.stack([jnp.stack([across(padded(x)[:, i:i + height, j:j + width], grad) for j in range(3)])
                    for i in range(3)])


def patches(x: Array, kernel: Array) -> Array:
  every = jnp.concatenate([columns(x)[:, i:i + x.shape[1]] for i in range(3)], -1)
  return every @ kernel.reshape(-1, kernel.shape[3])


def winograd(x: Array, kernel: Array) -> Array:
  """F(2x2, 3x3): 16 products for blocks of four pixels, instead of 36 (Lavin and Gray, 2016)."""
  num, height, width, into = x.shape
  mixed = lambda a: (a[0] - a[2], a[1] + a[2], a[2] - a[1], a[1] - a[3])
  summed = lambda a: (a[0] + a[1] + a[2], a[1] - a[2] - a[3])
  tiles = [[padded(x)[:, i:i + height:2, j:j + width:2].reshape(-1, into) for i in range(4)] for j in range(4)]
  tiles = [mixed([row[a] for row in [mixed(column) for column in tiles]]) for a in range(4)]
  weights = jnp.einsum("ia,jb,abcd->ijcd", *[jnp.asarray(WINOGRAD_KERNEL, x.dtype)] * 2, kernel)
  products = [summed([tiles[a][b] @ weights[a, b] for a in range(4)]) for b in range(4)]
  blocks = [summed([products[b][a] for b in range(4)]) for a in range(2)]
  shape = num, height // 2, width // 2, -1
  y = jnp.stack([jnp.stack([block.reshape(shape) for block in row], 3) for row in blocks], 2)
  return y.reshape(num, height, width, -1)


def halves(x: Array, kernel: Array) -> Array:
  return jnp.concatenate([xla(half, kernel) for half in jnp.split(x, 2)])


def groups(x: Array, kernel: Array) -> Array:
  both = jnp.stack(jnp.split(x, 2))
  return jax.vmap(xla)(both, jnp.broadcast_to(kernel, (2, *kernel.shape))).reshape(*x.shape[:3], -1)


def groups_gradient(x: Array, grad: Array) -> Array:
  return jax.vmap(xla_gradient)(jnp.stack(jnp.split(x, 2)), jnp.stack(jnp.split(grad, 2))).sum(0)


WAYS = {
    "XLA's convolution": (xla, xla_gradient),
    "Winograd's algorithm, F(2x2, 3x3)": (winograd, None),
    "one matrix product for the three rows of the kernel, shifted and added": (rows, rows_gradient),
    "nine matrix products, one per position in the kernel": (nine, nine_gradient),
    "one matrix product of shifted rows and shifted columns": (None, convolution._kernel_grad),
    "one matrix product of all patches (im2col)": (patches, None),
    "one matrix product for two neighbours at once": (convolution._conv_by_pairs, None),
    "the batch in two halves, as two convolutions": (halves, None),
    "the batch in two halves, as two groups of one convolution": (groups, groups_gradient)}


if __name__ == "__main__":
  main()
