"""`stream.memory_policy`: which old mega-batches a memory keeps, and which of them a second network contradicts."""
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import blobs, small_config
from test_recall import SCHEDULES
from test_stream import assert_sizes, make, stages_of

import alma_jax
from alma_jax.config.stream import HalfLife, Window
from alma_jax.learners import agreement, dual

SIZE = 150  # images in a mega-batch


@st.composite
def forgetting(draw):
  """A stream whose memory forgets, of any schedule and share."""
  b = draw(st.integers(3, 12))
  n = draw(st.integers(10 * b, 40 * b))
  policy = draw(st.sampled_from([Window(window=1), Window(window=3), HalfLife(half_life=0.4), HalfLife(half_life=2.5)]))
  return make(n, b, draw(st.integers(1, b)), seed=draw(st.integers(0, 5)), memory_policy=policy,
              replay_share=draw(st.sampled_from(["uniform", 0.5])), **draw(st.sampled_from(SCHEDULES)))


@given(forgetting())
@settings(deadline=None, max_examples=60)
def test_a_memory_keeps_of_each_mega_batch_what_its_policy_says(stream):
  stages, before = stages_of(stream), set()
  assert_sizes(stream, stages)
  for stage, span in zip(stages, stream.spans):
    wanted = stream.config.memory_policy.kept(span[-1] - np.arange(1, span[0]))
    for u, share in enumerate(wanted, 1):
      own = stream.megabatches.part(u)[0]
      assert len(np.intersect1d(stage.memory, own)) == np.ceil(share * len(own) - 0.5)
      assert set(stage.memory[stage.memory_from == u]) <= set(own)
    assert set(stage.memory) <= before  # what it has dropped never comes back
    before = set(stage.memory) | set(stage.train)


@pytest.mark.parametrize(("old", "new", "low", "high"), [
    ([0] * 24, [0] * 40, 0.0, 0.01), ([1] * 24, [0] * 40, 0.99, 1.0), ([1] * 12, [0] * 40, 0.9, 1.0),
    ([1] * 24, [1] * 40, 0.0, 0.01), ([0] * 24, [1] * 40, 0.0, 0.01)])
def test_old_examples_contradict_if_they_are_wrong_more_often(old, new, low, high):
  assert low <= agreement.contradicts(np.array(old, bool), np.array(new, bool)) <= high


def test_contradiction_is_half_where_the_z_test_says_so():
  old, new = np.arange(100) < 20, np.zeros(100, bool)  # pooled 0.1: z = 0.2 / sqrt(0.09 x 0.02)
  z = 0.2 / np.sqrt(0.1 * 0.9 * 0.02)
  assert agreement.contradicts(old, new) == pytest.approx(1 / (1 + np.exp(-2 * (z - 2.5))))


def test_inputs_are_alike_if_neighbours_come_from_both_sets():
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 32, 5))
  assert agreement.alike(first, second) > 0.95
  assert agreement.alike(first, second + 20) < 0.01


@pytest.mark.parametrize("reach", [0, 1, 3])
@pytest.mark.parametrize("change", [1, 5, 11, 12])
def test_neighbours_that_decide_are_on_one_side_of_a_change(reach, change):
  """12 spans of 4 examples, of which those before the change are wrong; there are up to 7 in a window."""
  own = np.repeat([-1, *range(12)], [20, *[4] * 12])
  wrong = (own >= 0) & (own < change)
  for i in range(12):
    near = agreement.window(wrong, own, i, reach)
    assert i in own[near]
    assert set(wrong[near]) == {i < change}
    side = change if i < change else 12 - change
    assert len(near) >= 4 * min(2 * reach + 1, side - (side + 1) % 2)  # an odd number of spans


def test_neighbours_with_equal_errors_all_decide():
  rng = np.random.default_rng(0)
  own, sizes = np.repeat(range(12), 4), []
  for rate in (0.05, 0.3, 0.5, 0.95):
    wrong = rng.random((20, 48)) < rate
    sizes += [len(agreement.window(each, own, i, 3)) for each in wrong for i in range(12)]
  assert np.mean(np.array(sizes) == 28) > 0.95


def test_errors_of_spans_differ_as_a_chi_squared_test_says():
  own, wrong = np.repeat(range(3), 10), np.zeros(30, bool)
  assert agreement.uneven(wrong, own) == 0
  wrong[:6], wrong[10:13] = True, True  # rates .6, .3 and 0, together .3
  assert agreement.uneven(wrong, own) == pytest.approx((10 * (0.3**2 + 0.3**2) / 0.21 - 2) / 2)


