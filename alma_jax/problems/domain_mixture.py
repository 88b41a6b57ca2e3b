"""Mixtures of language models whose weights follow from the context (Branch-Train-Merge, Li et al. 2022).

The weight of model d after the tokens x_1..x_t is its posterior p(d | x_1..x_t) ∝ p_d(x_2..x_t | x_1) π_d, where π is
the prior. The mixture predicts the next token by Σ_d p(d | x_1..x_t) p_d(· | x_1..x_t) (docs/algorithms.md §6.3).
"""
import jax
import jax.numpy as jnp

from alma_jax.types import Array


def log_posteriors(log_probs_MBL: Array, log_prior_M: Array) -> Array:
  """Log-posteriors of the models before each target, float32 [M, B, L].

  Args:
    log_probs_MBL: log-probabilities that each model gives to the targets of a window; 0 where none counts.
    log_prior_M: log-probabilities of the models before the first target.
  """
  before_MBL = jnp.cumsum(log_probs_MBL, -1) - log_probs_MBL
  return jax.nn.log_softmax(log_prior_M[:, None, None] + before_MBL, axis=0)


def log_probs(log_probs_MBL: Array, log_prior_M: Array) -> Array:
  """Log-probabilities of the targets by the mixture, float32 [B, L]; see `log_posteriors`."""
  return jax.nn.logsumexp(log_posteriors(log_probs_MBL, log_prior_M) + log_probs_MBL, axis=0)


def next_log_probs(log_probs_MBLV: Array, tokens_BL: Array, log_prior_M: Array) -> Array:
  """Log-probabilities of what follows each token, float32 [B, L, V].

  Args:
    log_probs_MBLV: those of each model.
    tokens_BL: int32, the tokens.
    log_prior_M: as for `log_posteriors`.
  """
  following_BL = jnp.roll(tokens_BL, -1, 1)  # that of the last token decides nothing
  targets_MBL = jnp.take_along_axis(log_probs_MBLV, following_BL[None, ..., None], -1)[..., 0]
  weights_MBL = log_posteriors(targets_MBL, log_prior_M)
  return jax.nn.logsumexp(weights_MBL[..., None] + log_probs_MBLV, axis=0)
