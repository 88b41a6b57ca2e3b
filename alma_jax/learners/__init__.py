"""Learners by name. Each file holds what sets its learner apart from the others."""
from alma_jax import plugins
from alma_jax.learners import bagging, boosting, ens, firefly, flat_gmoe, gens, gmoe, hmoe, sm, tuned, umix

FACTORIES = {"sm": sm.make, "ens": ens.make, "umix": umix.make, "gens": gens.make,
             "bagging": bagging.make, "boosting": boosting.make, "moe": gmoe.make, "gmoe": gmoe.make,
             "ff": firefly.make, "hmoe": hmoe.make}
LANGUAGE = {"gmoe": flat_gmoe.make}  # in place of the image learners of that name


def make(context):
  """The learner that `context.config.learner.name` names."""
  config = context.config
  own = (LANGUAGE | plugins.TEXT_LEARNERS) if config.is_language else plugins.LEARNERS
  factory = (FACTORIES | own)[config.learner.name]
  return tuned.make(context, factory) if tuned.num_candidates(config) > 1 else factory(context)
