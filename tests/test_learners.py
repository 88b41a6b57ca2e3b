"""Training and the learners of stacked networks: properties of docs/algorithms.md §1 and §2."""
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs
from stages import Stages, arrays_equal, assert_close, contribution, setting_of, train, train_stage

from alma_jax.learners import stacked
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.protocols.contract import State
from alma_jax.training import batching, loop
from alma_jax.types import Variables


def test_cutting_a_stage_into_dispatches_changes_no_bit():
  setting = setting_of("ens", train__epochs=5)
  whole, log = train(setting)
  for rows in (1, 2, 5):  # an epoch has 2 steps
    again, other = train(setting, rows=rows)
    assert arrays_equal(whole, again)
    assert arrays_equal([epochs for _, epochs in log], [epochs for _, epochs in other])


@pytest.mark.slow
def test_one_dispatch_per_step_is_the_same_training(monkeypatch):
  changes = dict(train__epochs=6, train__patience=2, train__learning_rate=0.5)
  looped, log = train(setting_of("ens", **changes))
  monkeypatch.setattr(stacked.models, "loops_are_slow", lambda network: True)
  stepwise, other = train(setting_of("ens", **changes))
  # Other programs, other roundings: a few ulps grow over 2 x 6 epochs.
  assert_close(looped.live.params, stepwise.live.params, 1e-4)
  assert [report.rounds for report, _ in log] == [report.rounds for report, _ in other]
  assert_close([epochs for _, epochs in log], [epochs for _, epochs in other], 1e-4)


def test_members_of_an_ensemble_are_separate_runs():
  """The first two members of three are trained as an ensemble of two would be."""
  together, fewer = (train(setting_of("ens", learner__num_members=num, train__epochs=3))[0].live for num in (3, 2))
  assert_close(jax.tree.map(lambda leaf: leaf[:2], together.params), fewer.params, 1e-5)


def test_one_member_of_anything_is_a_single_model():
  results = []
  for learner, changes in (("sm", {}), ("ens", {"learner__num_members": 1}), ("umix", {"learner__num_members": 1})):
    state, _ = train(setting_of(learner, train__patience=0, train__patience_delta=0.0, **changes))
    results.append([leaf.reshape(-1) for leaf in jax.tree.leaves(state.live.params)])
  assert_close(results[0], results[1], 1e-6)
  assert_close(results[0], results[2], 1e-5)


def test_patience_stops_that_many_epochs_after_the_best():
  # A learning rate of nearly 0 changes no prediction: the first epoch stays the best.
  _, log = train(setting_of(train__epochs=20, train__learning_rate=1e-9, train__patience=3))
  assert [report.rounds for report, _ in log] == [4, 4]
  assert [len(epochs) for _, epochs in log] == [4, 4]
  assert log[0][0].samples == 4 * 108  # 2 mega-batches of 60, 6 each for validation


def selected_by_hand(errors, delta, patience):
  """(index of the selected epoch, epochs run), by §1."""
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


def test_selection_follows_the_validation_errors():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)
  errors = []  # of all epochs, by the first case, which never stops
  for delta, patience in ((0.0, 0), (0.0, 3), (0.1, 4)):
    setting = setting_of(data=(x, noisy, *blobs(60, seed=1)), train__epochs=30, train__learning_rate=0.3,
                         train__patience=patience, train__patience_delta=delta)
    state, report, epochs = train_stage(setting, setting.learner.init(), 0)
    errors = errors or [float(e.members["val_error"][0]) for e in epochs]
    chosen, run = selected_by_hand(errors, delta, patience)
    assert (report.rounds, len(epochs)) == (run, run)
    assert report.val == pytest.approx(errors[chosen], abs=1e-6)
    # The stored variables are the selected ones: they have that error on the validation data.
    val = setting.protocol.source.memory.stage((2,)).val
    pool = classification.make_pool(x[val][..., None], noisy[val], *setting.protocol.source.constants,
                                    setting.learner.mesh)
    classes, _ = setting.learner.resolve(state, contribution(setting, state, 0, pool))
    assert np.mean(classes != noisy[val]) == pytest.approx(errors[chosen], abs=1e-6)
  assert len(set(errors)) > 3  # there is something to select


