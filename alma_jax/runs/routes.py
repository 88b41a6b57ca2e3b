"""Which experts of a finished run answer for an image."""
import numpy as np

from alma_jax.errors import BadInput
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
  weights_of = learner.router(snapshot.restore_learner(learner, opened))
  if weights_of is None:
    raise BadInput(f"{run.path} has no experts to choose from; give a run of moe, gmoe or hmoe that has several.")
  return weights_of(to_predict(x, opened.meta["data"], learner)[1])
