"""Mixtures that are split: the function is preserved, and scores add up."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, small_config
from sklearn.datasets import load_digits
from stages import Stages, begin, contribution, finish, setting_of
from test_moe import LAYERS, grown, network, planted, single

import alma_jax
from alma_jax import config as configs
from alma_jax.growth import split
from alma_jax.learners import gmoe
from alma_jax.models import moe
from alma_jax.parallel import sharding
from alma_jax.runs import settings
from alma_jax.training import loop, program
from alma_jax.types import Variables

pytestmark = pytest.mark.slow


def test_twenty_splits_preserve_the_function_on_real_validation_data():
  digits = load_digits()
  x = jnp.asarray(digits.images[:200, ..., None] / 16, jnp.float32)
  y = digits.target[:200]
  splits, (net, variables, _) = [], planted("mlp", [], width=16)
  loss = lambda logits: -jax.nn.log_softmax(logits)[np.arange(len(y)), y].mean()
  rng = np.random.default_rng(0)
  for growth in range(20):
    before = net.apply(single(variables), x, None, False)[0]
    train_before = net.apply(single(variables), x, None, True)[0]
    copy = jax.tree.map(np.copy, variables)
    net, larger, splits = grown("mlp", variables, int(rng.integers(growth + 1)), splits, 16, growth + 1)
    jax.tree.map(np.testing.assert_array_equal, copy, variables)  # the parent is as it was
    after = net.apply(single(larger), x, None, False)[0]
    np.testing.assert_allclose(after, before, atol=1e-5)
    np.testing.assert_allclose(net.apply(single(larger), x, None, True)[0], train_before, atol=1e-5)
    assert abs(loss(after) - loss(before)) < 1e-5
    variables = larger
  assert len(splits) == 20


def test_splits_of_blocks_preserve_the_function_with_hard_gates():
  x = jax.random.normal(jax.random.key(5), (12, 32, 32, 3))
  splits, (net, variables, _) = [], planted("vgg", [], gating="hard")
  apply = jax.jit(net.apply, static_argnums=3)
  for _ in range(30):  # statistics of real activations, because deep activations would vanish otherwise
    state = single(variables)
    stats = apply(state, x, None, True)[1]
    variables = jax.tree.map(lambda leaf: np.asarray(leaf)[None], Variables(state.params, stats))
  rng = np.random.default_rng(0)
  for growth, leaf in enumerate((0, 1)):
    for layer in LAYERS["vgg"]:  # statistics of its own for every expert
      stats = variables.stats[layer]["experts"]
      variables.stats[layer]["experts"] = jax.tree.map(
          lambda leaf: leaf * rng.uniform(0.7, 1.3, leaf.shape).astype(np.float32), stats)
    before = jax.jit(net.apply, static_argnums=3)(single(variables), x, None, False)
    net, variables, splits = grown("vgg", variables, leaf, splits, 4, growth + 1, "hard")
    after = jax.jit(net.apply, static_argnums=3)(single(variables), x, None, False)
    assert np.std(before[0], 0).max() > 0.01  # the outputs depend on the images
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)


def test_a_split_of_blocks_preserves_training_with_soft_gates():
  x, mask = jax.random.normal(jax.random.key(5), (64, 32, 32, 3)), jnp.arange(64) < 60
  net, variables, _ = planted("vgg", [0])
  before, _ = jax.jit(net.apply, static_argnums=3)(single(variables), x, mask, True)
  net, variables, _ = grown("vgg", variables, 1, [0], 4, 1)
  after, stats = jax.jit(net.apply, static_argnums=3)(single(variables), x, mask, True)
  np.testing.assert_allclose(after[:60], before[:60], atol=1e-5 * np.abs(before[:60]).max())
  for leaf in jax.tree.leaves(stats["block1"]["experts"]):
    np.testing.assert_array_equal(leaf[1], leaf[2])


def test_hard_gates_draw_in_training_and_pass_gradients():
  net, variables, shape = planted("mlp", [0, 1], gating="hard")
  soft, _ = network("mlp", 4)
  x = jax.random.normal(jax.random.key(2), (500, *shape))
  state = single(variables)
  apply = jax.jit(lambda v, key: net.apply(v, x, None, True, key=key)[0])
  first, second = (apply(state, jax.random.key(seed)) for seed in (0, 1))
  assert np.any(np.abs(first - second) > 1e-6)
  np.testing.assert_array_equal(first, apply(state, jax.random.key(0)))
  grads = jax.grad(lambda p: apply(Variables(p, state.stats), jax.random.key(0)).sum())(state.params)
  assert all(np.abs(grads[layer]["gate_kernel"][:2]).max() > 0 for layer in LAYERS["mlp"])
  # Over many draws a branch is taken as often as its probability says.
  expected = moe.route(soft, state, x)[1]["hidden0"]
  drawn = lambda key: net.module.apply({"params": state.params, "batch_stats": state.stats}, x, None, train=True,
                                       mutable=["routing", "batch_stats"], rngs={"gating": key})[1]["routing"]
  weights = jax.jit(lambda keys: jax.lax.map(lambda key: drawn(key)["hidden0"]["weights"][0], keys))(
      jax.random.split(jax.random.key(3), 300))
  np.testing.assert_allclose(weights.max(-1), 1, atol=1e-6)
  # 300 draws of 500 examples: a deviation of 0.5/sqrt(150,000) = 0.0013.
  np.testing.assert_allclose(weights.mean((0, 1)), expected.mean(0), atol=0.0065)


def test_scores_add_up():
  arrays = (*blobs(60), *blobs(20, seed=1))
  setting = setting_of("moe", arrays, model__num_experts=3)
  data, learner = Stages(setting)[0], setting.learner
  state = learner.init()
  fitting = begin(learner, state, data)
  scores = split.scores(fitting.spec, state.live, data.pool, data.train)
  logits = contribution(setting, state, 0, data.pool, data.train)["sum"]
  network, variables = fitting.spec.network, single(jax.device_get(state.live))
  inputs = fitting.spec.problem.inputs(data.pool, fitting.spec.problem.take(data.pool, data.train))
  losses = -jax.nn.log_softmax(logits)[np.arange(len(logits)), arrays[1][data.train]]
  for name, weights in moe.route(network, variables, inputs)[1].items():
    for expert in range(3):
      mine = np.asarray(weights).argmax(1) == expert
      np.testing.assert_allclose(scores[name]["loss"][expert], losses[mine].sum(), rtol=1e-5, atol=1e-6)
      np.testing.assert_allclose(scores[name]["usage"][expert], weights[:, expert].sum(), rtol=1e-5)
  for layer in scores.values():
    np.testing.assert_allclose(sum(layer["usage"]), len(data.train), rtol=1e-6)
    np.testing.assert_allclose(sum(layer["loss"]), losses.sum(), rtol=1e-5)
    assert len(layer["loss"]) == len(layer["usage"]) == 3


def test_growth_follows_its_schedule():
  config = small_config("gmoe", learner__grow_every=2, model__num_experts=2, train__epochs=1,
                        stream__num_megabatches=5, stream__waiting_time=1)
  setting = settings.prepare(configs.parse(config), (*blobs(100), *blobs(20, seed=1)))
  learner, stages = setting.learner, Stages(setting)
  state, found = learner.init(), []
  for stage in range(5):
    before = state
    state, report = learner.grow(state, stages[stage])
    assert bool(report.macs) == (stage in (2, 4))
    if report.macs:  # one pass over the validation data that the scores are of
      assert report.macs == learner.cost(before).fwd_macs * len(stages[stage - 1].val)
      for layer in LAYERS["mlp"]:  # the expert with the largest loss
        scores = state.host["scores"][layer]["loss"][:gmoe.num_experts(before.spec)]
        assert state.spec["splits"][layer][-1] == int(np.argmax(scores))
    found.append(gmoe.num_experts(state.spec))
    assert jax.tree.leaves(state.live.params["hidden0"]["experts"])[0].shape[1] == moe.capacity(found[-1], 4)
    fitting, _ = loop.advance(begin(learner, state, stages[stage]), 2)
    sharding.fetch(fitting.state)
    state = finish(learner, state, fitting).state
    for scores in state.host["scores"].values():
      assert sum(scores["usage"]) == pytest.approx(len(stages[stage].val), rel=1e-5)
  assert found == [2, 2, 3, 3, 4]


def test_growing_compiles_once_for_each_capacity(tmp_path, monkeypatch, arrays):
  config = small_config("gmoe", stream__num_megabatches=5, stream__waiting_time=1, train__epochs=1)
  jax.clear_caches()
  monkeypatch.setattr(jax, "clear_caches", lambda: None)  # so that all compilations are counted
  run = alma_jax.run(config, tmp_path, data=arrays)
  assert run.metrics["num_params"][-1] > run.metrics["num_params"][0]
  assert program.advance._cache_size() == 3  # 1, 2 and 5 experts
