"""Bagging: a growing ensemble whose members see a bootstrap of their stage each (§2)."""
import numpy as np

from alma_jax.learners import fit, stacked
from alma_jax.learners.base import GrowthReport

_BOOTSTRAP = 4  # purpose of the random numbers, see data/stream.py


def make(context):
  """Learner of a base.Context.

  Every stage adds k members, which start as copies of the last k or from
  scratch, and trains each on its own n examples drawn with replacement, the
  same ones in all epochs. (The authors' code draws anew in every epoch.)
  """
  options = context.config.learner

  def grow(state, data, fresh):
    del data
    return stacked.append(state, state.live if options.init == "copy" else fresh(state.spec)), GrowthReport()

  def emphasis(state, data):
    del state
    return fit.Emphasis(own=bootstrap(data, options.members_per_stage))

  return stacked.make(context, context.network(), options.combine, grow=grow, final=True, emphasis=emphasis)


def bootstrap(data, num_members):
  """int32 [num_members, n]: what each member sees of a StageData's n training examples."""
  num = len(data.train)
  draw = lambda member: np.random.default_rng([data.seed, _BOOTSTRAP, data.stage, member]).integers(num, size=num)
  return np.stack([data.train[draw(member)] for member in range(num_members)])
