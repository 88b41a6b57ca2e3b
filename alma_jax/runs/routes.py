"""Which experts of a finished run answer for an image."""
from typing import Any

import jax
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import gmoe, hmoe, prediction, stacked
from alma_jax.learners.contract import Contribution
from alma_jax.models import moe
from alma_jax.parallel import environment
from alma_jax.runs import snapshot
from alma_jax.runs.results import Run, to_predict


@environment.fixed()
def weights(run: Run, x: np.ndarray, stage: int | None = None) -> dict[str, np.ndarray]:
  """The weights of the experts for each image, {mixture: float32 [N, E]}; each row sums to 1.

  `moe` and `gmoe` have a mixture in each of several layers. `hmoe` has one, "experts", whose weights are 0 and 1.

  Args:
    run: of `moe`, `gmoe` or `hmoe`.
    x: raw images [N, ...], of the shape and dtype of the training images.
    stage: counts from 0; None: the last one saved.

  Raises:
    BadInput: the learner has no gates, or has a single expert, or no such stage is saved.
  """
  opened, learner = run.open(stage)
  state, data = snapshot.restore_learner(learner, opened), opened.meta["data"]
  if isinstance(learner, hmoe.HMoE) and state.frozen:
    base, combine = state.frozen[0], "features"
  elif isinstance(learner, gmoe.MoE) and gmoe.num_experts(state.spec) > 1:
    base, combine = state.predicting, ""
  else:
    raise BadInput(f"{run.path} has no experts to choose from; give a run of moe, gmoe or hmoe that has several.")
  problem, pool = to_predict(x, data, learner)
  network = learner.network(learner.first_spec() if combine else state.spec)

  def look(inputs: Any) -> Contribution:
    if combine:
      return stacked.contribute(network, problem, learner.mesh, combine, base, inputs)
    return {**moe.route(network, jax.tree.map(lambda leaf: leaf[0], base), inputs)[1]}

  found: dict[str, Any] = prediction.in_batches(look, problem, learner.mesh, pool)
  if combine:
    prototypes = state.host["prototypes"]
    return {"experts": np.eye(len(prototypes), dtype=np.float32)[cluster.nearest(found["features"], prototypes)[0]]}
  return {layer: found[layer][:, :gmoe.num_experts(state.spec)] for layer in network.module.mixtures}
