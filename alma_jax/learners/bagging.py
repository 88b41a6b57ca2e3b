"""Bagging: a growing ensemble whose members see a bootstrap of their stage each (§2)."""
import numpy as np

from alma_jax import keys
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.gens import GEns
from alma_jax.training import loop


class Bagging(GEns):
  """gEns whose k new members train on n examples each, drawn with replacement, the same ones in all epochs.

  The authors' code draws anew in every epoch.
  """

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    return loop.Examples(own=bootstrap(data, self.options.members_per_stage))


def bootstrap(data: loop.StageData, num_members: int) -> np.ndarray:
  """int32 [num_members, n]: what each member sees of a StageData's n training examples."""
  num = len(data.train)
  draw = lambda member: keys.rng(data.seed, keys.BOOTSTRAP, data.stage, member).integers(num, size=num)
  return np.stack([data.train[draw(member)] for member in range(num_members)])
