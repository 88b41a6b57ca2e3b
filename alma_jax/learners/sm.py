"""SM: a single model, trained on stage after stage (ALGORITHMS §2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context."""
  options = context.config.learner
  return stacked.make(context, context.network(), "logits", init_from_scratch=options.init_from_scratch)
