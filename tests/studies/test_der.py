"""benchmarks/der.py: DER++ on a stream."""
import dataclasses

import numpy as np
import pytest
from made_studies import _path  # noqa: F401 (benchmarks can be imported)

from alma_jax import config as configs
from alma_jax.config.stream import ALWAYS
from alma_jax.models import cost
from alma_jax.runs import settings

pytestmark = pytest.mark.slow


def test_the_reservoir_is_a_uniform_sample():
  import der

  counts, repeats = np.zeros(40), 400
  for seed in range(repeats):
    reservoir = der.Reservoir(10, np.random.default_rng(seed))
    for first in range(0, 40, 8):
      examples = np.arange(first, first + 8)
      at = reservoir.add(examples)
      assert (reservoir.examples[at[at < 10]] == examples[at < 10]).all()
    held = reservoir.examples[np.unique(reservoir.draw(1000))]
    assert len(np.unique(held)) == 10  # all of it is drawn, and holds no example twice
    counts[held] += 1
  # Each is binomial with n = 400 and p = 1/4: mean 100, standard deviation 8.7.
  assert np.abs(counts - 100).max() < 5 * 8.7


def test_multiply_adds_are_those_of_all_steps_and_use_up_the_budget(monkeypatch):
  import der

  config = configs.base("anytime")
  config.update_from_flattened_dict({"stream.num_megabatches": 3, "train.budget": 1e6, "train.batch_size": 16,
                                     "model.width": 1})
  config = configs.parse(config)
  config = dataclasses.replace(config, stream=dataclasses.replace(config.stream, schedule=ALWAYS))
  passes = []

  def step(method, trained, batch, pool, key):
    x = np.zeros((len(batch.new) + len(batch.old), *pool.x.shape[1:]), np.float32)
    passes.append(cost.count(method.network.scalar_output, trained.variables, x, np.ones(len(x), bool)))
    return trained

  monkeypatch.setattr(der, "step", step)
  setting = settings.prepare(config)
  result = der.run(setting, 0.1, 1.0, 100)
  assert passes[0] * 3 == passes[1] == passes[-1]  # the first step has nothing to replay
  assert result["cumulative_fwd_macs"] == sum(passes)
  assert 3e6 - passes[-1] < sum(passes) <= 3e6
  assert result["CER"] == pytest.approx(3 * result["final_error"])  # nothing was trained
