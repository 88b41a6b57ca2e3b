"""gMoE: a mixture of experts that splits the experts with the largest loss (§3); `moe` does not grow."""
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from alma_jax import keys, models
from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.errors import BadInput
from alma_jax.growth import split
from alma_jax.learners import prediction
from alma_jax.learners.contract import GrowthReport, LearnerState, StageResult
from alma_jax.learners.stacked import Stacked, initialized
from alma_jax.models import cost, moe
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Cost, Tree, Variables


@register
@dataclasses.dataclass(frozen=True)
class MoEOptions(sections.Options):
  """A mixture of experts in each hidden layer of the MLP, or in blocks 2 to 5 of the VGG, behind a tree of gates."""
  name: str = "moe"
  gating: str = field(
      "soft", "all experts contribute by their weights (`soft`), or gates choose one (`hard`)",
      choices=("soft", "hard"))
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  defaults: ClassVar = {"model.num_experts": 4}
  has_experts = True

  def make(self, context: Any) -> Any:
    return MoE(context)


@register
@dataclasses.dataclass(frozen=True)
class GMoEOptions(MoEOptions):
  """A growing mixture of experts: growth splits one expert of each mixture in two."""
  name: str = "gmoe"
  grow_every: int = field(1, sections.GROW_EVERY, at_least=1)
  split_by: str = field(
      "loss", "split the expert with the largest summed validation `loss` or the largest `usage`, or a `random` one",
      choices=("loss", "usage", "random"))
  keep_optimizer: bool = field(
      False, "keep the optimiser's moments from stage to stage; the halves of a split expert get those of their parent")

  defaults: ClassVar = {"model.num_experts": 1}
  adds_experts: ClassVar[bool] = True

  def check(self, config: Any) -> None:
    super().check(config)
    if self.keep_optimizer and not config.train.optimizer.mirrors:
      raise BadInput(f"learner.keep_optimizer=True cannot split the state of train.optimizer="
                     f"{config.train.optimizer.name}; use another optimiser, or set it False.")

  def make(self, context: Any) -> Any:
    return GMoE(context)


@functools.partial(jax.jit, static_argnames="network")
def _weights(network: Any, variables: Variables, x: Any) -> dict[str, Any]:
  """The weights of the experts of one network, {mixture: float32 [B, E]}."""
  return moe.route(network, variables, x)[1]


class MoE(Stacked):
  """A mixture of `model.num_experts` experts in every mixture layer."""

  def facts(self) -> dict[str, Any]:
    num = self.context.config.model.num_experts
    return {"splits": dict.fromkeys(self._mixture(1).module.mixtures, moe.balanced(num)), "size": self._size(num)}

  def init(self) -> LearnerState:
    return super().init()._replace(host={"scores": {}, "scored": 0})

  def network(self, spec: dict[str, Any]) -> Any:
    return self._mixture(spec["size"])

  def dress(self, variables: Variables, spec: dict[str, Any]) -> Variables:
    return split.plant(variables, spec["splits"])

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    result = super().finish(state, data, trained)
    scores = split.scores(self.fit_spec(state.spec), result.state.predicting, data.pool, data.val)
    return result._replace(state=result.state._replace(host={"scores": scores, "scored": len(data.val)}))

  def packed(self, state: LearnerState) -> LearnerState:
    """As in Stacked, without the room for more experts."""
    state = super().packed(state)
    spec = {**state.spec, "size": num_experts(state.spec)}
    return state._replace(spec=spec, live=split.without_room(sharding.fetch(state.live), self.template(spec).live))

  def cost(self, state: LearnerState) -> Cost:
    """Cost of the experts in use. All experts of a layer cost the same."""
    one, two = (_cost(self._mixture(size), self._shape, self.context.config.train) for size in (1, 2))
    num, macs, flops = (a + (num_experts(state.spec) - 1) * (b - a) for a, b in zip(one, two))
    return Cost(num * state.num_held, macs, flops, macs * self.context.num_views)

  def router(self, state: LearnerState) -> Callable[[Tree], dict[str, np.ndarray]] | None:
    network, num = self.network(state.spec), num_experts(state.spec)
    one = jax.tree.map(lambda leaf: leaf[0], state.predicting)

    def weights(pool: Tree) -> dict[str, np.ndarray]:
      found = prediction.in_batches(functools.partial(_weights, network, one), self._problem, self.mesh, pool)
      return {layer: np.asarray(found[layer])[:, :num] for layer in network.module.mixtures}

    return weights if num > 1 else None

  def describe(self, state: LearnerState) -> str:
    """Text tree of the gates of every mixture layer, with each expert's shares on the last validation data.

    `use`: of the sum of the experts' weights. `loss`: of the summed cross-entropy, where an example counts for the
    expert with the largest weight.
    """
    lines = []
    for layer, splits in state.spec["splits"].items():
      lines.append(f"{layer}, experts: {num_experts(state.spec)}")
      lines += _drawn(moe.nested(splits), _leaf(state.host["scores"].get(layer)))
    return "\n".join(lines)

  def _size(self, num: int) -> int:
    """How many experts a layer of `num` has room for."""
    return num

  def _mixture(self, size: int) -> Any:
    return self.context.network(gating=self.options.gating, size=size)


