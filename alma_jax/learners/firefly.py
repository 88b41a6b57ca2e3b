"""Firefly (FF): one network whose layers widen where that helps most (docs/algorithms.md §4)."""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax import keys, models
from alma_jax.config import schema
from alma_jax.config.learner_options import FF
from alma_jax.errors import BadInput
from alma_jax.growth import surgery, widen
from alma_jax.learners.contract import Context, GrowthReport, LearnerState
from alma_jax.learners.stacked import Stacked
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import batching, loop
from alma_jax.types import Variables


class Firefly(Stacked):
  """Every `grow_every` stages, before training, round(growth_rate N_0) neurons are added; N_0 are those at the start.

  Directions are trained for an epoch on the stage's training data and scored on up to `score_batches` batches of it at
  `score_points` strengths. Those with the most negative scores over all layers are added. Each layer has
  `num_candidates` candidates for new neurons (the authors' code: 70); 0 stands for its number of neurons at the start.
  With `grow_depth` it has as many candidates for a residual layer behind it, which exists once one of them is added.
  """

  def __init__(self, context: Context):
    """Raises:
      BadInput: the images do not end at one pixel, no neuron would ever be added, or more than there are candidates.
    """
    options: Any = context.config.learner
    start = _first_widths(context)
    self._num_candidates = options.num_candidates or context.config.model.width
    self._number = round(options.growth_rate * sum(start))
    most = sum(start) + len(start) * self._num_candidates * (1 + options.grow_depth)
    if self._number < 1:
      raise BadInput(f"learner.growth_rate={options.growth_rate} of {sum(start)} neurons is rounded to 0, so "
                     "that growth would add no neuron; raise it.")
    if self._number > most:
      raise BadInput(f"learner.growth_rate={options.growth_rate} of {sum(start)} neurons adds {self._number} at a "
                     f"time, but the first growth has only {most} splits and candidates; raise "
                     f"learner.num_candidates={self._num_candidates}.")
    super().__init__(context)

  def facts(self) -> dict[str, Any]:
    start = _first_widths(self.context)
    return {"widths": list(start), "residuals": [0] * len(start)}

  def init(self) -> LearnerState:
    return super().init()._replace(host={"grown": []})

  def network(self, spec: dict[str, Any]) -> Any:
    return self.context.network(widths=tuple(spec["widths"]), residuals=tuple(spec["residuals"]))

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage or data.stage % self.options.grow_every:
      return state, GrowthReport()
    batch = self.context.config.train.batch_size
    chain, directions, picks = search(self.network(state.spec), self._task, state.live, data, batch, self.options,
                                      self._num_candidates, self._number, self.mesh)
    variables, widths, residuals = surgery.put_together(surgery.operate(chain, directions, picks))
    added = [sum(map(len, kind)) for kind in zip(*picks)]
    spec = {**state.spec, "widths": list(widths), "residuals": list(residuals)}
    if variables.stats:
      variables = refreshed(self.network(spec), self._task, sharding.put(variables, self.mesh), data, batch)
    live = sharding.put(jax.tree.map(lambda leaf: leaf[None], variables), self.mesh)
    host = {**state.host, "grown": [*state.host["grown"], [data.stage, *added]]}
    report = GrowthReport(*self._price(state.spec, spec, len(data.train)))
    return state._replace(spec=spec, live=live, host=host), report

  def _price(self, before: dict[str, Any], after: dict[str, Any], num: int) -> tuple[int, int]:
    """Multiply-adds of forward passes and flops of a growth with `num` training examples."""
    options, config = self.options, self.context.config
    forward, train, score = _search_costs(self.network(before), self._num_candidates, options.grow_depth, self._shape)
    scored = options.score_points * min(num, options.score_batches * config.train.batch_size)
    again = num * cost.forward_macs(self.network(after), self._shape) if config.model.name == "vgg" else 0
    return (num + scored) * forward + again, num * train + scored * score + 2 * again

  def describe(self, state: LearnerState) -> str:
    """What each growth added, over all layers, and the widths now."""
    lines = []
    for stage, splits, news, deeps in state.host["grown"]:
      deeper = f", {deeps} in residual layers" if deeps else ""
      lines.append(f"stage {stage}, neurons: {splits} split, {news} new{deeper}")
    lines.append("widths " + " ".join(map(str, state.spec["widths"])))
    if any(state.spec["residuals"]):
      lines.append("residual layers behind them " + " ".join(map(str, state.spec["residuals"])))
    return "\n".join(lines)


def _first_widths(context: Context) -> tuple[int, ...]:
  """Widths of the hidden layers at the start."""
  model = context.config.model
  assert isinstance(model, schema.Model)
  return models.first_widths(model)


def search(network: Any, task: Any, live: Variables, data: loop.StageData, batch: int, options: FF, num: int,
           number: int, mesh: Mesh) -> tuple[Any, Any, Any]:
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
  for part in batching.padded(rng.permutation(data.train), batch):
    directions, state = widen.train_directions(module, task, chain, directions, state, data.pool, *place(part))
  for part in batching.padded(data.train[:options.score_batches * batch], batch):
    part = place(part)
    for z in range(options.score_points):
      strength = np.float32((2 * z + 1) / (2 * options.score_points))
      total = widen.add_slopes(module, task, chain, directions, total, data.pool, *part, strength)
  chain, directions, total = sharding.agree_on(sharding.fetch((chain, directions, total)))
  return chain, directions, widen.select(total, number)


def refreshed(network: Any, task: Any, variables: Variables, data: loop.StageData, batch: int) -> Variables:
  """The variables with batch-norm statistics estimated anew, in one pass over the training data."""
  network = dataclasses.replace(network, module=network.module.clone(axis=None))
  rng = keys.rng(data.seed, keys.REFRESH, data.stage)
  for part in batching.padded(rng.permutation(data.train), batch):
    variables = variables._replace(stats=widen.refresh_stats(network, task, variables, data.pool, *part))
  return sharding.agree_on(sharding.fetch(variables))


@functools.lru_cache(maxsize=64)
def _search_costs(network: Any, num: int, depth: bool, shape: tuple[int, ...]) -> tuple[int, int, int]:
  """Per example: multiply-adds of the moved network, flops of a step of the directions, of a score."""
  module = network.module
  chain = jax.eval_shape(functools.partial(surgery.take_apart, module), cost.abstract_variables(network, shape))
  directions = widen.draw(np.random.default_rng(0), chain, num, depth)
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  steps = jax.eval_shape(lambda: widen.strengths(directions, 1.0))
  run = lambda directions, steps, chain, x: widen.forward(module, chain, directions, steps, x).sum()
  count = lambda fn: cost.count(fn, directions, steps, chain, x)
  return count(run), 2 * count(jax.grad(run)), 2 * count(jax.grad(run, 1))
