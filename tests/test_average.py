"""What a step of a stage computes: averaged weights, rates that fall, smoothed labels, shrunk starts."""
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from runs import blobs
from stages import Stages, arrays_equal, assert_close, batches_of, begin, finish, fit_stage, setting_of, train_stage

from alma_jax.learners import stacked
from alma_jax.training import loop, optimizers
from alma_jax.types import Variables

PICTURES = (*blobs(80, (9, 8, 3)), *blobs(12, (9, 8, 3), seed=1))
COMPACT = dict(model__name="compact", model__width=2, train__optimizer="sgd", train__learning_rate=0.05,
               train__batch_size=16, stream__num_megabatches=2, stream__waiting_time=1)
STEPS = dict(train__steps=7, train__eval_every=7)


def stepped(learner, state, data):
  """A training step by step: (FitState after it, Variables after every step, averages after every step)."""
  fit, weights, averages = begin(learner, state, data), [], []
  while fit.cursor < loop.num_steps(fit):
    fit, _ = loop.advance(fit, 1)
    members = jax.device_get(fit.state.members)
    weights.append(members.now)
    averages.append(members.average)
  return fit, weights, averages


def averaged(weights, horizon):
  """avg_k = avg + (w_k - avg) / min(k, h S), in float64."""
  average, found = jax.tree.map(np.float64, weights[0]), []
  for k, now in enumerate(weights, 1):
    share = 1 / min(k, max(1, horizon * len(weights)))
    average = jax.tree.map(lambda old, new, share=share: old + share * (new - old), average, now)
    found.append(average)
  return found


def assert_averaged(setting, horizon, state=None, stage=0):
  """The averages of a stage are those of `averaged`, and the learner keeps them; returns its state."""
  learner, data = setting.learner, Stages(setting)[stage]
  state = learner.init() if state is None else state
  fit, weights, averages = stepped(learner, state, data)
  for found, expected in zip(averages, averaged(weights, horizon), strict=True):
    assert_close(found, expected, 2e-6)  # float32: a few ulps of the largest weights, which are about 1
  result = finish(learner, state, fit).state
  last = setting.config.learner.start == "last"
  assert arrays_equal(jax.device_get(result.predicting), averages[-1])
  assert arrays_equal(jax.device_get(result.live), weights[-1] if last else averages[-1])
  assert (result.average is not None) == last
  return result


@pytest.mark.parametrize(("stepwise", "learner", "horizon", "start"), [
    (False, "sm", 0.5, "last"), (True, "ens", 0.3, "average")])
def test_the_average_is_that_of_the_steps(monkeypatch, stepwise, learner, horizon, start):
  monkeypatch.setattr(stacked.models, "loops_are_slow", lambda network: stepwise)
  changes = {"learner__num_members": 2} if learner == "ens" else {}
  setting = setting_of(learner, learner__average=horizon, learner__start=start, **STEPS, **changes)
  state = assert_averaged(setting, horizon)
  held, one = setting.learner.cost(state), setting.learner.cost(setting.learner.init())
  assert held.num_params == (2 if start == "last" else 1) * one.num_params
  assert held._replace(num_params=0) == one._replace(num_params=0)  # an average takes no multiply-adds of a network
  begun = begin(setting.learner, state, Stages(setting)[1])
  assert arrays_equal(begun.state.members.now, state.live)  # the next stage goes on from these
  assert arrays_equal(begun.state.members.average, state.live)
  assert_averaged(setting, horizon, state, 1)


@pytest.mark.slow
def test_statistics_of_batch_norm_are_averaged_too():
  setting = setting_of("sm", PICTURES, learner__average=0.5, train__steps=4, train__eval_every=4, train__patience=0,
                       **COMPACT)
  state = assert_averaged(setting, 0.5)
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.live.stats, state.average.stats)
  assert max(jax.tree.leaves(moved)) > 1e-3


