"""benchmarks/der.py: DER++ on a stream."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_studies import _path  # noqa: F401 (benchmarks can be imported)
from stages import Stages, assert_close, setting_of

from alma_jax import config as configs
from alma_jax.config.stream import ALWAYS
from alma_jax.models import cost
from alma_jax.runs import settings
from alma_jax.training import optimizers
from alma_jax.types import Variables

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


def test_a_step_follows_the_gradient_of_the_loss_of_der():
  """cross-entropy(new) + α mean (logits - stored logits)² of one old batch + β cross-entropy of another."""
  import der

  setting = setting_of(train__optimizer="sgd", train__learning_rate=0.1)
  rng, alpha, beta = np.random.default_rng(0), 0.3, 0.7
  network, problem = setting.learner.network(setting.learner.first_spec()), setting.facts.problem
  pool = Stages(setting)[0].pool
  variables = jax.tree.map(lambda leaf: leaf[0], setting.learner.init().live)
  logits_RK = rng.normal(size=(6, 3)).astype(np.float32)
  drawn, examples = np.array([5, 0, 3, 3, 1, 2]), np.arange(10, 19, dtype=np.int32)
  batch = der.Batch(examples[:3], np.array([1, 4, 6]), drawn, examples[3:], np.float32(0.5))  # 6: it is not kept
  logits = lambda params: network.apply(Variables(params, variables.stats), pool_inputs(problem, pool, examples), None,
                                        train=True)[0]
  labels = np.asarray(pool.y)[examples]

  def loss(params):
    all_BK = logits(params)
    entropy = optax.softmax_cross_entropy_with_integer_labels(all_BK, labels)
    change = all_BK[3:6] - logits_RK[drawn[:3]]
    return entropy[:3].mean() + alpha * (change**2).mean() + beta * entropy[6:].mean()

  expected = jax.tree.map(lambda old, slope: old - 0.5 * 0.1 * slope, variables.params,
                          jax.grad(loss)(variables.params))
  before = np.asarray(logits(variables.params))
  train = setting.config.train
  trained = der.Trained(variables, optimizers.of(train).init(variables.params), jnp.array(logits_RK))
  after = der.step(der.Method(network, problem, train, alpha, beta), trained, batch, pool, jax.random.key(0))
  assert_close(after.variables.params, expected, 1e-6)
  kept = logits_RK.copy()
  kept[[1, 4]] = before[:2]
  np.testing.assert_allclose(after.logits_RK, kept, atol=1e-6)


def pool_inputs(problem, pool, examples):
  """Images as the network reads them."""
  return problem.inputs(pool, problem.take(pool, jnp.asarray(examples)))


def test_multiply_adds_are_those_of_all_steps_and_use_up_the_budget(monkeypatch):
  import der

  config = configs.base("anytime")
  config.update_from_flattened_dict({"stream.num_megabatches": 3, "train.budget": 1e6, "train.batch_size": 16,
                                     "model.width": 8})
  config = configs.parse(config)
  config = dataclasses.replace(config, stream=dataclasses.replace(config.stream, schedule=ALWAYS))
  passes, real = [], der.step

  def step(method, trained, batch, pool, key):
    x = np.zeros((len(batch.new) + len(batch.old), *pool.x.shape[1:]), np.float32)
    passes.append(cost.count(method.network.scalar_output, trained.variables, x, np.ones(len(x), bool)))
    return real(method, trained, batch, pool, key)

  monkeypatch.setattr(der, "step", step)
  setting = settings.prepare(config)
  result = der.run(setting, 0.1, 1.0, 100)
  assert passes[0] * 3 == passes[1] == passes[-1]  # the first step has nothing to replay
  assert result["cumulative_fwd_macs"] == sum(passes)
  assert 3e6 - passes[-1] < sum(passes) <= 3e6
  assert result["final_error"] < 0.6  # by chance it is 0.9
