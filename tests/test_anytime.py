"""Whole runs with a fixed number of steps, a memory, schedules and averaged weights."""
import itertools
import json

import jax
import numpy as np
import pytest
from runs import assert_same_run, blobs, lines, slow, small_config, text_config
from stages import arrays_equal, examine

import alma_jax
from alma_jax import config as configs
from alma_jax import export
from alma_jax.config.registry import LEARNERS
from alma_jax.learners import prediction
from alma_jax.runs import settings, snapshot
from alma_jax.store import metrics

# Of 120 images 6 mega-batches of 20, 2 of each for validation.
STREAM = dict(stream__num_megabatches=6, stream__waiting_time=2)
ANYTIME = STREAM | dict(stream__replay_share=0.5, stream__memory_size=30, train__steps=5, train__eval_every=2,
                        train__batch_size=12, train__patience=0, learner__average=0.5, checkpoint__seconds=1e9)
OPTIONS = {"gmoe": {"learner__keep_optimizer": True}, "ens": {"learner__num_members": 2},
           "hmoe": {"learner__split_every": 1, "learner__min_shard": 3, "model__num_experts": 2}}


@pytest.mark.parametrize(("learner", "changes"), [
    ("sm", {"train__patience": 2}), ("boosting", {"learner__weighting": "loss"}),
    slow("bagging", {"learner__members_per_stage": 2}), slow("hmoe", {"model__num_experts": 1})])
def test_as_many_steps_as_epochs_have_are_the_same_run(tmp_path, arrays, learner, changes):
  """Without waiting longer for any expert: hmoe has one. 54 examples of a stage are 4 steps of 16."""
  for name, length in (("epochs", {"train__epochs": 3}), ("steps", {"train__epochs": 1, "train__steps": 12})):
    alma_jax.run(small_config(learner, train__batch_size=16, **length, **changes), tmp_path / name, data=arrays)
  for file in ("metrics.jsonl", "train.jsonl"):
    assert lines(tmp_path / "epochs", file) == lines(tmp_path / "steps", file)
  first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("epochs", "steps"))
  own = lambda summary: {k: v for k, v in summary.items() if not k.endswith(("seconds", "sha256"))}
  assert own(first) == own(second)
  assert first["config_sha256"] != second["config_sha256"]


def test_rounds_of_steps_are_written_and_counted(tmp_path, arrays):
  run = alma_jax.run(small_config(**ANYTIME | {"train__decay": 0.8, "train__learning_rate": 0.5}), tmp_path,
                     data=arrays)
  train = lines(tmp_path, "train.jsonl")
  assert [(entry["stage"], entry["epoch"]) for entry in train] == [(s, e) for s in range(3) for e in (1, 2, 3)]
  # Validations after steps 2, 4 and 5 of 5; s_k = (5 - k) / 4 from step k = 1, counted from 0.
  rates = [0.5 * min(1, (5 - k) / 4) for k in (1, 3, 4)]
  np.testing.assert_allclose([entry["lr"] for entry in train], rates * 3, rtol=1e-6)
  # 36 new examples a stage: without a memory 3 batches of 12 and two more; with one 6 new ones a batch and 6 old ones.
  macs = 36 * 4 + 4 * 4 + 4 * 3
  assert run.metrics["fwd_macs"].tolist() == [0, 60 * macs] * 3
  assert run.metrics["num_params"].tolist() == [macs + 11] + [2 * (macs + 11)] * 5


def test_rates_of_both_trainings_of_a_stage(tmp_path, arrays):
  """In its first stage `hmoe` trains its base network and then its experts, which have other numbers of rounds."""
  config = small_config("hmoe", model__num_experts=2, learner__min_shard=1, train__steps=10, train__decay=1.0,
                        train__batch_size=16, train__patience=0, train__learning_rate=1.0, stream__num_megabatches=1,
                        stream__waiting_time=1)
  alma_jax.run(config, tmp_path, data=(arrays[0][:60], arrays[1][:60], *arrays[2:]))
  found = [entry["lr"] for entry in lines(tmp_path, "train.jsonl")]
  base = [1 - 3 / 10, 1 - 7 / 10, 1 - 9 / 10]  # 54 examples are 4 steps
  np.testing.assert_allclose(found[:3], base, rtol=1e-6)
  assert found[-1] == pytest.approx(0.1)  # the last step of the experts' training
  assert all(one > other for one, other in itertools.pairwise(found[3:]))


@pytest.mark.parametrize("learner", [
    slow(name) if name in ("ff", "gmoe", "hmoe") else name for name in LEARNERS["images"]
    # sm, moe and umix have one live block as ens has, bagging freezes as gens does, and expert needs a gate.
    if name not in ("sm", "moe", "umix", "bagging", "expert")])
