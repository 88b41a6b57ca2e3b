"""gMoE of language models: Switch Transformers whose flat mixtures duplicate experts (§5)."""
import numpy as np

from alma_jax import keys, sharding
from alma_jax.growth import duplicate
from alma_jax.learners import stacked
from alma_jax.learners.base import GrowthReport


def make(context):
  """Learner of a base.Context.

  Before stage s = 1, 2, ... every mixture gets `add_experts[s - 1]` experts more:
  copies of those whose tokens have the largest summed loss on the validation
  text, which is passed through the network once for that.
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
    losses = duplicate.scores(network_of(state.spec), context.task, state.live, data.val_pool, data.val, learner.mesh)
    chosen = {layer: np.argsort(-np.array(scores), kind="stable")[:num] for layer, scores in losses.items()}
    rng = keys.rng(data.seed, keys.GATES, data.stage)
    live = duplicate.grow(sharding.fetch(state.live), chosen, options.copies == "offset", options.noise, rng)
    macs = learner.cost(state).fwd_macs * len(data.val)
    grown = dict(stage=data.stage, losses=losses, chosen={layer: e.tolist() for layer, e in chosen.items()})
    spec = {**state.spec, "num_experts": state.spec["num_experts"] + num, "growth": [*state.spec["growth"], grown]}
    return state._replace(spec=spec, live=sharding.put(live, learner.mesh)), GrowthReport(macs)

  first = {"num_experts": c.model.num_experts, "growth": []}
  learner = stacked.make(context, network_of, "probabilities", grow=grow, spec=first)
  return learner._replace(describe=describe)


def describe(spec):
  """Text for people: how many experts there are, and which were duplicated for which share of the loss."""
  lines = [f"experts of every mixture: {spec['num_experts']}"]
  for growth in spec["growth"]:
    for layer, losses in growth["losses"].items():
      share = lambda e, losses=losses: f"{e} ({losses[e] / max(sum(losses), 1e-30):.1%} of the loss)"
      shares = ", ".join(map(share, growth["chosen"][layer]))
      lines.append(f"before stage {growth['stage']}, {layer}: of {len(losses)} experts duplicated {shares}")
  return "\n".join(lines)
