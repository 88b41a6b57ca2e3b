"""Learners. Each file holds what sets its learner apart from the others, and its options, by which it is registered."""
from alma_jax.learners import tuned
from alma_jax.learners.contract import Context, Learner


def make(context: Context) -> Learner:
  """The learner that `context.config.learner` describes."""
  make = context.config.learner.make
  learner: Learner = tuned.Tuned(context, make) if len(context.config.candidates) > 1 else make(context)
  return learner
