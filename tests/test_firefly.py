"""Firefly: properties of docs/algorithms.md §4."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, slow, small_config
from stages import Stages, begin, finish

from alma_jax import config as configs
from alma_jax import models
from alma_jax.errors import BadInput
from alma_jax.growth import surgery, widen
from alma_jax.models import cost, mlp, wide
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.runs import settings
from alma_jax.training import loop

NUM = 3  # candidates of a layer


def network(model, widths, residuals=()):
  kind = mlp.MLP if model == "mlp" else wide.WideVGG
  module = kind(widths, 10, residuals=residuals)
  return models.ImageNetwork(module), (8, 8, 1) if model == "mlp" else (32, 32, 3)


def trained(model, depth=False):
  """A network with widths of its own, statistics that are not 0 and 1, inputs and directions."""
  widths = (5, 4) if model == "mlp" else tuple(2 + i % 3 for i in range(wide.NUM_CONVS))
  residuals = tuple(i % 3 for i in range(1, len(widths) + 1)) if depth else ()  # 0: none yet
  net, shape = network(model, widths, residuals)
  x = jax.random.normal(jax.random.key(1), (40, *shape))
  variables = jax.jit(net.init)(jax.random.key(0), x)
  if model == "vgg":
    apply = jax.jit(net.apply, static_argnums=3)
    for _ in range(20):
      variables = variables._replace(stats=apply(variables, x, None, True)[1])
  variables = jax.device_get(variables)
  chain = surgery.take_apart(net.module, variables)
  return net, variables, chain, widen.draw(np.random.default_rng(0), chain, NUM, depth), x


def masks(directions, rng):
  """Random picks, and the same as strengths."""
  picks, steps = [], []
  for way in directions[:-1]:
    chosen = [None if leaf is None else rng.random(leaf.shape[-1]) < 0.5 for leaf in (way.split, way.fresh, way.into)]
    picks.append(tuple(() if c is None else np.flatnonzero(c) for c in chosen))
    steps.append(widen.Strengths(*(None if c is None else jnp.float32(c) for c in chosen)))
  return picks, steps


def test_counts():
  net, shape = network("vgg", (16,) * 16)
  assert models.count_params(cost.abstract_variables(net, (1, *shape)).params) == 135 * 256 + (59 + 10) * 16 + 10
  widths = tuple(range(3, 19))
  net, shape = network("vgg", widths)
  below = (3, *widths)
  expected = sum(9 * a * b + 2 * b for a, b in zip(below, widths)) + 10 * 18 + 10
  assert models.count_params(cost.abstract_variables(net, (1, *shape)).params) == expected
  net, shape = network("mlp", (32, 32))
  assert models.count_params(cost.abstract_variables(net, (1, 28, 28, 1)).params) == 26506


@pytest.mark.parametrize("depth", [False, True])
def test_at_strength_zero_the_network_is_as_it_was(depth):
  net, variables, chain, directions, x = trained("mlp", depth)
  logits = jax.jit(lambda: widen.forward(net.module, chain, directions, widen.strengths(directions, 0.0), x))()
  expected = net.apply(variables, x, None, False)[0]
  np.testing.assert_allclose(logits, expected, atol=1e-5 * max(1, np.abs(expected).max()))
  again, widths, residuals = surgery.put_together(surgery.operate(chain, directions, [((), (), ())] * len(chain[:-1])))
  assert widths == net.module.widths
  assert residuals == net.module.residuals or not any(residuals)
  jax.tree.map(np.testing.assert_array_equal, again, variables)


@pytest.mark.parametrize(("model", "depth"), [("mlp", False), ("mlp", True), slow("vgg", True)])
def test_surgery_makes_the_masked_perturbed_network(model, depth):
  net, _, chain, directions, x = trained(model, depth)
  directions = jax.tree.map(lambda leaf: 4 * leaf, directions)  # so that the directions matter
  copy = jax.tree.map(np.copy, (chain, directions))
  forward = jax.jit(lambda steps, kept: widen.forward(net.module, chain, directions, steps, x, kept))
  for seed in range(2 if model == "mlp" else 1):
    picks, steps = masks(directions, np.random.default_rng(seed))
    expected, unmoved = (forward(each, [step.new for step in steps])
                         for each in (steps, jax.tree.map(jnp.zeros_like, steps)))
    variables, widths, residuals = surgery.put_together(surgery.operate(chain, directions, picks))
    assert widths == tuple(old + len(s) + len(n) for old, (s, n, _) in zip(net.module.widths, picks))
    had = net.module.residuals or (0,) * len(widths)
    assert residuals == tuple(old + len(d) for old, (_, _, d) in zip(had, picks))
    wider, shape = network(model, widths, residuals)
    shapes = cost.abstract_variables(wider, (1, *shape))
    jax.tree.map(lambda leaf, wanted: np.testing.assert_equal((leaf.shape, leaf.dtype), (wanted.shape, wanted.dtype)),
                 variables, shapes)
    found = jax.jit(wider.apply, static_argnums=3)(variables, x, None, False)[0]
    assert found.shape == (40, 10)
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, np.abs(expected).max()))
    assert np.abs(expected - unmoved).max() > 1e-2
    np.testing.assert_array_equal(variables.params["output"]["bias"], chain[-1].bias)
  jax.tree.map(np.testing.assert_array_equal, copy, (chain, directions))


def test_no_directions_no_change():
  """Splits into equal halves, and new neurons with zero outgoing weights."""
  net, variables, chain, directions, x = trained("mlp", depth=True)
  still = [way._replace(**{name: None if leaf is None else 0 * leaf for name, leaf in way._asdict().items()
                           if name in ("split", "below", "out")}) for way in directions]
  picks, _ = masks(directions, np.random.default_rng(0))
  larger, widths, residuals = surgery.put_together(surgery.operate(chain, still, picks))
  found = network("mlp", widths, residuals)[0].apply(larger, x, None, False)[0]
  expected = net.apply(variables, x, None, False)[0]
  np.testing.assert_allclose(found, expected, atol=1e-5 * max(1, np.abs(expected).max()))


def scores(net, chain, directions, x, points):
  task = classification.Classification(10, False)
  pool = classification.Pool(x, jnp.arange(len(x), dtype=jnp.int32) % 10, jnp.zeros(1), jnp.ones(1))
  total = widen.strengths(directions, 0.0)
  for z in range(points):
    total = widen.add_slopes(net.module, task, chain, directions, total, pool, jnp.arange(len(x)),
                             jnp.ones(len(x), bool), np.float32((2 * z + 1) / (2 * points)))

  def loss(strength):
    logits = widen.forward(net.module, chain, directions, widen.strengths(directions, strength), x)
    return task.sums(logits, classification.Batch(None, pool.y), jnp.ones(len(x), bool)).loss

  total = jax.tree.map(lambda leaf: leaf / points, total)
  return jax.device_get(total), float(loss(1.0) - loss(0.0))


@pytest.mark.parametrize("depth", [False, True])
def test_scores_are_a_path_integral(depth):
  net, _, chain, directions, x = trained("mlp", depth)
  strong = jax.tree.map(lambda leaf: 3 * leaf, directions)
  errors = []
  for points in (1, 32, 1024):  # with the kinks of ReLU, the error falls as 1/n
    total, difference = scores(net, chain, strong, x, points)
    errors.append(abs(sum(leaf.sum() for leaf in jax.tree.leaves(total)) - difference) / abs(difference))
  assert errors[2] < 1e-3
  assert errors[0] > 10 * errors[2]


def test_scores_are_zero_without_directions():
  net, _, chain, directions, x = trained("mlp")
  still = [way if way.split is None else way._replace(split=0 * way.split, fresh=0 * way.fresh) for way in directions]
  total, _ = scores(net, chain, still, x, 2)
  for leaf in jax.tree.leaves(total):
    np.testing.assert_allclose(leaf, 0, atol=1e-6)


def test_selection_is_joint_and_takes_only_what_helps():
  values = (([-1.0, 2.0], [-5.0]), ([0.0], [-3.0, -1.0]))
  total = [widen.Strengths(np.array(old), np.array(new)) for old, new in values]
  pick = lambda number: [tuple(map(list, p)) for p in widen.select(total, number)]
  assert pick(2) == [([], [0], []), ([], [0], [])]
  assert pick(3) == [([0], [0], []), ([], [0], [])]  # exactly three; of equal ones the first
  assert pick(6) == [([0], [0], []), ([], [0, 1], [])]  # neurons 0 and 2 do not lower the loss
  total = [widen.Strengths(s.old, s.new, np.array([-2.0, -9.0])) for s in total]
  assert pick(4) == [([], [0], [1]), ([], [0], [1])]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [False, True])
def test_growth_of_a_learner(depth):
  rate, growths = 1.0 if depth else 0.25, 2  # residual layers help least at first
  config = small_config("ff", model__width=8, learner__growth_rate=rate, train__batch_size=16, stream__waiting_time=1,
                        learner__grow_depth=depth)
  arrays = (*blobs(120), *blobs(30, seed=1))
  setting = settings.prepare(configs.parse(config), arrays)
  learner, stages = setting.learner, Stages(setting)
  state = learner.init()
  start = state.spec["widths"]
  for stage in range(1, 1 + growths):
    data = stages[stage]
    before, old = learner.cost(state).num_params, list(state.spec["widths"])
    neurons = lambda state: sum(state.spec["widths"]) + sum(state.spec["residuals"])
    grown, report = learner.grow(state, data)
    assert neurons(grown) == neurons(state) + round(rate * sum(start))
    assert learner.cost(grown).num_params > before
    assert report.flops > 2 * report.macs > 0
    assert old == state.spec["widths"]
    state = grown
    fitting, _ = loop.advance(begin(learner, grown, data), 2)
    state = finish(learner, grown, fitting).state
  assert any(state.spec["residuals"]) == depth
  lines = learner.describe(state).splitlines()
  assert lines[growths] == "widths " + " ".join(map(str, state.spec["widths"]))
  assert len(lines) == growths + 1 + depth
  number = round(rate * sum(start))
  assert [stage for stage, *added in state.host["grown"] if sum(added) == number] == [1, 2]
  sharding.fetch(state.live)


def made(shape=(6, 6), **changes):
  data = *blobs(60, shape), *blobs(30, shape, seed=1)
  return settings.prepare(configs.parse(small_config("ff", **changes)), data).learner


def added_by(learner, order):
  """Parameters after 0, 1, ... neurons whose layers are given in the order of their scores, and the growth's widths."""
  spec = learner.facts()
  scores = [widen.Strengths(np.zeros(width, np.float32), np.zeros(NUM, np.float32)) for width in spec["widths"]]
  for i, layer in enumerate(order):
    scores[layer].new[order[:i].count(layer)] = i - len(order)  # a candidate of the layer
  widths = [list(spec["widths"])]
  for layer in order:
    widths.append([width + (j == layer) for j, width in enumerate(widths[-1])])
  picks = learner._select(spec, scores)
  return widths, [width + len(s) + len(n) for width, (s, n, _) in zip(spec["widths"], picks)]


