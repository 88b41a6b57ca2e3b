"""Maps a function over stacked members: by vmap, or by one copy of the code for each member; or over rows by members.

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
MOST_ROWS = 128  # of a block of `routed`


def unroll(num_members: int) -> bool:
  """Whether `apply` unrolls a stack of this many members on this machine."""
  return num_members == 1 or (jax.default_backend() == "cpu" and num_members <= UNROLL_AT)


def apply(fn: Callable[..., Any], num_members: int, *trees: Tree) -> Any:
  """`jax.vmap(fn)(*trees)` for pytrees whose leaves have a leading axis of `num_members`."""
  if not unroll(num_members):
    return jax.vmap(fn)(*trees)
  return stack([fn(*args) for args in zip(*(split(tree, num_members) for tree in trees))])


def block_size(num_rows: int, num_members: int) -> int:
  """A good `block` for `routed`: it adds at most half as many rows again. Arguments may be symbolic dimensions."""
  return jax.core.max_dim(1, jax.core.min_dim(MOST_ROWS, num_rows // (2 * num_members)))


def routed(fn: Callable[[Tree, Tree], Any], stacked: Tree, member_B: Array, rows: Tree, block: int) -> Any:
  """What each row's member computes for it, without computing the other members; traceable, for any number of rows.

  Rows are sorted by member. Each member computes its rows in blocks and fills up its last block with other rows. For
  B rows, M members compute at most B + M * (block - 1).

  Args:
    fn: (variables of a member, rows [block, ...]) -> pytree of arrays [block, ...]; it computes each row by itself.
    stacked: variables of all members, [M, ...].
    member_B: int32, the member of each row; M for rows that no member computes.
    rows: pytree of arrays [B, ...].
    block: number of rows of a block, at most B.

  Returns:
    As `fn`, [B, ...]; zeros for rows that no member computes.
  """
  num_rows, num_members = member_B.shape[0], jax.tree.leaves(stacked)[0].shape[0]
  order_B = jnp.argsort(member_B, stable=True).astype(jnp.int32)
  padded = jnp.concatenate([order_B, jnp.zeros(block, jnp.int32)])  # keeps the last slice from being moved back
  num_M = (member_B[:, None] == jnp.arange(num_members)[None]).sum(0, dtype=jnp.int32)
  size = jnp.asarray(block, jnp.int32)
  blocks_M = -(-num_M // size)
  first_M, last_M = jnp.cumsum(num_M) - num_M, jnp.cumsum(blocks_M)

  def compute(number: Array, outputs: Any) -> Any:
    member = (last_M <= number).sum()
    start = first_M[member] + (number - last_M[member] + blocks_M[member]) * size
    mine = jax.lax.dynamic_slice_in_dim(padded, start, block)
    variables = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, member, keepdims=False), stacked)
    found = fn(variables, jax.tree.map(lambda leaf: leaf[mine], rows))
    # The next block overwrites the rows of other members.
    return jax.tree.map(lambda all_, one: jax.lax.dynamic_update_slice_in_dim(all_, one, start, 0), outputs, found)

  shapes = jax.eval_shape(fn, index(stacked, 0), jax.tree.map(lambda leaf: leaf[:block], rows))
  outputs = jax.tree.map(lambda one: jnp.zeros((num_rows + block, *one.shape[1:]), one.dtype), shapes)
  outputs = jax.lax.fori_loop(0, last_M[-1], compute, outputs)

  def back(sorted_rows: Array) -> Array:
    mine = (jnp.arange(num_rows) < num_M.sum()).reshape(-1, *[1] * (sorted_rows.ndim - 1))
    known = jnp.where(mine, sorted_rows[:num_rows], 0)
    return jnp.zeros_like(known).at[order_B].set(known, unique_indices=True)

  return jax.tree.map(back, outputs)


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
