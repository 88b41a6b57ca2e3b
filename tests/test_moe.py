"""Gated mixtures and their growth: properties of docs/algorithms.md §3, counts of §7."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, slow, small_config
from sklearn.datasets import load_digits
from stages import Stages, begin, contribution, finish, setting_of

import alma_jax
from alma_jax import config as configs
from alma_jax import learners, models
from alma_jax.config.registry import NETWORKS
from alma_jax.growth import split
from alma_jax.learners import contract, gmoe
from alma_jax.models import cost, moe
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.runs import settings
from alma_jax.training import loop, program
from alma_jax.types import Variables

LAYERS = {"mlp": moe.MoEMLP.mixtures, "vgg": moe.MoEVGG.mixtures}


def network(model, size, width=4, gating="soft", shape=(8, 8, 1)):
  shape = (32, 32, 3) if model == "vgg" else shape
  section = NETWORKS["images"][model](model, width)
  return models.build(section, 10, shape, "float32", None, size=size, gating=gating), shape


def _room(splits):
  """A number of places for experts that leaves some of them free."""
  return 1 << len(splits).bit_length()


def planted(model, splits, size=None, width=4, gating="soft", seed=0, shape=(8, 8, 1)):
  """A network whose layers have this tree, and its stacked Variables [1, ...] on the host."""
  net, shape = network(model, size or _room(splits), width, gating, shape)
  init = jax.jit(lambda key: net.init(key, jnp.zeros((1, *shape))))
  variables = jax.tree.map(lambda leaf: leaf[None], init(jax.random.key(seed)))
  return net, jax.device_get(split.plant(variables, {layer: list(splits) for layer in LAYERS[model]})), shape


def single(variables):
  return jax.tree.map(lambda leaf: leaf[0], variables)


def learner_of(name, model, width, shape, experts=1, **options):
  config = small_config(name, model__name=model, model__width=width, model__num_experts=experts,
                        **{f"learner__{key}": value for key, value in options.items()})
  task = classification.Classification(10, False)
  return learners.make(contract.Context(configs.parse(config), task, shape, 100))


@pytest.mark.parametrize(("model", "width", "shape", "params"), [
    ("mlp", 32, (28, 28, 1), [26506, 54318, 82130]), ("vgg", 16, (32, 32, 3), [35930, 70914, 105898])])
def test_counts_are_those_of_the_experts_that_there_are(model, width, shape, params):
  for num, expected in enumerate(params, 1):
    learner = learner_of("moe", model, width, shape, num)
    found = learner.cost(contract.LearnerState({"splits": {layer: moe.balanced(num) for layer in LAYERS[model]}}, None))
    assert found.num_params == expected
    exact, _ = network(model, num, width, "soft", shape)
    tree = len(LAYERS[model]) * 2 * num * (num - 1)  # its products, forward and once backward
    assert found.fwd_macs == cost.forward_macs(exact, (1, *shape)) - tree
    assert found.train_flops == cost.training_flops(exact, (1, *shape)) - 4 * tree
  if model == "mlp":  # E(D+h)h + 2(E-1)(D+h) + Kh
    assert found.fwd_macs == 3 * (784 + 32) * 32 + 2 * 2 * (784 + 32) + 320


def test_trees():
  assert moe.nested([]) == 0
  assert moe.nested([0, 1, 0]) == (0, (2, 0, 3), (1, 1, 2))
  tree, live = moe.paths([0, 1, 0], 8)
  assert live.tolist() == [1] * 4 + [0] * 4
  on_path = {leaf: {(g, s) for g, s in zip(*np.nonzero(tree[leaf]))} for leaf in range(4)}
  assert on_path == {0: {(0, 0), (2, 0)}, 3: {(0, 0), (2, 1)}, 1: {(0, 1), (1, 0)}, 2: {(0, 1), (1, 1)}}
  assert not tree[4:].any()
  for num in range(1, 20):
    depths = moe.paths(moe.balanced(num), max(num, 2))[0].sum((1, 2))[:num]
    assert depths.max() - depths.min() <= 1


def test_capacities():
  assert [moe.capacity(n, 50) for n in (1, 2, 3, 6, 7, 17, 18, 50, 51)] == [1, 2, 6, 6, 17, 17, 50, 50, 150]
  assert [moe.capacity(n, 10) for n in range(1, 11)] == [1, 2, 4, 4, *[10] * 6]
  for most in range(1, 40):
    assert moe.capacity(1, most) == 1
    assert moe.capacity(most, most) == most
    assert all(num <= moe.capacity(num, most) <= moe.capacity(num + 1, most) for num in range(1, 2 * most))


@pytest.mark.parametrize(("model", "gating"), [("mlp", "soft"), ("mlp", "hard"), ("vgg", "soft"), slow("vgg", "hard")])
def test_weights_of_the_leaves(model, gating):
  net, variables, shape = planted(model, [0, 0, 1, 3], gating=gating)
  x = jax.random.normal(jax.random.key(1), (7, *shape))
  _, weights = jax.jit(lambda v: moe.route(net, v, x))(single(variables))
  assert list(weights) == list(LAYERS[model])
  for w in weights.values():
    assert w.shape == (7, 8)
    np.testing.assert_allclose(w.sum(1), 1, atol=1e-6)
    assert not np.any(w[:, 5:])
    if gating == "hard":
      assert set(np.unique(w)) <= {0, 1}


def by_hand(variables, x):
  """The MLP mixture with splits [0, 1], a gate and an expert at a time."""
  params = jax.tree.map(np.float64, single(variables).params)
  z = x.reshape(len(x), -1).astype(np.float64)
  for layer in LAYERS["mlp"]:
    p = params[layer]
    q = []
    for gate in range(2):
      logits = z @ p["gate_kernel"][gate].T + p["gate_bias"][gate]
      q.append(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    g = [q[0][:, 0], q[0][:, 1] * q[1][:, 0], q[0][:, 1] * q[1][:, 1]]
    dense = p["experts"]["dense"]
    z = sum(g[e][:, None] * np.maximum(z @ dense["kernel"][e].T + dense["bias"][e], 0) for e in range(3))
  return z @ params["output"]["kernel"].T + params["output"]["bias"]


def test_forward_by_hand():
  net, variables, shape = planted("mlp", [0, 1])
  x = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
  np.testing.assert_allclose(net.apply(single(variables), x, None, False)[0], by_hand(variables, x), atol=1e-5)


def test_capacity_changes_nothing():
  """The same experts with room for 3, 4 and 8: unused experts and gates change nothing."""
  outputs = []
  x = jax.random.normal(jax.random.key(1), (6, 8, 8, 1))
  _, small, _ = planted("mlp", [0, 1], size=3)
  for size in (3, 4, 8):
    net, large, _ = planted("mlp", [0, 1], size=size, seed=7)
    copied = jax.tree.map(lambda new, old: old if new.shape == old.shape else np.concatenate(
        [old, new[:, old.shape[1]:]], 1), large.params, small.params)
    outputs.append(net.apply(single(Variables(copied, large.stats)), x, None, False)[0])
  np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-6)
  np.testing.assert_allclose(outputs[2], outputs[0], atol=1e-6)


def grown(model, variables, leaf, splits, width, seed, gating="soft", shape=(8, 8, 1)):
  new = [*splits, leaf]
  net, shape = network(model, _room(new), width, gating, shape)
  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
                        cost.abstract_variables(net, (1, *shape)))
  larger = split.grow(variables, shapes, {layer: new for layer in LAYERS[model]}, np.random.default_rng(seed))
  return net, larger, new


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


@pytest.mark.slow
@pytest.mark.parametrize("gating", ["soft", "hard"])
def test_splits_of_blocks_preserve_the_function(gating):
  x = jax.random.normal(jax.random.key(5), (12, 32, 32, 3))
  splits, (net, variables, _) = [], planted("vgg", [], gating=gating)
  for _ in range(30):  # statistics of real activations, because deep activations would vanish otherwise
    state = single(variables)
    stats = jax.jit(net.apply, static_argnums=3)(state, x, None, True)[1]
    variables = jax.tree.map(lambda leaf: np.asarray(leaf)[None], Variables(state.params, stats))
  rng = np.random.default_rng(0)
  for growth, leaf in enumerate((0, 1, 1)):
    for layer in LAYERS["vgg"]:  # statistics of its own for every expert
      stats = variables.stats[layer]["experts"]
      variables.stats[layer]["experts"] = jax.tree.map(
          lambda leaf: leaf * rng.uniform(0.7, 1.3, leaf.shape).astype(np.float32), stats)
    before = jax.jit(net.apply, static_argnums=3)(single(variables), x, None, False)
    net, variables, splits = grown("vgg", variables, leaf, splits, 4, growth + 1, gating)
    after = jax.jit(net.apply, static_argnums=3)(single(variables), x, None, False)
    assert np.std(before[0], 0).max() > 0.01  # the outputs depend on the images
    np.testing.assert_allclose(after[0], before[0], atol=1e-5)


@pytest.mark.slow
def test_a_split_of_blocks_preserves_training_with_soft_gates():
  x, mask = jax.random.normal(jax.random.key(5), (64, 32, 32, 3)), jnp.arange(64) < 60
  net, variables, _ = planted("vgg", [0])
  before, _ = jax.jit(net.apply, static_argnums=3)(single(variables), x, mask, True)
  net, variables, _ = grown("vgg", variables, 1, [0], 4, 1)
  after, stats = jax.jit(net.apply, static_argnums=3)(single(variables), x, mask, True)
  np.testing.assert_allclose(after[:60], before[:60], atol=1e-5 * np.abs(before[:60]).max())
  for leaf in jax.tree.leaves(stats["block1"]["experts"]):
    np.testing.assert_array_equal(leaf[1], leaf[2])


def test_only_a_random_gate_makes_children_differ():
  digits = load_digits()
  x, y = jnp.asarray(digits.images[:100, ..., None] / 16, jnp.float32), digits.target[:100]
  net, small, _ = planted("mlp", [])
  net, variables, _ = grown("mlp", small, 0, [], 4, 1)
  params = single(variables).params
  zeroed = {name: dict(leaf, gate_kernel=0 * leaf["gate_kernel"], gate_bias=0 * leaf["gate_bias"])
            if "gate_kernel" in leaf else leaf for name, leaf in params.items()}

  @jax.jit
  def loss(params):
    logits, _ = net.apply(Variables(params, single(variables).stats), x, None, True)
    return -jax.nn.log_softmax(logits)[np.arange(100), y].mean()

  def difference(params):
    for step in range(20):
      grads = jax.grad(loss)(params)
      if step == 0:
        for layer in LAYERS["mlp"]:  # children are equal: their gate has no gradient
          np.testing.assert_allclose(grads[layer]["gate_kernel"], 0, atol=1e-7)
      params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
    kernel = params["hidden0"]["experts"]["dense"]["kernel"]
    return np.abs(kernel[0] - kernel[1]).max()

  assert difference(zeroed) < 1e-6
  assert difference(params) > 1e-3


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


@pytest.mark.parametrize(("every", "experts", "counts"), [(1, 1, [1, 2, 3, 4, 5]), (2, 2, [2, 2, 3, 3, 4])])
def test_growth_follows_its_schedule(every, experts, counts):
  config = small_config("gmoe", learner__grow_every=every, model__num_experts=experts, train__epochs=1,
                        stream__num_megabatches=5, stream__waiting_time=1)
  setting = settings.prepare(configs.parse(config), (*blobs(100), *blobs(20, seed=1)))
  learner, stages = setting.learner, Stages(setting)
  state, found = learner.init(), []
  for stage in range(5):
    before = state
    state, report = learner.grow(state, stages[stage])
    assert bool(report.macs) == (stage > 0 and stage % every == 0)
    if stage > 0 and stage % every == 0:  # one pass over the validation data that the scores are of
      assert report.macs == learner.cost(before).fwd_macs * len(stages[stage - 1].val)
    found.append(gmoe.num_experts(state.spec))
    if report.macs:  # the expert with the largest loss
      for layer in LAYERS["mlp"]:
        scores = state.host["scores"].get(layer, {"loss": [0.0]})["loss"]
        assert state.spec["splits"][layer][-1] == int(np.argmax(scores[:found[-1] - 1]))
    assert jax.tree.leaves(state.live.params["hidden0"]["experts"])[0].shape[1] == (
        moe.capacity(found[-1], counts[-1]))
    fitting, _ = loop.advance(begin(learner, state, stages[stage]), 2)
    sharding.fetch(fitting.state)
    state = finish(learner, state, fitting).state
    for scores in state.host["scores"].values():
      assert sum(scores["usage"]) == pytest.approx(len(stages[stage].val), rel=1e-5)
  assert found == counts


@pytest.mark.slow
def test_growing_compiles_once_for_each_capacity(tmp_path, monkeypatch):
  config = small_config("gmoe", stream__num_megabatches=9, stream__waiting_time=1, train__epochs=1)
  jax.clear_caches()
  monkeypatch.setattr(jax, "clear_caches", lambda: None)  # so that all compilations are counted
  run = alma_jax.run(config, tmp_path, data=(*blobs(300), *blobs(30, seed=1)))
  assert run.metrics["num_params"][-1] > run.metrics["num_params"][0]
  assert program.advance._cache_size() == 3  # 1, 3 and 9 experts


@pytest.mark.parametrize("optimizer", ["adadelta", "adam", "sgd"])
def test_both_children_have_the_parents_moments(optimizer):
  momentum = {"train__momentum": 0.9} if optimizer == "sgd" else {}
  config = small_config("gmoe", learner__keep_optimizer=True, model__num_experts=2, train__epochs=2,
                        train__optimizer=optimizer, stream__waiting_time=1, **momentum)
  setting = settings.prepare(configs.parse(config), (*blobs(100), *blobs(20, seed=1)))
  learner, stages = setting.learner, Stages(setting)
  fitting, _ = loop.advance(begin(learner, learner.init(), stages[0]), 100)
  trained = finish(learner, learner.init(), fitting).state
  grown, _ = learner.grow(trained, stages[1])
  shapes = learner.template(grown.spec).opt
  jax.tree.map(lambda leaf, shape: np.testing.assert_equal((leaf.shape, leaf.dtype), (shape.shape, shape.dtype)),
               grown.opt, shapes)
  like = lambda state: [node for node in jax.tree.leaves(
      state.opt, is_leaf=lambda node: isinstance(node, dict) and "output" in node) if isinstance(node, dict)]
  pairs = list(zip(*map(jax.device_get, (like(trained), like(grown)))))
  assert len(pairs) == (1 if optimizer == "sgd" else 2)
  for old, new in pairs:
    np.testing.assert_array_equal(new["output"]["kernel"], old["output"]["kernel"])
    for layer in LAYERS["mlp"]:
      parent = grown.spec["splits"][layer][-1]
      before, after = (tree[layer]["experts"]["dense"]["kernel"][0] for tree in (old, new))
      assert np.abs(before[parent]).max() > 0
      np.testing.assert_array_equal(after[:2], before)
      np.testing.assert_array_equal(after[2], before[parent])
      np.testing.assert_array_equal(new[layer]["gate_kernel"][0, 0], old[layer]["gate_kernel"][0, 0])
      assert np.abs(new[layer]["gate_kernel"][0, 0]).max() > 0
      np.testing.assert_array_equal(new[layer]["gate_kernel"][0, 1], 0)
  begun = begin(learner, grown, stages[1])
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(begun.state.members.opt), jax.device_get(grown.opt))


@pytest.mark.parametrize("split_by", ["loss", "usage", "random"])
def test_the_expert_to_split_is_chosen_as_configured(split_by):
  chosen = []
  for seed in range(4):
    config = small_config("gmoe", seed=seed, learner__split_by=split_by, model__num_experts=8)
    setting = settings.prepare(configs.parse(config), (*blobs(60), *blobs(20, seed=1)))
    state = setting.learner.init()
    one = {"loss": [0.0, 1, 5, 5, 1, 0, 0, 0], "usage": [1.0, 9, 2, 3, 4, 5, 6, 7]}
    state = state._replace(host={**state.host, "scores": dict.fromkeys(LAYERS["mlp"], one)})
    grown, _ = setting.learner.grow(state, Stages(setting)[1])
    chosen += [grown.spec["splits"][layer][-1] for layer in LAYERS["mlp"]]
  if split_by == "random":
    assert len(set(chosen)) > 2
  else:
    assert set(chosen) == {{"loss": 2, "usage": 1}[split_by]}  # of equals the first
