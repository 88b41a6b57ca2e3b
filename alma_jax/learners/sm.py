"""SM: a single model, trained on stage after stage (ALGORITHMS §2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context."""
  return stacked.make(context, context.network(), "logits")