def test_every_learner_remembers_and_averages(tmp_path, arrays, learner):
  changes = ANYTIME | OPTIONS.get(learner, {}) | {"stream__schedule": "geometric", "stream__factor": 2.0}
  run = alma_jax.run(small_config(learner, **changes, checkpoint__keep_every=1), tmp_path, data=arrays)
  assert run.metrics["updated"].tolist() == [True, True, False, True, False, False]
  assert run.stages() == [0, 1, 2]
  wrong = run.predict(arrays[2]).argmax(-1) != arrays[3]
  assert wrong.mean() == pytest.approx(run.metrics["error"][-1])
  prequential = [entry["prequential_error"] for entry in lines(tmp_path, "metrics.jsonl")]
  freezes = learner in ("gens", "boosting")
  assert [value is None for value in prequential] == [True] + [freezes] * 5
  opened, made = run.open()
  state = snapshot.restore_learner(made, opened)
  assert state.average is not None
  assert run.metrics["num_params"][-1] == made.cost(state).num_params


def test_a_run_that_waits_at_its_end_is_saved_and_resumed(tmp_path, arrays):
  """The stop comes when everything after the last training is written."""
  config = small_config(**ANYTIME | {"stream__schedule": "geometric", "stream__factor": 2.0})
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  stop = lambda: len(lines(tmp_path / "cut", "metrics.jsonl")) == 6 if (
      tmp_path / "cut/metrics.jsonl").exists() else False
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(config, tmp_path / "cut", data=arrays, should_stop=stop)
  assert not (tmp_path / "cut/summary.json").exists()
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("changes", "ends"), [
    ({"stream__schedule": "geometric", "stream__factor": 2.0}, [1, 2, 4]),  # the next were 8
    ({"stream__waiting_time": 3}, [3, 6, 7])])
def test_a_learner_is_trained_where_the_schedule_says(tmp_path, arrays, changes, ends):
  run = alma_jax.run(small_config(stream__num_megabatches=7, train__epochs=1, **changes), tmp_path, data=arrays)
  entries = lines(tmp_path, "metrics.jsonl")
  assert [entry["t"] for entry in entries] == list(range(1, 8))
  assert [entry["t"] for entry in entries if entry["updated"]] == ends == list(metrics.ends(entries))
  assert run.summary["num_stages"] == len(ends)
  assert run.stages()[-1] == len(ends) - 1
  stage, previous = None, None
  for entry in entries:
    if entry["updated"]:
      stage = 0 if stage is None else stage + 1
      assert entry["fwd_macs"] > 0
    elif previous is not None:  # it waits: the last error counts again
      assert {key: entry[key] for key in ("error", "val_error", "loss")} == {
          key: previous[key] for key in ("error", "val_error", "loss")}
      assert entry["fwd_macs"] == entry["train_flops"] == 0
    assert entry["stage"] == stage
    previous = entry
  assert run.summary["cer"] == pytest.approx(sum(entry["error"] for entry in entries))
  train = lines(tmp_path, "train.jsonl")
  assert [entry["stage"] for entry in train] == list(range(len(ends)))


ADAPTIVE = dict(stream__num_megabatches=12, stream__waiting_time=1, stream__schedule="adaptive", stream__price=1e-5,
                stream__replay_share="uniform", train__steps=4, train__eval_every=4, train__batch_size=12,
                train__learning_rate=0.3)


@pytest.mark.parametrize(("learner", "most"), [("sm", 1.0), ("hmoe", 1.1)])
def test_an_adaptive_run_trains_where_the_regret_reaches_the_price_of_the_next_training(tmp_path, learner, most):
  """The price is what that training then costs; two experts cost twice as much as one."""
  data = (*blobs(240), *blobs(30, seed=1))
  experts = {"model__num_experts": 2, "learner__min_shard": 1} if learner == "hmoe" else {}
  alma_jax.run(small_config(learner, **ADAPTIVE | experts), tmp_path, data=data)
  first, second, *later = lines(tmp_path, "metrics.jsonl")
  assert first["updated"]
  assert (first["law_floor"], first["regret"]) == (None, None)
  assert all(line["updated"] == (line["regret"] >= line["training_price"]) for line in [second, *later])
  trained = [line for line in later if line["updated"]]
  assert 2 <= len(trained) < len(later)
  spent = 1e-5 * (trained[-1]["fwd_macs"] - trained[-1]["growth_macs"])
  assert 1 - 1e-9 <= spent / trained[-1]["training_price"] <= most + 1e-9


