"""Boosting and bagging: which examples members train on, and how much they count, docs/algorithms.md §2."""
import dataclasses

import jax
import numpy as np
import pytest
from runs import blobs
from stages import Stages, arrays_equal, assert_close, batches_of, begin, contribution, setting_of, train, train_stage

from alma_jax.learners import bagging, boosting
from alma_jax.training import loop


def test_samme_by_hand():
  y = np.array([0, 1, 2, 2])
  hit = lambda classes: np.eye(3)[classes]
  weights, (alpha,) = boosting.weigh([hit([0, 1, 2, 0])], y, 3)  # one of four wrong
  assert alpha == pytest.approx(np.log(3) + np.log(2))
  np.testing.assert_allclose(weights, np.array([1, 1, 1, 6]) / 9)
  weights, alphas = boosting.weigh([hit([0, 1, 2, 0]), hit([0, 0, 0, 2])], y, 3)
  err = 2 / 9
  assert alphas[1] == pytest.approx(np.log((1 - err) / err) + np.log(2))
  assert weights.sum() == pytest.approx(1)
  # No better than chance, err = 1 - 1/K: the coefficient is 0.
  assert boosting.weigh([hit([0, 0, 0])], np.array([0, 1, 2]), 3)[1][0] == pytest.approx(0)
  # Never wrong, always wrong: clipped to half an example.
  assert boosting.weigh([hit(y)], y, 3)[1][0] == pytest.approx(np.log(7) + np.log(2))
  assert boosting.weigh([hit((y + 1) % 3)], y, 3)[1][0] == pytest.approx(-np.log(7) + np.log(2))


@pytest.mark.parametrize("weighting", ["resample", "loss"])
def test_boosting_concentrates_on_mistakes(weighting):
  setting = setting_of("boosting", learner__weighting=weighting, train__epochs=1)
  state, _ = train(setting, stages=1)
  learner, data = setting.learner, Stages(setting)[1]
  grown, report = learner.grow(state, data)
  assert report.macs == len(data.train) * learner.cost(state).predict_macs
  examples = begin(learner, grown, data).examples
  logits = contribution(setting, grown, 0, data.pool, data.train)["logits0"]
  wrong = logits.argmax(1) != setting.protocol.source.dataset.y_train[data.train]
  weights = examples.weight if weighting == "loss" else examples.probability * len(data.train)
  assert 0 < wrong.sum() < len(wrong)
  assert weights[wrong].min() > 1 > weights[~wrong].max()
  assert weights.mean() == pytest.approx(1)
  fitting = begin(learner, grown, data)
  steps = -(-len(data.train) // 64)  # of an epoch
  seen = np.concatenate(batches_of(fitting.training, 0, 100 * steps)[0])
  share = np.isin(seen, data.train[wrong]).mean()
  expected = wrong.mean() if weighting == "loss" else weights[wrong].sum() / len(wrong)
  assert share == pytest.approx(expected, abs=4 * np.sqrt(expected / len(seen)))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weighted_losses_have_weighted_gradients(smoothing):
  """Weights of 0 and 2 on halves of a batch: as a step on the second half alone."""
  setting = setting_of("sm", train__optimizer="sgd", train__learning_rate=0.5, train__epochs=1, train__batch_size=128,
                       train__label_smoothing=smoothing)
  learner, data = setting.learner, Stages(setting)[0]
  state, half = learner.init(), len(data.train) // 2
  weight = np.repeat(np.float32([0, 2]), half)
  training, ends = learner.training(state, data), []
  for train_part, examples in ((data.train, loop.Examples(weight=weight)), (data.train[half:], loop.Examples())):
    part = dataclasses.replace(training, data=data._replace(train=train_part), examples=examples)
    fitting, _ = loop.advance(loop.begin(part), 1)
    ends.append(jax.device_get(fitting.state.members.now))
  assert_close(*ends, 1e-6)


def test_boosting_votes_with_its_coefficients():
  setting = setting_of("boosting", train__epochs=1, stream__waiting_time=1)
  state, _ = train(setting, stages=3)
  learner = setting.learner
  assert len(state.host["alphas"]) == 3
  pool = setting.protocol.source.test_pool(setting.learner.mesh)
  parts = {}
  for block in range(3):
    parts |= contribution(setting, state, block, pool)
  expected = sum(alpha * parts[f"logits{m}"] for m, alpha in enumerate(state.host["alphas"])).argmax(1)
  classes, probabilities = learner.resolve(state, parts)
  np.testing.assert_array_equal(classes, expected)
  np.testing.assert_array_equal(probabilities.argmax(1), expected)


def test_boosting_starts_members_as_configured():
  frozen, starts = {}, {}
  for init in ("first", "last", "scratch"):
    setting = setting_of("boosting", learner__init=init, train__epochs=1, stream__waiting_time=1)
    state, _ = train(setting, stages=2)
    grown, _ = setting.learner.grow(state, Stages(setting)[2])
    frozen[init] = grown.frozen
    starts[init] = begin(setting.learner, grown, Stages(setting)[2]).state.members.now
  assert arrays_equal(starts["first"], frozen["first"][0])
  assert arrays_equal(starts["last"], frozen["last"][1])
  assert not arrays_equal(*frozen["last"])
  for old in (*frozen["scratch"], frozen["last"][0]):  # nor the first initialisation
    assert np.abs(old.params["hidden0"]["kernel"] - starts["scratch"].params["hidden0"]["kernel"]).max() > 0.01


def test_boosting_weights_members_on_the_configured_data():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)  # so that train and validation differ
  for which in ("train", "val"):
    setting = setting_of("boosting", data=(x, noisy, *blobs(60, seed=1)), train__epochs=1,
                         learner__coefficients={"train": "train", "val": "validation"}[which])
    state, _ = train(setting)
    data = Stages(setting)[1]
    chosen = getattr(data, which)
    logits = [contribution(setting, state, block, data.pool, chosen)[f"logits{block}"] for block in range(2)]
    expected = boosting.weigh(logits, noisy[chosen], 3)[1]
    np.testing.assert_allclose(state.host["alphas"], expected)


