"""Optimisers, augmentation, joint predictions, cost counter, metrics: by hand."""
import contextlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib
from runs import small_config, text_config

from alma_jax import config as configs
from alma_jax.models import cost
from alma_jax.problems import classification, language_modeling, sequence
from alma_jax.runs import sampling
from alma_jax.store import metrics
from alma_jax.training import optimizers
from alma_jax.types import Cost


def train_config(**changes):
  return configs.parse(small_config(**{f"train__{field}": value for field, value in changes.items()})).train


def steps(optimizer, params, grads):
  state, update = optimizer.init(params), jax.jit(optimizer.update)
  for grad in grads:
    updates, state = update(grad, state, params)
    params = optax.apply_updates(params, updates)
  return params


def test_adadelta_is_optax_adadelta():
  grads = list(jax.random.normal(jax.random.key(0), (20, 50)) * 10.0 ** jnp.linspace(-3, 2, 50)[None])
  ours = steps(optimizers.of(train_config(learning_rate=0.7)), jnp.ones(50), grads)
  theirs = steps(optax.adadelta(0.7, rho=0.9, eps=1e-6), jnp.ones(50), grads)
  np.testing.assert_allclose(ours, theirs, rtol=2e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_adds_l2_before_momentum(nesterov):
  train = train_config(optimizer="sgd", learning_rate=0.1, momentum=0.5, nesterov=nesterov, weight_decay=0.01)
  sgd = optimizers.of(train)
  result = steps(sgd, jnp.array([2.0]), [jnp.array([1.0]), jnp.array([-1.0])])
  w, m = 2.0, 0.0
  for g in (1.0, -1.0):
    g += 0.01 * w
    m = 0.5 * m + g
    w -= 0.1 * (g + 0.5 * m if nesterov else m)
  np.testing.assert_allclose(result, [w], rtol=1e-6)


def test_adam_is_optax_adam():
  grads = list(jax.random.normal(jax.random.key(0), (5, 4)))
  ours = steps(optimizers.of(train_config(optimizer="adam", learning_rate=0.01)), jnp.ones(4), grads)
  np.testing.assert_array_equal(ours, steps(optax.adam(0.01), jnp.ones(4), grads))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decoupled_decay_shrinks_parameters(optimizer):
  train = train_config(optimizer=optimizer, learning_rate=0.1, weight_decay=0.5)
  params = {"hidden0": {"kernel": jnp.full((3, 2), 2.0), "bias": jnp.ones(3)}}
  zero = jax.tree.map(jnp.zeros_like, params)
  jax.tree.map(lambda new, old: np.testing.assert_allclose(new, 0.95 * old, rtol=1e-6),
               steps(optimizers.of(train), params, [zero]), params)


def test_schedule_free_is_that_of_optax_with_factors_in_the_rate():
  grads = list(jax.random.normal(jax.random.key(0), (5, 4)))
  expected = steps(contrib.schedule_free_adamw(0.01, weight_decay=0.1), jnp.ones(4), grads)
  train = train_config(optimizer="schedule_free", learning_rate=0.02, weight_decay=0.1)
  np.testing.assert_allclose(steps(optimizers.of(train, factors=(0.5,)), jnp.ones(4), grads), expected, rtol=1e-6)
  plain = train_config(optimizer="schedule_free", learning_rate=0.02)
  half = jnp.float32(0.5)
  np.testing.assert_allclose(steps(optimizers.of(plain, jnp.float32(0.1), [half]), jnp.ones(4), grads), expected,
                             rtol=1e-6)


def test_muon_moves_each_matrix_by_an_orthogonal_one_and_the_rest_as_nadam():
  """Singular values of an update are near the rate, times the root of outputs / inputs if that is above 1."""
  train = train_config(optimizer="muon", learning_rate=0.1)
  key = jax.random.key(0)
  shapes = {"hidden0": (6, 4), "hidden1": (2, 4, 6), "block0_0_conv": (3, 3, 4, 5), "experts": (2, 3, 3, 4, 5),
            "output": (6, 4)}
  grads = {name: {"kernel": jax.random.normal(jax.random.fold_in(key, i), shape), "bias": jnp.ones(3)}
           for i, (name, shape) in enumerate(shapes.items())}
  grads["hidden0"]["gate_kernel"] = jnp.ones((2, 3))
  zero = jax.tree.map(jnp.zeros_like, grads)
  moved = steps(optimizers.of(train), zero, [grads])
  adam = steps(optax.nadam(0.01), zero, [grads])
  for name, matrices, wide in (("hidden0", (1, 6, 4), 6 / 4), ("hidden1", (2, 4, 6), 1),
                               ("block0_0_conv", (1, 36, 5), 1), ("experts", (2, 36, 5), 1)):
    values = np.linalg.svd(np.reshape(moved[name]["kernel"], matrices), compute_uv=False) / 0.1 / np.sqrt(wide)
    assert values.min() > 0.6
    assert values.max() < 1.3
    np.testing.assert_allclose(moved[name]["bias"], adam[name]["bias"], rtol=1e-6)
  # An expert has the update that it would have alone.
  alone = {"experts": {"kernel": grads["experts"]["kernel"][1]}}
  one = steps(optimizers.of(train), jax.tree.map(jnp.zeros_like, alone), [alone])
  np.testing.assert_allclose(moved["experts"]["kernel"][1], one["experts"]["kernel"], atol=1e-6)
  for path in (("output", "kernel"), ("hidden0", "gate_kernel")):
    np.testing.assert_allclose(moved[path[0]][path[1]], adam[path[0]][path[1]], rtol=1e-6)


def test_text_has_muon_for_the_kernels_of_layers_and_the_rate_of_the_step(books):
  """Singular values of an update are near half the rate times sqrt(8 / 4), also of each expert."""
  train = configs.parse(text_config(books, train__optimizer="muon", train__learning_rate=0.1, train__warmup_steps=1,
                                    train__decay=0.01, train__weight_decay=0.5)).train
  key, shapes = jax.random.key(0), {"output": (4, 8), "up_kernel": (3, 4, 8)}
  grads = {name: {"kernel": jax.random.normal(key, shape)} if name == "output" else jax.random.normal(key, shape)
           for name, shape in shapes.items()} | {"router": jnp.ones((4, 3)), "embedding": jnp.ones((5, 4))}
  optimizer, start = optimizers.of(train), jax.tree.map(jnp.ones_like, grads)
  moved = jax.tree.map(lambda new, old: new - 0.975 * old, steps(optimizer, start, [grads]), start)  # 1 - 0.05 x 0.5
  for name, count in (("output", 1), ("up_kernel", 3)):
    leaf = np.reshape(jax.tree.leaves(moved[name])[0], (count, 4, 8))
    values = np.linalg.svd(leaf, compute_uv=False) / 0.05 / np.sqrt(2)
    assert 0.6 < values.min() < values.max() < 1.3
  for name in ("router", "embedding"):
    adam = steps(optax.nadam(0.05 * train.optimizer.adam_rate), jnp.zeros_like(grads[name]), [grads[name]])
    np.testing.assert_allclose(moved[name], adam, rtol=1e-4)


def test_operations_of_an_update_count():
  """Five times X X', A A and B X for each matrix: of 8 x 36 and 8 x 8 here, by the batch of 10."""
  config = configs.parse(small_config(model__width=8, train__batch_size=10, train__optimizer="muon"))
  network = config.model.build(3, (6, 6), "float32", None)
  products = sum(5 * 2 * (2 * 8 * 8 * inputs + 8 * 8 * 8) for inputs in (36, 8))
  assert optimizers.flops(config.train, network, (1, 6, 6)) == (
      cost.training_flops(network, (1, 6, 6)) + products // 10)
  adam = configs.parse(small_config(model__width=8, train__optimizer="adam")).train
  assert optimizers.flops(adam, network, (1, 6, 6)) == cost.training_flops(network, (1, 6, 6))


def windows(images, padded, margin):
  """{(row, column, flipped)} of the windows of padded images that the images are, one each."""
  found, side = set(), images.shape[1]
  for image, wide in zip(np.asarray(images), padded):
    match = [(i, j, f) for i in range(2 * margin + 1) for j in range(2 * margin + 1) for f in (False, True)
             if np.array_equal(image, wide[i:i + side, j:j + side][:, ::-1] if f else wide[i:i + side, j:j + side])]
    assert len(match) == 1
    found.add(match[0])
  return found


def test_augmentation_is_a_shifted_window_possibly_flipped():
  x = jax.random.normal(jax.random.key(0), (64, 8, 8, 3))
  y = classification.flip_and_crop(jax.random.key(1), x, 0, 64, 4, True, constant_values=-1.9)
  found = windows(y, np.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)), constant_values=classification.BLACK), 4)
  assert {f for _, _, f in found} == {False, True}
  assert len(found) > 40  # of 162 equally likely ones
  assert max(i for i, _, _ in found) == 8
  assert min(j for _, j, _ in found) == 0


