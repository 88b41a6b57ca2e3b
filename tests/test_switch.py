"""The Switch Transformer: counts and properties of docs/algorithms.md §5, against slow references."""
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alma_jax import models
from alma_jax.errors import BadInput
from alma_jax.growth import duplicate
from alma_jax.models import attention, cost, moe, output_layer, routing, switch, transformer
from alma_jax.parallel import members
from alma_jax.types import Variables

V, L = 29, 12
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time


def build(width=16, num_layers=2, num_experts=4, capacity_factor=1.0, group_size=L, **changes):
  return switch.SwitchNetwork(transformer.Switch(
      **{"vocab_size": V, "num_heads": 2, **changes}, width=width, num_layers=num_layers, num_experts=num_experts,
      capacity_factor=capacity_factor, group_size=group_size))


def make_windows(num, seed=0, length=L):
  rng = np.random.default_rng(seed)
  return switch.Windows(rng.integers(0, V, (num, length + 1), np.int32), np.full(num, length, np.int32),
                        rng.integers(0, 2**32, (num, 2), np.uint32))


@functools.cache
def init(network, seed=0):
  """Variables of about the network's own scale, with routers of large logits, and biases that matter; quick to make."""
  shapes, rng = jax.eval_shape(network.init, jax.random.key(seed), make_windows(1)), np.random.default_rng(seed)
  scales = {"router": 1.0, "scale": 0.1, "bias": 0.1, "kernel": 0.1, "embedding": 0.25, "unembedding": 0.25,
            "previous": 0.5}

  def draw(path, leaf):
    name = path[-1].key.rsplit("_", maxsplit=1)[-1]  # of experts: up_kernel, ...
    return np.float32((name == "scale") + scales[name] * rng.normal(size=leaf.shape))

  stats = {name: {"offset": np.zeros(layer["offset"].shape, np.float32)} for name, layer in shapes.stats.items()}
  if network.module.gates == "tree":
    tree, _ = moe.paths(moe.balanced(network.module.num_experts), network.module.num_experts)
    stats = {name: layer | {"tree": tree} for name, layer in stats.items()}
  return Variables(jax.tree_util.tree_map_with_path(draw, shapes.params), stats)


def without_opinion(variables):
  """Variables whose routers give all experts equal logits."""
  flat = {name: variables.params[name] | {"router": np.zeros_like(variables.params[name]["router"])}
          for name in variables.stats}
  return variables._replace(params=variables.params | flat)


apply = jit(switch.SwitchNetwork.apply, static_argnums=(0, 4))
logits = jit(switch.SwitchNetwork.logits, static_argnums=0)


@functools.partial(jit, static_argnums=(0, 3))
def hidden(network, variables, windows, train):
  """Final hidden states [B, L, D] and Routes."""
  counts = jnp.arange(windows.tokens.shape[1] - 1)[None] < windows.length[:, None]
  states, _, routes = network.module.apply(
      {"params": variables.params, "stats": variables.stats}, windows.tokens[:, :-1], counts, windows.keys, train)
  return states, routes


def traced_loss_and_grad(network, variables, windows, mask):
  def total(params):
    out, _ = network.apply(variables._replace(params=params), windows, mask, True)
    return out.loss + out.balance, out
  return jax.value_and_grad(total, has_aux=True)(variables.params)


loss_and_grad = jit(traced_loss_and_grad, static_argnums=0)


# Each further network takes seconds to compile.
SMALL = build(group_size=2 * L)  # for gradients
WIDE = build(group_size=3 * L)  # for evaluation
ALL2, ALL4 = np.ones(2, bool), np.ones(4, bool)


def assert_close(tree_a, tree_b, atol=1e-5):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol * max(1, np.abs(b).max())), tree_a, tree_b)


# Parameters.


@pytest.mark.parametrize(("num_layers", "width", "heads", "vocab", "experts"), [
    (2, 16, 2, V, 1), (4, 16, 2, V, 4), (3, 16, 2, V, 4),
    (6, 512, 8, 50_000, 4), (6, 512, 8, 50_000, 12), (12, 768, 12, 50_000, 8)])
