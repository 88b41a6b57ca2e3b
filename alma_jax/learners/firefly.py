"""Firefly (FF): one network whose layers widen where that helps most (docs/algorithms.md §4)."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import cost, keys, models, sharding
from alma_jax.errors import BadInput
from alma_jax.growth import surgery, widen
from alma_jax.learners import stacked
from alma_jax.learners.base import GrowthReport


def make(context):
  """Learner of a base.Context.

  Every `grow_every` stages, before training, round(growth_rate N_0) neurons are
  added, N_0 the neurons at the start: directions are trained for an epoch on the
  stage's training data, scored on up to `score_batches` batches of it at
  `score_points` strengths, and the best of all layers together are taken, if
  they promise a smaller loss. Each layer has `num_candidates` for new neurons
  (the authors: 70); 0: as many as neurons at the start. With `grow_depth` there
  are as many for a residual layer behind it, which is there once one was taken.

  Raises:
    BadInput: the images do not end at one pixel, no neuron would ever be added,
      or more than there are to choose from.
  """
  c = context.config
  options, shape = c.learner, (1, *context.example_shape)
  start = models.first_widths(c.model)
  num_candidates = options.num_candidates or c.model.width
  number = round(options.growth_rate * sum(start))
  most = sum(start) + len(start) * num_candidates * (1 + options.grow_depth)
  if number < 1:
    raise BadInput(f"learner.growth_rate={options.growth_rate} of {sum(start)} neurons adds none, in the whole stream.")
  if number > most:
    raise BadInput(f"learner.growth_rate={options.growth_rate} of {sum(start)} neurons adds {number} at a time, but "
                   f"splits and candidates are {most} at first; raise learner.num_candidates={num_candidates}.")

  def network_of(spec):
    return context.network(widths=tuple(spec["widths"]), residuals=tuple(spec["residuals"]))

  def grow(state, data, fresh):
    del fresh
    if not data.stage or data.stage % options.grow_every:
      return state, GrowthReport()
    chain, directions, picks = search(network_of(state.spec), context.task, state.live, data, c.train.batch_size,
                                      options, num_candidates, number, learner.mesh)
    variables, widths, residuals = surgery.put_together(surgery.operate(chain, directions, picks))
    added = [sum(map(len, kind)) for kind in zip(*picks)]
    spec = {**state.spec, "widths": list(widths), "residuals": list(residuals),
            "grown": [*state.spec["grown"], [data.stage, *added]]}
    if variables.stats:
      variables = refreshed(network_of(spec), context.task, sharding.put(variables, learner.mesh), data,
                            c.train.batch_size)
    live = sharding.put(jax.tree.map(lambda leaf: leaf[None], variables), learner.mesh)
    return state._replace(spec=spec, live=live), GrowthReport(*price(state.spec, spec, len(data.train)))

  def price(before, after, num):
    """Multiply-adds of forward passes and flops of a growth with `num` training examples."""
    forward, train, score = _search_costs(network_of(before), num_candidates, options.grow_depth, shape)
    scored = options.score_points * min(num, options.score_batches * c.train.batch_size)
    again = num * cost.forward_macs(network_of(after), shape) if c.model.name == "vgg" else 0
    return (num + scored) * forward + again, num * train + scored * score + 2 * again

  learner = stacked.make(context, network_of, "logits", grow=grow,
                         spec={"widths": list(start), "residuals": [0] * len(start), "grown": []})
  return learner._replace(describe=describe)


def describe(spec):
  """Text: what each growth added, over all layers, and the widths now."""
  lines = []
  for stage, splits, news, deeps in spec["grown"]:
    deeper = f", {deeps} in residual layers" if deeps else ""
    lines.append(f"stage {stage}, neurons: {splits} split, {news} new{deeper}")
  lines.append("widths " + " ".join(map(str, spec["widths"])))
  if any(spec["residuals"]):
    lines.append("residual layers behind them " + " ".join(map(str, spec["residuals"])))
  return "\n".join(lines)


def search(network, task, live, data, batch, options, num, number, mesh):
  """Trains directions, scores and picks neurons.

  Returns:
    (chain, directions, picks) on the host, see growth.widen.
  """
  module = network.module
  rng = keys.rng(data.seed, keys.SEARCH, data.stage)
  chain = surgery.take_apart(module, jax.tree.map(lambda leaf: leaf[0], sharding.fetch(live)))
  directions = widen.draw(rng, chain, num, options.grow_depth)
  place = functools.partial(sharding.put, mesh=mesh)
  state = widen.optimizer_state(directions)
  total = jax.tree.map(np.asarray, widen.strengths(directions, 0.0))
  chain, directions, state, total = place((chain, directions, state, total))
  for part in widen.batches(rng.permutation(data.train), batch):
    directions, state = widen.train_directions(module, task, chain, directions, state, data.pool, *place(part))
  for part in widen.batches(data.train[:options.score_batches * batch], batch):
    part = place(part)
    for z in range(options.score_points):
      strength = np.float32((2 * z + 1) / (2 * options.score_points))
      total = widen.add_slopes(module, task, chain, directions, total, data.pool, *part, strength)
  chain, directions, total = sharding.agree_on(sharding.fetch((chain, directions, total)))
  return chain, directions, widen.select(total, number)


def refreshed(network, task, variables, data, batch):
  """The variables with batch-norm statistics estimated anew, in one pass over the training data."""
  network = dataclasses.replace(network, module=network.module.clone(axis=None))
  rng = keys.rng(data.seed, keys.REFRESH, data.stage)
  for part in widen.batches(rng.permutation(data.train), batch):
    variables = variables._replace(stats=widen.refresh_stats(network, task, variables, data.pool, *part))
  return sharding.agree_on(sharding.fetch(variables))


@functools.lru_cache(maxsize=64)
def _search_costs(network, num, depth, shape):
  """Per example: multiply-adds of the moved network, flops of a step of the directions, of a score."""
  module = network.module
  chain = jax.eval_shape(functools.partial(surgery.take_apart, module), cost.abstract_variables(network, shape))
  directions = widen.draw(np.random.default_rng(0), chain, num, depth)
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  steps = jax.eval_shape(lambda: widen.strengths(directions, 1.0))
  run = lambda directions, steps, chain, x: widen.forward(module, chain, directions, steps, x).sum()
  count = lambda fn: cost.count(fn, directions, steps, chain, x)
  return count(run), 2 * count(jax.grad(run)), 2 * count(jax.grad(run, 1))