@pytest.mark.parametrize(("side", "shift", "moved", "flips"), [(28, 9, 2, False), (13, 2, 0, True)])
def test_shifts_mirror_the_edges_and_are_small_for_small_images(side, shift, moved, flips):
  x = np.random.default_rng(0).normal(size=(64, side, side, 1)).astype(np.float32)
  problem = classification.Classification(2, False, shift=shift, flip=flips)
  pool = classification.Pool(x, np.zeros(64, int), np.zeros(1, np.float32), np.ones(1, np.float32))
  y = problem.train_inputs(pool, problem.take(pool, jnp.arange(64)), jax.random.key(1), 0, 64)
  found = windows(y, np.pad(x, ((0, 0), (moved, moved), (moved, moved), (0, 0)), mode="reflect"), moved)
  assert {f for *_, f in found} == ({False, True} if flips else {False})
  assert {i for i, *_ in found} == {j for _, j, _ in found} == set(range(2 * moved + 1))
  with contextlib.nullcontext() if moved else pytest.warns(UserWarning, match="no effect on images of 13x13 pixels"):
    problem.warn_of_shift(x.shape[1:])


class Linear:
  """A network whose logits are a product of an image with a matrix."""

  def apply(self, matrix, x, mask_B, train):
    return x.reshape(x.shape[0], -1) @ matrix, None