def test_a_member_that_waits_for_a_larger_one_is_averaged_over_all_steps():
  setting = setting_of("hmoe", model__num_experts=2, learner__min_shard=1, learner__average=1.0, train__epochs=3,
                       train__batch_size=16, train__patience=0, stream__num_megabatches=2, stream__waiting_time=1)
  learner, data = setting.learner, Stages(setting)[0]
  (base, *_), _ = fit_stage(learner, learner.init(), data)
  grown, _ = learner.grow(base, data)
  assert len({-(-size // 16) for size in np.bincount(grown.host["train_shares"])}) == 2  # one has fewer batches
  _, weights, averages = stepped(learner, grown, data)
  for found, expected in zip(averages, averaged(weights, 1.0), strict=True):
    assert_close(found, expected, 2e-6)


@pytest.mark.parametrize(("learner", "changes"), [
    ("sm", {"learner__init_from_scratch": True}), ("gens", {"learner__init": "scratch"})])
def test_weights_from_which_no_stage_starts_are_not_held(learner, changes):
  setting = setting_of(learner, learner__average=0.5, **STEPS, **changes)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  assert setting.learner.cost(state).num_params == setting.learner.cost(setting.learner.init()).num_params
  grown, _ = setting.learner.grow(state, Stages(setting)[1])
  begun = begin(setting.learner, grown, Stages(setting)[1]).state.members.now
  assert arrays_equal(begun, setting.learner.fresh(1, grown.spec))


def test_the_average_changes_no_step():
  """Nor does it if the dispatches are cut otherwise, or if rounds are longer."""
  plain = setting_of(**STEPS)
  expected, _, _ = train_stage(plain, plain.learner.init(), 0)
  found = []
  for rows, every in ((1, 7), (3, 7), (256, 7), (2, 5)):
    setting = setting_of(learner__average=0.4, **STEPS | {"train__eval_every": every})
    state, _ = fit_stage(setting.learner, setting.learner.init(), Stages(setting)[0], rows)
    found.append((state.state.live, state.state.average) if every == 7 else None)
  for live, average in found[:3]:
    assert_close(live, expected.live, 1e-6)  # two programs; their rounding may differ
    assert arrays_equal((live, average), found[0])


@pytest.mark.parametrize("stepwise", [False, True])
def test_schedule_free_is_judged_and_selected_by_the_mean_of_its_steps(monkeypatch, stepwise):
  """At a constant rate, x_t = (z_1 + ... + z_t) / t, and gradients are taken at y_t = 0.9 x_t + 0.1 z_t."""
  monkeypatch.setattr(stacked.models, "loops_are_slow", lambda network: stepwise)
  setting = setting_of("ens", learner__num_members=2, train__optimizer="schedule_free", train__learning_rate=0.05,
                       train__steps=6, train__eval_every=1, train__patience=0, train__decay=0.5)
  learner, data = setting.learner, Stages(setting)[0]
  fit, steps, means, errors = begin(learner, learner.init(), data), [], [], []
  for _ in range(6):
    fit, records = loop.advance(fit, 1)
    members = jax.device_get(fit.state.members)
    steps.append(members.opt.z)
    means.append(jax.tree.map(lambda *z: np.mean(z, 0, np.float64).astype(np.float32), *steps))
    assert_close(members.now.params, jax.tree.map(lambda x, z: 0.9 * x + 0.1 * z, means[-1], steps[-1]), 1e-5)
    (report,), _ = loop.read(fit, records)
    errors.append(report.members["val_error"])
    np.testing.assert_allclose(errors[-1], errors_of(setting, (means[-1], members.now.stats), data.val), atol=1e-6)
  state = finish(learner, learner.init(), fit).state
  for member, best in enumerate(np.argmin(errors, 0)):
    pick = lambda tree, member=member: jax.tree.map(lambda leaf: leaf[member], jax.device_get(tree))
    assert_close(pick(state.live.params), pick(means[best]), 1e-5)
  assert arrays_equal(begin(learner, state, Stages(setting)[1]).state.members.now, state.live)


def test_rounds_are_judged_and_selected_by_the_average():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)
  setting = setting_of("ens", (x, noisy, *blobs(60, seed=1)), learner__num_members=2, learner__average=0.2,
                       train__steps=24, train__eval_every=2, train__patience=0, train__learning_rate=0.5,
                       train__patience_delta=0.0)
  learner, data = setting.learner, Stages(setting)[0]
  fit, weights, averages, errors = begin(learner, learner.init(), data), [], [], []
  for _ in range(12):
    fit, records = loop.advance(fit, 2)
    (report,), _ = loop.read(fit, records)
    members = jax.device_get(fit.state.members)
    weights.append(members.now)
    averages.append(members.average)
    errors.append(report.members["val_error"])
    np.testing.assert_allclose(errors[-1], errors_of(setting, members.average, data.val), atol=1e-6)
  assert not np.allclose(errors, [errors_of(setting, now, data.val) for now in weights])  # the last weights' differ
  best, state = np.argmin(errors, 0), finish(learner, learner.init(), fit).state
  assert (best < 11).all()  # not simply the last round
  for member, number in enumerate(best):
    pick = lambda tree, member=member: jax.tree.map(lambda leaf: leaf[member], jax.device_get(tree))
    assert arrays_equal(pick(state.average), pick(averages[number]))
    assert arrays_equal(pick(state.live), pick(weights[number]))  # the last weights of the same round


def errors_of(setting, variables, which):
  """[M] error rates for training examples, from the logits of each member."""
  network = setting.learner.network(setting.learner.first_spec())
  x, y = normalized(setting, which)
  logits = jax.vmap(lambda one: network.apply(one, x, None, train=False)[0])(Variables(*variables))
  return np.mean(np.asarray(logits).argmax(-1) != np.asarray(y), -1)


def normalized(setting, which):
  """(images as the network reads them, labels) of training examples."""
  source = setting.protocol.source
  x = (source.dataset.x_train[which].reshape(len(which), 6, 6, 1) - source.constants.mean) / source.constants.std
  return jnp.float32(x), jnp.asarray(source.dataset.y_train[which])


def test_frozen_members_are_averages_and_only_the_live_one_has_last_weights():
  setting = setting_of("gens", learner__average=0.3, train__steps=4, train__eval_every=4, train__patience=0)
  learner, state = setting.learner, setting.learner.init()
  one = learner.cost(state).num_params
  first, _, _ = train_stage(setting, state, 0)
  assert learner.cost(first).num_params == 2 * one
  grown, _ = learner.grow(first, Stages(setting)[1])
  assert arrays_equal(grown.frozen[0], first.average)
  assert arrays_equal(grown.live, first.live)  # new members are copies of the last weights
  second, _, _ = train_stage(setting, first, 1)
  assert learner.cost(second).num_params == 3 * one  # frozen, average, last
  assert arrays_equal(second.frozen[0], first.average)


@pytest.mark.parametrize(("optimizer", "decay", "smoothing"), [
    ("sgd", 0.6, 0.0), ("adadelta", 1.0, 0.3)])
def test_steps_are_those_of_optax_with_falling_rates_and_smoothed_labels(optimizer, decay, smoothing):
  """s_k times the update of the mean cross-entropy against (1 - ε) y + ε / K; s_k falls from 1 to 1 / (decay S)."""
  rate, num = 0.5, 8
  setting = setting_of(train__optimizer=optimizer, train__learning_rate=rate, train__steps=num, train__eval_every=3,
                       train__patience=0, train__decay=decay, train__label_smoothing=smoothing, train__batch_size=20)
  learner, data = setting.learner, Stages(setting)[0]
  network, state = learner.network(learner.first_spec()), learner.init()
  training = learner.training(state, data)
  (batches,), losses, expected = batches_of(training, 0, num), [], []
  params = jax.tree.map(lambda leaf: leaf[0], jax.device_get(state.live.params))
  made = optimizers.of(setting.config.train)  # of the full rate
  opt = made.init(params)

  def loss(params, x, labels):
    return optax.softmax_cross_entropy(network.apply(Variables(params, {}), x, None, train=True)[0], labels).mean()

  step = jax.jit(jax.value_and_grad(loss))
  for k, batch in enumerate(batches):
    x, y = normalized(setting, batch)
    sharp = jax.nn.one_hot(y, 3)
    losses.append(float(loss(params, x, sharp)) * len(batch))
    _, grads = step(params, x, optax.smooth_labels(sharp, smoothing))
    factor = min(1, (num - k) / (decay * num)) if decay else 1
    updates, opt = made.update(grads, opt, params)
    params = jax.tree.map(lambda w, update, factor=factor: w + factor * update, params, updates)
    expected.append(params)
  fit, weights, reports = begin(learner, state, data), [], []
  for _ in range(num):
    fit, records = loop.advance(fit, 1)
    weights.append(jax.tree.map(lambda leaf: leaf[0], jax.device_get(fit.state.members.now.params)))
    reports += loop.read(fit, records)[0]
  for found, by_hand in zip(weights, expected, strict=True):
    assert_close(found, by_hand, 1e-5)
  # The reported losses are against the labels as they are: rounds of 3, 3 and 2 steps.
  for report, start, stop in zip(reports, (0, 3, 6), (3, 6, 8), strict=True):
    size = sum(map(len, batches[start:stop]))
    assert report.joint["train_loss"] == pytest.approx(sum(losses[start:stop]) / size, rel=1e-5)
  x, y = normalized(setting, data.val)
  assert reports[-1].joint["val_loss"] == pytest.approx(float(loss(params, x, jax.nn.one_hot(y, 3))), rel=1e-5)


def test_shrink_and_perturb():
  setting = setting_of("ens", learner__num_members=2, learner__shrink=0.6, learner__perturb=0.1, train__steps=2)
  plain = setting_of("ens", learner__num_members=2, train__steps=2)
  first, _, _ = train_stage(setting, setting.learner.init(), 0)
  other, _, _ = train_stage(plain, plain.learner.init(), 0)
  assert arrays_equal(first.live, other.live)  # the first stage starts as it always does
  begun = jax.device_get(begin(setting.learner, first, Stages(setting)[1]).state.members)
  fresh = setting.learner.fresh(1, first.spec)
  assert not arrays_equal(fresh.params, setting.learner.init().live.params)
  expected = jax.tree.map(lambda old, new: 0.6 * np.float64(old) + 0.1 * np.float64(new), first.live.params,
                          fresh.params)
  assert_close(begun.now.params, expected, 1e-6)
  assert arrays_equal(begun.best, begun.now)
  unchanged = begin(plain.learner, other, Stages(plain)[1]).state.members.now
  assert arrays_equal(unchanged, other.live)


def test_shrinking_leaves_statistics_as_they_are():
  setting = setting_of("sm", PICTURES, learner__shrink=0.5, learner__perturb=0.2, **COMPACT)
  state = setting.learner.init()
  stats = jax.tree.map(lambda leaf: leaf + 0.25, state.live.stats)
  state = state._replace(live=state.live._replace(stats=stats))
  begun = setting.learner.training(state, Stages(setting)[1])
  assert arrays_equal(begun.variables.stats, stats)
  fresh = setting.learner.fresh(1, state.spec)
  assert_close(begun.variables.params, jax.tree.map(lambda a, b: 0.5 * a + 0.2 * b, state.live.params, fresh.params),
               1e-6)


@pytest.mark.parametrize("start", ["last", "average"])
def test_what_a_stage_starts_from_is_shrunk(start):
  setting = setting_of(learner__average=0.5, learner__start=start, learner__shrink=0.5, **STEPS)
  fit, weights, averages = stepped(setting.learner, setting.learner.init(), Stages(setting)[0])
  state = finish(setting.learner, setting.learner.init(), fit).state
  begun = begin(setting.learner, state, Stages(setting)[1]).state.members
  started = (weights if start == "last" else averages)[-1]
  assert not arrays_equal(weights[-1], averages[-1])
  assert_close(begun.now.params, jax.tree.map(lambda leaf: 0.5 * leaf, started.params), 1e-7)
  assert arrays_equal(begun.average, begun.now)  # the average of a stage begins with its start
