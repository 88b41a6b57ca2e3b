"""Routes each token to its likeliest expert, up to the capacity of experts (Fedus et al. 2021, docs/algorithms.md §5).

Every expert has slots, and every token gets one slot or none. Tokens move to their slots and back by two gathers, each
of which is the gradient of the other, and not by products with a one-hot [T, E, C].
"""
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from alma_jax.types import Array


class Routes(NamedTuple):
  """The places of the tokens of a layer: N = G T tokens, S = E G C slots, ordered by expert.

  Attributes:
    expert: int32 [N], the likeliest expert of each token.
    scale: float32 [N], the factor of its output.
    slot: int32 [N], the slot of each token; S or more for tokens without a slot.
    token: int32 [S], the token in each slot; N for empty slots.
    balance: float32 [], the sum over groups of E * sum_e f_e P_e, where f_e is the share of the tokens whose likeliest
      expert is e, and P_e the mean probability of e.
    load: int32 [E], the number of counted tokens by their likeliest expert.
    dropped: int32 [], the number of counted tokens beyond the capacity of their expert.
  """
  expert: Array
  scale: Array
  slot: Array
  token: Array
  balance: Array
  load: Array
  dropped: Array


def capacity(factor: float | None, num_tokens: int, num_experts: int) -> int:
  """C, the number of slots of an expert for a group of `num_tokens`.

  Args:
    factor: slots relative to an equal share of the tokens; None: as many slots as tokens.
    num_tokens: T.
    num_experts: E.
  """
  return num_tokens if factor is None else max(1, math.floor(factor * -(-num_tokens // num_experts)))


def leaves(logits_GTN2: Array, tree_EN2: Array) -> tuple[Array, Array]:
  """The leaves of a binary tree of gates (paper, §4.2).

  Args:
    logits_GTN2: float32, of the two branches of N = E - 1 gates.
    tree_EN2: float32, 1 if the path to a leaf takes that branch of that gate; see moe.paths.

  Returns:
    (log probabilities of the leaves, float32 [G, T, E]; the leaf where a token arrives that takes the likelier branch
    of every gate on its way down, int32 [G, T]).
  """
  # Elementwise, because a matrix product would be counted among the multiply-adds.
  along = lambda a_GTN2: (a_GTN2[:, :, None] * tree_EN2[None, None]).sum((3, 4))
  is_left_GTN = logits_GTN2[..., 0] >= logits_GTN2[..., 1]
  wrong_turns_GTE = along(jnp.stack([~is_left_GTN, is_left_GTN], -1).astype(jnp.float32))
  return along(jax.nn.log_softmax(logits_GTN2)), jnp.argmin(wrong_turns_GTE, -1).astype(jnp.int32)


def route(logits_GTE: Array, offset_E: Array, counts_GT: Array, capacity: int, expert_GT: Array | None = None
          ) -> Routes:
  """Assigns tokens to their likeliest experts, in their order within each group.

  Args:
    logits_GTE: float32, of the router.
    offset_E: float32, added to the logits for the probabilities alone. For experts that were duplicated it makes up
      for the number of copies.
    counts_GT: bool, whether a token counts. The others get no slot.
    capacity: C, slots of an expert per group.
    expert_GT: int32, the experts of the tokens; None: those with the largest logits.
  """
  groups, num, num_experts = logits_GTE.shape
  shifted_GTE = logits_GTE + offset_E[None, None]
  log_total_GT1 = jax.nn.logsumexp(shifted_GTE, -1, keepdims=True)
  expert_GT = jnp.argmax(logits_GTE, -1).astype(jnp.int32) if expert_GT is None else expert_GT
  chosen_GTE = expert_GT[..., None] == jnp.arange(num_experts, dtype=jnp.int32)[None, None]
  # The probability of the chosen expert times exp(-offset).
  scale_GT = jnp.exp(jnp.where(chosen_GTE, logits_GTE - log_total_GT1, 0.0).sum(-1))

  ones_GTE = (chosen_GTE & counts_GT[..., None]).astype(jnp.int32)
  rank_GT = jnp.where(chosen_GTE, jnp.cumsum(ones_GTE, 1) - 1, 0).sum(-1)
  group_G1 = jnp.arange(groups, dtype=jnp.int32)[:, None]
  num_slots, token_N = num_experts * groups * capacity, jnp.arange(groups * num, dtype=jnp.int32)
  inside_GT = counts_GT & (rank_GT < capacity)
  slot_N = ((expert_GT * groups + group_G1) * capacity + rank_GT).reshape(-1)
  slot_N = jnp.where(inside_GT.reshape(-1), slot_N, num_slots + token_N)
  token_S = jnp.full(num_slots, groups * num, jnp.int32).at[slot_N].set(token_N, mode="drop", unique_indices=True)

  load_GE = ones_GTE.sum(1)
  probs_GE = jnp.where(counts_GT[..., None], jnp.exp(shifted_GTE - log_total_GT1), 0.0).sum(1)
  share = lambda a_GE: a_GE / jnp.maximum(counts_GT.sum(1, keepdims=True), 1)
  balance_G = num_experts * (share(load_GE) * share(probs_GE)).sum(1)
  return Routes(expert_GT.reshape(-1), scale_GT.reshape(-1), slot_N, token_S, balance_G.sum(), load_GE.sum(0),
                counts_GT.sum() - inside_GT.sum())


def dispatch(x_ND: Array, routes: Routes) -> Array:
  """Moves tokens [N, D] to their slots [S, D]; empty slots are zero."""
  return _move(x_ND, routes.token, routes.slot)


def collect(y_SD: Array, routes: Routes) -> Array:
  """Moves slots [S, D] back to their tokens [N, D]; tokens without a slot are zero."""
  return _move(y_SD, routes.slot, routes.token)


@jax.custom_vjp
def _move(x_ND: Array, source_S: Array, target_N: Array) -> Array:
  """y_s = x[source_s], or 0 if there is no such row; `target_N` is the inverse of `source_S`.

  The gradient is a gather by the inverse. XLA's own gradient, a scatter-add, goes row by row on a CPU.
  """
  del target_N
  return x_ND.at[source_S].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _move_forward(x_ND: Array, source_S: Array, target_N: Array) -> tuple[Array, tuple[Array, Array]]:
  return _move(x_ND, source_S, target_N), (source_S, target_N)


def _move_backward(maps: tuple[Array, Array], grad_SD: Array) -> tuple[Array, None, None]:
  source_S, target_N = maps
  return _move(grad_SD, target_N, source_S), None, None


_move.defvjp(_move_forward, _move_backward)