@pytest.mark.parametrize(("side", "fields", "far", "flips"), [
    (28, {"shift": 2, "flip": True}, 1, True), (56, {"shift": 4}, 2, False), (8, {"augment": True}, 2, True),
    (13, {"shift": 2}, 0, False)])
def test_a_prediction_averages_the_logits_of_two_views(side, fields, far, flips):
  rng = np.random.default_rng(0)
  x, matrix = (rng.normal(size=size).astype(np.float32) for size in ((5, side, side, 1), (side * side, 3)))
  problem = classification.Classification(3, **({"augment": False} | fields), test_augment=True)
  other = np.pad(x, ((0, 0), (far, far), (far, far), (0, 0)), mode="reflect")[:, 2 * far:, 2 * far:]
  other = other[:, :, ::-1] if flips else other
  assert problem.num_views(x.shape[1:]) == (2 if far or flips else 1)
  expected = (x + other).reshape(5, -1) @ matrix / 2
  found = problem.contribution(Linear(), matrix, x, "logits")["sum"]
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  one = classification.Classification(3, **({"augment": False} | fields))
  assert one.num_views(x.shape[1:]) == 1
  np.testing.assert_array_equal(one.contribution(Linear(), matrix, x, "logits")["sum"], x.reshape(5, -1) @ matrix)


