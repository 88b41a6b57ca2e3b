"""gEns: an ensemble that grows by k members a stage; old ones are frozen (§2)."""
from alma_jax.learners import stacked
from alma_jax.learners.contract import GrowthReport, LearnerState
from alma_jax.training import loop


class GEns(stacked.Stacked):
  """Every stage trains `members_per_stage` new members.

  New members start as copies of the last ones (`init="copy"`, as in the authors' code for images; members are then
  successive checkpoints of one model) or from scratch.
  """
  freezes = True

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage:
      return state, GrowthReport()
    return self.append(state, state.live), GrowthReport(repeat=True)
