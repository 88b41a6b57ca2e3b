"""UMix: N networks whose averaged logits are trained jointly as one (§2)."""
import dataclasses
from typing import Any, ClassVar

from alma_jax import models
from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.learners.stacked import Stacked


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """Several models that are trained jointly as one: their logits are combined before the loss."""
  name: str = "umix"
  num_members: int = field(5, "number of models", at_least=1)
  combine: str = field(
      "mean", "how to combine the models' logits; the authors' code takes the `sum`", choices=("mean", "sum"))
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  stops_early: ClassVar[bool] = False
  members: ClassVar[str] = "num_members"

  @property
  def mixture_size(self) -> int:
    return self.num_members

  def make(self, context: Any) -> Any:
    return UMix(context)


class UMix(Stacked):
  """One mixture of `num_members` networks. The authors' code adds the logits (`combine="sum"`)."""

  def __init__(self, context: Any):
    super().__init__(context)
    self.combine = "logits"  # of the mixture, which is one network; `options.combine` is the mixture's own

  def network(self, spec: dict[str, Any]) -> models.Mixture:
    return models.Mixture(self.context.network(), self.options.num_members, self.options.combine)

  def describe(self, state: Any) -> str:
    return f"1 uniform mixture of {self.options.num_members} networks"