def test_parameter_counts(num_layers, width, heads, vocab, experts):
  network = build(width, num_layers, experts, vocab_size=vocab, num_heads=heads)
  shapes = jax.eval_shape(network.init, jax.random.key(0), make_windows(1))
  count = models.count_params(shapes.params)
  n, d = num_layers, width
  shared = vocab * d + n * (4 * d * d + 4 * d) + -(-n // 2) * (8 * d * d + 5 * d) + (2 * n + 1) * 2 * d
  assert count == shared + n // 2 * (experts * (8 * d * d + 5 * d) + d * experts)
  if d > 16:  # the paper's sizes: shared, and per expert without the router
    assert round(shared / 1e5) == {512: 382, 768: 951}[d]
    assert round(n // 2 * (8 * d * d + 5 * d) / 1e4) == {512: 630, 768: 2833}[d]
  assert {k: v["offset"].shape for k, v in shapes.stats.items()} == {
      f"layer{i}": (experts,) for i in range(1, num_layers, 2)}


def test_modern_networks_have_the_multiply_adds_of_the_papers_and_start_by_guessing():
  """Of 2 V d + d + n 4d² + ceil(n/2) 8d² + floor(n/2) E (8d² + d) parameters."""
  (n, d, experts), (modern, paper) = (3, 16, 4), (build(16, 3, 4, block=block) for block in ("modern", "paper"))
  variables, windows = jit(modern.init)(jax.random.key(0), make_windows(2)), make_windows(2)
  expected = 2 * V * d + d + n * 4 * d * d + -(-n // 2) * 8 * d * d + n // 2 * experts * (8 * d * d + d)
  assert models.count_params(variables.params) == expected
  assert cost.forward_macs(modern, (1, L + 1)) == cost.forward_macs(paper, (1, L + 1))
  out, _ = apply(modern, variables, windows, ALL2, False)
  np.testing.assert_allclose(out.log_probs, -np.log(V), rtol=1e-6)


def test_a_modern_network_reads_a_share_of_the_token_before():
  network = build(block="modern")
  variables, windows = init(network), make_windows(2)
  params, last = jax.tree.map(np.asarray, variables.params), {"output", "down", "down_kernel"}
  silent = jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf * last.isdisjoint(part.key for part in path), params)
  x = 30 * params["embedding"][windows.tokens[:, :-1]]  # 7.5 sqrt(16)
  x[:, 1:] += params["share_of_previous"] * x[:, :-1].copy()
  x /= np.sqrt(np.square(x).mean(-1, keepdims=True))
  found = hidden(network, variables._replace(params=silent), windows, False)[0]
  np.testing.assert_allclose(found, x, atol=1e-4)


def test_turned_products_depend_on_distances_alone():
  """The same query, and the same key, at nine positions."""
  x = np.random.default_rng(0).normal(size=(2, 1, 1, 8)).astype(np.float32)
  query, key = (np.asarray(transformer._turned(each.repeat(9, 0)[None]))[0, :, 0] for each in x)
  products = query @ key.T
  for distance in range(-8, 9):
    along = np.diagonal(products, distance)
    np.testing.assert_allclose(along, along[0], atol=1e-5)
  assert np.std(np.diagonal(products[:, ::-1])) > 0.1
  np.testing.assert_allclose(np.square(query).mean(-1), 1, atol=1e-5)


def test_initialisation():
  params = jit(build(64, 2, 4).init)(jax.random.key(0), make_windows(1)).params
  params, std = jax.tree.map(np.asarray, params), np.std
  # Of n numbers the sample's deviation is off by a share of 1/sqrt(2n): 1.1 % for the 4096 of the smallest.
  assert std(params["layer0"]["qkv"]["kernel"]) == pytest.approx(math.sqrt(0.1 / 64), rel=0.05)
  assert std(params["layer0"]["output"]["kernel"]) == pytest.approx(math.sqrt(0.1 / 64), rel=0.05)
  assert std(params["layer0"]["ffn"]["down"]["kernel"]) == pytest.approx(math.sqrt(0.1 / 256), rel=0.05)
  experts = params["layer1"]["experts"]
  for e in range(4):
    assert std(experts["up_kernel"][e]) == pytest.approx(math.sqrt(0.1 / 64), rel=0.05)
    assert std(experts["down_kernel"][e]) == pytest.approx(math.sqrt(0.1 / 256), rel=0.05)
  assert not np.any(experts["up_kernel"][0] == experts["up_kernel"][1])
  assert std(params["embedding"]) == pytest.approx(1 / 8, rel=0.1)
  assert std(params["layer1"]["router"]) == pytest.approx(0.02, rel=0.2)  # 256 numbers: 4.4 %
  assert not np.any(experts["up_bias"])


def test_positions():
  expected = [[np.sin(p), np.sin(p / 100), np.cos(p), np.cos(p / 100)] for p in range(3)]
  np.testing.assert_allclose(transformer._positions(3, 4), expected, atol=1e-6)


def test_embedding_and_output_around_the_layers():
  silent = ("output", "down", "down_kernel", "down_bias")  # then layers add nothing
  variables, tokens = init(WIDE), make_windows(3).tokens[:, :-1]
  params = jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf * (not any(part.key in silent for part in path)), variables.params)
  x = 4 * params["embedding"][tokens] + np.asarray(transformer._positions(L, 16))  # sqrt(16)
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  x = x * params["norm"]["scale"] + params["norm"]["bias"]
  found = logits(WIDE, variables._replace(params=params), tokens)
  np.testing.assert_allclose(found, x @ params["embedding"].T, atol=1e-5)


# Order, batches, padding.


@pytest.mark.parametrize(("train", "group_size", "block"), [
    (False, L, "paper"), (True, 4, "paper"), (True, L, "modern")])
def test_causality(train, group_size, block):
  network, windows, first = build(group_size=group_size, block=block), make_windows(2), 5
  variables = init(network)
  changed = windows._replace(tokens=np.where(np.arange(L + 1) < first, windows.tokens, (windows.tokens + 7) % V))
  (a, routes), (b, _) = (hidden(network, variables, w, train) for w in (windows, changed))
  np.testing.assert_allclose(a[:, :first], b[:, :first], atol=1e-6)
  assert np.abs(a[:, first:] - b[:, first:]).max(-1).min() > 1e-3
  assert (sum(int(r.dropped) for r in routes) > 0) == train


def test_evaluation_does_not_depend_on_the_rest_of_the_batch():
  network, windows = WIDE, make_windows(3)
  windows = windows._replace(length=np.array([L, 5, L]))
  variables = init(network)
  joint, _ = apply(network, variables, windows, None, False)
  others = windows._replace(tokens=np.stack([*make_windows(2, seed=1).tokens, windows.tokens[1]])[[0, 2, 1]])
  other, _ = apply(network, variables, others, None, False)
  np.testing.assert_allclose(joint.log_probs[1], other.log_probs[1], atol=1e-6)
  np.testing.assert_array_equal(joint.expert[:, 1], other.expert[:, 1])
  assert np.all(joint.log_probs[1, :5] < 0)
  assert np.all(joint.log_probs[1, 5:] == 0)
  assert np.abs(joint.log_probs[0] - other.log_probs[0]).max() > 0.1
  np.testing.assert_array_equal(joint.dropped, 0)
  np.testing.assert_array_equal(joint.load.sum(1), L + 5 + L)


def test_log_probs_are_those_of_the_logits_and_add_up_to_the_loss():
  network, windows = WIDE, make_windows(3)
  variables = init(network)
  out, stats = apply(network, variables, windows, None, False)
  scores = logits(network, variables, windows.tokens[:, :-1])
  assert scores.shape == (3, L, V)
  targets = np.asarray(windows.tokens[:, 1:, None])
  expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(scores)), targets, -1)[..., 0]
  np.testing.assert_allclose(out.log_probs, expected, atol=1e-5)
  assert float(out.loss) == pytest.approx(-expected.sum(), rel=1e-5)
  assert jax.tree.all(jax.tree.map(np.array_equal, stats, variables.stats))
  at = jit(network.logits_at)(variables, windows.tokens[:, :-1], 4)
  np.testing.assert_allclose(at, scores[:, 4], atol=1e-5)