class GMoE(MoE):
  """Every `grow_every` stages, before training, one expert of every mixture layer is split in two.

  It is the expert with the largest summed validation loss at the end of the stage before (`split_by="loss"`), the one
  that is used most ("usage"), or a random one ("random"). The optimiser starts afresh at every stage unless
  `keep_optimizer` is set.
  """

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage or data.stage % self.options.grow_every:
      return state, GrowthReport()
    layers = self._mixture(1).module.mixtures
    splits = {layer: [*state.spec["splits"][layer], self._choose(state, layer, data)] for layer in layers}
    spec = {**state.spec, "splits": splits, "size": max(state.spec["size"], self._size(num_experts(state.spec) + 1))}
    rng = keys.rng(data.seed, keys.GATES, data.stage)
    shapes, (live, opt) = self.template(spec), sharding.fetch((state.live, state.opt))
    if opt is not None:
      opt = split.grow_optimizer(opt, shapes.opt, live.params, splits)
    live = split.grow(live, shapes.live, splits, rng)
    macs = self.cost(state).fwd_macs * state.host["scored"] if self.options.split_by != "random" else 0
    live, opt = sharding.put((live, opt), self.mesh)
    return state._replace(spec=spec, live=live, opt=opt), GrowthReport(macs)

  def planned_cost(self, state: LearnerState, stage: int) -> Cost:
    more = [0] * (stage // self.options.grow_every)  # whichever experts are split
    splits = {layer: [*before, *more] for layer, before in state.spec["splits"].items()}
    return self.cost(state._replace(spec={**state.spec, "splits": splits}))

  def fresh(self, stage: int, spec: dict[str, Any]) -> Variables:
    """As in Stacked. What is drawn does not depend on the room for more experts, which a live stream does not know."""
    num = num_experts(spec)
    if spec["size"] == num:
      return super().fresh(stage, spec)
    raw = keys.member_keys(self.context.config.seed, stage, keys.INIT, self.num_members(spec))
    made, whole = (functools.partial(initialized, self._mixture(size)) for size in (num, spec["size"]))
    shapes = jax.eval_shape(whole, raw, self.context.example)
    room = split.with_room(sharding.fetch(made(raw, self.context.example)), shapes, spec["splits"])
    return sharding.put(self.dress(room, spec), self.mesh)

  def _size(self, num: int) -> int:
    config = self.context.config
    num_growths = (len(config.stream.expected_ends) - 1) // self.options.grow_every
    return moe.capacity(num, config.model.num_experts + num_growths)

  def _choose(self, state: LearnerState, layer: str, data: loop.StageData) -> int:
    """The expert of a layer that is split."""
    if self.options.split_by == "random":
      number = self._mixture(1).module.mixtures.index(layer)
      return int(keys.rng(data.seed, keys.SPLIT, data.stage, number).integers(num_experts(state.spec)))
    scores = state.host["scores"].get(layer, {self.options.split_by: [0.0]})
    return int(np.argmax(scores[self.options.split_by][:num_experts(state.spec)]))


def num_experts(spec: dict[str, Any]) -> int:
  """Experts in every mixture layer."""
  return len(next(iter(spec["splits"].values()))) + 1


def _leaf(scores: dict[str, list[float]] | None) -> Callable[[int], str]:
  """Text of an expert from the scores of its layer, if there are any."""
  def text(expert: int) -> str:
    if scores is None:
      return f"expert {expert}"
    use, loss = (scores[key][expert] / max(sum(scores[key]), 1e-30) for key in ("usage", "loss"))
    return f"expert {expert}  use {use:.1%}  loss {loss:.1%}"

  return text


def _drawn(node: Any, leaf: Callable[[int], str], indent: str = "  ") -> list[str]:
  if isinstance(node, int):
    return [indent + leaf(node)]
  gate, left, right = node
  return [f"{indent}gate {gate}", *_drawn(left, leaf, indent + "  "), *_drawn(right, leaf, indent + "  ")]


def _cost(network: Any, shape: tuple[int, ...], train: Any) -> tuple[int, int, int]:
  """(parameters, forward multiply-adds, training flops) of a network whose places for experts are all in use."""
  module = network.module.clone(gating="soft")  # the argmax of hard gates would hide their gradient
  network = models.ImageNetwork(module)
  params = models.count_params(cost.abstract_variables(network, shape).params)
  # Products with the tree, which is not a parameter: [G, 2] times [E, G, 2], forward and once backward.
  tree = len(module.mixtures) * 2 * module.size * (module.size - 1)
  flops = optimizers.flops(train, network, shape) - 2 * 2 * tree
  return params, cost.forward_macs(network, shape) - tree, flops
