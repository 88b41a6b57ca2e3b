"""gEns: an ensemble that grows by k members a stage; old ones are frozen (§2)."""
from alma_jax.learners import stacked
from alma_jax.learners.base import GrowthReport


def make(context, emphasis=None):
  """Learner of a base.Context.

  New members start as copies of the last ones (the authors' vision code, where
  members thus are successive checkpoints of one model) or from scratch.

  Args:
    context: Context of the run.
    emphasis: see stacked.make.
  """
  options = context.config.learner

  def grow(state, data, fresh):
    if not data.stage:
      return state, GrowthReport()
    return stacked.append(state, state.live if options.init == "copy" else fresh(state.spec)), GrowthReport()

  return stacked.make(context, context.network(), options.combine, grow=grow, final=True, emphasis=emphasis)
