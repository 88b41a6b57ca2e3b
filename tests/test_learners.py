"""Training and the learners of stacked networks: properties of ALGORITHMS §1 and §2."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import blobs, small_config

from alma_jax import config as configs
from alma_jax import environment, sharding
from alma_jax.learners import bagging, boosting, fit, program, stacked
from alma_jax.types import Variables


def setting_of(learner="sm", data=None, **changes):
  return environment.prepare(configs.parse(small_config(learner, **changes)), data or (*blobs(240), *blobs(60, seed=1)))


def train_stage(setting, state, stage, rows=program.ROWS):
  """One stage; returns (state, report, entries per epoch)."""
  learner, data = setting.learner, environment.Stages(setting)[stage]
  state, _ = learner.grow(state, data)
  fitting, epochs, done = learner.begin(state, data), [], False
  while fitting.cursor < learner.num_rows(fitting) and not done:
    fitting, records = learner.advance(fitting, rows)
    more, done = learner.read(fitting, records)
    epochs += more
  state, report = learner.finish(state, fitting)
  return state, report, epochs


def train(setting, stages=2, rows=program.ROWS):
  state, log = setting.learner.init(), []
  for stage in range(stages):
    state, report, epochs = train_stage(setting, state, stage, rows)
    log.append((report, epochs))
  return state, log


def arrays_equal(a, b):
  return all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b)))


def assert_close(a, b, tolerance):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance), a, b)


@pytest.mark.parametrize("learner", ["sm", "ens"])
def test_cutting_a_stage_into_dispatches_changes_no_bit(learner):
  setting = setting_of(learner, train__epochs=5)
  whole, log = train(setting)
  for rows in (1, 2, 5):  # an epoch has 2 steps
    again, other = train(setting, rows=rows)
    assert arrays_equal(whole, again)
    assert arrays_equal([epochs for _, epochs in log], [epochs for _, epochs in other])


@pytest.mark.parametrize("patience", [0, 2])
def test_one_dispatch_per_step_is_the_same_training(monkeypatch, patience):
  changes = dict(train__epochs=6, train__patience=patience, train__learning_rate=0.5)
  looped, log = train(setting_of("ens", **changes))
  monkeypatch.setattr(stacked.models, "loops_are_slow", lambda network: True)
  stepwise, other = train(setting_of("ens", **changes))
  # Other programs, other roundings: a few ulps grow over 2 x 6 epochs.
  assert_close(looped.live.params, stepwise.live.params, 1e-4)
  assert [report.epochs for report, _ in log] == [report.epochs for report, _ in other]
  assert_close([epochs for _, epochs in log], [epochs for _, epochs in other], 1e-4)


def test_members_of_an_ensemble_are_separate_runs():
  """Member i of a stack of three is trained as member i alone would be."""
  setting = setting_of("ens", learner__num_members=3, train__epochs=3)
  together, _ = train(setting)
  for size in (1, 2):
    fewer, _ = train(setting_of("ens", learner__num_members=size, train__epochs=3))
    first = jax.tree.map(lambda leaf, size=size: leaf[:size], together.live)
    assert_close(first.params, fewer.live.params, 1e-5)


def test_one_member_of_anything_is_a_single_model():
  results = []
  for learner, changes in (("sm", {}), ("ens", {"learner__num_members": 1}), ("umix", {"learner__num_members": 1})):
    state, _ = train(setting_of(learner, train__patience=0, train__patience_delta=0.0, **changes))
    results.append([leaf.reshape(-1) for leaf in jax.tree.leaves(state.live.params)])
  assert_close(results[0], results[1], 1e-6)
  assert_close(results[0], results[2], 1e-5)


def test_patience_stops_that_many_epochs_after_the_best():
  # A learning rate of nearly 0 changes no prediction: the first epoch stays the best.
  for patience in (1, 3):
    _, log = train(setting_of(train__epochs=20, train__learning_rate=1e-9, train__patience=patience))
    assert [report.epochs for report, _ in log] == [1 + patience] * 2
    assert [len(epochs) for _, epochs in log] == [1 + patience] * 2
    assert log[0][0].samples == (1 + patience) * 108  # 2 mega-batches of 60, 6 each for validation


def selected_by_hand(errors, delta, patience):
  """(index of the selected epoch, epochs run), as §1 tells it."""
  best, chosen, since = None, 0, 0
  for i, error in enumerate(errors):
    accuracy = 1 - error
    if best is None or accuracy > best + delta + 1e-9:
      best, chosen, since = accuracy, i, 0
    else:
      since += 1
    if patience and since == patience:
      return chosen, i + 1
  return chosen, len(errors)


@pytest.mark.parametrize(("delta", "patience"), [(0.0, 0), (0.0, 3), (0.1, 0), (0.1, 4)])
def test_selection_follows_the_validation_errors(delta, patience):
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)
  setting = setting_of(data=(x, noisy, *blobs(60, seed=1)), train__epochs=30, train__learning_rate=0.3,
                       train__patience=patience, train__patience_delta=delta)
  state, report, epochs = train_stage(setting, setting.learner.init(), 0)
  full = setting_of(data=(x, noisy, *blobs(60, seed=1)), train__epochs=30, train__learning_rate=0.3,
                    train__patience=0, train__patience_delta=delta)
  errors = [float(e.members["val_error"][0]) for e in train_stage(full, full.learner.init(), 0)[2]]
  assert len(set(errors)) > 3  # there is something to select
  chosen, run = selected_by_hand(errors, delta, patience)
  assert (report.epochs, len(epochs)) == (run, run)
  assert report.val_error == pytest.approx(errors[chosen], abs=1e-6)
  # And what was selected is what was stored: it has that error on the validation data.
  stage = setting.stream.stage(0)
  pool = environment.make_pool(x[stage.val][..., None], noisy[stage.val], setting.mean, setting.std,
                               setting.learner.mesh)
  classes, _ = setting.learner.resolve(state, setting.learner.contribution(state, 0, pool))
  assert np.mean(classes != noisy[stage.val]) == pytest.approx(errors[chosen], abs=1e-6)


def test_members_are_selected_one_by_one():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)
  setting = setting_of("ens", data=(x, noisy, *blobs(60, seed=1)), train__epochs=20, learner__num_members=4)
  _, report, epochs = train_stage(setting, setting.learner.init(), 0)
  best = np.min([e.members["val_error"] for e in epochs], axis=0)
  first = [int(np.argmin([e.members["val_error"][m] for e in epochs])) for m in range(4)]
  assert len(set(first)) > 1  # they differ in which epoch is best
  assert report.val_error == pytest.approx(best.mean(), abs=1e-6)


def test_every_example_is_seen_once_an_epoch():
  setting = setting_of("ens", learner__num_members=2)
  data = environment.Stages(setting)[0]
  steps = -(-len(data.train) // 64)
  mesh = sharding.make_mesh(2, 1)
  spec = program.FitSpec(None, None, setting.config.train, 2, 1, mesh, False)
  rows = fit._rows(fit.FitState(spec, data, fit.Emphasis(), None, None, 0), 2 * steps)
  assert rows.count[:2 * steps].tolist() == [64, 108 - 64] * 2  # the partial batch is kept
  assert rows.stop[:rows.segments].tolist() == [steps, 2 * steps]
  assert rows.ends[:rows.segments].tolist() == [True, True]
  orders = []
  for epoch in range(2):
    for member in range(2):
      seen = np.concatenate([rows.index[r, member, :rows.count[r]] for r in (2 * epoch, 2 * epoch + 1)])
      assert sorted(seen) == sorted(data.train)
      orders.append(tuple(seen))
  assert len(set(orders)) == 4  # own order in every epoch and member


def test_scratch_starts_afresh_and_continuing_does_not():
  continued, _ = train(setting_of(train__learning_rate=1e-9))
  scratch, _ = train(setting_of(train__learning_rate=1e-9, learner__init_from_scratch=True))
  start = setting_of().learner.init()
  assert_close(continued.live.params, start.live.params, 1e-6)
  assert np.abs(scratch.live.params["hidden0"]["kernel"] - start.live.params["hidden0"]["kernel"]).max() > 0.01


def test_umix_sum_and_mean_predict_the_same_class():
  mean, total = setting_of("umix"), setting_of("umix", learner__combine="sum")
  state = mean.learner.init()
  x, y = blobs(50)
  pool = environment.make_pool(x[..., None], y, mean.mean, mean.std, mean.learner.mesh)
  a, b = (s.learner.contribution(state, 0, pool)["sum"] for s in (mean, total))
  np.testing.assert_allclose(5 * a, b, rtol=1e-5)
  np.testing.assert_array_equal(a.argmax(-1), b.argmax(-1))


def test_copying_gens_is_a_series_of_sm_checkpoints():
  sm, gens = setting_of("sm"), setting_of("gens")
  single, grown = sm.learner.init(), gens.learner.init()
  for stage in range(2):
    single, sm_report, _ = train_stage(sm, single, stage)
    before = jax.device_get(grown.frozen), jax.device_get(grown.live)
    grown, gens_report, _ = train_stage(gens, grown, stage)
    assert arrays_equal(single.live, grown.live)
    assert sm_report == gens_report
    if stage:
      assert arrays_equal(grown.frozen, (before[1],))  # what was live is frozen, bit for bit
  assert sm.learner.cost(single).fwd_macs == gens.learner.cost(grown).fwd_macs  # Comp counts the new member only
  assert gens.learner.cost(grown).num_params == 2 * sm.learner.cost(single).num_params


def test_scratch_gens_members_start_apart():
  setting = setting_of("gens", learner__init="scratch", learner__members_per_stage=2, train__learning_rate=1e-9)
  state, _ = train(setting)
  kernels = [leaf for block in (*state.frozen, state.live) for leaf in np.asarray(block.params["hidden0"]["kernel"])]
  assert len(kernels) == 4
  assert all(np.abs(a - b).max() > 0.01 for i, a in enumerate(kernels) for b in kernels[:i])


def test_the_examiner_asks_final_members_once():
  setting = setting_of("gens")
  examiner, state, asked = environment.Examiner(setting), setting.learner.init(), []
  real = setting.learner.contribution
  spy = setting.learner._replace(contribution=lambda s, block, pool: asked.append(block) or real(s, block, pool))
  examiner._learner = spy
  errors = []
  for stage in range(2):
    state, _, _ = train_stage(setting, state, stage)
    errors.append(examiner.examine(state))
  assert asked == [0, 1]
  assert environment.Examiner(setting).examine(state) == errors[-1]  # cached or not, the same


@pytest.mark.parametrize("combine", ["probabilities", "logits", "vote"])
def test_an_ensemble_predicts_as_its_members_together(combine):
  setting = setting_of("ens", learner__combine=combine, learner__num_members=3)
  state = setting.learner.init()
  x, y = blobs(40)
  pool = environment.make_pool(x[..., None], y, setting.mean, setting.std, setting.learner.mesh)
  together = setting.learner.contribution(state, 0, pool)
  single = setting_of("sm")
  alone = [state._replace(live=jax.tree.map(lambda leaf, m=m: leaf[m:m + 1], state.live)) for m in range(3)]
  logits = np.stack([single.learner.contribution(one, 0, pool)["sum"] for one in alone])
  probabilities = np.asarray(jax.nn.softmax(logits))
  expected = {"probabilities": probabilities.sum(0), "logits": logits.sum(0),
              "vote": np.eye(3)[logits.argmax(-1)].sum(0)}[combine]
  np.testing.assert_allclose(together["sum"], expected, atol=1e-5)
  if combine == "vote":
    np.testing.assert_allclose(together["top"], probabilities.max(0), atol=1e-6)


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
  # No better than chance, err = 1 - 1/K: no say.
  assert boosting.weigh([hit([0, 0, 0])], np.array([0, 1, 2]), 3)[1][0] == pytest.approx(0)
  # Never wrong, always wrong: clipped to half an example.
  assert boosting.weigh([hit(y)], y, 3)[1][0] == pytest.approx(np.log(7) + np.log(2))
  assert boosting.weigh([hit((y + 1) % 3)], y, 3)[1][0] == pytest.approx(-np.log(7) + np.log(2))


@pytest.mark.parametrize("weighting", ["resample", "loss"])
def test_boosting_minds_mistakes(weighting):
  setting = setting_of("boosting", learner__weighting=weighting, train__epochs=1)
  state, _ = train(setting, stages=1)
  learner, data = setting.learner, environment.Stages(setting)[1]
  grown, report = learner.grow(state, data)
  assert report.macs == len(data.train) * learner.cost(state).predict_macs
  emphasis = learner.begin(grown, data).emphasis
  logits = learner.contribution(grown, 0, data.pool)["logits0"][data.train]
  wrong = logits.argmax(1) != setting.dataset.y_train[data.train]
  weights = emphasis.weight if weighting == "loss" else emphasis.draw * len(data.train)
  assert 0 < wrong.sum() < len(wrong)
  assert weights[wrong].min() > 1 > weights[~wrong].max()
  assert weights.mean() == pytest.approx(1)
  fitting = learner.begin(grown, data)
  seen = np.concatenate([fit._orders(fitting, epoch)[1][0] for epoch in range(100)])
  share = wrong[seen].mean()
  expected = wrong.mean() if weighting == "loss" else weights[wrong].sum() / len(wrong)
  assert share == pytest.approx(expected, abs=4 * np.sqrt(expected / len(seen)))


class Drawing:
  """A network that notes a number drawn with each training step's key."""

  def init(self, key, x):
    del key, x
    return Variables({"w": jnp.zeros(3)}, {"drawn": jnp.zeros(8)})

  def apply(self, variables, x, mask, train, key=None):
    logits = jnp.broadcast_to(variables.params["w"][None], (x.shape[0], 3))
    if not train:
      return logits, variables.stats
    return logits, {"drawn": jnp.roll(variables.stats["drawn"], 1).at[0].set(jax.random.uniform(key))}


