"""Gated mixtures and their growth: properties of docs/algorithms.md §3, counts of §7."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, slow, small_config
from sklearn.datasets import load_digits
from stages import Stages, begin, finish

from alma_jax import config as configs
from alma_jax import learners, models
from alma_jax.config.registry import NETWORKS
from alma_jax.growth import split
from alma_jax.learners import contract
from alma_jax.models import cost, moe
from alma_jax.problems import classification
from alma_jax.runs import settings
from alma_jax.training import loop
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
    ("mlp", 32, (28, 28, 1), [26506, 54318, 82130]), slow("vgg", 16, (32, 32, 3), [35930, 70914])])
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


@pytest.mark.parametrize("gating", ["soft", "hard"])
def test_weights_of_the_leaves(gating):
  net, variables, shape = planted("mlp", [0, 0, 1, 3], gating=gating)
  x = jax.random.normal(jax.random.key(1), (7, *shape))
  _, weights = jax.jit(lambda v: moe.route(net, v, x))(single(variables))
  assert list(weights) == list(LAYERS["mlp"])
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


def grown(model, variables, leaf, splits, width, seed, gating="soft", shape=(8, 8, 1)):
  new = [*splits, leaf]
  net, shape = network(model, _room(new), width, gating, shape)
  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
                        cost.abstract_variables(net, (1, *shape)))
  larger = split.grow(variables, shapes, {layer: new for layer in LAYERS[model]}, np.random.default_rng(seed))
  return net, larger, new


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


def test_both_children_have_the_parents_moments():
  config = small_config("gmoe", learner__keep_optimizer=True, model__num_experts=2, train__optimizer="adam",
                        stream__waiting_time=1)
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
  assert len(pairs) == 2
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
