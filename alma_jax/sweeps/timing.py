"""How many seconds runs will take, estimated from finished runs. Does not import jax."""
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from alma_jax.config import schema


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


def estimate(configs: Mapping[str, schema.RunConfig], taken: Mapping[str, Taken]) -> dict[str, float]:
  """Seconds that runs will take, from their start to their end.

  A run takes the mean fixed seconds of the finished runs on the same data, with the same learner, network and
  precision, and as many seconds for a training step as they have taken on average.

  Args:
    configs: {name: config} of all runs.
    taken: {name: Taken} of the finished runs.

  Returns:
    {name: seconds} of the other runs, without those for which no such run has finished.
  """
  kinds: dict[tuple[object, ...], list[str]] = {}
  for name, config in configs.items():
    kinds.setdefault((config.dataset, config.learner, config.model, config.precision), []).append(name)
  seconds: dict[str, float] = {}
  for names in kinds.values():
    finished = [name for name in names if name in taken]
    if finished:
      fixed = sum(taken[name].fixed for name in finished) / len(finished)
      each = sum(taken[name].running for name in finished) / sum(_steps(configs[name]) for name in finished)
      seconds |= {name: fixed + each * _steps(configs[name]) for name in names if name not in taken}
  return seconds


def total(seconds: Sequence[float], num_workers: int) -> float:
  """Seconds that runs of these `seconds` take together, if `num_workers` of them run at once."""
  return max(sum(seconds) / max(num_workers, 1), max(seconds, default=0.0))


def _steps(config: schema.RunConfig) -> float:
  """Training steps of a run, up to a factor that depends on its data, learner and network alone."""
  return config.train.relative_steps(config.stream.shares)
