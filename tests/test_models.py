"""Networks: counts of docs/algorithms.md §7, initialisation, masking."""
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import small_config

from alma_jax import config as configs
from alma_jax import keys, models
from alma_jax.config.registry import NETWORKS
from alma_jax.errors import BadInput
from alma_jax.learners import stacked
from alma_jax.learners.contract import Context
from alma_jax.models import attention, compact, convolution, cost, layers
from alma_jax.training import optimizers


def build(name, width, shape, classes=10, precision="float32", axis=None):
  return models.build(NETWORKS["images"][name](name, width), classes, shape, precision, axis)


def variables(network, shape, seed=0):
  return jax.jit(network.init)(jax.random.key(seed), jnp.zeros((1, *shape)))


def num_params(network, shape):
  return models.count_params(jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, *shape))).params)


@pytest.mark.parametrize(("width", "params"), [(4, 3210), (64, 55050)])
def test_mlp_counts(width, params):
  network = build("mlp", width, (28, 28, 1))
  assert num_params(network, (28, 28, 1)) == params
  # h²+(D+K)h
  assert cost.forward_macs(network, (1, 28, 28, 1)) == width**2 + (784 + 10) * width


@pytest.mark.parametrize(("width", "params"), [(4, 2510), (64, 558410)])
def test_vgg_counts(width, params):
  network = build("vgg", width, (32, 32, 3))
  assert num_params(network, (32, 32, 3)) == params == 135 * width**2 + 85 * width + 10
  assert cost.forward_macs(network, (1, 32, 32, 3)) == 16848 * width**2 + (27648 + 10) * width


@pytest.mark.parametrize(("width", "shape", "stride", "halved"), [
    (8, (32, 32, 3), 2, 0), (4, (8, 11, 1), 1, 0), (6, (65, 64, 2), 4, 0), (3, (40, 29, 3), 2, 0),
    (2, (128, 224, 3), 4, 1)])
