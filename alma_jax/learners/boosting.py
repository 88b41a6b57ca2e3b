"""Boosting over stages: each new member concentrates on what the old ones get wrong (SAMME; §2)."""
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.learners import prediction, stacked
from alma_jax.learners.contract import Contribution, GrowthReport, LearnerState, StageResult
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Tree


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """A growing ensemble whose new member concentrates on the examples that the old members get wrong (SAMME)."""
  name: str = "boosting"
  init: str = field(
      "last", "initial weights of a new member: of the `last` or the `first` member, or fresh ones (`scratch`)",
      choices=("last", "first", "scratch"))
  weighting: str = field(
      "resample", "the weights of the examples decide which ones a new member draws (`resample`), or multiply its "
      "losses (`loss`)", choices=("resample", "loss"))
  coefficients: str = field(
      "validation", "data from which to compute the weights of the members", choices=("validation", "train"))

  @property
  def init_from_scratch(self) -> bool:
    return self.init == "scratch"

  def make(self, context: Any) -> Any:
    return Boosting(context)


class Boosting(stacked.Stacked):
  """Every stage adds one member.

  `weigh` weights the stage's examples by the mistakes of the old members. The new member is trained on examples that
  are drawn by these weights in every epoch (`weighting="resample"`), or with weighted losses ("loss"). Then the
  coefficients of all members are computed in the same way, on the stage's validation or training data. The prediction
  is argmax Σ_m α_m logits_m.
  """
  freezes = True

  def init(self) -> LearnerState:
    return super().init()._replace(host={"alphas": []})

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not data.stage:
      return state, GrowthReport()
    grown = self.append(state, stacked.blocks(state)[0] if self.options.init == "first" else state.live)
    macs = cost.forward_macs(self.network(state.spec), self._shape) * self.context.num_views
    return grown, GrowthReport(macs=len(grown.frozen) * len(data.train) * macs, repeat=True)

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    weights = np.full(len(data.train), 1 / len(data.train))
    if state.frozen:
      weights, _ = weigh(*self._answers(state, data, data.train, len(state.frozen)), self._problem.num_classes)
    if self.options.weighting == "loss":
      return loop.Examples(weight=(len(data.train) * weights).astype(np.float32))
    return loop.Examples(probability=weights)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    result = super().finish(state, data, trained)
    which = data.val if self.options.coefficients == "validation" else data.train
    _, alphas = weigh(*self._answers(result.state, data, which, self.num_blocks(state)), self._problem.num_classes)
    return result._replace(state=result.state._replace(host={"alphas": alphas}))

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    return {f"logits{block}": super().contribution(state, block, inputs)["sum"]}

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    alphas = state.host["alphas"] or [1.0]  # the untrained model has no coefficients yet
    # Divided by Σ|α|, the logits are a weighted mean. The predicted classes stay the same.
    size = max(sum(map(abs, alphas)), np.finfo(np.float32).tiny)
    total = sum(alpha * joined[f"logits{block}"] for block, alpha in enumerate(alphas))
    return self._problem.resolve({"sum": total}, size, "logits")

  def _answers(self, state: LearnerState, data: loop.StageData, which: np.ndarray,
               num: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Logits [N, K] of the first `num` members for the examples `which`, and their labels [N]."""
    blocks = (prediction.contributions(self, self._problem, state, block, data.pool, which) for block in range(num))
    logits = [np.asarray(each[f"logits{block}"]) for block, each in enumerate(blocks)]
    return logits, sharding.fetch(data.pool.y)[which]


def weigh(logits: Sequence[np.ndarray], y_N: np.ndarray, num_classes: int) -> tuple[np.ndarray, list[float]]:
  """SAMME's weights of N examples and coefficients of models, one model after the other.

  err = Σ q miss, clipped to [1/(2N), 1 - 1/(2N)];
  α = log((1-err)/err) + log(K-1); q <- q exp(α miss), normalised.

  Args:
    logits: [N, K] of each model.
    y_N: labels.
    num_classes: K.

  Returns:
    (q float64 [N], which sums to 1; list of the α, floats).
  """
  num = len(y_N)
  weights, alphas = np.full(num, 1 / num), []
  for logits_NK in logits:
    miss = logits_NK.argmax(-1) != y_N
    err = np.clip(weights[miss].sum(), 1 / (2 * num), 1 - 1 / (2 * num))
    alphas.append(float(np.log((1 - err) / err) + np.log(num_classes - 1)))
    weights = weights * np.exp(alphas[-1] * miss)
    weights /= weights.sum()
  return weights, alphas