def test_augmentation_does_not_depend_on_how_a_batch_is_split():
  x = jax.random.normal(jax.random.key(0), (12, 8, 8, 1))
  crop = jax.jit(classification.flip_and_crop, static_argnums=(3, 4, 5))
  whole = crop(jax.random.key(1), x, 0, 12, 4, True)
  parts = [crop(jax.random.key(1), x[i:i + 3], i, 12, 4, True) for i in range(0, 12, 3)]
  np.testing.assert_array_equal(whole, np.concatenate(parts))


def contribute(logits, combine):
  """Contributions of members [M, B, K], joined."""
  problem, total = classification.Classification(logits.shape[-1], False), None
  for member in logits:
    total = problem.join(total, jax.device_get(classification.contribution(jnp.asarray(member), combine)))
  return problem.resolve(total, len(logits), combine)


def test_joint_predictions():
  p = np.array([[[0.9, 0.1, 0.0]], [[0.2, 0.5, 0.3]], [[0.2, 0.5, 0.3]]]) + 1e-9  # three members, one example
  logits = np.log(p).astype(np.float32)
  classes, probabilities = contribute(logits, "probabilities")
  np.testing.assert_allclose(probabilities, p.mean(0), atol=1e-6)  # .433 .367 .2
  assert classes == [0]
  assert contribute(logits, "vote")[0] == [1]  # two votes to one
  classes, probabilities = contribute(logits, "logits")
  geometric = np.exp(np.log(p).mean(0))
  np.testing.assert_allclose(probabilities, geometric / geometric.sum(), atol=1e-6)


def test_a_tied_vote_goes_to_the_largest_probability():
  p = np.array([[[0.6, 0.4, 0.0]], [[0.1, 0.2, 0.7]]]) + 1e-9
  assert contribute(np.log(p), "vote")[0] == [2]
  assert contribute(np.log(p[::-1]), "vote")[0] == [2]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_joint_objective_is_smoothed_over_the_classes_of_each_task(smoothing):
  """Two tasks of two and three classes; the last example only pads the batch."""
  problem = sequence.JointClassification(3, False, smoothing, num_tasks=2)
  logits = jax.random.normal(jax.random.key(0), (3, 6))
  batch = classification.Batch(jnp.zeros((3, 1)), jnp.array([1, 2, 0]), task=jnp.array([0, 1, 0]),
                               num_classes=jnp.array([2, 3, 2]))
  mask = jnp.array([True, True, False])
  expected = 0.0
  for own, label in ((logits[0, :2], 1), (logits[1, 3:], 2)):
    log = own - jnp.log(jnp.exp(own).sum())
    expected -= (1 - smoothing) * log[label] + smoothing * log.mean()
  found = problem.objective(logits, batch, mask, problem.sums(logits, batch, mask), jnp.float32(2))
  np.testing.assert_allclose(found, expected / 2, rtol=1e-5)


def test_windows_of_text_deviate_by_their_mean_losses():
  """Windows of 2 and 1 tokens with the losses 1 and 4: the mean is 2, and (2 * 1 + 1 * 4) / 3 the variance."""
  prediction = np.array([[-0.5, -1.5, -9.0], [-4.0, -9.0, -9.0]])
  assert language_modeling.deviation_of_windows(prediction, np.array([2, 1])) == pytest.approx(np.sqrt(2))
  assert language_modeling.LanguageModeling(50, 8, 8, 0.01, False).guessing_loss == pytest.approx(np.log(50))


def test_a_continuation_sees_the_last_tokens_and_ends_before_the_end(monkeypatch):
  seen, script = [], iter([5, 6, 7, 9])  # 9 ends a document

  def next_log_probs(learner, problem, state, context):
    seen.append(context)
    return np.log(np.eye(10)[next(script)] + 1e-9)

  monkeypatch.setattr(sampling, "_next_log_probs", next_log_probs)
  problem = types.SimpleNamespace(sequence_length=3)
  options = dict(num_tokens=9, temperature=0.0, top_k=0, seed=0)
  assert sampling.continuation(None, problem, None, [1, 2], 9, **options) == [5, 6, 7]
  assert seen == [[1, 2], [1, 2, 5], [2, 5, 6], [5, 6, 7]]


