"""How many seconds runs will take, estimated from finished runs. Does not import jax."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax.config import image_sections, schema, text_sections


class Prediction(NamedTuple):
  """Predicted costs of a run. They are upper bounds, because patience may end stages early; growth is not counted.

  Attributes:
    steps: training steps, of all members.
    macs: multiply-adds of forward passes in training (the paper's Comp).
  """
  steps: int
  macs: int


class Taken(NamedTuple):
  """The seconds of a finished run.

  Attributes:
    seconds: from its start to its end.
    fixed: the part that does not depend on its length: start and compilation.
  """
  seconds: float
  fixed: float

  @property
  def running(self) -> float:
    """The other part, above 0."""
    return max(self.seconds - self.fixed, 1e-3)


def estimate(configs: Mapping[str, schema.RunConfig], taken: Mapping[str, Taken],
             costs: Mapping[str, Prediction] | None = None) -> dict[str, float]:
  """Seconds that runs will take, from their start to their end.

  The estimate uses the finished runs on the same data, with the same kind of network and precision. Learners, widths
  and lengths may differ.

  Args:
    configs: {name: config} of all runs.
    taken: {name: Taken} of the finished runs.
    costs: {name: Prediction}, without the runs that cannot be made; None: the
      costs are not known, and the estimate is proportional to training steps.

  Returns:
    {name: seconds} of the other runs, without those for which no similar run has finished.
  """
  kinds: dict[tuple[object, ...], list[str]] = {}
  found: dict[str, float] = {}
  for name, config in configs.items():
    if costs is None or name in costs:
      kinds.setdefault((config.dataset, config.model.name, config.precision), []).append(name)
  for names in kinds.values():
    done, left = ([name for name in names if (name in taken) == side] for side in (True, False))
    if not done:
      continue
    running = [taken[name].running for name in done]
    if costs is None:
      more = _by_steps([configs[name] for name in done], running, [configs[name] for name in left])
    else:
      more = by_costs([costs[name] for name in done], running, [costs[name] for name in left])
    fixed = sum(taken[name].fixed for name in done) / len(done)
    found |= {name: fixed + seconds for name, seconds in zip(left, more)}
  return found


def total(seconds: Sequence[float], num_workers: int) -> float:
  """Seconds that runs of these `seconds` take together, if `num_workers` of them run at once."""
  return max(sum(seconds) / max(num_workers, 1), max(seconds, default=0.0))


def by_costs(done: Sequence[Prediction], seconds: Sequence[float], left: Sequence[Prediction]) -> list[float]:
  """Seconds of runs: a non-negative linear function of steps and multiply-adds, fitted to finished runs.

  Args:
    done: costs of finished runs, at least one.
    seconds: their seconds.
    left: costs of the other runs.
  """
  from scipy.optimize import nnls

  features = np.array([[p.steps, p.macs, 1.0] for p in done], float)
  scale = features.max(0) + 1e-30
  taken = np.array(seconds, float)
  weights, _ = nnls(features / scale / taken[:, None], np.ones(len(taken)))  # minimises relative errors
  return (np.array([[p.steps, p.macs, 1.0] for p in left], float).reshape(-1, 3) / scale @ weights).tolist()


def _by_steps(done: Sequence[schema.RunConfig], seconds: Sequence[float],
              left: Sequence[schema.RunConfig]) -> list[float]:
  """Seconds of runs: training steps times the seconds of a step in finished runs.

  The finished runs with the same learner and network are used; if there are none, all.
  """
  found = []
  for config in left:
    pairs = list(zip(done, seconds))
    alike = [pair for pair in pairs if (pair[0].learner, pair[0].model) == (config.learner, config.model)] or pairs
    found.append(_steps(config) * sum(took for _, took in alike) / sum(_steps(other) for other, _ in alike))
  return found


def _steps(config: schema.RunConfig) -> float:
  """Training steps of a run of all members, up to a factor that depends on the data alone."""
  s: Any = config.stream
  model: Any = config.model
  members = config.learner.num_trained
  shares, share = [], 0.0  # of the data, in each stage
  ends = s.expected_ends
  for first, last in zip((0, *ends), ends):
    share = (last - first) / s.num_megabatches + s.replay * share
    shares.append(share)
  if isinstance(config.train, text_sections.Train):
    return len(shares) * config.train.plan(0).steps * members * len(config.train.learning_rate) * len(model.dropout)
  assert isinstance(config.train, image_sections.Train)
  if config.train.steps:
    return len(shares) * config.train.steps * members
  return sum(shares) * config.train.epochs * members / config.train.batch_size
