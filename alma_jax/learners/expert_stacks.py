"""Experts, stacked by the widths of their networks; their examples, and the features of their base."""
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax import models
from alma_jax.errors import BadInput
from alma_jax.learners import prediction, stacked
from alma_jax.learners.contract import LearnerState
from alma_jax.models import cost
from alma_jax.types import Shape, Tree, Variables


class Part(NamedTuple):
  """The experts of one width: they are stacked and trained side by side.

  Attributes:
    width: of their networks.
    experts: their numbers, ascending.
    places: int [M], these numbers, padded with -1 to the number of places of the stack.
  """
  width: int
  experts: list[int]
  places: np.ndarray


class Experts(stacked.Stacked):
  """A learner whose live block consists of experts, in a stack for each width.

  `spec` has `num_experts`, 0 as long as there is only a base network, and with `expert_widths` `widths`, one for
  each expert. `live` is then a tuple of stacks, by ascending widths, instead of a stack. With an entry `part` a spec
  means only the stack of that number. `todo` of `host` lists the stacks that are still
  to be trained in this round, in their order.
  """

  def parts(self, spec: dict[str, Any]) -> list[Part]:
    """The experts by their widths, ascending. The base alone is a part, too."""
    widths = spec.get("widths") or [self.context.config.model.width] * (spec["num_experts"] or 1)
    return by_width(widths, bool(self.options.split_every or self.options.add_beyond))

  def network(self, spec: dict[str, Any]) -> Any:
    """The network of one part, `part` of the spec; the first one by default."""
    return self.context.network(self._part(spec).width)

  def num_members(self, spec: dict[str, Any]) -> int:
    """Number of stacked networks of one part: places for experts."""
    return len(self._part(spec).places)

  def has_shards(self, spec: dict[str, Any]) -> bool:
    return bool(spec["num_experts"])

  def fresh(self, stage: int, spec: dict[str, Any]) -> Any:
    if "part" in spec or not spec.get("widths"):
      return super().fresh(stage, spec)
    return tuple(super(Experts, self).fresh(stage, one) for one in self._specs(spec))

  def template(self, spec: dict[str, Any]) -> LearnerState:
    base = super().template({**spec, "num_frozen": 0, "num_experts": 0, "widths": []}).live
    made = super().template({**spec, "num_frozen": 0})._replace(spec=spec, frozen=(base,) * spec["num_frozen"])
    if spec.get("widths"):
      live = tuple(super(Experts, self).template({**one, "num_frozen": 0}).live for one in self._specs(spec))
      made = made._replace(live=live, average=live)
    return made

  def _part(self, spec: dict[str, Any]) -> Part:
    return self.parts(spec)[spec.get("part", 0)]

  def _specs(self, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The spec of each part."""
    return [{**spec, "part": number} for number in range(len(self.parts(spec)))]

  def _expert(self, state: LearnerState, expert: int) -> tuple[Any, Variables]:
    """(network, Variables [1, ...] as they predict) of an expert; traceable."""
    number = next(i for i, part in enumerate(self.parts(state.spec)) if expert in part.experts)
    spec = {**state.spec, "part": number}
    place = self._part(spec).experts.index(expert)
    stack = stacks(state.predicting)[number]
    return self.network(spec), jax.tree.map(lambda leaf: leaf[place:place + 1], stack)

  def _turned(self, state: LearnerState) -> dict[str, Any]:
    """The spec of the part whose turn it is to be trained."""
    return {**state.spec, "part": state.host["todo"][0] if state.host.get("todo") else 0}

  def _put(self, state: LearnerState, after: LearnerState, number: int) -> LearnerState:
    """`state` after its part `number` was trained; `after` is what Stacked.finish makes of a stack."""
    if not self.options.expert_widths:
      return after
    live, average = list(stacks(state.live)), None
    live[number] = after.live
    if after.average is not None:
      average = list(live if state.average is None else stacks(state.average))
      average[number] = after.average
    return after._replace(live=tuple(live), average=average and tuple(average))


def by_width(widths: Sequence[int], grows: bool) -> list[Part]:
  """The experts, whose widths are given, by ascending widths.

  If their number `grows`, a stack has places for the next power of two.
  """
  found = []
  for width in sorted(set(widths)):
    experts = [expert for expert, its in enumerate(widths) if its == width]
    places = np.full(1 << (len(experts) - 1).bit_length() if grows else len(experts), -1)
    places[:len(experts)] = experts
    found.append(Part(width, experts, places))
  return found


def stacks(variables: Variables | tuple[Variables, ...]) -> tuple[Variables, ...]:
  """The stack of each part, from the Variables of one stack, or a tuple of them."""
  return (variables,) if isinstance(variables, Variables) else variables


def shards(which: np.ndarray, shares: np.ndarray, places: Sequence[int] | np.ndarray) -> list[np.ndarray]:
  """The examples `which`, int32 arrays for the expert in each place, as `shares`, the expert of each example, says."""
  return [which[shares == expert] for expert in places]


def features(network: Any, problem: Any, mesh: Mesh, base: Variables, pool: Tree, which: np.ndarray | None
             ) -> np.ndarray:
  """Features float32 [N, H] of the examples `which` of a pool: the inputs of the last layer of `base` [1, ...]."""
  look = lambda inputs: stacked.contribute(network, problem, mesh, "features", base, inputs)
  return np.asarray(prediction.in_batches(look, problem, mesh, pool, which)["features"])


def feature_macs(network: Any, shape: Shape) -> int:
  """Multiply-adds of one example's features; `shape` is that of a batch of one."""
  head = cost.abstract_variables(network, shape).params["output"]["kernel"]
  return cost.forward_macs(network, shape) - models.count_params(head)


def check_features(network: Any, shape: Shape, name: str) -> None:
  """Raises BadInput if a network of the user's own, model.name=`name`, does not sow its features."""
  if network.counts:  # it is a user's
    try:
      jax.eval_shape(lambda v, x: models.features(network, v, x), cost.abstract_variables(network, shape),
                     network.inputs(shape))
    except KeyError:
      raise BadInput(f"model.name={name!r} has no features for hmoe; end the network with a layers.Head named output, "
                     "or take another learner.") from None