def test_error_and_loss():
  probabilities = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], np.float32)
  error, loss = classification.error_and_loss(np.array([0, 1, 0]), probabilities, np.array([0, 0, 0]))
  assert error == pytest.approx(1 / 3)
  assert loss == pytest.approx((np.log(2) + np.log(4) + 0) / 3, rel=1e-6)
  impossible = classification.error_and_loss(np.array([0]), probabilities[2:], np.array([1]))
  assert np.isfinite(impossible[1])


def test_counter_multiplies_loops_and_looks_into_calls():
  w = jnp.ones((4, 4))

  def loop(x):
    return jax.lax.scan(lambda c, _: (jax.jit(jnp.dot)(c, w), None), x, None, length=7)[0]

  assert cost.count(loop, jnp.ones((2, 4))) == 7 * 2 * 4 * 4
  assert cost.count(lambda x: jax.vmap(lambda a: a @ w)(x), jnp.ones((3, 2, 4))) == 3 * 2 * 4 * 4
  branches = lambda x: jax.lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: x, x)
  assert cost.count(branches, jnp.ones((2, 4))) == 2 * 4 * 4
  with pytest.raises(ValueError, match="unknown length"):
    cost.count(lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c @ w, x), w)


def test_counter_knows_groups_of_a_convolution():
  def conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
                                        feature_group_count=2)
  # 5x5 outputs, 6 channels, each from 3x3 pixels of the 2 channels of its group
  assert cost.count(conv, jnp.ones((1, 5, 5, 4)), jnp.ones((3, 3, 2, 6))) == 25 * 6 * 9 * 2


COST = Cost(num_params=10, fwd_macs=7, train_flops=40, predict_macs=3)


def entry(t, error, updated=True, params=10):
  spent = dict(fwd_macs=7, train_flops=40) if updated else {}
  return metrics.line("error", t, 0, updated, error, 0.1, 1.0, params, **spent)


def test_metrics_of_a_constant_learner():
  summary = metrics.summarize([entry(t, 0.25) for t in range(1, 9)], initial_params=10)
  assert summary["cer"] == 8 * 0.25
  assert summary["mean_error"] == summary["final_error"] == 0.25
  assert summary["cumulative_params"] == 9 * 10  # θ_0 too
  assert summary["cumulative_fwd_macs"] == 8 * 7
  assert summary["num_stages"] == 8
  assert "cer_from_zero" not in summary  # nothing was measured before the first update


def test_one_stage_at_the_end():
  lines = []
  for t in range(1, 5):
    lines.append(metrics.waiting("error", t, lines[-1] if lines else None, 0.9, COST))
  lines.append(entry(5, 0.2, params=12))
  summary = metrics.summarize(lines, initial_params=10)
  assert summary["cer"] == pytest.approx(4 * 0.9 + 0.2)  # (B-1)(1-1/C) + e_B
  assert summary["cumulative_params"] == 5 * 10 + 12
  assert summary["cumulative_train_flops"] == 40
  assert [line["stage"] for line in lines] == [None] * 4 + [0]
  line = metrics.waiting("error", 6, lines[-1], 0.9, COST)
  assert (line["error"], line["num_params"], line["predict_macs"]) == (0.2, 10, 3)
  assert (line["updated"], line["fwd_macs"], line["train_flops"], line["stage"]) == (False, 0, 0, 0)


@pytest.mark.parametrize(("line", "is_prequential"), [
    (dict(error=0.1), False), (dict(error=0.1, loss=0.2, prequential_error=0.3), False),
    (dict(error=0.1, loss=None), False),  # of a protocol that tests, and measures no loss
    (dict(error=0.1, loss=None, prequential_error=0.3), True)])
def test_what_the_lines_of_a_run_were_measured_on(line, is_prequential):
  assert metrics.measure("error", [line | {"updated": True}]) == metrics.Measure("error", is_prequential)
