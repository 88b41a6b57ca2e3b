"""Selective fine-tuning: starts from the stored network whose features suit the new task best."""
import dataclasses
from typing import Any

import jax

from alma_jax import keys
from alma_jax.config import task_sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.task_sections import TaskOptions
from alma_jax.learners import neighbors, stacked
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.paths import Paths, Proposal
from alma_jax.learners.task_learner import FROM_ROOT
from alma_jax.models import path
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Variables


@register
@dataclasses.dataclass(frozen=True)
class Options(TaskOptions):
  """Selective fine-tuning: starts from the stored network whose features classify the new task best.

  The features are judged by the validation accuracy of the nearest neighbours. A fresh network competes with its
  features of random weights.
  """
  name: str = "select"
  neighbors: int = field(5, "nearest neighbours by which to judge features", at_least=1)
  max_train: int = field(10_000, "most training images to embed", at_least=1)
  max_val: int = field(5_000, "most validation images to embed", at_least=1)
  root: str = field("", task_sections.ROOT)

  def make(self, context: Any) -> Any:
    return Select(context)


class Select(Paths):
  """The network with the best features, trained further: a stored one, the pretrained root, or a fresh one."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    num_stored = len(state.spec["tasks"])
    if not num_stored and self.root is None:
      return Proposal([self.scratch()], [], [-1], 0, {})
    train, val = neighbors.examples(data, self.options.max_train, self.options.max_val)
    fresh = self._fresh(data, int(sharding.fetch(data.pool.num_classes)))
    tried = {t: self.variables(state, t) for t in range(num_stored - 1, -1, -1)}  # of equal ones the newest wins
    if self.root is not None:
      tried[FROM_ROOT] = path.assembled([fresh, self.root])
    tried[-1] = fresh
    scores, spent = {}, 0
    for origin, variables in tried.items():
      scores[origin], macs = self.judged(variables, data, train, val)
      spent += macs
    best = max(tried, key=lambda origin: scores[origin])
    candidate = {-1: self.scratch, FROM_ROOT: self.rooted}.get(best, lambda: self.tuned(state, best))()
    stored = [scores[t] for t in range(num_stored)]
    return Proposal([candidate], [], [best], spent, {"scores": [*stored, *list(scores.values())[num_stored:]]})

  def _fresh(self, data: loop.StageData, num_classes: int) -> Variables:
    """The network that would be trained from scratch, by the first pair."""
    raw = keys.member_keys(data.seed, data.stage, keys.INIT, 1)
    made = stacked.initialized(self.whole(num_classes), raw, self.context.example)
    return Variables(*jax.tree.map(lambda leaf: leaf[0], made))
