"""Ens: N independently trained networks whose predictions are joined (§2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context; averages probabilities, as the paper does, by default."""
  options = context.config.learner
  return stacked.make(context, context.network(), options.combine,
                      init_from_scratch=options.init_from_scratch)