def test_bagging_trains_each_member_on_its_own_fixed_bootstrap():
  setting = setting_of("bagging", data=(*blobs(4000), *blobs(60, seed=1)))
  learner, data = setting.learner, Stages(setting)[1]
  state, _ = learner.grow(learner.init(), data)
  fitting = begin(learner, state, data)
  own = fitting.examples.own
  assert own.shape == (3, len(data.train))
  assert not np.array_equal(own[0], own[1])
  assert set(own.ravel()) <= set(data.train)
  # 1 - 1/e of n examples, deviation 0.31/sqrt(n).
  unique = [len(set(member)) / len(member) for member in own]
  np.testing.assert_allclose(unique, 1 - np.exp(-1), atol=4 * 0.31 / np.sqrt(own.shape[1]))
  steps = -(-len(data.train) // 64)  # of an epoch
  orders = [[np.concatenate(batches) for batches in batches_of(fitting.training, epoch * steps, (epoch + 1) * steps)]
            for epoch in range(2)]
  assert not np.array_equal(*orders)
  for order in orders:
    for member in range(3):
      np.testing.assert_array_equal(np.sort(order[member]), np.sort(own[member]))


def test_every_stage_has_a_bootstrap_of_its_own():
  data = Stages(setting_of("bagging"))[0]
  drawn = [tuple(bagging.bootstrap(data._replace(stage=stage, seed=seed), 1)[0]) for stage in (0, 1) for seed in (0, 1)]
  assert len(set(drawn)) == 4


def test_bagging_goes_on_from_the_last_members_and_keeps_the_old():
  setting = setting_of("bagging", train__epochs=1)
  first, _ = train(setting, stages=1)
  learner, data = setting.learner, Stages(setting)[1]
  grown, _ = learner.grow(first, data)
  assert arrays_equal(grown.live, first.live)
  second, _, _ = train_stage(setting, first, 1)
  assert arrays_equal(second.frozen[0], first.live)
  assert learner.cost(second).num_params == 2 * learner.cost(first).num_params