def test_training_with_room_for_all_has_the_loss_of_evaluation():
  network, windows = build(capacity_factor=4.0, group_size=L), make_windows(3)
  windows = windows._replace(length=np.array([L, 0, 7]))
  variables = init(network)
  train, evaluation = (apply(network, variables, windows, None, t)[0] for t in (True, False))
  assert float(train.loss) == pytest.approx(float(evaluation.loss), rel=1e-5)
  assert float(train.balance) == pytest.approx(float(evaluation.balance), rel=1e-5)
  np.testing.assert_array_equal(train.load, evaluation.load)
  assert train.log_probs is None
  assert train.expert is None


def test_in_evaluation_a_token_passes_through_one_expert(monkeypatch):
  """10 windows of 12 tokens, one of them padding and one shorter: 103 tokens count."""
  whole, computed = transformer._two_linear, []

  def counting(activation, kernels, x):
    jax.debug.callback(lambda x: computed.append(math.prod(x.shape[:-1])), x)
    return whole(activation, kernels, x)

  monkeypatch.setattr(transformer, "_two_linear", counting)
  network, windows = build(num_experts=4), make_windows(10)
  windows = windows._replace(length=np.array([L, 7, 0, *[L] * 7]))
  jax.block_until_ready(jax.jit(network.apply, static_argnums=3)(init(network), windows, None, False))
  jax.effects_barrier()
  assert 103 <= sum(computed) <= 103 + 4 * members.block_size(10 * L, 4) <= 163


