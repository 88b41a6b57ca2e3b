"""Ens: N independently trained networks whose predictions are joined (§2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context; averages probabilities, as the paper does, by default."""
  return stacked.make(context, context.network(), context.config.learner.combine)
