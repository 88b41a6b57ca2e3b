"""Selective fine-tuning: starts from the stored network whose features suit the new task best."""
import jax

from alma_jax import keys
from alma_jax.learners import neighbors, stacked
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.paths import Paths, Proposal
from alma_jax.training import loop
from alma_jax.types import Variables


class Select(Paths):
  """The stored network with the best features, trained further; or a fresh one, if its random features are better."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    num_stored = len(state.spec["tasks"])
    if not num_stored:
      return Proposal([self.scratch()], [], [-1], 0, {})
    train, val = neighbors.examples(data, self.options.max_train, self.options.max_val)
    stored = [self.variables(state, t) for t in range(num_stored)]
    scores = [neighbors.accuracy(self._whole, self._task, self.mesh, variables, data, train, val,
                                 self.options.neighbors) for variables in (*stored, self._fresh(data))]
    best = max(range(-1, num_stored), key=lambda t: (scores[t], t))  # the last score, -1, is that of the fresh one
    width = stored[0].params[self.parts[-1]]["kernel"].shape[-1]
    spent = len(scores) * neighbors.macs(self._whole, self._shape, len(train), len(val), width)
    candidate = self.scratch() if best < 0 else self.tuned(state, best)
    return Proposal([candidate], [], [best], spent, {"scores": scores})

  def _fresh(self, data: loop.StageData) -> Variables:
    """The network that would be trained from scratch, by the first pair."""
    raw = keys.member_keys(data.seed, data.stage, keys.INIT, 1)
    made = stacked.initialized(self._whole, raw, self.context.example)
    return Variables(*jax.tree.map(lambda leaf: leaf[0], made))
