"""Maps a function over stacked members: by vmap, or by one copy of the code for each member.

On a CPU a vmapped convolution becomes a grouped convolution, which takes 1.5 to 5 times as long as separate ones, and a
batched matrix product is slower than separate products. Members are therefore unrolled on a CPU, and vmapped elsewhere.
`UNROLL_AT` bounds the compile time of large stacks.
"""
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from alma_jax.types import Tree

UNROLL_AT = 16  # the largest number of members that is unrolled


def unroll(num_members: int) -> bool:
  """Whether `apply` unrolls a stack of this many members on this machine."""
  return num_members == 1 or (jax.default_backend() == "cpu" and num_members <= UNROLL_AT)


def apply(fn: Callable[..., Any], num_members: int, *trees: Tree) -> Any:
  """`jax.vmap(fn)(*trees)` for pytrees whose leaves have a leading axis of `num_members`."""
  if not unroll(num_members):
    return jax.vmap(fn)(*trees)
  return stack([fn(*(index(tree, i) for tree in trees)) for i in range(num_members)])


def index(tree: Tree, i: int) -> Tree:
  """Member i of a stacked pytree."""
  return jax.tree.map(lambda leaf: leaf[i], tree)


def stack(trees: Sequence[Tree]) -> Tree:
  """One pytree with a leading member axis, from pytrees of single members."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
