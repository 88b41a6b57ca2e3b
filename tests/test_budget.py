"""`train.budget`: what it decides, and what a run then spends."""
import json
import re

import numpy as np
import pytest
from reports import change
from runs import alma, blobs, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.predictors import folder
from alma_jax.reports import read
from alma_jax.runs import budget, settings

FREE = dict(model__width=0, train__steps=0, train__batch_size=0)


def budgeted(budget, learner="anytime", **changes):
  return small_config(learner, **{**FREE, "train__budget": budget, "stream__num_megabatches": 6, **changes})


def decided(config, shape=(6, 6)):
  arrays = (*blobs(240, shape), *blobs(30, shape, seed=1))
  return settings.prepare(configs.parse(config), arrays).decided


@pytest.mark.parametrize(("learner", "changes", "shape"), [
    ("anytime", {"train__batch_size": 7}, (9, 9)), ("anytime", {"train__steps": 9}, (6, 6)),
    ("anytime", {"stream__schedule": "every"}, (6, 6)), ("ens", {"train__steps": 9}, (6, 6)),
    ("anytime", {"model__width": 2, "train__budget": 1e7}, (6, 6)),  # more than `train.most_passes` would allow
    ("ens", {}, (6, 6)), ("gens", {}, (6, 6))])
def test_a_run_spends_its_budget(tmp_path, capsys, learner, changes, shape):
  config = budgeted(3e5, learner, **changes)
  run = alma_jax.run(config, tmp_path / "run", data=(*blobs(240, shape), *blobs(30, shape, seed=1)))
  assert run.summary["cumulative_fwd_macs"] == pytest.approx(6 * config.train.budget, rel=0.05)
  assert (" steps in a stage)" in capsys.readouterr().err) == ("train__budget" in changes)


def test_what_you_set_wins():
  free = decided(budgeted(3e6))
  assert set(free) == {"model.width", "train.steps", "train.batch_size"}
  for path in free:
    name = path.replace(".", "__")
    assert set(decided(budgeted(3e6, **{name: 5}))) == set(free) - {path}
  assert decided(budgeted(3e6, model__width=5, train__steps=5)).keys() == {"train.batch_size"}
  assert decided(budgeted(3e6, model__width=5, train__steps=5, train__batch_size=5)) == {}
  with pytest.raises(alma_jax.BadInput, match="pay for your model.width, train.steps, train.batch_size; raise"):
    decided(budgeted(3e4, model__width=5, train__steps=50, train__batch_size=50))


@pytest.mark.parametrize(("steps", "paid"), [(1.0, 1), (1.97, 2), (3.5, 3), (4.5, 4)])
def test_whole_steps_stay_within_the_budget(steps, paid):
  """With a batch size of yours, whole steps may leave a part of the budget."""
  one = 7 * (36 * 5 + 5 * 5 + 5 * 3)  # a step of each of the six stages, by the number of mega-batches
  config = budgeted(steps * one, model__width=5, train__batch_size=7, train__steps_exponent=0.0)
  assert decided(config) == {"train.steps": paid}
  config.train.budget = 0.9 * one
  with pytest.raises(alma_jax.BadInput, match="does not pay for one step in every stage; raise it to .*, or lower "
                                              "model.width, train.batch_size"):
    decided(config)


@pytest.mark.parametrize("changes", [{}, {"stream__replay_share": 0.2}, {"train__steps": 9000, "train__budget": 1e4}])
def test_the_budget_that_a_refusal_names_is_enough(changes):
  """A batch has room for an old example."""
  config = budgeted(10, **changes)
  with pytest.raises(alma_jax.BadInput, match="does not pay for") as refused:
    decided(config)
  config.train.budget = float(re.search(r"raise it to ([\d.e+]+)[,.]", str(refused.value))[1])
  assert decided(config)["train.batch_size"] >= (3 if "stream__replay_share" in changes else 2)


def test_a_budget_that_decides_nothing_says_so(tmp_path, arrays, capsys):
  config = budgeted(1e6, model__width=5, train__steps=2, train__batch_size=5, stream__num_megabatches=2)
  alma_jax.run(config, tmp_path / "run", data=arrays)
  assert "train.budget=1e+06 has no effect, because model.width, train.steps and" in capsys.readouterr().err