def test_a_network_draws_anew_at_every_step_and_epoch():
  setting = setting_of(train__epochs=4)
  learner, data = setting.learner, environment.Stages(setting)[0]
  spec = dataclasses.replace(learner.begin(learner.init(), data).spec, network=Drawing())
  variables = jax.tree.map(lambda leaf: leaf[None], Drawing().init(None, None))
  drawn = []
  for stage in range(2):
    fitting, _ = fit.advance(fit.begin(spec, variables, data._replace(stage=stage), fit.Emphasis()), 8)
    drawn += np.asarray(fitting.carry.members.now.stats["drawn"][0]).tolist()
  assert len(set(drawn)) == 16  # 2 stages, 4 epochs of 2 steps


def test_weighted_losses_have_weighted_gradients():
  """Weights of 0 and 2 on halves of a batch: as a step on the second half alone."""
  setting = setting_of("sm", train__optimizer="sgd", train__learning_rate=0.1, train__epochs=1, train__batch_size=128)
  learner, data = setting.learner, environment.Stages(setting)[0]
  state, half = learner.init(), len(data.train) // 2
  weight = np.repeat(np.float32([0, 2]), half)
  spec = learner.begin(state, data).spec
  ends = []
  for train_part, emphasis in ((data.train, fit.Emphasis(weight=weight)), (data.train[half:], fit.Emphasis())):
    fitting, _ = fit.advance(fit.begin(spec, state.live, data._replace(train=train_part), emphasis), 1)
    ends.append(jax.device_get(fitting.carry.members.now))
  assert_close(*ends, 1e-6)