def test_every_example_is_seen_once_an_epoch():
  setting = setting_of("ens", learner__num_members=2)
  data = Stages(setting)[0]
  steps = -(-len(data.train) // 64)
  mesh = sharding.make_mesh(2, 1)
  spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 2, 1, mesh, False)
  rows = batching.train_batches(loop.Training(spec, None, data), 0, 2 * steps)
  assert rows.num_examples[:2 * steps].tolist() == [64, 108 - 64] * 2  # the partial batch is kept
  assert rows.num_steps == 2 * steps
  assert np.flatnonzero(rows.ends_round[:2 * steps]).tolist() == [steps - 1, 2 * steps - 1]
  orders = []
  for epoch in range(2):
    for member in range(2):
      seen = np.concatenate([rows.examples[r, member, :rows.num_examples[r]] for r in (2 * epoch, 2 * epoch + 1)])
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
  pool = classification.make_pool(x[..., None], y, *mean.protocol.source.constants, mean.learner.mesh)
  a, b = (contribution(s, state, 0, pool)["sum"] for s in (mean, total))
  np.testing.assert_allclose(5 * a, b, rtol=1e-5, atol=3e-7)  # sums of five terms below 1 in float32
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


def test_the_test_set_is_predicted_once_by_final_members(monkeypatch):
  setting = setting_of("gens")
  now, asked, errors = State(setting.learner.init(), 0, {}), [], []
  real = setting.learner.contribution
  monkeypatch.setattr(setting.learner, "contribution",
                      lambda s, block, inputs: asked.append(block) or real(s, block, inputs))
  for stage in range(2):
    now.learner, _, _ = train_stage(setting, now.learner, stage)
    errors.append(setting.protocol.test(setting.learner, now, True))
    now.lines.append({"t": stage + 1, "updated": True})
  assert asked == [0, 1]
  assert now.joined.num == 2
  assert setting.protocol.test(setting.learner, State(now.learner, 0, {}), True) == errors[-1]  # the same without


@pytest.mark.parametrize("combine", ["probabilities", "logits", "vote"])
def test_an_ensemble_predicts_as_its_members_together(combine):
  setting = setting_of("ens", learner__combine=combine, learner__num_members=3)
  state = setting.learner.init()
  x, y = blobs(40)
  pool = classification.make_pool(x[..., None], y, *setting.protocol.source.constants, setting.learner.mesh)
  together = contribution(setting, state, 0, pool)
  single = setting_of("sm")
  alone = [state._replace(live=jax.tree.map(lambda leaf, m=m: leaf[m:m + 1], state.live)) for m in range(3)]
  logits = np.stack([contribution(single, one, 0, pool)["sum"] for one in alone])
  probabilities = np.asarray(jax.nn.softmax(logits))
  expected = {"probabilities": probabilities.sum(0), "logits": logits.sum(0),
              "vote": np.eye(3)[logits.argmax(-1)].sum(0)}[combine]
  np.testing.assert_allclose(together["sum"], expected, atol=1e-5)
  if combine == "vote":
    np.testing.assert_allclose(together["top"], probabilities.max(0), atol=1e-6)


class Drawing:
  """A network that records a number drawn with the key of each training step."""

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
  learner, data = setting.learner, Stages(setting)[0]
  variables = jax.tree.map(lambda leaf: leaf[None], Drawing().init(None, None))
  spec = dataclasses.replace(learner.training(learner.init(), data).spec, network=Drawing())
  drawn = []
  for stage in range(2):
    fitting, _ = loop.advance(loop.begin(loop.Training(spec, variables, data._replace(stage=stage))), 8)
    drawn += np.asarray(fitting.state.members.now.stats["drawn"][0]).tolist()
  assert len(set(drawn)) == 16  # 2 stages, 4 epochs of 2 steps


@pytest.mark.slow
def test_members_are_selected_one_by_one():
  x, y = blobs(240, seed=5)
  noisy = np.where(np.random.default_rng(0).random(240) < 0.4, (y + 1) % 3, y)
  setting = setting_of("ens", data=(x, noisy, *blobs(60, seed=1)), train__epochs=20, learner__num_members=4)
  _, report, epochs = train_stage(setting, setting.learner.init(), 0)
  best = np.min([e.members["val_error"] for e in epochs], axis=0)
  first = [int(np.argmin([e.members["val_error"][m] for e in epochs])) for m in range(4)]
  assert len(set(first)) > 1  # the best epochs differ
  assert report.val == pytest.approx(best.mean(), abs=1e-6)