def test_masked_windows_and_padding_count_for_nothing():
  network, windows = SMALL, make_windows(4)
  windows = windows._replace(length=np.array([L, 4, L, L]))
  variables = init(network)
  mask = np.array([True, True, False, False])
  (_, masked), grad = loss_and_grad(network, variables, windows, mask)
  # Other tokens where none count, and the mask as lengths.
  noise = make_windows(4, seed=1).tokens
  kept = np.arange(L + 1)[None] <= np.array([L, 4, -1, -1])[:, None]
  other = windows._replace(tokens=np.where(kept, windows.tokens, noise), length=np.array([L, 4, 0, 0]))
  (_, same), same_grad = loss_and_grad(network, variables, other, ALL4)
  # The first group alone: the second has no token that counts.
  (_, alone), alone_grad = loss_and_grad(network, variables, jax.tree.map(lambda a: a[:2], windows), ALL2)
  assert_close((masked, grad), (same, same_grad))
  assert_close((masked, grad), (alone, alone_grad))
  np.testing.assert_array_equal(masked.load.sum(1), L + 4)


# Routing.


route = jit(routing.route, static_argnums=3)


def random_routes(offset=(0.0,) * 4, factor=1.0, groups=3, tokens=10, seed=0):
  """(logits [G, T, 4], counts [G, T] of which the last group has none, capacity, Routes)."""
  rng = np.random.default_rng(seed)
  scores = np.float32(2 * rng.normal(size=(groups, tokens, 4)))
  counts = rng.uniform(size=(groups, tokens)) < np.array([0.8] * (groups - 1) + [0])[:, None]
  size = routing.capacity(factor, tokens, 4)
  return scores, counts, size, route(scores, np.float32(offset), counts, size)


@pytest.mark.parametrize(("factor", "num", "experts", "size"), [
    (1.0, 512, 4, 128), (1.0, 10, 4, 3), (1.25, 10, 4, 3), (1.5, 10, 4, 4), (0.1, 10, 4, 1), (None, 10, 4, 10)])
def test_capacity(factor, num, experts, size):
  assert routing.capacity(factor, num, experts) == size


@pytest.mark.parametrize("offset", [(0.0,) * 4, (0.0, -0.7, -2.0, 0.3)])
def test_routes_against_a_loop_over_tokens(offset):
  scores, counts, size, routes = random_routes(offset)
  groups, tokens, experts = scores.shape
  balance, dropped, load, slots = 0, 0, np.zeros(experts, int), np.full(experts * groups * size, groups * tokens)
  for g in range(groups):
    used, probs = np.zeros(experts, int), np.zeros(experts)
    for t in range(tokens):
      n = g * tokens + t
      e = int(np.argmax(scores[g, t]))
      p = np.exp(np.float64(scores[g, t]) + offset)
      p /= p.sum()
      assert routes.expert[n] == e
      assert float(routes.scale[n]) == pytest.approx(p[e] * np.exp(-offset[e]), rel=1e-5)
      slot = (e * groups + g) * size + used[e]
      if not counts[g, t] or used[e] >= size:
        assert routes.slot[n] >= slots.size
      else:
        assert routes.slot[n] == slot
        slots[slot] = n
      if counts[g, t]:
        dropped += used[e] >= size
        used[e] += 1
        probs += p
    load += used
    balance += experts * np.sum(used * probs) / max(1, used.sum())**2
  np.testing.assert_array_equal(routes.token, slots)
  np.testing.assert_array_equal(routes.load, load)
  assert routes.dropped == dropped > 0
  assert float(routes.balance) == pytest.approx(balance, rel=1e-5)


