"""Bagging: a growing ensemble in which each new member trains on a bootstrap sample of its stage (§2)."""
import dataclasses
from typing import Any, ClassVar

import numpy as np

from alma_jax import keys
from alma_jax.config.registry import register
from alma_jax.learners import gens
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.gens import GEns
from alma_jax.training import loop


@register
@dataclasses.dataclass(frozen=True)
class Options(gens.Options):
  """A growing ensemble whose new members each train on a bootstrap sample of the stage's examples."""
  name: str = "bagging"
  members_per_stage: int = 3
  combine: str = "logits"

  stops_early: ClassVar[bool] = False

  def make(self, context: Any) -> Any:
    return Bagging(context)


class Bagging(GEns):
  """gEns in which each of the k new members trains on n examples, drawn with replacement once for all epochs.

  The authors' code draws anew in every epoch.
  """

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    return loop.Examples(own=bootstrap(data, self.options.members_per_stage))


def bootstrap(data: loop.StageData, num_members: int) -> np.ndarray:
  """int32 [num_members, n], the bootstrap sample of each member from the n training examples of a stage."""
  num = len(data.train)
  draw = lambda member: keys.rng(data.seed, keys.BOOTSTRAP, data.stage, member).integers(num, size=num)
  return np.stack([data.train[draw(member)] for member in range(num_members)])
