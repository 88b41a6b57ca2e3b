"""Maps a function over stacked members: by vmap, or by one copy of the code for each member.

On a CPU a vmapped convolution becomes a grouped convolution, which takes 1.5 to 5 times as long as separate ones, and a
batched matrix product is slower than separate products. Members are therefore unrolled on a CPU, and vmapped elsewhere.
`UNROLL_AT` bounds the compile time of large stacks.

XLA on a CPU compiles equal kernels once. Kernels that read or write member 0, 1, 2, ... of a stack are equal only if
the number of the member is an argument of the kernel. `split` and `stack` therefore hide the numbers from XLA, which
halves the seconds of compiling five members (python benchmarks/cold.py digits:ens).
"""
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from alma_jax.types import Array, Tree

UNROLL_AT = 16  # the largest number of members that is unrolled


def unroll(num_members: int) -> bool:
  """Whether `apply` unrolls a stack of this many members on this machine."""
  return num_members == 1 or (jax.default_backend() == "cpu" and num_members <= UNROLL_AT)


def apply(fn: Callable[..., Any], num_members: int, *trees: Tree) -> Any:
  """`jax.vmap(fn)(*trees)` for pytrees whose leaves have a leading axis of `num_members`."""
  if not unroll(num_members):
    return jax.vmap(fn)(*trees)
  return stack([fn(*args) for args in zip(*(split(tree, num_members) for tree in trees))])


def index(tree: Tree, i: int) -> Tree:
  """Member i of a stacked pytree."""
  return jax.tree.map(lambda leaf: leaf[i], tree)


def split(tree: Tree, num_members: int) -> list[Tree]:
  """The members of a stacked pytree."""
  if num_members == 1:
    return [index(tree, 0)]
  take = lambda i: jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), tree)
  return [take(i) for i in _numbers(num_members)]


def stack(trees: Sequence[Tree]) -> Tree:
  """One pytree with a leading member axis, from pytrees of single members."""
  if len(trees) == 1:
    return jax.tree.map(lambda leaf: leaf[None], trees[0])
  numbers = _numbers(len(trees))

  def write(*leaves: Array) -> Array:
    stacked = jnp.zeros((len(leaves), *leaves[0].shape), leaves[0].dtype)
    for i, leaf in zip(numbers, leaves):
      stacked = jax.lax.dynamic_update_index_in_dim(stacked, leaf, i, 0)
    return stacked

  return jax.tree.map(write, *trees)


def _numbers(count: int) -> tuple[Array, ...]:
  """0, 1, ..., count - 1 as scalars whose values XLA does not know."""
  known = tuple(jnp.uint32(i) for i in range(count))
  return jax.lax.cond(jax.lax.optimization_barrier(True), lambda: known, lambda: known[::-1])