def test_gradients_of_moving_tokens_are_those_of_a_product_with_one_hot():
  _, _, _, routes = random_routes()
  rng = np.random.default_rng(1)
  x, weights, out = (np.float32(rng.normal(size=shape)) for shape in [(30, 5), (4, 5, 5), (30, 5)])

  def by_gather(x, weights):
    y = jnp.tanh(routing.dispatch(x, routes).reshape(4, -1, 5) @ weights)
    return jnp.sum(out * routing.collect(y.reshape(-1, 5), routes))

  def by_product(x, weights):
    hot = jax.nn.one_hot(routes.token, 30)  # [S, N]; zero rows for empty slots
    y = jnp.tanh((hot @ x).reshape(4, -1, 5) @ weights)
    return jnp.sum(out * (hot.T @ y.reshape(-1, 5)))

  assert_close(*(jit(jax.value_and_grad(f, (0, 1)))(x, weights) for f in (by_gather, by_product)))


def test_gradient_of_the_balance_passes_through_the_probabilities_alone():
  scores, counts, size, routes = random_routes()
  offset = np.zeros(4, np.float32)
  grad = jit(jax.grad(lambda z: routing.route(z, offset, counts, size).balance))(scores)

  def plain(z):
    total = 0.0
    for g in range(2):  # the third has no token that counts
      shares = np.eye(4, dtype=np.float32)[scores[g].argmax(-1)][counts[g]].mean(0)
      total += 4 * jnp.sum(shares * jax.nn.softmax(z[g])[counts[g]].mean(0))
    return total

  value, expected = jit(jax.value_and_grad(plain))(scores)
  np.testing.assert_allclose(grad, expected, atol=1e-6)
  assert np.abs(expected).max() > 1e-3
  assert float(routes.balance) == pytest.approx(float(value), rel=1e-5)


def mixture_layer(network, x, counts):
  """Layer 1 of `network` whose attention adds nothing: (inputs of the mixture, its output, Routes, params)."""
  params = init(network).params["layer1"]
  params |= {"output": jax.tree.map(jnp.zeros_like, params["output"])}
  layer = jit(lambda x: transformer._Layer(network.module, 1).apply(
      {"params": params, "stats": init(network).stats["layer1"]}, x, counts, None, True))
  y, (routes,) = layer(x)
  x, y, params = jax.tree.map(np.asarray, (x, y, params))
  inputs = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  return inputs * params["ffn_norm"]["scale"] + params["ffn_norm"]["bias"], y - x, y, routes, params


def leaf_probs(node, gates_N2):
  """{leaf: its probability} of a tree of gates as nested tuples, by walking down."""
  if isinstance(node, int):
    return {node: 1.0}
  gate, *children = node
  probs = np.exp(gates_N2[gate]) / np.exp(gates_N2[gate]).sum()
  return {leaf: p * q for p, child in zip(probs, children) for leaf, q in leaf_probs(child, gates_N2).items()}


