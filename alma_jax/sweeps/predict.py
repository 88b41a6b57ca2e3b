"""What jobs will cost, told before they run."""
import dataclasses

from alma_jax import environment
from alma_jax.errors import BadInput
from alma_jax.learners import tuned
from alma_jax.sweeps.seconds import Prediction


def predict(configs):
  """A Prediction for each RunConfig, or the BadInput that says why it cannot run.

  Loads the data, builds networks, and trains nothing.
  """
  costs, sizes, found = {}, {}, []
  for config in configs:
    c = dataclasses.replace(config, seed=0, devices=0)  # another seed costs the same
    network, stream = (c.dataset, c.learner, c.model), (c.dataset, c.stream)
    try:
      if network not in costs or stream not in sizes:
        setting = environment.prepare(c)
        sizes[stream] = setting.stream.sizes[:, 0]
        if network not in costs:
          costs[network] = setting.learner.cost(setting.learner.init()).fwd_macs
    except BadInput as error:
      found.append(error)
      continue
    plans, times = [c.train.plan(int(num)) for num in sizes[stream]], tuned.num_candidates(c)
    found.append(Prediction(times * c.learner.num_trained * sum(plan.steps for plan in plans),
                            times * costs[network] * sum(plan.samples for plan in plans)))
  return found
