"""Top-1 routing of tokens to experts of limited capacity (Fedus et al. 2021, docs/algorithms.md §5).

Experts have slots, and every token lies in one slot or none. Tokens move there
and back by two gathers that are each other's gradient, not by products with a
one-hot [T, E, C].
"""
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from alma_jax.types import Array


class Routes(NamedTuple):
  """Where the tokens of a layer go; N = G T tokens, S = E G C slots, expert by expert.

  Attributes:
    expert: int32 [N], likeliest expert.
    scale: float32 [N], what its output is multiplied by.
    slot: int32 [N]; S or more for tokens without one.
    token: int32 [S]; N for empty slots.
    balance: float32 [], sum over groups of E * sum_e f_e P_e.
    load: int32 [E], tokens that count, by expert.
    dropped: int32 [], of them, beyond capacity.
  """
  expert: Array
  scale: Array
  slot: Array
  token: Array
  balance: Array
  load: Array
  dropped: Array


def capacity(factor, num_tokens, num_experts):
  """C, slots of an expert for a group of `num_tokens`; a `factor` of None: as many as there are tokens."""
  return num_tokens if factor is None else max(1, math.floor(factor * -(-num_tokens // num_experts)))


def route(logits_GTE, offset_E, counts_GT, capacity):
  """Assigns tokens to their likeliest experts, within each group in order.

  Args:
    logits_GTE: float32, of the router.
    offset_E: float32, what is added to them for the probabilities alone. Of
      experts that were duplicated it makes up for their number.
    counts_GT: bool, tokens that count; the others get no slot.
    capacity: C, slots of an expert per group.

  Returns:
    Routes.
  """
  groups, num, num_experts = logits_GTE.shape
  shifted = logits_GTE + offset_E[None, None]
  log_total = jax.nn.logsumexp(shifted, -1, keepdims=True)
  expert_GT = jnp.argmax(logits_GTE, -1).astype(jnp.int32)
  chosen_GTE = expert_GT[..., None] == jnp.arange(num_experts, dtype=jnp.int32)[None, None]
  # p_e exp(-b_e)
  scale_GT = jnp.exp(jnp.where(chosen_GTE, logits_GTE - log_total, 0.0).sum(-1))

  ones_GTE = (chosen_GTE & counts_GT[..., None]).astype(jnp.int32)
  rank_GT = jnp.where(chosen_GTE, jnp.cumsum(ones_GTE, 1) - 1, 0).sum(-1)
  group_G1 = jnp.arange(groups, dtype=jnp.int32)[:, None]
  slots, token_N = num_experts * groups * capacity, jnp.arange(groups * num, dtype=jnp.int32)
  inside_GT = counts_GT & (rank_GT < capacity)
  slot_N = ((expert_GT * groups + group_G1) * capacity + rank_GT).reshape(-1)
  slot_N = jnp.where(inside_GT.reshape(-1), slot_N, slots + token_N)
  token_S = jnp.full(slots, groups * num, jnp.int32).at[slot_N].set(token_N, mode="drop", unique_indices=True)

  load_GE = ones_GTE.sum(1)
  probs_GE = jnp.where(counts_GT[..., None], jnp.exp(shifted - log_total), 0.0).sum(1)
  share = lambda a_GE: a_GE / jnp.maximum(counts_GT.sum(1, keepdims=True), 1)
  balance = num_experts * (share(load_GE) * share(probs_GE)).sum(1)
  return Routes(expert_GT.reshape(-1), scale_GT.reshape(-1), slot_N, token_S, balance.sum(), load_GE.sum(0),
                counts_GT.sum() - inside_GT.sum())


def dispatch(x_ND, routes):
  """Tokens [N, D] -> slots [S, D]; zeros in empty ones."""
  return _move(x_ND, routes.token, routes.slot)


def collect(y_SD, routes):
  """Slots [S, D] -> tokens [N, D]; zeros for those without a slot."""
  return _move(y_SD, routes.slot, routes.token)


@jax.custom_vjp
def _move(x_ND, source_S, target_N):
  """y_s = x[source_s], or 0 where there is no such row.

  Its gradient is a gather as well, by the inverse map: XLA's own, a
  scatter-add, goes row by row on a CPU.
  """
  del target_N
  return x_ND.at[source_S].get(mode="fill", fill_value=0, wrap_negative_indices=False)


_move.defvjp(lambda x_ND, source_S, target_N: (_move(x_ND, source_S, target_N), (source_S, target_N)),
             lambda maps, grad_SD: (_move(grad_SD, maps[1], maps[0]), None, None))
