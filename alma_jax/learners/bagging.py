"""Bagging: a growing ensemble whose members see a bootstrap of their stage each (§2)."""
import numpy as np

from alma_jax import keys
from alma_jax.learners import fit, gens


def make(context):
  """Learner of a base.Context.

  gEns whose k new members train on their own n examples each, drawn with
  replacement, the same ones in all epochs. (The authors' code draws anew in
  every epoch.)
  """
  num = context.config.learner.members_per_stage
  return gens.make(context, emphasis=lambda state, data: fit.Emphasis(own=bootstrap(data, num)))


def bootstrap(data, num_members):
  """int32 [num_members, n]: what each member sees of a StageData's n training examples."""
  num = len(data.train)
  draw = lambda member: keys.rng(data.seed, keys.BOOTSTRAP, data.stage, member).integers(num, size=num)
  return np.stack([data.train[draw(member)] for member in range(num_members)])
