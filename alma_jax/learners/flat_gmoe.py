"""gMoE of language models: Switch Transformers whose flat mixtures duplicate experts (§5)."""
import dataclasses
from typing import Any, ClassVar

import numpy as np

from alma_jax import keys
from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.errors import BadInput
from alma_jax.growth import duplicate
from alma_jax.learners.contract import GrowthReport, LearnerState
from alma_jax.learners.stacked import Stacked
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Cost


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """A Switch Transformer whose mixtures grow: the experts with the largest validation loss are duplicated."""
  name: str = "gmoe"
  add_experts: tuple[int, ...] = field(
      (2, 2, 4), "experts that every mixture gains before stages 1, 2, ...; later stages add none", at_least=0)
  copies: str = field(
      "offset", "how to duplicate experts: `offset` preserves the function; `plain` (paper) does not",
      choices=("offset", "plain"))
  noise: float = field(1e-3, "standard deviation of the noise that makes the routers of two copies differ", at_least=0)
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  problems: ClassVar[tuple[str, ...]] = (TEXT,)

  def check(self, config: Any) -> None:
    super().check(config)
    num = config.model.num_experts
    for more in self.add_experts[:config.stream.most_trainings - 1]:
      if more > num:
        raise BadInput(f"learner.add_experts={self.add_experts} would add {more} experts to {num}; each can be "
                       "duplicated once a stage.")
      num += more

  def make(self, context: Any) -> Any:
    return FlatGMoE(context)


class FlatGMoE(Stacked):
  """Before stage s = 1, 2, ... every mixture gets `add_experts[s - 1]` more experts.

  They are copies of the experts whose tokens have the largest summed loss on the validation text. Computing these
  losses takes one pass over that text.
  """
  combine = "probabilities"

  def facts(self) -> dict[str, Any]:
    return {"num_experts": self.context.config.model.num_experts}

  def init(self) -> LearnerState:
    return super().init()._replace(host={"growth": []})

  def network(self, spec: dict[str, Any]) -> Any:
    return self.context.network(size=spec["num_experts"])

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    options = self.options
    num = options.add_experts[data.stage - 1] if 0 < data.stage <= len(options.add_experts) else 0
    if not num:
      return state, GrowthReport()
    losses = duplicate.scores(self.network(state.spec), self._problem, state.predicting, data.val_pool, data.val,
                              self.mesh)
    chosen = {layer: np.argsort(-np.array(scores), kind="stable")[:num] for layer, scores in losses.items()}
    rng = keys.rng(data.seed, keys.GATES, data.stage)
    live = duplicate.grow(sharding.fetch(state.live), chosen, options.copies == "offset", options.noise, rng)
    macs = self.cost(state).fwd_macs * len(data.val)
    grown = dict(stage=data.stage, losses=losses, chosen={layer: e.tolist() for layer, e in chosen.items()})
    return state._replace(
        spec={**state.spec, "num_experts": state.spec["num_experts"] + num}, live=sharding.put(live, self.mesh),
        host={**state.host, "growth": [*state.host["growth"], grown]}), GrowthReport(macs)

  def planned_cost(self, state: LearnerState, stage: int) -> Cost:
    num = state.spec["num_experts"] + sum(self.options.add_experts[:stage])
    return self.cost(state._replace(spec={**state.spec, "num_experts": num}))

  def describe(self, state: LearnerState) -> str:
    """The number of experts, which were duplicated, and their shares of the loss at that time."""
    lines = [f"experts of every mixture: {state.spec['num_experts']}"]
    for growth in state.host["growth"]:
      for layer, losses in growth["losses"].items():
        share = lambda e, losses=losses: f"{e} ({losses[e] / max(sum(losses), 1e-30):.1%} of the loss)"
        shares = ", ".join(map(share, growth["chosen"][layer]))
        lines.append(f"before stage {growth['stage']}, {layer}: of {len(losses)} experts duplicated {shares}")
    return "\n".join(lines)
