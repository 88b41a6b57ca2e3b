"""SM: a single model, trained on stage after stage (docs/algorithms.md §2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context."""
  return stacked.make(context, context.network(), "logits")
