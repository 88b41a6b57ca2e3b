"""Learners. Each file holds what sets its learner apart from the others, and its options, by which it is registered."""
from alma_jax.learners import tuned
from alma_jax.learners.contract import Context, Learner


def make(context: Context) -> Learner:
  """The learner that `context.config.learner` describes."""
  options = context.config.learner
  if context.config.is_language and tuned.num_candidates(context.config) > 1:
    return tuned.Tuned(context, options.make)
  learner: Learner = options.make(context)
  return learner