def test_growth_by_a_share_of_the_parameters_counted_by_hand():
  # 6x6 inputs, two layers of a and b neurons, 3 classes: 36a + a + ab + b + 3b + 3 = 37a + ab + 4b + 3.
  # a = b = 8 has 395; a = 9: 440, a = 10: 485, then b = 9: 499. A quarter of 395 is 98.75: 104 is nearer than 90.
  grow = lambda rate: added_by(made(model__width=8, learner__growth_rate=rate, learner__num_candidates=NUM,
                                    learner__growth_of="parameters"), [0, 0, 1, 1])[1]
  assert grow(0.25) == [10, 9]
  assert grow(0.24) == [10, 8]  # 94.8: 90 is nearer than 104
  assert grow(0.001) == [9, 8]  # one at least
  assert grow(0.4) == [10, 10]  # all that lower the loss
  neurons = made(model__width=8, learner__growth_rate=0.25, learner__num_candidates=NUM)
  assert sum(added_by(neurons, [0, 0, 0, 1, 1, 1])[1]) == 16 + 4


def test_growth_of_a_vgg_by_a_share_of_its_parameters():
  learner = made((32, 32, 3), model__name="vgg", model__width=4, learner__growth_of="parameters",
                 learner__num_candidates=NUM)
  order = [int(layer) for layer in np.random.default_rng(0).permutation(np.repeat(np.arange(wide.NUM_CONVS), NUM))]
  widths, found = added_by(learner, order)
  count = lambda widths: sum(9 * a * b + 2 * b for a, b in zip((3, *widths), widths)) + 3 * widths[-1] + 3
  counts = np.array([count(each) for each in widths]) - count(widths[0])
  assert found == widths[np.abs(counts - 0.25 * count(widths[0])).argmin()]
  assert 1 < sum(found) - 64 < len(order)


def test_what_cannot_be_widened_is_refused():
  # 37a + ab + 4b + 3 = 183 at a = b = 4; with 4 splits and 1 candidate a layer, a = b = 9: 453.
  with pytest.raises(BadInput, match=r"growth_rate=2.0 of 183 parameters exceeds the 270 that all splits"):
    made((6, 6), learner__growth_rate=2, learner__growth_of="parameters", learner__num_candidates=1)
  with pytest.raises(BadInput, match="images of 32 to 63 pixels"):
    made((64, 64, 3), model__name="vgg")
