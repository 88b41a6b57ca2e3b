"""Firefly (FF): one network whose layers widen where that helps most (docs/algorithms.md §4)."""
import bisect
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax import keys, models
from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.errors import BadInput
from alma_jax.growth import surgery, widen
from alma_jax.learners.contract import Context, GrowthReport, LearnerState
from alma_jax.learners.stacked import Stacked
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import batching, loop
from alma_jax.types import Variables


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """Firefly: growth widens the layers, by splitting neurons and adding new ones where that lowers the loss most."""
  name: str = "ff"
  grow_every: int = field(1, sections.GROW_EVERY, at_least=1)
  growth_rate: float = field(0.25, "how much a growth adds, as a multiple of the initial number", above=0)
  growth_of: str = field(
      "neurons", "what `growth_rate` counts: `neurons` (authors' code) or `parameters` (paper)",
      choices=("neurons", "parameters"))
  num_candidates: int = field(
      0, "candidates for new neurons in each layer; 0: as many as `model.width`; authors' code: 70", at_least=0)
  grow_depth: bool = field(False, "growth may also add residual layers")
  score_points: int = field(2, "strengths at which candidates are scored", at_least=1)
  score_batches: int = field(8, "batches on which candidates are scored", at_least=1)
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  def make(self, context: Any) -> Any:
    return Firefly(context)


class Firefly(Stacked):
  """Every `grow_every` stages, before training, the layers are widened by `growth_rate` times their size at the start.

  The size is the number of neurons, or of parameters; the number of added neurons is the one that comes closest.

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
    start = context.config.model.first_widths
    self._num_candidates = options.num_candidates or context.config.model.width
    super().__init__(context)
    size, all_of_them = self._size(self.facts()), [2 * width + self._num_candidates for width in start]
    most = self._size({"widths": all_of_them, "residuals": [options.grow_depth * self._num_candidates] * len(start)})
    self._target = options.growth_rate * size
    if options.growth_of == "neurons":
      self._target = round(self._target)
    if not self._target:
      raise BadInput(f"learner.growth_rate={options.growth_rate} of {size} neurons rounds to 0, so "
                     "growth would add no neurons; raise it.")
    if self._target > most - size:
      raise BadInput(f"learner.growth_rate={options.growth_rate} of {size} {options.growth_of} exceeds the "
                     f"{most - size} that all splits and candidates can add in the first growth; raise "
                     f"learner.num_candidates={self._num_candidates}.")

  def facts(self) -> dict[str, Any]:
    start = self.context.config.model.first_widths
    return {"widths": list(start), "residuals": [0] * len(start)}

  def init(self) -> LearnerState:
    return super().init()._replace(host={"grown": []})

  def network(self, spec: dict[str, Any]) -> Any:
    return self.context.network(widths=tuple(spec["widths"]), residuals=tuple(spec["residuals"]))

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage or data.stage % self.options.grow_every:
      return state, GrowthReport()
    batch = self.context.config.train.batch_size
    chain, directions, scores = search(self.network(state.spec), self._problem, state.live, data, batch, self.options,
                                       self._num_candidates, self.mesh)
    picks = self._select(state.spec, scores)
    variables, _, _ = surgery.put_together(surgery.operate(chain, directions, picks))
    added, spec = [sum(map(len, kind)) for kind in zip(*picks)], _widened(state.spec, picks)
    if variables.stats:
      variables = refreshed(self.network(spec), self._problem, sharding.put(variables, self.mesh), data, batch)
    live = sharding.put(jax.tree.map(lambda leaf: leaf[None], variables), self.mesh)
    host = {**state.host, "grown": [*state.host["grown"], [data.stage, *added]]}
    report = GrowthReport(*self._price(state.spec, spec, len(data.train), bool(variables.stats)))
    return state._replace(spec=spec, live=live, host=host), report

  def _select(self, spec: dict[str, Any], scores: Any) -> list[surgery.Picks]:
    """The picks whose growth is closest to the target, at least one; in a tie, the fewer."""
    before, most = self._size(spec), sum(int((leaf < 0).sum()) for leaf in jax.tree.leaves(scores))
    added = lambda number: self._size(_widened(spec, widen.select(scores, number))) - before
    number = min(bisect.bisect_left(range(most + 1), self._target, key=added), most)
    if number > 1 and self._target - added(number - 1) <= added(number) - self._target:
      number -= 1
    return widen.select(scores, number)

  def _size(self, spec: dict[str, Any]) -> int:
    """The neurons or the parameters of a network."""
    if self.options.growth_of == "neurons":
      return sum(spec["widths"]) + sum(spec["residuals"])
    return models.count_params(cost.abstract_variables(self.network(spec), self._shape).params)

  def _price(self, before: dict[str, Any], after: dict[str, Any], num: int, refreshes: bool) -> tuple[int, int]:
    """Multiply-adds of forward passes and flops of a growth with `num` training examples.

    `refreshes`: whether the statistics of batch norm are computed again.
    """
    options, config = self.options, self.context.config
    forward, train, score = _search_costs(self.network(before), self._num_candidates, options.grow_depth, self._shape)
    scored = options.score_points * min(num, options.score_batches * config.train.batch_size)
    again = num * cost.forward_macs(self.network(after), self._shape) if refreshes else 0
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


def _widened(spec: dict[str, Any], picks: list[surgery.Picks]) -> dict[str, Any]:
  """The spec of a network with the picked neurons."""
  widths = [width + len(splits) + len(news) for width, (splits, news, _) in zip(spec["widths"], picks)]
  return {**spec, "widths": widths, "residuals": [n + len(pick[2]) for n, pick in zip(spec["residuals"], picks)]}


def search(network: Any, problem: Any, live: Variables, data: loop.StageData, batch: int, options: Options, num: int,
           mesh: Mesh) -> tuple[Any, Any, Any]:
  """Trains directions and scores them.

  Returns:
    (chain, directions, scores) on the host, see growth.widen.
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
    directions, state = widen.train_directions(module, problem, chain, directions, state, data.pool, *place(part))
  for part in batching.padded(data.train[:options.score_batches * batch], batch):
    part = place(part)
    for z in range(options.score_points):
      strength = np.float32((2 * z + 1) / (2 * options.score_points))
      total = widen.add_slopes(module, problem, chain, directions, total, data.pool, *part, strength)
  return sharding.agree(sharding.fetch((chain, directions, total)))


def refreshed(network: Any, problem: Any, variables: Variables, data: loop.StageData, batch: int) -> Variables:
  """The variables with batch-norm statistics estimated anew, in one pass over the training data."""
  network = dataclasses.replace(network, module=network.module.clone(axis=None))
  rng = keys.rng(data.seed, keys.REFRESH, data.stage)
  for part in batching.padded(rng.permutation(data.train), batch):
    variables = variables._replace(stats=widen.refresh_stats(network, problem, variables, data.pool, *part))
  return sharding.agree(sharding.fetch(variables))


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
