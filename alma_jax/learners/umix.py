"""UMix: N networks whose averaged logits are trained jointly as one (§2)."""
from typing import Any

from alma_jax import models
from alma_jax.learners.stacked import Stacked


class UMix(Stacked):
  """One mixture of `num_members` networks. The authors' code adds the logits (`combine="sum"`)."""

  def __init__(self, context: Any):
    super().__init__(context)
    self.combine = "logits"  # of the mixture, which is one network; `options.combine` is the mixture's own

  def network(self, spec: dict[str, Any]) -> models.Mixture:
    return models.Mixture(self.context.network(), self.options.num_members, self.options.combine)
