"""gEns: an ensemble that grows by k members a stage; old ones are frozen (§2)."""
from alma_jax.learners import stacked


def make(context):
  """Learner of a base.Context.

  New members start as copies of the last ones (the authors' vision code, where
  members thus are successive checkpoints of one model) or from scratch.
  """
  options = context.config.learner

  def grow(state, fresh):
    live = state.live if options.init == "copy" else fresh()
    frozen = (*state.frozen, state.live)
    return state._replace(spec={"num_frozen": len(frozen)}, live=live, frozen=frozen)

  return stacked.make(context, context.network(), options.combine, grow=grow)