def test_compact_counts(width, shape, stride, halved):
  network, (height, across, channels), c = build("compact", width, shape), shape, width
  linear = 4 * channels * stride**2 + 40 + 34 + 2 * halved
  assert num_params(network, shape) == (468 + 9 * halved) * c**2 + linear * c + 10
  macs, height, across = 0, height // stride, across // stride
  macs += 4 * stride**2 * channels * c * height * across
  for _ in range(halved):
    macs, height, across = macs + 9 * height * across * c**2, height // 2, across // 2
  for before in (c, 4 * c):  # a block: a convolution at its size, another at half of it
    macs += 9 * height * across * before * 4 * c
    height, across = height // 2, across // 2
    macs += 9 * height * across * 16 * c**2
  assert cost.forward_macs(network, (1, *shape)) == macs + 4 * c * 10


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_the_stem_of_compact_is_a_convolution(stride):
  stem, x = compact.Stem(5, stride, jnp.float32), jax.random.normal(jax.random.key(0), (2, 12, 14, 3))
  state = jax.jit(stem.init)(jax.random.key(1), x)
  around = (stride // 2, stride - stride // 2)
  expected = jax.lax.conv_general_dilated(x, state["params"]["kernel"], (stride, stride),
                                          (around, around), dimension_numbers=("NHWC", "HWIO", "NHWC"))
  np.testing.assert_allclose(jax.jit(stem.apply)(state, x), expected[:, :12 // stride, :14 // stride], atol=1e-5)


def test_auto_is_compact_for_images_that_are_large_enough():
  assert build("auto", 4, (14, 15, 1)) == build("compact", 4, (14, 15, 1))


def test_auto_is_a_perceptron_for_others_that_muon_leaves_to_adam():
  shape = (13, 14, 1)
  network, plain, x = build("auto", 4, shape), build("mlp", 4, shape), jnp.ones((2, *shape))
  assert build("auto", 4, (64,)) == network
  start, same = variables(network, shape), variables(plain, shape)
  outputs = [jax.jit(each.apply, static_argnums=3)(state, x, None, False)[0]
             for each, state in ((network, start), (plain, same))]
  np.testing.assert_array_equal(*outputs)
  assert "kernel" in start.params["output"]  # as `hmoe` and `mntdp` read it
  train = configs.parse(small_config(train__optimizer="muon", train__learning_rate=0.1)).train
  grads = jax.tree.map(jnp.ones_like, start.params)
  optimizer = optimizers.of(train)
  updates, _ = jax.jit(optimizer.update)(grads, optimizer.init(start.params), start.params)
  for leaf in jax.tree.leaves(updates):  # Adam's first step is the same for all parameters
    np.testing.assert_allclose(leaf, updates["output"]["bias"][0], rtol=1e-5)


def test_mixture_counts_are_those_of_its_parts():
  network = build("mlp", 8, (5,))
  mixture = models.Mixture(network, 3, "mean")
  assert num_params(mixture, (5,)) == 3 * num_params(network, (5,))
  state = jax.eval_shape(mixture.init, jax.random.key(0), jnp.zeros((1, 5)))
  traced = cost.count(mixture.scalar_output, state, jnp.zeros((1, 5)), jnp.ones(1, bool))
  assert cost.forward_macs(mixture, (1, 5)) == 3 * cost.forward_macs(network, (1, 5)) == traced


@pytest.mark.parametrize(("layer", "shape", "fan_in"), [
    (layers.Conv3x3(64), (4, 4, 3), 27), (layers.Conv3x3(64), (4, 4, 64), 9 * 64), (layers.Head(10), (64,), 64)])
def test_initialisation_is_uniform_within_one_over_root_fan_in(layer, shape, fan_in):
  for leaf in jax.tree.leaves(layer.init(jax.random.key(0), jnp.zeros((1, *shape)))["params"]):
    scaled = np.abs(leaf) * np.sqrt(fan_in)
    assert 0.5 < scaled.max() <= 1 + 1e-6
    if scaled.size > 30_000:  # the mean of |U(±1)| is 1/2, its deviation 0.29/sqrt(n)
      assert abs(scaled.mean() - 0.5) < 0.01
      assert scaled.max() > 0.99


@pytest.mark.slow
def test_padding_changes_neither_logits_nor_statistics():
  network = build("vgg", 4, (32, 32, 3))
  state = variables(network, (32, 32, 3))
  x = jax.random.normal(jax.random.key(1), (5, 32, 32, 3))
  padded = jnp.concatenate([x, 100 * jnp.ones((3, 32, 32, 3))])
  apply = jax.jit(network.apply, static_argnums=3)
  logits, stats = apply(state, x, None, True)
  padded_logits, padded_stats = apply(state, padded, jnp.arange(8) < 5, True)
  # At 1x1 resolution a batch of 5 has little variance to divide by: 1e-4.
  np.testing.assert_allclose(padded_logits[:5], logits, atol=1e-4)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), padded_stats, stats)


def test_batch_norm_by_hand():
  layer = layers.BatchNorm(None)
  x = jnp.array([1.0, 3.0, 50.0]).reshape(3, 1, 1, 1)
  mask, shift = jnp.array([True, True, False]), jnp.array([5.0])
  state = layer.init(jax.random.key(0), x, shift, mask, True)
  y, new = layer.apply(state, x, shift, mask, True, mutable=["batch_stats"])
  # Mean 2 without the shift, 7 with it; biased variance 1.
  np.testing.assert_allclose(y.ravel()[:2], np.array([-1, 1]) / np.sqrt(1 + 1e-5), rtol=1e-6)
  np.testing.assert_allclose(new["batch_stats"]["mean"], 0.9 * 0 + 0.1 * 7, rtol=1e-6)
  np.testing.assert_allclose(new["batch_stats"]["var"], 0.9 * 1 + 0.1 * 1, rtol=1e-6)
  y = layer.apply({"params": state["params"], **new}, x, shift, mask, False)
  np.testing.assert_allclose(y.ravel(), (np.array([1, 3, 50]) + 5 - 0.7) / np.sqrt(1 + 1e-5), rtol=1e-6)


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_max_pool(size):
  x = np.random.default_rng(0).normal(size=(2, *size, 3)).astype(np.float32)
  by_hand = [[[x[b, 2 * i:2 * i + 2, 2 * j:2 * j + 2].max((0, 1)) for j in range(size[1] // 2)]
              for i in range(size[0] // 2)] for b in range(2)]
  np.testing.assert_array_equal(layers.max_pool2(jnp.asarray(x)), by_hand)


def test_bfloat16_computes_in_it_but_keeps_float32_parameters():
  exact, rough = build("mlp", 8, (5,)), build("mlp", 8, (5,), precision="bfloat16")
  state = variables(rough, (5,))
  assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state))
  x, mask = jax.random.normal(jax.random.key(0), (4, 5)), jnp.ones(4, bool)
  a, b = (jax.jit(each.apply, static_argnums=3)(state, x, mask, False)[0] for each in (exact, rough))
  assert b.dtype == jnp.float32
  assert 0 < np.abs(a - b).max() < 0.05


@pytest.mark.parametrize(("name", "pixels", "shape"), [
    ("vgg", 32, (28, 28, 1)), ("vgg", 32, (784,)), ("vgg", 32, (64, 16, 3)), ("compact", 8, (7, 20, 3))])
def test_small_images_are_refused(name, pixels, shape):
  with pytest.raises(BadInput, match=f"at least {pixels}x{pixels}"):
    build(name, 4, shape)


@pytest.mark.parametrize(("shape", "features"), [
    ((24, 16, 17, 3), 5), ((18, 32, 32, 2), 4), ((2, 8, 8, 3), 4), ((3, 1, 5, 2), 1),  # narrow
    ((5, 16, 16, 3), 24), ((5, 16, 16, 24), 3), ((3, 14, 14, 5), 20)])  # narrow in one direction
def test_convolutions_and_their_gradients_are_those_of_xla(shape, features):
  keys = jax.random.split(jax.random.key(0), 3)
  x, kernel = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (3, 3, shape[-1], features))
  grad = jax.random.normal(keys[2], (*shape[:3], features))

  def outputs(conv, x, kernel):
    y, backward = jax.vjp(conv, x, kernel)
    return y, *backward(grad)

  convs = (convolution._conv, convolution._cpu_conv)
  expected, found = (jax.jit(outputs, static_argnums=0)(conv, x, kernel) for conv in convs)
  for a, b in zip(expected, found, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())
  assert cost.count(convolution._cpu_conv, x, kernel) == x.size * 9 * features
  counts = [cost.count(lambda x, k, conv=conv: outputs(conv, x, k), x, kernel) for conv in convs]
  assert counts[0] == counts[1] == 3 * x.size * 9 * features


def test_initial_values_do_not_depend_on_how_they_are_compiled():
  """The compiler optimises an initialisation less than it could, for a faster start."""
  context = Context(configs.parse(configs.base("sm")), types.SimpleNamespace(num_outputs=300), (8, 8, 1), 1)
  made, raw_keys = context.network(), keys.member_keys(0, 0, keys.INIT, 3)
  plainly = jax.jit(stacked._init_members, static_argnames="network",
                    compiler_options={"xla_backend_optimization_level": 3})  # also where the tests compile with less
  quick, plain = (init(made, raw_keys, context.example) for init in (stacked._init_on_cpu, plainly))
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(quick), jax.device_get(plain))


def test_on_a_gpu_the_cpu_computes_the_initial_values(monkeypatch):
  """Also those of a network whose attention a CPU cannot compute."""
  backend, config = jax.default_backend(), configs.language("sm", "tiny")
  config.precision, config.model.width, config.model.num_layers = "bfloat16", 16, 2
  short, context = (Context(configs.parse(config), types.SimpleNamespace(num_outputs=300), (length + 1,), 1)
                    for length in (64, 128))  # two lengths, because jax would not trace the same one again
  raw_keys = keys.member_keys(0, 0, keys.INIT, 1)
  before = stacked.initialized(short.network(), raw_keys, short.example)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(attention, "_implementation", lambda query: "cudnn")
  monkeypatch.delattr(stacked, "_init_elsewhere")
  made = stacked.initialized(context.network(), raw_keys, context.example)
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(made), jax.device_get(before))
  if backend == "cpu":
    one = jax.tree.map(lambda leaf: leaf[0], made)
    with pytest.raises(Exception, match="(?i)cudnn|cuda"):
      jax.jit(context.network().apply, static_argnums=3)(one, context.example, None, False)
