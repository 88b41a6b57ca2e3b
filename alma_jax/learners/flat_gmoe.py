"""gMoE of language models: Switch Transformers whose flat mixtures duplicate experts (§5)."""
import numpy as np

from alma_jax import keys, sharding
from alma_jax.growth import duplicate
from alma_jax.learners import stacked
from alma_jax.learners.base import GrowthReport


def make(context):
  """Learner of a base.Context.

  Before stage s = 1, 2, ... every mixture gets `add_experts[s - 1]` experts more:
  copies of those whose tokens had the largest summed validation loss at the end
  of the stage before.
  """
  c = context.config
  options = c.learner

  def network_of(spec):
    return context.network(size=spec["num_experts"])

  def grow(state, data, fresh):
    del fresh
    num = options.add_experts[data.stage - 1] if 0 < data.stage <= len(options.add_experts) else 0
    if not num:
      return state, GrowthReport()
    chosen = {layer: np.argsort(-np.array(losses), kind="stable")[:num]
              for layer, losses in state.spec["scores"].items()}
    rng = keys.rng(data.seed, keys.GATES, data.stage)
    live = duplicate.grow(sharding.fetch(state.live), chosen, options.copies == "offset", options.noise, rng)
    macs = learner.cost(state).fwd_macs * state.spec["scored"]
    spec = {**state.spec, "num_experts": state.spec["num_experts"] + num, "scores": {}}
    return state._replace(spec=spec, live=sharding.put(live, learner.mesh)), GrowthReport(macs)

  def finish(state, fit_state):
    state, report = learner.finish(state, fit_state)
    data = fit_state.data
    scores = duplicate.scores(fit_state.spec, state.live, data.val_pool, data.val)
    return state._replace(spec={**state.spec, "scores": scores, "scored": len(data.val)}), report

  first = {"num_experts": c.model.num_experts, "scores": {}, "scored": 0}
  learner = stacked.make(context, network_of, "probabilities", grow=grow, spec=first)
  return learner._replace(finish=finish, describe=describe)


def describe(spec):
  """Text for people: every mixture's experts and their shares of the last validation loss."""
  lines = []
  for layer, losses in spec["scores"].items():
    lines.append(f"{layer}, experts: {len(losses)}")
    lines += [f"  expert {i}  loss {loss / max(sum(losses), 1e-30):.1%}" for i, loss in enumerate(losses)]
  return "\n".join(lines) or f"experts of every mixture: {spec['num_experts']}"
