"""Learners by name. Each file holds what sets its learner apart from the others."""
from alma_jax.learners import ens, gens, sm, umix

FACTORIES = {"sm": sm.make, "ens": ens.make, "umix": umix.make, "gens": gens.make}


def make(context):
  """The learner that `context.config.learner.name` names."""
  return FACTORIES[context.config.learner.name](context)