@pytest.mark.parametrize(("group_size", "gates"), [(6, "flat"), (L, "tree"), (2 * L, "flat")])
def test_mixture_against_a_loop_over_tokens(group_size, gates):
  network = build(group_size=group_size, gates=gates)
  x = np.random.default_rng(0).normal(size=(4, L, 16)).astype(np.float32)
  counts = np.arange(L)[None] < np.array([L, 7, 0, L])[:, None]
  inputs, mixed, y, routes, params = mixture_layer(network, x, counts)
  experts, size = params["experts"], -(-group_size // 4)
  used, dropped = np.zeros(4, int), 0
  for n in range(4 * L):
    if n % group_size == 0:
      used[:] = 0
    b, t = divmod(n, L)
    scores = inputs[b, t] @ params["router"]
    probs = np.exp(scores) / np.exp(scores).sum()
    if gates == "tree":
      by_leaf = leaf_probs((0, (1, 0, 2), (2, 1, 3)), scores.reshape(3, 2))
      probs = [by_leaf[leaf] for leaf in range(4)]
    e = int(np.argmax(probs))
    if gates == "tree":
      left = scores[0] >= scores[1], scores[2] >= scores[3], scores[4] >= scores[5]
      e = (0 if left[1] else 2) if left[0] else (1 if left[2] else 3)
    used[e] += bool(counts[b, t])
    if not counts[b, t] or used[e] > size:
      dropped += bool(counts[b, t])
      np.testing.assert_array_equal(y[b, t], x[b, t])  # exactly: nothing is added
      continue
    inner = np.maximum(inputs[b, t] @ experts["up_kernel"][e] + experts["up_bias"][e], 0)
    expected = probs[e] * (inner @ experts["down_kernel"][e] + experts["down_bias"][e])
    np.testing.assert_allclose(mixed[b, t], expected, atol=1e-5)
  assert routes.dropped == dropped > 0


def test_one_expert_without_limit_is_a_dense_layer():
  network, counts = build(num_experts=1), np.ones((2, L), bool)
  x = np.random.default_rng(0).normal(size=(2, L, 16)).astype(np.float32)
  layer = lambda i: jit(lambda params: transformer._Layer(network.module, i).apply(
      {"params": params, "stats": {"offset": jnp.zeros(1)}}, x, counts, None, False)[0])
  params = init(network).params["layer1"]
  experts = jax.tree.map(lambda leaf: leaf[0], params["experts"])
  shared = {k: v for k, v in params.items() if k not in ("experts", "router")}
  dense = {name: {"kernel": experts[f"{name}_kernel"], "bias": experts[f"{name}_bias"]} for name in ("up", "down")}
  np.testing.assert_allclose(layer(1)(params), layer(0)(shared | {"ffn": dense}), atol=1e-5)


@pytest.mark.parametrize("train", [True, False])
def test_balance_is_one_per_group_for_uniform_probabilities(train):
  network, windows = build(group_size=6), make_windows(3)
  variables = without_opinion(init(network))
  out, _ = apply(network, variables, windows, None, train)
  # 36 tokens in groups of 6; without a limit windows are the groups.
  assert float(out.balance) == pytest.approx(6 if train else 3, rel=1e-5)
  np.testing.assert_array_equal(out.load, [[36, 0, 0, 0]])  # the first of equals
  np.testing.assert_array_equal(out.dropped, 36 - 6 * 2 if train else 0)  # ceil(6 / 4) = 2 slots a group


@pytest.mark.parametrize(("gates", "last"), [("flat", 4), ("tree", 5)])
def test_experts_duplicated_twice_with_offsets_preserve_the_function(gates, last):
  network, tokens = build(group_size=3 * L, gates=gates), make_windows(3).tokens[:, :-1]
  one = jax.tree.map(lambda leaf: leaf[None], init(network))
  grow = functools.partial(duplicate.grow, noise=0.0, rng=np.random.default_rng(0))
  found = lambda grown: logits(build(num_experts=grown.stats["layer1"]["offset"].shape[1], gates=gates),
                               jax.tree.map(lambda leaf: leaf[0], grown), tokens)
  before, twice = found(one), grow(grow(one, {"layer1": [1, 2]}, True), {"layer1": [last]}, True)
  np.testing.assert_allclose(found(twice), before, atol=1e-5)
  expected = np.select([np.isin(range(7), (last, 6)), np.isin(range(7), (1, 2, 4, 5))], [4, 2], 1)
  np.testing.assert_allclose(twice.stats["layer1"]["offset"][0], -np.log(expected), rtol=1e-6)
  if gates == "tree":
    np.testing.assert_array_equal(twice.stats["layer1"]["tree"][0], moe.paths([*moe.balanced(4), 1, 2, last], 7)[0])
  assert np.abs(found(grow(one, {"layer1": [1, 2]}, False)) - before).max() > 1e-3


def test_noise_divides_the_tokens_of_a_split_leaf():
  network = build(gates="tree")
  one = jax.tree.map(lambda leaf: leaf[None], init(network))
  grown = duplicate.grow(one, {"layer1": [1]}, True, 0.5, np.random.default_rng(0))
  old, new = one.params["layer1"]["router"], grown.params["layer1"]["router"]
  np.testing.assert_array_equal(new[..., :6], old)
  np.testing.assert_array_equal(new[..., 6], -new[..., 7])
  assert np.std(new[..., 6]) == pytest.approx(0.5, rel=0.5)
  assert old.shape[-1] == 6  # the input has not changed


def test_plain_copies_of_leaves_halve_their_outputs():
  logits_GTN2 = np.random.default_rng(0).normal(size=(1, 20, 3, 2)).astype(np.float32)
  grown = np.concatenate([logits_GTN2, np.zeros((1, 20, 4, 2), np.float32)], 2)
  trees = (moe.paths(splits, len(splits) + 1)[0] for splits in (moe.balanced(4), [*moe.balanced(4), 0, 1, 2, 3]))
  (before, old), (after, new) = (routing.leaves(z, tree) for z, tree in zip((logits_GTN2, grown), trees))
  np.testing.assert_allclose(np.exp(after), np.exp(np.concatenate([before, before], -1)) / 2, rtol=1e-5)
  np.testing.assert_array_equal(new, old)  # the first of two equal children


def test_plain_copies_scale_outputs_by_a_known_factor():
  scores, counts = np.random.default_rng(0).normal(size=(1, 20, 4)).astype(np.float32), np.ones((1, 20), bool)
  before = route(scores, np.zeros(4, np.float32), counts, 20)
  after = route(np.concatenate([scores, scores[..., :2]], -1), np.zeros(6, np.float32), counts, 20)
  np.testing.assert_array_equal(before.expert, after.expert)
  factor = 1 / (1 + np.exp(scores[0])[:, :2].sum(-1) / np.exp(scores[0]).sum(-1))
  np.testing.assert_allclose(after.scale, np.asarray(before.scale) * factor, rtol=1e-5)


# Transformations.


def test_a_batch_of_groups_equals_its_parts_inside_a_loop():
  network, windows = SMALL, make_windows(4)
  variables = init(network)
  micro = jax.tree.map(lambda a: a.reshape(2, 2, *a.shape[1:]), windows)
  step = lambda total, w: (jax.tree.map(jnp.add, total, traced_loss_and_grad(network, variables, w, ALL2)), None)
  whole = loss_and_grad(network, variables, windows, ALL4)
  parts, _ = jit(lambda: jax.lax.scan(step, jax.tree.map(jnp.zeros_like, whole), micro))()
  assert_close(parts, whole)
  assert whole[0][1].dropped.sum() > 0


def test_equal_networks_are_one_to_the_compiler():
  assert build() == build()
  assert hash(build()) == hash(build())
  assert build() != build(dropout=0.1)


# Noise.


def test_dropout_follows_the_window_and_its_key():
  network, windows = build(dropout=0.3, jitter=0.1, group_size=6), make_windows(4)
  variables = init(network)
  joint, _ = hidden(network, variables, windows, True)
  others = jax.tree.map(lambda a, b: np.stack([a[2], *b, a[0]]), windows, make_windows(2, seed=1))
  moved, _ = hidden(network, variables, others, True)
  np.testing.assert_allclose(moved[::3], np.asarray(joint)[[2, 0]], atol=1e-6)
  keys = windows.keys + np.uint32([[0, 1], [0, 0], [0, 0], [0, 0]])
  rekeyed, _ = hidden(network, variables, windows._replace(keys=keys), True)
  assert np.abs(rekeyed[0] - joint[0]).max() > 0.1
  np.testing.assert_allclose(rekeyed[1:], joint[1:], atol=1e-6)
  quiet = build(group_size=6)
  np.testing.assert_array_equal(hidden(network, variables, windows, False)[0],
                                hidden(quiet, variables, windows, False)[0])


def test_dropout_drops_its_rate_and_keeps_the_mean():
  x, keys = np.ones((2, 100, 200), np.float32), make_windows(2).keys
  y, z = map(np.asarray, jit(lambda x: [transformer._dropout(x, 0.25, keys, site) for site in (0, 1)])(x))
  np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-4)
  assert abs((y == 0).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / x.size)
  # Independent between windows, sites and neighbours: both dropped in 1/16 of the cases.
  for a, b in ((y[0], y[1]), (y, z), (y[..., ::2], y[..., 1::2])):
    assert abs(((a == 0) & (b == 0)).mean() - 1 / 16) < 5 * math.sqrt(1 / 16 / a.size)