def test_a_mega_batch_tests_the_learner_of_the_stage_before(tmp_path, arrays):
  config = small_config("ens", **ANYTIME | OPTIONS["ens"] | {"checkpoint__keep_every": 1, "train__steps": 2,
                                                             "train__eval_every": 2})
  run = alma_jax.run(config, tmp_path, data=arrays)
  megabatches = settings.prepare(configs.parse(config), arrays).protocol.source.megabatches
  found = [entry["prequential_error"] for entry in lines(tmp_path, "metrics.jsonl")]
  assert found[:2] == [None, None]
  expected = []
  for t in range(3, 7):  # trained after mega-batches 2, 4 and 6
    which = np.concatenate(megabatches.part(t))
    assert len(which) == 20  # those for validation, too
    expected.append(np.mean(run.predict(arrays[0][which], stage=(t - 3) // 2).argmax(-1) != arrays[1][which]))
  np.testing.assert_allclose(found[2:], expected, atol=1e-7)
  assert len(set(expected)) > 1
  np.testing.assert_allclose(run.metrics["prequential_error"][2:], expected, atol=1e-7)
  assert np.isnan(run.metrics["prequential_error"][:2]).all()


def test_nothing_is_used_before_it_arrives(tmp_path, arrays):
  """Later mega-batches are replaced by noise: what was written before they arrived is the same."""
  config = small_config(**ANYTIME | {"stream__waiting_time": 2})
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  megabatches = settings.prepare(configs.parse(config), arrays).protocol.source.megabatches
  later = np.concatenate([part for t in range(5, 7) for part in megabatches.part(t)])
  rng, (x, y, *test) = np.random.default_rng(0), (array.copy() for array in arrays)
  x[later], y[later] = rng.integers(0, 256, x[later].shape), rng.integers(0, 3, len(later))
  alma_jax.run(config, tmp_path / "other", data=(x, y, *test))
  first, second = (lines(tmp_path / name, "metrics.jsonl") for name in ("whole", "other"))
  assert first[:4] == second[:4]
  assert first[3]["prequential_error"] is not None
  assert first[4]["prequential_error"] != second[4]["prequential_error"]
  epochs = [[entry for entry in lines(tmp_path / name, "train.jsonl") if entry["stage"] < 2]
            for name in ("whole", "other")]
  assert epochs[0] == epochs[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_windows_that_arrive_test_a_language_model(tmp_path, books):
  config = text_config(books, stream__num_megabatches=2, train__steps=2, train__warmup_steps=1, learner__average=0.5,
                       dataset__eval_tokens=200)
  run = alma_jax.run(config, tmp_path)
  first, second = lines(tmp_path, "metrics.jsonl")
  assert first["prequential_perplexity"] is None
  setting = settings.prepare(configs.parse(config))
  opened, _ = run.open(0)
  state = snapshot.restore_learner(setting.learner, opened)
  assert not arrays_equal(state.average, state.live)  # the average is tested, as below
  windows = setting.protocol.source.megabatches.part(2)[0]
  which = setting.protocol.source.tested(2)
  assert set(which) <= set(windows)
  assert len(which) == 13  # 200 tokens in windows of 16
  task = setting.facts.problem
  loaded, index = task.load(*setting.protocol.source.select(which, setting.learner.mesh))
  log_NL = prediction.contributions(setting.learner, task, state, 0, jax.device_get(loaded), index)["log_sum"]
  length = setting.protocol.source._train.length[which]
  counted = np.arange(log_NL.shape[1])[None] < length[:, None]
  expected = np.exp(-np.float64(log_NL)[counted].mean())
  assert second["prequential_perplexity"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("start", "held"), [("last", 2), ("average", 1)])
def test_the_average_predicts_and_is_exported(tmp_path, arrays, start, held):
  changes = ANYTIME | {"learner__start": start, "learner__average": 0.9, "train__learning_rate": 3.0}
  run = alma_jax.run(small_config(**changes), tmp_path, data=arrays)
  opened, learner = run.open()
  state = snapshot.restore_learner(learner, opened)
  assert (state.average is not None) == (start == "last")
  probabilities = run.predict(arrays[2])
  assert np.mean(probabilities.argmax(-1) != arrays[3]) == pytest.approx(run.metrics["error"][-1])
  loss = -np.log(probabilities[np.arange(30), arrays[3]]).mean()
  assert loss == pytest.approx(run.metrics["loss"][-1], rel=1e-4)
  one = run.metrics["num_params"][0]
  assert run.metrics["num_params"][-1] == held * one
  if start == "average":
    return
  setting = settings.prepare(configs.parse(small_config(**changes)), arrays)
  live = examine(setting, state._replace(average=None))
  assert live[1] != pytest.approx(run.metrics["loss"][-1], rel=1e-3)  # the last weights answer otherwise
  folder = export.export(run)
  space = {"__file__": str(folder / "load.py")}
  exec(compile((folder / "load.py").read_text(), str(folder / "load.py"), "exec"), space)
  np.testing.assert_allclose(space["predict"](arrays[2][..., None]), probabilities, atol=2e-6)