def test_boosting_votes_with_its_coefficients():
  setting = setting_of("boosting", train__epochs=1, stream__waiting_time=1)
  state, _ = train(setting, stages=3)
  learner = setting.learner
  assert len(state.spec["alphas"]) == 3
  pool = environment.Examiner(setting)._pool
  parts = {}
  for block in range(3):
    parts |= learner.contribution(state, block, pool)
  expected = sum(alpha * parts[f"logits{m}"] for m, alpha in enumerate(state.spec["alphas"])).argmax(1)
  classes, probabilities = learner.resolve(state, parts)
  np.testing.assert_array_equal(classes, expected)
  np.testing.assert_array_equal(probabilities.argmax(1), expected)
  y = setting.dataset.y_train
  data = environment.Stages(setting)[2]
  logits = [learner.contribution(state, block, data.pool)[f"logits{block}"][data.val] for block in range(3)]
  np.testing.assert_allclose(boosting.weigh(logits, y[data.val], 3)[1], state.spec["alphas"])


def test_boosting_starts_members_as_told():
  states = {}
  for init in ("first", "last", "scratch"):
    setting = setting_of("boosting", learner__init=init, train__epochs=1, stream__waiting_time=1)
    state, _ = train(setting, stages=2)
    states[init], _ = setting.learner.grow(state, environment.Stages(setting)[2])
  assert arrays_equal(states["first"].live, states["first"].frozen[0])
  assert arrays_equal(states["last"].live, states["last"].frozen[1])
  assert not arrays_equal(*states["last"].frozen)
  for old in (*states["scratch"].frozen, states["last"].frozen[0]):  # nor the first initialisation
    assert np.abs(old.params["hidden0"]["kernel"] - states["scratch"].live.params["hidden0"]["kernel"]).max() > 0.01