def test_jitter_reaches_nothing_but_the_router():
  network, windows = build(jitter=0.2, capacity_factor=4.0), make_windows(2)
  quiet, variables = build(capacity_factor=4.0), init(network)
  assert np.abs(hidden(network, variables, windows, True)[0] - hidden(quiet, variables, windows, True)[0]).max() > 1e-3
  variables = without_opinion(variables)
  np.testing.assert_allclose(hidden(network, variables, windows, True)[0], hidden(quiet, variables, windows, True)[0],
                             atol=1e-6)


def test_noise_needs_keys():
  windows = make_windows(2)._replace(keys=None)
  variables = init(build())
  with pytest.raises(BadInput, match="without keys"):
    apply(build(dropout=0.1), variables, windows, None, True)
  for network, train in ((build(dropout=0.1), False), (build(), True)):
    out, _ = jax.eval_shape(lambda n=network, t=train: n.apply(variables, windows, None, t))
    assert out.loss.shape == ()


@pytest.mark.parametrize(("group_size", "batch"), [(5, 2), (2 * L, 3), (L + 6, 3)])
def test_groups_that_do_not_fit_are_refused(group_size, batch):
  with pytest.raises(BadInput, match="routing groups"):
    apply(build(group_size=group_size), init(build()), make_windows(batch), None, True)


