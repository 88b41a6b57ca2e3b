"""Learners of task streams: what they store, what they start from, and that runs go on to the bit (TASKS §6)."""
import json
import runpy

import numpy as np
import pytest
from runs import assert_resumes, one_step_a_dispatch, slow

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.runs import exporting

LEARNERS = ("independent", "finetune", "new_head", "oracle", "select", "mntdp")


def task_config(learner, **changes):
  """The first tasks of the digits stream, trained shortly; `train__epochs=3` changes a field."""
  c = configs.tasks(learner, "digits")
  c.stream.num_megabatches, c.model.width, c.train.epochs, c.train.batch_size = 5, 8, 12, 32
  c.train.learning_rate, c.train.weight_decay, c.log.progress = (1e-2,), (0.0, 1e-3), False
  for name, value in changes.items():
    section, _, field = name.partition("__")
    c[section][field] = value
  return c


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """{learner: run folder} of finished runs on five tasks; the fifth is the first one again."""
  made = {}

  def run(learner):
    if learner not in made:
      made[learner] = tmp_path_factory.mktemp(learner) / "run"
      alma_jax.run(task_config(learner), made[learner])
    return made[learner]

  return run


def graph(folder):
  return json.loads((folder / "graph.json").read_text())


def accuracies(folder):
  return [json.loads(line)["accuracies"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("learner", LEARNERS)
def test_nothing_is_forgotten(finished, learner):
  """The accuracies after the last task are measured anew, and equal those after each task to the bit."""
  rows, summary = accuracies(finished(learner)), alma_jax.load_run(finished(learner)).summary
  assert [len(row) for row in rows] == [1, 2, 3, 4, 5]
  assert rows[-1] == [row[-1] for row in rows]
  assert summary["forgetting"] == 0
  assert summary["average_accuracy"] == pytest.approx(np.mean(rows[-1]))
  assert summary["cumulative_error"] == pytest.approx(1 - np.mean(rows[-1]))
  assert summary["cumulative_error"] < 0.5  # four of five labels guessed would be 0.8


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_graph_is_acyclic_and_task_1_from_scratch(finished, learner):
  found = graph(finished(learner))
  assert found["tasks"][0]["origin"] is None
  assert found["tasks"][0]["path"] == [0, 1, 2]
  for t, task in enumerate(found["tasks"]):
    assert task["origin"] is None or task["origin"] < t
    assert all(found["modules"][module]["task"] <= t for module in task["path"])
    assert [found["modules"][module]["part"] for module in task["path"]] == found["parts"]


def test_what_the_simple_learners_start_from(finished):
  origins = {learner: [task["origin"] for task in graph(finished(learner))["tasks"]] for learner in LEARNERS}
  assert origins["independent"] == [None] * 5
  assert origins["finetune"] == [None, 0, 1, 2, 3]
  assert origins["new_head"] == [None, 0, 0, 0, 0]
  assert [task["path"][:2] for task in graph(finished("new_head"))["tasks"]] == [[0, 1]] * 5


TWINS = """
import numpy as np

def get_tasks(seed):
  def images(row, num, part):
    rng = np.random.default_rng([seed, row, part])
    y = np.arange(num) % 2
    x = rng.normal(128, 55, (num, 8, 8, 1))
    x[:, row] += np.where(y, 100, -100)[:, None, None]
    return np.clip(x, 0, 255).astype(np.uint8), y
  def task(name, row):
    return {"name": name, "class_names": ["dark", "light"],
            "arrays": [a for part, num in enumerate((300, 100, 100)) for a in images(row, num, part)]}
  return [task("first row", 0), task("last row", 7), task("first row again", 0)]
"""


@pytest.mark.parametrize("learner", ["select", "mntdp"])
def test_a_task_that_returns_picks_its_twin(tmp_path, learner):
  """One row decides; in features for another row it drowns in noise. Of equal errors the reused path wins."""
  (tmp_path / "twins.py").write_text(TWINS)
  config = task_config(learner, dataset__name=f"tasks:{tmp_path / 'twins.py'}", stream__num_megabatches=0)
  alma_jax.run(config, tmp_path / "run")
  assert min(accuracies(tmp_path / "run")[-1]) >= 0.95
  first, _, again = graph(tmp_path / "run")["tasks"]
  assert again["origin"] == 0
  assert (again["path"] == first["path"]) == (learner == "mntdp")


def test_mntdp_stores_fewer_modules(finished):
  summaries = {learner: alma_jax.load_run(finished(learner)).summary for learner in ("independent", "mntdp")}
  assert summaries["independent"]["num_modules"] == 15
  assert summaries["mntdp"]["num_modules"] < 15
  assert summaries["mntdp"]["memory"] < summaries["independent"]["memory"]


def test_costs_add_up(finished):
  """Every candidate is trained with both weight decays; the costs of a search are added."""
  lines = {learner: [json.loads(line) for line in (finished(learner) / "metrics.jsonl").read_text().splitlines()]
           for learner in ("independent", "oracle", "select")}
  for line in lines["independent"]:
    macs = (64 + 8) * 8 + 8 * 5
    epochs = len({entry["epoch"] for entry in alma_jax.load_run(finished("independent")).train
                  if entry["stage"] == line["stage"]})
    assert line["fwd_macs"] == 2 * 300 * macs * epochs
  assert [line["growth_macs"] > 0 for line in lines["select"]] == [False, True, True, True, True]
  assert [len(line["errors"]) for line in lines["oracle"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("learner", ["mntdp", slow("select"), slow("oracle")])
def test_stopped_anywhere_a_run_ends_the_same(tmp_path, monkeypatch, learner):
  one_step_a_dispatch(monkeypatch)
  config = task_config(learner, stream__num_megabatches=3, train__epochs=2, train__batch_size=150,
                       checkpoint__seconds=1e9)
  assert_resumes(config, tmp_path, 3, more_than=4)


def test_predictions_for_a_task(finished, tmp_path):
  run = alma_jax.load_run(finished("mntdp"))
  x = np.zeros((3, 8, 8, 1), np.uint8)
  assert run.predict(x, task=1).shape == (3, 5)
  names = run.spec()["tasks"]
  assert len(names) == 5
  with pytest.raises(BadInput, match="no task is given of the 5 tasks"):
    run.predict(x)
  with pytest.raises(BadInput, match="task=6 is none of the 5 tasks"):
    run.predict(x, task=6)
  folder = exporting.export(run, out=tmp_path / "out", task=5)
  predict = runpy.run_path(str(folder / "load.py"))["predict"]
  np.testing.assert_allclose(predict(x), run.predict(x, task=5), atol=1e-6)


@pytest.mark.parametrize(("changes", "message"), [
    ({"stream__replay": 0.5}, "stream.replay=0.5 is for streams of mega-batches"),
    ({"learner__average": 0.1}, "learner.average=0.1 is for streams of mega-batches"),
    ({"train__learning_rate": (0.1, 0.1)}, "lists a value twice"),
    ({"train__weight_decay": ()}, "train.weight_decay is an empty list"),
    ({"model__num_experts": 2}, "model.num_experts=2 is for streams of mega-batches"),
    ({"model__name": "vgg"}, "model.name='vgg' needs images of at least 32x32 pixels")])
def test_bad_input(tmp_path, changes, message):
  with pytest.raises(BadInput, match=message):
    alma_jax.run(task_config("select", **changes), tmp_path / "run")
