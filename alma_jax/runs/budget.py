"""The rule of `train.budget`: the width, the steps and the batch size that a budget pays for (docs/anytime.md).

Fields that are 0 are free. A free width lets the network see RATIO examples for each of its parameters. Free steps use
up the budget. A free batch size is then the first of the learner's `batches` that leaves a stage ENOUGH steps, or else
the last. Steps are whole numbers, so the batch size is adjusted last. If your steps would need batches larger than the
data of a stage, the network is wider instead. If the budget does not pay for the smallest batch in each of them, it is
narrower.
"""
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from alma_jax import learners
from alma_jax.config import layout, schema
from alma_jax.config.fields import listed
from alma_jax.data import memory
from alma_jax.data.megabatches import Megabatches
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.learners.contract import Context
from alma_jax.models import cost
from alma_jax.protocols.contract import Facts

RATIO, ENOUGH = 4.0, 100  # measured: docs/anytime.md
UNLIMITED = 100  # mega-batches in which a stream without a limit keeps to the budget
MOST = 1.05  # of the budget, which a run may spend because a width, steps and a batch size are whole numbers

Decided = Mapping[str, int]  # {field: value}
_WIDTH, _STEPS, _BATCH = "model.width", "train.steps", "train.batch_size"


def applied(config: schema.RunConfig, decided: Decided) -> schema.RunConfig:
  """The config with these fields."""
  for path, value in decided.items():
    section, name = path.split(".")
    config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})
  return config


def decided(config: schema.RunConfig, facts: Facts, sizes: memory.Sizes, before: Decided | None) -> Decided:
  """What `train.budget` decides: values for whichever of model.width, train.steps and train.batch_size are 0.

  Args:
    config: of the run.
    facts: of its protocol.
    sizes: of all stages; of a live stream, those of the first.
    before: what it decided when the run began, with which the run goes on; None for a new run.

  Raises:
    BadInput: the budget pays for less than the fields that are set cost, or what it decides does not go with them.
  """
  if not config.train.budget:
    return {}
  set_ = {_WIDTH: config.model.width, _STEPS: config.train.steps, _BATCH: config.train.batch_size}
  free = {path for path, value in set_.items() if not value}
  if before is not None and before.keys() == free:
    return before
  num = config.stream.num_megabatches or UNLIMITED
  total = num * config.train.budget
  spent = _spending(config, facts, sizes if config.dataset.is_complete else _expected(config, num, sizes))
  least = {_WIDTH: 1, _STEPS: 1, _BATCH: config.stream.least_batch}
  found: dict[str, int] = {}
  if _WIDTH in free:
    by_rule = functools.partial(_wanted, config, facts)
    found[_WIDTH] = _most(by_rule if len(free) > 1 else lambda width: spent({_WIDTH: width}), total)
  use_up = lambda path: _most(lambda value: spent(found | {path: value}), total, least[path])
  for batch in config.learner.batches:
    found |= {path: first for path, first in ((_STEPS, 1), (_BATCH, max(batch, least[_BATCH]))) if path in free}
    for path in filter(free.__contains__, (_STEPS, _BATCH)):
      found[path] = use_up(path)
    if found.get(_STEPS, ENOUGH) >= ENOUGH:
      break
  if _WIDTH in free and not total / MOST <= spent(found) <= total * MOST:
    found[_WIDTH] = use_up(_WIDTH)
  if spent(found) > MOST * total:
    yours = listed(path for path in set_ if path not in free)
    what = "one step in every stage" if free & {_STEPS, _BATCH} else f"your {yours}"
    raise BadInput(f"train.budget={config.train.budget:g} does not pay for {what}; raise it to "
                   f"{spent(found) / num:.2g}{f', or lower {yours}' * bool(yours)}.")
  found = {path: found[path] for path in set_ if path in found}
  layout.check(applied(config, found))
  return found


def _wanted(config: schema.RunConfig, facts: Facts, width: int) -> float:
  """Multiply-adds that train all networks of this width on RATIO examples for each of their parameters."""
  network, shape = Context(config, *facts).network(width), (1, *facts.example_shape)
  num_params = cost.count_params(cost.abstract_variables(network, shape).params)
  return RATIO * num_params * cost.forward_macs(network, shape) * config.learner.num_networks


def _spending(config: schema.RunConfig, facts: Facts, sizes: memory.Sizes) -> Callable[[Decided], float]:
  """Values of free fields -> the multiply-adds of all forward passes of training."""
  @functools.cache
  def per_example(model: Any) -> list[int]:
    learner = learners.make(Context(dataclasses.replace(config, model=model), *facts))
    return contract.planned_macs(learner, len(sizes.train))

  def spent(values: Decided) -> float:
    c = applied(config, values)
    return c.num_trainings * sum(macs * plan.samples for macs, plan in zip(per_example(c.model), c.train.plans(sizes)))

  return spent


def _expected(config: Any, num: int, sizes: memory.Sizes) -> memory.Sizes:
  """Sizes of the stages up to mega-batch `num` if all mega-batches are as large as those of the first stage."""
  ends = config.stream.schedule.ends(num)
  size = max(1, int(sizes.train[0]) // ends[0])
  return memory.make(config.stream, Megabatches(size * np.arange(num + 1), 0.0), config.seed).sizes(ends)


def _most(spent: Callable[[int], float], total: float, least: int = 1) -> int:
  """The whole number, at least `least`, at which `spent` is nearest to `total`, and at most MOST times as much.

  `spent` rises, up to some number.
  """
  spent, high = functools.cache(spent), 2 * least
  while spent(high) < total and max(spent(2 * high), spent(4 * high)) > spent(high):
    high *= 2
  low = high // 2
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if spent(middle) < total else (low, middle)
  return high if spent(high) <= min(MOST * total, 2 * total - spent(low)) else low