# Attention and the output layer.


@pytest.mark.parametrize("num", [7, 128, 300])
def test_blocked_attention_is_attention(num):
  rng = np.random.default_rng(0)
  arrays = [np.float32(rng.normal(size=(2, num, 2, 4))) for _ in range(4)]
  plain = functools.partial(jax.nn.dot_product_attention, is_causal=True)
  both = [jit(lambda *args, f=f: (f(*args[:3]), jax.vjp(f, *args[:3])[1](args[3])))(*arrays)
          for f in (attention._blocked, plain)]
  assert_close(*both)


def nll_by_hand(hidden_ND, embedding_VD, targets_N, weight_N):
  log_probs = jax.nn.log_softmax(hidden_ND @ embedding_VD.T)
  return -jnp.sum(weight_N * jnp.take_along_axis(log_probs, targets_N[:, None], 1)[:, 0])


def nll_arguments(num, seed=0):
  rng = np.random.default_rng(seed)
  return (np.float32(3 * rng.normal(size=(num, 6))), np.float32(rng.normal(size=(V, 6))),
          rng.integers(0, V, num, np.int32), np.float32(rng.uniform(size=num)))


@pytest.mark.parametrize(("num", "size"), [(10, 4), (8, 4), (3, 1024)])
def test_summed_nll_and_its_gradients(num, size, monkeypatch):
  monkeypatch.setattr(output_layer, "_CHUNK", size)
  args = nll_arguments(num)
  scaled = lambda f: jit(jax.value_and_grad(lambda *a: 3 * f(*a), (0, 1, 3)))
  assert_close(scaled(output_layer.summed_nll)(*args), scaled(nll_by_hand)(*args))
  assert float(jit(output_layer.summed_nll)(*args)) == pytest.approx(float(nll_by_hand(*args)), rel=1e-5)
  scores = args[0] @ args[1].T
  expected = (scores - np.log(np.exp(scores).sum(1, keepdims=True)))[np.arange(num), args[2]]
  np.testing.assert_allclose(jit(output_layer.log_probs)(*args[:3]), expected, rtol=1e-5)


def test_summed_nll_stacked(monkeypatch):
  monkeypatch.setattr(output_layer, "_CHUNK", 4)
  args = jax.tree.map(lambda *a: np.stack(a), *(nll_arguments(10, seed) for seed in range(3)))
  both = [jit(jax.vmap(jax.value_and_grad(f, (0, 1))))(*args) for f in (output_layer.summed_nll, nll_by_hand)]
  assert_close(*both)


def test_summed_nll_of_extreme_logits_is_finite():
  hidden_ND, embedding_VD = np.float32([[500], [500]]), np.float32([[1], [-1]])
  value, grads = jit(jax.value_and_grad(output_layer.summed_nll, (0, 1)))(
      hidden_ND, embedding_VD, np.array([0, 1], np.int32), np.float32([1, 0.5]))
  assert float(value) == 500  # 0 of the first, half of 1000 of the second
  np.testing.assert_array_equal(grads[0], [[0], [1]])  # half of (1, 0) - (0, 1), times the embedding
  np.testing.assert_array_equal(grads[1], [[250], [-250]])  # the same, times the hidden state
