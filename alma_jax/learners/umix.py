"""UMix: N networks whose averaged logits are trained jointly as one (§2)."""
from alma_jax import models
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context; the authors' code adds logits (combine="sum")."""
  options = context.config.learner
  return stacked.make(context, models.Mixture(context.network(), options.num_members, options.combine), "logits")
