"""Predicts what runs cost, in training steps and multiply-adds, before they run."""
import dataclasses
from collections.abc import Sequence
from typing import Any

from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.learners import tuned
from alma_jax.runs import memory, settings
from alma_jax.sweeps.timing import Prediction


def predict(configs: Sequence[schema.RunConfig], here: bool = False) -> list[Prediction | BadInput]:
  """A Prediction for each config, or the BadInput that says why it cannot run.

  It loads the data and traces the networks, and computes nothing.

  Args:
    configs: of the runs.
    here: whether they will run on this machine, on the kind of device that jax
      uses now; then a config that does not fit into its memory cannot run.
  """
  found: list[Prediction | BadInput] = []
  macs: dict[Any, int] = {}  # of one example, by the config of the network
  sizes: dict[Any, Any] = {}  # training examples of each stage, by data and stream
  fits = set()
  for config in configs:
    c = dataclasses.replace(config, seed=0, devices=0)  # these fields do not change the costs
    network, stream = (c.dataset, c.learner, c.model), (c.dataset, c.stream)
    needs = (network, stream, c.train, c.precision)
    try:
      if network not in macs or stream not in sizes or (here and needs not in fits):
        setting = settings.prepare(c)
        if here:
          memory.check(setting)
          fits.add(needs)
        sizes[stream] = setting.stream.sizes[:, 0]
        if network not in macs:
          # The untrained state: only its shapes if the learner's init can be traced.
          state = memory.untrained(setting.learner) or setting.learner.init()
          macs[network] = setting.learner.cost(state).fwd_macs
    except BadInput as error:
      found.append(error)
      continue
    plans, times = [c.train.plan(int(num)) for num in sizes[stream]], tuned.num_candidates(c)
    found.append(Prediction(times * c.learner.num_trained * sum(plan.steps for plan in plans),
                            times * macs[network] * sum(plan.samples for plan in plans)))
  return found