def test_boosting_weighs_members_on_the_data_it_is_told():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)  # so that train and validation differ
  for which in ("train", "val"):
    setting = setting_of("boosting", data=(x, noisy, *blobs(60, seed=1)), train__epochs=1,
                         learner__coefficients={"train": "train", "val": "validation"}[which])
    state, _ = train(setting)
    data = environment.Stages(setting)[1]
    chosen = getattr(data, which)
    logits = [setting.learner.contribution(state, block, data.pool)[f"logits{block}"] for block in range(2)]
    expected = boosting.weigh([one[chosen] for one in logits], noisy[chosen], 3)[1]
    np.testing.assert_allclose(state.spec["alphas"], expected)


def test_bagging_trains_each_member_on_its_own_fixed_bootstrap():
  setting = setting_of("bagging", data=(*blobs(4000), *blobs(60, seed=1)))
  learner, data = setting.learner, environment.Stages(setting)[1]
  state, _ = learner.grow(learner.init(), data)
  fitting = learner.begin(state, data)
  own = fitting.emphasis.own
  assert own.shape == (3, len(data.train))
  assert not np.array_equal(own[0], own[1])
  assert set(own.ravel()) <= set(data.train)
  # 1 - 1/e of n examples, deviation 0.31/sqrt(n).
  unique = [len(set(member)) / len(member) for member in own]
  np.testing.assert_allclose(unique, 1 - np.exp(-1), atol=4 * 0.31 / np.sqrt(own.shape[1]))
  orders = [fit._orders(fitting, epoch)[0] for epoch in range(2)]
  assert not np.array_equal(*orders)
  for order in orders:
    for member in range(3):
      np.testing.assert_array_equal(np.sort(order[member]), np.sort(own[member]))


def test_every_stage_has_a_bootstrap_of_its_own():
  data = environment.Stages(setting_of("bagging"))[0]
  drawn = [tuple(bagging.bootstrap(data._replace(stage=stage, seed=seed), 1)[0]) for stage in (0, 1) for seed in (0, 1)]
  assert len(set(drawn)) == 4


def test_bagging_goes_on_from_the_last_members_and_keeps_the_old():
  setting = setting_of("bagging", train__epochs=1)
  first, _ = train(setting, stages=1)
  learner, data = setting.learner, environment.Stages(setting)[1]
  grown, _ = learner.grow(first, data)
  assert arrays_equal(grown.live, first.live)
  second, _, _ = train_stage(setting, first, 1)
  assert arrays_equal(second.frozen[0], first.live)
  assert learner.cost(second).num_params == 2 * learner.cost(first).num_params