def test_small_images_are_means_of_blocks():
  x = np.arange(2 * 20 * 20, dtype=np.float32).reshape(2, 20, 20, 1)
  found = np.asarray(agreement.small(x))
  assert found.shape == (2, 36)  # blocks of 3 x 3; the last two rows and columns are left out
  assert found[0, 0] == x[0, :3, :3].mean()


def changed_run(folder, learner="dual", policy="agreement", switch=lambda t: t >= 5, num=8, inputs=False, **changes):
  """Metrics lines of a run on 8 mega-batches of SIZE images, which change where `switch` says so.

  Their labels are shifted, or with `inputs` their brightness is inverted.
  """
  x, turned = blobs(SIZE * num)
  switched = np.array([switch(t // SIZE + 1) for t in range(len(x))])
  if inputs:
    x[switched] = 255 - x[switched]
  else:
    turned[switched] = (turned[switched] + 1) % 3
  inbox = folder / "data"
  (inbox / "stream").mkdir(parents=True)
  for t in range(num):
    np.savez(inbox / "stream" / f"{t}.npz", x=x[SIZE * t:SIZE * (t + 1)], y=turned[SIZE * t:SIZE * (t + 1)])
  (inbox / "end").touch()
  options = {"stream__replay_share": "uniform", "stream__memory_policy": policy, "train__steps": 120,
             "model__width": 16, "stream__num_megabatches": 0, "stream__waiting_time": 1,
             "dataset__name": f"live:{inbox}", "dataset__settle_seconds": 0.0, "train__batch_size": 16,
             "train__learning_rate": 0.03, "train__optimizer": "adam", **changes}
  alma_jax.run(small_config(learner, **options), folder / "run")
  return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
  """The lines of two networks on labels that change at the fifth mega-batch."""
  return changed_run(tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def uniform(tmp_path_factory):
  """The lines of one network with all old data."""
  return changed_run(tmp_path_factory.mktemp("uniform"), "sm", "uniform")


def test_old_mega_batches_that_contradict_the_new_ones_are_left_out(usual, uniform):
  weights = [line.get("memory_weights") for line in usual]
  assert weights[0] is None  # there is nothing old
  assert all(min(now) > 0.5 for now in weights[1:4])
  for now in weights[4:]:
    assert np.mean(now[:4]) < 0.1  # labels before the change
    assert max(now[:4]) < 0.2  # by chance, 24 of 34 nearest neighbours are of their own set
    assert min(now[4:], default=1) > 0.5
  assert usual[-1]["prequential_error"] < 0.1
  assert uniform[-1]["prequential_error"] > 0.3


def test_old_mega_batches_come_back_when_they_are_true_again(tmp_path):
  lines = changed_run(tmp_path, switch=lambda t: 4 <= t < 7)
  assert max(lines[5]["memory_weights"][:3]) < 0.1  # at t = 6
  back = lines[-1]["memory_weights"]  # at t = 8
  assert min(back[:3]) > 0.5
  assert max(back[3:6]) < 0.1


def test_a_change_is_noticed_and_both_networks_follow(usual):
  assert [line["t"] for line in usual if line["changed"]] == [5]
  assert [line["t"] for line in usual if line["slow_from_fast"]] == [5]
  assert {line["fast_from"] for line in usual} == {"fast"}  # the inputs are those that it knows
  assert usual[5]["prequential_error"] < 0.1  # one mega-batch after the change


def test_with_new_inputs_the_fast_network_starts_afresh_and_old_inputs_become_few(tmp_path):
  lines = changed_run(tmp_path, inputs=True)
  assert [line["fast_from"] for line in lines] == [*["fast"] * 4, "new", *["fast"] * 3]
  assert [line["t"] for line in lines if line["slow_from_fast"]] == [5]
  for t, line in enumerate(lines[4:], 1):  # mega-batches of the new inputs
    old, new = line["memory_weights"][:4], line["memory_weights"][4:]
    assert sum(old) == pytest.approx(t / 3, rel=0.02)
    assert min(new, default=1) > 0.9
  assert lines[5]["prequential_error"] < 0.1


def test_what_a_small_memory_has_of_the_last_inputs_shows_nothing_new(tmp_path):
  lines = changed_run(tmp_path, stream__memory_size=16)  # by the fifth mega-batch 4 of the last one
  assert [line["t"] for line in lines if line["changed"]] == [5]
  assert {line["fast_from"] for line in lines} == {"fast"}


def test_the_fast_network_goes_on_from_the_slow_one_where_old_inputs_return(tmp_path):
  lines = changed_run(tmp_path, inputs=True, switch=lambda t: t in (2, 3), num=4)
  assert [line["fast_from"] for line in lines] == ["fast", "new", "fast", "slow"]
  assert lines[3]["prequential_error"] < 0.1


def test_the_fast_network_forgets_what_was_before_a_change(tmp_path, monkeypatch, uniform):
  """The two networks share the steps of a stage, and spans are few."""
  seen, shares = [], []
  fast_data = dual.Dual._fast_data

  def noted(self, state, data):
    made = fast_data(self, state, data)
    seen.append(sorted(set(made.memory_from.tolist())))
    shares.append(made.share)
    return made

  monkeypatch.setattr(dual.Dual, "_fast_data", noted)
  monkeypatch.setattr(dual, "SPANS", 2)
  lines = changed_run(tmp_path, learner__recent=2, learner__fast_share=0.25)
  assert seen == [[], [1], [1, 2], [2, 3], [], [5], [5, 6], [6, 7]]
  assert shares == pytest.approx([0, 0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5], abs=0.04)  # never more
  assert (lines[-1]["memory_span"], len(lines[-1]["memory_weights"])) == (4, 2)
  for line, alone in zip(lines, uniform):
    assert line["fwd_macs"] == pytest.approx(alone["fwd_macs"], rel=0.05)


def test_one_error_of_one_example_is_no_change():
  assert not agreement.risen(np.ones(1, bool), np.zeros(20, bool))
  assert agreement.risen(np.arange(20) < 10, np.arange(20) < 1)


@pytest.mark.parametrize(("examples", "samples", "views", "num", "most"), [
    (400, 14176, 1, 50, 128), (2000, 14176, 1, 250, 250), (400, 2688, 1, 50, 75),
    (400, 2688, 2, 33, 33), (400, 128, 1, 3, 3), (1, 2688, 1, 0, 1)])
def test_new_examples_show_a_change_as_far_as_the_passes_go(examples, samples, views, num, most):
  """An eighth test; before and after the training they take half of 15 % of the samples at most."""
  learner = SimpleNamespace(options=dual.Options(), context=SimpleNamespace(num_views=views),
                            _plan=lambda data: SimpleNamespace(samples=samples))
  data = SimpleNamespace(seed=0, stage=3, train=np.arange(700, 710 + examples), num_new=examples)
  order, *counts = dual.Dual._tests(learner, data)
  assert counts == [num, most]
  assert sorted(order) == [*range(700, 700 + examples)]
  assert views * (2 * most + num) <= 0.15 * samples / 2


def test_a_change_of_few_examples_is_noticed_by_more_of_them(monkeypatch):
  """One in 10 is wrong, and of those before one in 50: 50 of each would not show it."""
  wrong = np.arange(400) % 10 < 1
  monkeypatch.setattr(agreement, "alike", lambda *looks: 1.0)
  learner = SimpleNamespace(context=SimpleNamespace(num_views=1), _looked=lambda state, member, data, which: (
      np.zeros((len(which), 2)), wrong[:len(which)]))
  data = SimpleNamespace(seed=0, stage=3, memory=np.arange(60), memory_from=np.repeat([1, 2, 3], 20))
  for num, before, changed in ((125, 200, True), (50, 50, False)):
    state = SimpleNamespace(host={"wrong": np.arange(before) % 50 < 1})
    found = dual.Dual._noticed(learner, state, data, np.arange(1000, 1000 + num), 50)
    assert found.get("changed", False) == changed
    assert ("before" in found) != changed


@pytest.mark.parametrize(("before", "kept"), [(0.05, True), (0.9, False)])
def test_errors_before_the_training_count_unless_it_taught_much(monkeypatch, before, kept):
  """They would hide the next change: with 90 % of them wrong, 60 % would be no rise."""
  after = np.arange(50) % 25 < 1
  learner = SimpleNamespace(context=SimpleNamespace(num_views=1), _looked=lambda *given: (None, after),
                            _policy=SimpleNamespace(judged=False))
  host = {"before": np.arange(100) < 100 * before, "slow_wrong": after}
  found = dual.Dual._compared(learner, SimpleNamespace(host=host), SimpleNamespace(stage=2, memory=[]), np.arange(50))
  assert len(found["wrong"]) == (100 if kept else 50)  # the test examples count once
  assert agreement.risen(np.arange(75) % 5 < 3, found["wrong"])


@pytest.mark.parametrize("changed", [True, False])
def test_old_data_are_compared_with_all_errors_since_the_last_change(changed):
  """One in 10 old examples is wrong, and no new one: 50 new examples do not show that, 512 do."""
  after, old = np.zeros(50, bool), np.arange(120) % 10 < 1
  learner = SimpleNamespace(context=SimpleNamespace(num_views=1), _looked=lambda *given: (None, after),
                            _policy=SimpleNamespace(judged=False))
  host = {"known": np.arange(500) >= 462, "slow_wrong": after, "changed": changed}  # the oldest are cut off
  found = dual.Dual._compared(learner, SimpleNamespace(host=host), SimpleNamespace(stage=2, memory=[]), np.arange(50))
  assert len(found["known"]) == (50 if changed else 512)
  assert (agreement.contradicts(old, found["known"]) > 0.9) != changed


@pytest.mark.parametrize(("first", "least"), [(5, 0.9), (0, 0.0)])
def test_a_mega_batch_is_judged_without_those_before_the_last_change(monkeypatch, first, least):
  """One in 8 examples of the first five is wrong, and none of the sixth; alone, it agrees."""
  monkeypatch.setattr(agreement, "alike", lambda *looks: 1.0)
  learner = SimpleNamespace(_looked=lambda state, member, data, which: (
      np.zeros((len(which), 2)), (which % 8 < 1) & (which < 160)))
  data = SimpleNamespace(seed=0, stage=6, memory=np.arange(192), num_new=32)
  weights, judged = dual.Dual._judged(learner, None, data, np.arange(192) // 32, first, 192.0, np.zeros((32, 2)),
                                      np.zeros(512, bool))
  assert judged == 192
  assert weights[:5].max() < 0.1
  assert least <= weights[5] <= least + 0.1
  newest = slice(first * 32, None)  # with a small memory, nothing from before the change is left
  data.memory = data.memory[newest]
  weights, judged = dual.Dual._judged(learner, None, data, data.memory // 32, first, 192.0, np.zeros((32, 2)),
                                      np.zeros(512, bool))
  assert judged == 32 * (6 - first)
  assert least <= weights[5] <= least + 0.1


def test_a_network_surpasses_another_where_only_the_other_errs():
  """By McNemar's test: (b - c) / sqrt(b + c), where b and c count the examples on which just one of them errs."""
  right, wrong = np.zeros(4, bool), np.ones(4, bool)
  both = np.ones(90, bool)  # says nothing
  assert not agreement.surpasses(np.r_[both, right], np.r_[both, wrong])  # 4 / 2 = 2
  assert agreement.surpasses(np.r_[both, right, False], np.r_[both, wrong, True])
  assert not agreement.surpasses(np.r_[right, wrong], np.r_[wrong, right])
  assert not agreement.surpasses(np.zeros(0, bool), np.zeros(0, bool))


def test_few_new_examples_suffice_and_judging_compiles_no_program_for_each_stage(tmp_path, monkeypatch, caplog):
  monkeypatch.setitem(globals(), "SIZE", 40)  # of which 5 test the fast network; no other test has such shapes
  with jax.log_compiles():
    lines = changed_run(tmp_path)
  assert max(lines[-1]["memory_weights"][:4]) < 0.1
  assert sum("Finished XLA compilation of jit(gather)" in message for message in caplog.messages) < 3


def test_short_stages_judge_few_examples(tmp_path):
  lines = changed_run(tmp_path, train__steps=8)  # a stage has 128 examples
  assert len(lines[-1]["memory_weights"]) == 2  # 19 may test and judge; three tests of 3 examples leave 10
  assert lines[-1]["growth_macs"] == 19 * lines[-1]["predict_macs"] / 2


def test_judging_by_two_views_takes_twice_the_passes_and_no_more_compute(tmp_path, usual):
  one, two = usual, changed_run(tmp_path, train__flip=True, train__test_augment=True)
  assert two[-1]["predict_macs"] == 2 * one[-1]["predict_macs"]
  batch = 16 * one[-1]["predict_macs"] / 2  # of two networks
  for here, there in zip(one, two):
    if not here["changed"]:  # then batches are full
      assert here["fwd_macs"] == pytest.approx(there["fwd_macs"], abs=2 * batch)
    assert here["growth_macs"] / 2 < there["growth_macs"] <= 2 * here["growth_macs"]
  assert two[0]["growth_macs"] == 2 * one[0]["growth_macs"]  # with more to judge, both take what they may
