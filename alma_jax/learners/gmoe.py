"""gMoE: a mixture of experts that splits the experts that lose most (§3); `moe` stays as it is."""
import functools

import numpy as np

from alma_jax import cost, keys, models, sharding
from alma_jax.growth import split
from alma_jax.learners import stacked
from alma_jax.learners.base import GrowthReport
from alma_jax.models import moe
from alma_jax.types import Cost


def make(context):
  """Learner of a base.Context.

  Every `grow_every` stages, before training, one expert of every mixture layer
  is split in two: the one that answers for most of the validation loss at the
  end of the stage before (`split_by`: or is used most, or any). The optimiser
  starts afresh at every stage unless `keep_optimizer`.
  """
  c = context.config
  options, shape = c.learner, (1, *context.example_shape)
  mixture = functools.partial(context.network, gating=options.gating)
  layers = mixture(size=1).module.mixtures

  def network_of(spec):
    return mixture(size=moe.capacity(num_experts(spec)))

  def grow(state, data, fresh):
    del fresh
    if not data.stage or data.stage % options.grow_every:
      return state, GrowthReport()
    splits = {layer: [*state.spec["splits"][layer], choose(state.spec, layer, data)] for layer in layers}
    spec = {**state.spec, "splits": splits}
    rng = keys.rng(data.seed, keys.GATES, data.stage)
    shapes, (live, opt) = learner.template(spec), sharding.fetch((state.live, state.opt))
    if opt is not None:
      opt = split.grow_optimizer(opt, shapes.opt, live.params, splits)
    live = split.grow(live, shapes.live, splits, rng)
    macs = cost_of(state.spec).fwd_macs * state.spec["scored"] if options.split_by != "random" else 0
    live, opt = sharding.put((live, opt), learner.mesh)
    return state._replace(spec=spec, live=live, opt=opt), GrowthReport(macs)

  def choose(spec, layer, data):
    if options.split_by == "random":
      rng = keys.rng(data.seed, keys.SPLIT, data.stage, layers.index(layer))
      return int(rng.integers(num_experts(spec)))
    score = spec["scores"].get(layer, {options.split_by: [0.0]})[options.split_by]
    return int(np.argmax(score[:num_experts(spec)]))

  def finish(state, fit_state):
    state, report = learner.finish(state, fit_state)
    data = fit_state.data
    scores = split.scores(fit_state.spec, state.live, data.pool, data.val)
    return state._replace(spec={**state.spec, "scores": scores, "scored": len(data.val)}), report

  def cost_of(spec):
    """Of the experts that there are; every one costs the same."""
    one, two = (_cost(mixture(size=size), shape) for size in (1, 2))
    num, macs, flops = (a + (num_experts(spec) - 1) * (b - a) for a, b in zip(one, two))
    return Cost(num, macs, flops, macs)

  start = moe.balanced(c.model.num_experts)
  split_one = grow if options.name == "gmoe" else None
  learner = stacked.make(context, network_of, "logits", grow=split_one, dress=split.plant,
                         spec={"splits": {layer: start for layer in layers}, "scores": {}, "scored": 0})
  return learner._replace(finish=finish, cost=lambda state: cost_of(state.spec), describe=describe)


def describe(spec):
  """Text tree of the gates of every mixture layer, with each expert's shares on the last validation data.

  `use`: of the sum of the experts' weights; `loss`: of the summed cross-entropy, each example's going to the expert
  of the largest weight.
  """
  lines = []
  for layer, splits in spec["splits"].items():
    lines.append(f"{layer}, experts: {num_experts(spec)}")
    scores = spec["scores"].get(layer)

    def leaf(expert, scores=scores):
      if scores is None:
        return f"expert {expert}"
      shares = (scores[key][expert] / max(sum(scores[key]), 1e-30) for key in ("usage", "loss"))
      return "expert {}  use {:.1%}  loss {:.1%}".format(expert, *shares)

    lines += _drawn(moe.nested(splits), leaf)
  return "\n".join(lines)


def _drawn(node, leaf, indent="  "):
  if isinstance(node, int):
    return [indent + leaf(node)]
  gate, left, right = node
  return [f"{indent}gate {gate}", *_drawn(left, leaf, indent + "  "), *_drawn(right, leaf, indent + "  ")]


def num_experts(spec):
  """Experts in every mixture layer."""
  return len(next(iter(spec["splits"].values()))) + 1


def _cost(network, shape):
  """(parameters, forward multiply-adds, training flops) of a network with all its room taken."""
  module = network.module.clone(gating="soft")  # the argmax of hard gates would hide their gradient
  network = models.Network(module)
  params = models.count_params(cost.abstract_variables(network, shape).params)
  # Products with the tree, which is no parameter: [G, 2] times [E, G, 2], forward and once backward.
  tree = len(module.mixtures) * 2 * module.size * (module.size - 1)
  return params, cost.forward_macs(network, shape) - tree, cost.training_flops(network, shape) - 2 * 2 * tree
