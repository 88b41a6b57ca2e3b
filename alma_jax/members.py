"""Mapping a function over stacked members: vmap, or one copy of the code each.

On a CPU a vmapped convolution becomes a slow grouped one (1.5 to 5 times the
time of separate ones), and a batched matrix product is slower than separate
ones, so there the members are unrolled; elsewhere they are vmapped. `UNROLL_AT`
bounds the compile time of large stacks.
"""
import jax
import jax.numpy as jnp

UNROLL_AT = 16  # largest number of members that is unrolled


def unroll(num_members):
  """Whether `apply` unrolls a stack of this many members on this machine."""
  return num_members == 1 or (jax.default_backend() == "cpu" and num_members <= UNROLL_AT)


def apply(fn, num_members, *trees):
  """Like `jax.vmap(fn)(*trees)` for trees with a leading axis of `num_members`."""
  if not unroll(num_members):
    return jax.vmap(fn)(*trees)
  return stack([fn(*(index(tree, i) for tree in trees)) for i in range(num_members)])


def index(tree, i):
  """Member i of a stacked tree."""
  return jax.tree.map(lambda leaf: leaf[i], tree)


def stack(trees):
  """Trees of single members -> one tree with a leading member axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