@pytest.mark.parametrize(("learner", "batch"), [("anytime", 32), ("anytime,tracking", 16)])
def test_a_larger_budget_pays_for_wider_networks_and_more_steps(learner, batch):
  small, large = decided(budgeted(1e6, learner)), decided(budgeted(1e8, learner))
  assert large["model.width"] > small["model.width"]
  assert large["train.steps"] > small["train.steps"]
  assert abs(large["train.batch_size"] - batch) <= 2


def test_batches_are_halved_where_a_stage_would_have_few_steps(monkeypatch):
  small, large = (decided(budgeted(1e5, train__batch_size=batch, model__width=4)) for batch in (16, 32))
  assert small["train.steps"] == pytest.approx(2 * large["train.steps"], rel=0.1)
  free = budgeted(1e5, model__width=4)
  for enough, size in ((large["train.steps"], 32), (large["train.steps"] + 1, 16)):
    monkeypatch.setattr(budget, "ENOUGH", enough)
    assert decided(free)["train.batch_size"] == pytest.approx(size, rel=0.1)
  few_old = budgeted(1e5, model__width=4, stream__replay_share=0.02)
  assert decided(few_old)["train.batch_size"] >= 26  # 0.02 of 25 are none


def test_a_folder_keeps_the_config_as_given_and_what_was_decided(tmp_path, arrays):
  config = budgeted(1e6, log__predictor=True)
  run = alma_jax.run(config, tmp_path / "run", data=arrays)
  tree = json.loads((tmp_path / "run/config.json").read_text())
  assert tree["model"]["width"] == tree["train"]["steps"] == 0
  stored = alma_jax.load_run(tmp_path / "run")
  known = json.loads(folder.read(tmp_path / "run/predictor").files[folder.FACTS])
  assert known["provenance"]["config_sha256"] == run.summary["config_sha256"]
  assert stored.config.model.width == tree["decided"]["model.width"] > 0
  assert read.read(tmp_path / "run").row["model.width"] == stored.config.model.width
  assert np.mean(stored.predict(arrays[2]).argmax(-1) != arrays[3]) == pytest.approx(run.summary["final_error"])
  alma_jax.run(config, tmp_path / "run", data=arrays)  # it is the same run, and complete


def test_a_run_goes_on_with_what_was_decided_when_it_began(tmp_path, arrays, monkeypatch):
  """A later version may have another rule."""
  config, left = budgeted(1e6), iter([False] * 5)
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(config, tmp_path / "stopped", data=arrays, should_stop=lambda: next(left, True))
  whole = alma_jax.run(config, tmp_path / "whole", data=arrays)
  monkeypatch.setattr(budget, "RATIO", 50.0)
  assert decided(config) != whole.config.model.width
  assert alma_jax.run(config, tmp_path / "stopped", data=arrays).summary["cer"] == whole.summary["cer"]


def test_a_damaged_decision_is_refused(tmp_path, arrays):
  alma_jax.run(budgeted(1e6), tmp_path, data=arrays)
  for entry in ({"model.width": 0}, {"model.width": "8"}, {"train.epochs": 3}, {"other": 1}, [8]):
    change(tmp_path / "config.json", decided=entry)
    with pytest.raises(alma_jax.BadInput, match="config.json"):
      print(alma_jax.load_run(tmp_path).config)


def test_too_small_a_budget_is_refused(tmp_path):
  done = alma("main", "--config=configs/digits.py:anytime", "--config.train.budget=10", "--workdir", tmp_path / "run")
  assert done.returncode == 2
  assert "train.budget=10 does not pay for one step in every stage; raise it to" in done.stderr
  assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("field", ["model.width", "train.batch_size"])
def test_nothing_is_left_to_a_budget_that_is_0(field):
  config = small_config(**{field.replace(".", "__"): 0})
  with pytest.raises(alma_jax.BadInput, match=f"{field}=0 lets train.budget decide"):
    configs.parse(config)
