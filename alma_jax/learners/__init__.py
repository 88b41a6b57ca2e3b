"""Learners by name. Each file holds what sets its learner apart from the others."""
from alma_jax.learners import bagging, boosting, ens, firefly, gens, gmoe, hmoe, sm, umix

FACTORIES = {"sm": sm.make, "ens": ens.make, "umix": umix.make, "gens": gens.make,
             "bagging": bagging.make, "boosting": boosting.make, "moe": gmoe.make, "gmoe": gmoe.make,
             "ff": firefly.make, "hmoe": hmoe.make}


def make(context):
  """The learner that `context.config.learner.name` names."""
  return FACTORIES[context.config.learner.name](context)
