"""Learners of task streams: what they store, what they start from, and that runs go on to the bit (TASKS §6)."""
import json
import runpy
import types

import jax
import numpy as np
import optax
import pytest
from runs import lines, slow, small_config, task_config

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput, Diverged
from alma_jax.learners import mntdp, path_search
from alma_jax.learners.paths import Paths
from alma_jax.monitor import board, pair, view
from alma_jax.problems import classification, sequence
from alma_jax.runs import exporting, settings
from alma_jax.store.record import Record
from alma_jax.training import loop

FROZEN = ("independent", "finetune", "new_head", "oracle", "select", "mntdp")


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
  return [line["accuracies"] for line in lines(folder, "metrics.jsonl")]


# What tasks 2 to 5 start from. Those of "select" and "mntdp" depend on what they find.
ORIGINS = {"independent": [None] * 4, "finetune": [0, 1, 2, 3], "new_head": [0] * 4}
# How much each task has tried. mntdp may reuse a path whole for tasks 3 to 5, whose classes earlier tasks have.
TRIED = {"oracle": [1, 2, 3, 4, 5], "mntdp": [1, 3, 4, 4, 4]}


def assert_acyclic(tasks, modules, parts):
  assert (tasks[0]["origin"], tasks[0]["path"]) == (None, [0, 1, 2])
  for t, task in enumerate(tasks):
    assert task["origin"] is None or task["origin"] < t
    assert all(modules[module]["task"] <= t for module in task["path"])
    assert [modules[module]["part"] for module in task["path"]] == parts


@pytest.mark.parametrize("learner", FROZEN)
def test_nothing_is_forgotten_and_the_best_is_kept(finished, learner):
  """The accuracies after the last task are measured anew, and equal those after each task to the bit.

  The first task, which the fifth is again, is predicted as that one; both have the same test images.
  """
  run, made, found = (make(finished(learner)) for make in (
      alma_jax.load_run, lambda folder: lines(folder, "metrics.jsonl"), graph))
  rows, summary = [line["accuracies"] for line in made], run.summary
  assert [len(row) for row in rows] == [1, 2, 3, 4, 5]
  assert rows[-1][1:] == [row[-1] for row in rows[1:]]
  assert rows[-1][0] == rows[-1][4]
  assert [row[0] for row in rows[:4]] == 4 * [rows[0][0]]
  assert summary["forgetting"] == pytest.approx((rows[4][4] - rows[0][0]) / 5)
  assert summary["average_accuracy"] == pytest.approx(np.mean(rows[-1]))
  assert summary["cumulative_error"] == pytest.approx(1 - np.mean([row[-1] for row in rows]))
  assert summary["cumulative_error"] < 0.5  # four of five labels guessed would be 0.8
  assert_acyclic(**found)
  origins = [task["origin"] for task in found["tasks"][1:]]
  assert origins == ORIGINS.get(learner, origins)
  if learner == "new_head":
    assert [task["path"][:2] for task in found["tasks"]] == [[0, 1]] * 5
  assert all(line["errors"][line["best"]] == min(line["errors"]) == line["val_error"] for line in made)
  assert [len(line["errors"]) for line in made] == TRIED.get(learner, [1] * 5)
  # Every candidate is trained with both weight decays; the costs of a search are added.
  macs = (64 + 8) * 8 + 8 * 5
  if learner == "select":
    assert [line["growth_macs"] > 0 for line in made] == [False, True, True, True, True]
  for t, line in enumerate(made if learner in ("independent", "oracle") else []):
    epochs = {(entry["candidate"], entry["epoch"]) for entry in run.train if entry["stage"] == t}
    assert {candidate for candidate, _ in epochs} == set(range(len(line["errors"])))
    assert line["fwd_macs"] == 2 * 300 * macs * len(epochs)
  if learner == "independent":
    assert (summary["num_modules"], summary["memory"]) == (15, 5 * (macs + 2 * 8 + 5))
  if learner == "mntdp":
    assert summary["num_modules"] < 15
    assert summary["memory"] < 5 * (macs + 2 * 8 + 5)
  x = np.random.default_rng(0).integers(256, size=(9, 8, 8, 1), dtype=np.uint8)  # the network has never seen these
  np.testing.assert_array_equal(run.predict(x, task=2), run.predict(x, stage=1, task=2))


def test_replay_keeps_one_body_and_all_heads(finished):
  """Each task is measured anew after every later one. The first layer of 64x8, the second of 8x8, a head of 8x5."""
  made, found = lines(finished("replay"), "metrics.jsonl"), graph(finished("replay"))
  assert_acyclic(**found)
  rows = [line["accuracies"] for line in made]
  assert [len(row) for row in rows] == [1, 2, 3, 4, 5]
  assert any(rows[-1][i] != rows[i][i] for i in range(4))  # the body has changed
  assert min(rows[-1]) > 0.5  # of the first task, too: guessing is 0.2
  assert [task["path"] for task in found["tasks"]] == [[0, 1, 2 + t] for t in range(5)]
  body, head = (64 * 8 + 8) + (8 * 8 + 8), 8 * 5 + 5
  assert [line["num_params"] for line in made] == [body + t * head for t in range(1, 6)]
  assert made[0]["fwd_macs"] == 2 * 60 * 30 * ((64 + 8) * 8 + 8 * 5)  # 60 steps of 30 examples: 300 in passes of 10
  assert made[4]["prequential_error"] is None


@pytest.mark.slow
def test_results_do_not_depend_on_later_tasks(tmp_path):
  """A third task with ten classes changes neither results nor costs of the first two, which have four."""
  classes = {2: [[0, 1, 2, 3], [4, 5, 6, 7]]}
  classes[3] = [*classes[2], list(range(10))]
  found = {}
  for num, given in classes.items():
    tasks = [dict(name=str(t), data="digits", train=20, val=10 + 20 * (t == 2), classes=one)
             for t, one in enumerate(given)]
    (tmp_path / f"{num}.py").write_text(f"def get_tasks(seed):\n  return {tasks}\n")
    config = task_config("mntdp", train__epochs=2, stream__num_megabatches=0)
    config.dataset.name = f"tasks:{tmp_path}/{num}.py"
    alma_jax.run(config, tmp_path / str(num))
    found[num] = [dict(line, seconds=0) for line in lines(tmp_path / str(num), "metrics.jsonl")]
  assert found[2] == found[3][:2]
  assert [line["predict_macs"] for line in found[3]] == [(64 + 8) * 8 + 8 * num for num in (4, 4, 10)]


def test_replay_draws_evenly_over_tasks(tmp_path):
  """A task of 20 images is drawn as often as one of 200; errors are means over tasks."""
  task = sequence.JointClassification(2, False, num_tasks=3)
  sums = task.sums(np.zeros((4, 6), np.float32), classification.Batch(None, np.array([0, 1, 1, 0]), None, np.array(
      [0, 0, 0, 2]), np.full(4, 2)), np.array([True, True, True, True]))  # equal logits predict class 0
  assert sums.wrong.tolist() == [2, 0, 0]
  report = task.report(jax.tree.map(lambda leaf: np.asarray(leaf)[None], sums), np.array([4]), np.array([4]))
  assert report[0]["error"] == pytest.approx((2 / 3 + 0) / 2)
  config = configs.parse(task_config("replay", stream__num_megabatches=2))
  setting = settings.prepare(config)
  data = setting.protocol.stage((1, 2), setting.learner, {}).data
  state = setting.learner.init()
  small = data._replace(train=np.concatenate([data.train[:20], data.train[300:500]]), stage=0)
  probability = setting.learner.training(state, small).examples.probability
  np.testing.assert_allclose([probability[:20].sum(), probability[20:].sum()], [0.5, 0.5])


TWINS = """
import numpy as np

ROWS = 0, 7

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
  return [task("one row", ROWS[0]), task("another row", ROWS[1]), task("one row again", ROWS[0])]
"""


@pytest.mark.parametrize("learner", ["mntdp", slow("select")])
def test_a_task_that_returns_picks_its_twin(tmp_path, learner):
  """One row decides; in features for another row it drowns in noise. Of equal errors the reused path wins."""
  (tmp_path / "twins.py").write_text(TWINS)
  config = task_config(learner, dataset__name=f"tasks:{tmp_path / 'twins.py'}", stream__num_megabatches=0)
  alma_jax.run(config, tmp_path / "run")
  assert min(accuracies(tmp_path / "run")[-1]) >= 0.95
  first, _, again = graph(tmp_path / "run")["tasks"]
  assert again["origin"] == 0
  assert (again["path"] == first["path"]) == (learner == "mntdp")


def test_a_task_that_returns_is_predicted_with_its_newest_state(tmp_path):
  """The third task returns to the first one with other images."""
  (tmp_path / "twins.py").write_text(TWINS.replace(
      "return [", "tasks = [").replace('"one row again", ROWS[0])]', '"one row again", 1)]\n'
      '  return [*tasks[:2], tasks[2] | {"returns": "one row"}]'))
  config = task_config("select", dataset__name=f"tasks:{tmp_path / 'twins.py'}", stream__num_megabatches=0,
                       train__epochs=3, log__predictor=True)
  run = alma_jax.run(config, tmp_path / "run")
  rows, tasks = accuracies(tmp_path / "run"), sequence.Tasks(configs.parse(config)).data
  first, x = tasks.task(0), tasks.task(0).x_test
  right = lambda **which: 1 - (run.predict(x, **which).argmax(1) != first.y_test).mean()
  assert [right(task=1, stage=t) for t in range(3)] == [row[0] for row in rows]
  np.testing.assert_array_equal(run.predict(x, task=1), run.predict(x, task=3))
  assert rows[2][0] != rows[1][0]  # by a network that was trained on row 1, not on row 0
  facts = json.loads(next((tmp_path / "run/predictor/task-0001").glob("*2-*/predictor.json")).read_text())
  assert facts["task"]["number"] == 1
  assert graph(tmp_path / "run")["tasks"][2]["returns"] == 0


def test_coloured_backgrounds_reach_the_networks(tmp_path):
  (tmp_path / "list.py").write_text("""def get_tasks(seed):
  return [dict(name=str(c), data="digits", train=20, val=10, changes=[("colour", c)]) for c in (0.2, 0.8)]
""")
  tasks = sequence.Tasks(configs.parse(configs.tasks("independent", f"tasks:{tmp_path}/list.py")))
  for t, colour in enumerate((0.2, 0.8)):
    mean, std = tasks.normalization(t)
    corner = (tasks.data.task(t).x_test[0, 0, 0] - mean) / std  # black before
    assert corner == pytest.approx([colour], abs=0.002)


def test_visits_of_tasks_that_return():
  """Task 3 is task 1 again, task 4 is task 2, task 6 is task 1."""
  tasks = [{}, {}, {"returns": 0}, {"returns": 1}, {}, {"returns": 0}]
  assert sequence.visits(tasks) == [[0, 2, 5], [1, 3], [0, 2, 5], [1, 3], [4], [0, 2, 5]]
  assert [sequence.visits(tasks[:num])[0][-1] for num in range(1, 7)] == [0, 0, 2, 2, 2, 5]


def test_compared_runs_are_of_tasks(finished, tmp_path):
  first, second = (Record(finished(learner)) for learner in ("independent", "mntdp"))
  assert board.shown(view.current(first))["unit"] == "tasks"
  text = pair.text(first, second)
  assert "Test error on each task when it was learned:" in text
  assert "over the 5 tasks that both have" in text
  assert "CER" not in text
  alma_jax.run(small_config("sm", stream__num_megabatches=2, train__epochs=1), tmp_path / "other")
  with pytest.raises(BadInput, match="is a run on tasks, and .* one on mega-batches"):
    pair.text(first, Record(tmp_path / "other"))


@pytest.mark.slow
def test_reinforce_finds_the_path_that_returns_and_counts_its_steps(tmp_path):
  """Features of another row drown in noise: the search should prefer those of the first row for the third task."""
  (tmp_path / "twins.py").write_text(TWINS)
  config = task_config("mntdp", dataset__name=f"tasks:{tmp_path / 'twins.py'}", stream__num_megabatches=0,
                       learner__search="reinforce", learner__search_steps=150)
  made = alma_jax.run(config, tmp_path / "run").lines
  assert min(made[-1]["accuracies"]) >= 0.95
  assert [len(line["errors"]) for line in made] == [1, 2, 2]  # one candidate instead of three, and a path as a whole
  assert [len(line.get("probabilities", [])) for line in made] == [0, 3, 3]
  whole = (64 + 8) * 8 + 8 * 2
  for line in made[1:]:
    assert sum(line["probabilities"]) == pytest.approx(1)
    assert line["growth_macs"] > 150 * 2 * 32 * whole  # a step trains one candidate, and judges at least one
    assert line["growth_macs"] <= 150 * 4 * 32 * whole + 2 * 400 * whole + 2 * 300 * 100 * 8  # at most all three
  assert graph(tmp_path / "run")["tasks"][2]["origin"] == 0


@pytest.mark.parametrize(("learner", "changes"), [
    ("select", {}), ("replay", {}), ("mntdp", {"learner__search": "reinforce", "learner__search_steps": 3})])
def test_trainings_that_diverge_are_said(tmp_path, learner, changes):
  """A network without finite losses has an error rate all the same, and must not win by it."""
  c = task_config(learner, train__learning_rate=(1e30,), train__weight_decay=(0.0,), train__optimizer="sgd",
                  stream__num_megabatches=2, **changes)
  with pytest.raises(Diverged, match="all trainings of task 1 diverged; lower train.learning_rate"):
    alma_jax.run(c, tmp_path / "run")


def test_a_diverged_pair_is_passed_over(tmp_path):
  c = task_config("select", train__learning_rate=(1e30, 1e-2), train__weight_decay=(0.0,), train__optimizer="sgd",
                  stream__num_megabatches=2, train__epochs=2)
  run = alma_jax.run(c, tmp_path / "run")
  assert {line["learning_rate"] for line in lines(tmp_path / "run", "metrics.jsonl")} == {0.01}
  assert np.isfinite(run.metrics["loss"]).all()


def test_of_equal_errors_the_path_without_new_modules_wins():
  """A third of the examples wrong is another number in float32, in which trained candidates have it."""
  search = {"candidates": [[["new", -1], ["new", -1]], [["keep", 0], ["keep", 1]]], "best": 1}
  reused = float(np.float32(np.mean([True, False, False])))
  assert not Paths._is_better(None, search, reused, 0, float(np.float32(1 / 3)))


@pytest.mark.parametrize(("labels", "chosen"), [(7, 0), (8, 1), (9, 1)])
def test_of_equal_bodies_one_with_the_same_classes_is_reused(monkeypatch, labels, chosen):
  """Tasks 1 and 2 have one body and the classes 7 and 8. The features of task 3 are worse, of classes 9."""
  monkeypatch.setattr(mntdp.neighbors, "examples", lambda *_: ([], []))
  tasks = [dict(path=path, classes=2, labels=own) for path, own in (([0, 1], 7), ([0, 2], 8), ([3, 4], 9))]
  learner = types.SimpleNamespace(
      options=types.SimpleNamespace(prior="nearest", max_train=1, max_val=1), variables=lambda state, t: t,
      judged=lambda t, *_: (0.9 if t < 2 else 0.5, 1))
  state = types.SimpleNamespace(spec=dict(tasks=tasks))
  assert mntdp.MNTDP._priors(learner, state, None, labels) == ([chosen], 2, {"scores": [0.9, 0.9, 0.5]})


def test_the_sampler_follows_the_rewards():
  """Of three paths through a tree the second one is best. Without rewards the entropy makes all paths as likely."""
  sampler = path_search._Sampler([(0, 1, -1), (0, -1, -1), (-1, -1, -1)], entropy=0.0)
  np.testing.assert_allclose(sampler.probabilities(), [1 / 3] * 3)
  rng = np.random.default_rng(0)
  for _ in range(150):
    sampled = rng.choice(3, 4, p=sampler.probabilities())
    sampler.improve(sampled, np.array([-0.5, 0.3, -0.2])[sampled])
  assert sampler.probabilities()[1] > 0.95
  even = path_search._Sampler([(0, 1), (0, -1), (-1, -1)], entropy=1.0)
  even._logits_E = even._logits_E + np.array([1.0, 2.0, 0.0, -1.0, 0.0])
  for _ in range(200):
    even.improve(np.array([0, 0, 0, 0]), np.zeros(4))
  np.testing.assert_allclose(even.probabilities(), [1 / 3] * 3, atol=0.02)


def test_the_mean_step_of_the_sampler_is_the_gradient():
  """Over all pairs of samples, weighted by their probability; slopes of the objective are finite differences."""
  sampler = path_search._Sampler([(0, 1, -1), (0, -1, -1), (-1, -1, -1)], entropy=0.3)
  rewards, start = np.array([1.0, -0.5, 0.2]), sampler._logits_E + np.array([0.3, -0.2, 0.1, 0.5, 0.0, -0.4, 0.2, 0.1])
  sampler._optimizer = optax.sgd(1.0)
  sampler._moments = sampler._optimizer.init(start)

  def objective(logits_E):
    sampler._logits_E = logits_E
    p = sampler.probabilities()
    return (p * rewards).sum() - 0.3 * (p * np.log(p)).sum()

  def step(pair):
    sampler._logits_E = start
    sampler.improve(np.array(pair), rewards[list(pair)])
    return sampler._logits_E - start

  slopes = [(objective(start + unit) - objective(start - unit)) / 2e-5 for unit in 1e-5 * np.eye(len(start))]
  sampler._logits_E = start
  p = sampler.probabilities()
  mean = sum(p[i] * p[j] * step((i, j)) for i in range(3) for j in range(3))
  np.testing.assert_allclose(mean, slopes, atol=1e-6)


@pytest.mark.parametrize(("same_labels", "head"), [(True, ["keep", 6]), (False, ["new", -1])])
def test_a_head_is_reused_for_the_same_classes_alone(same_labels, head):
  """From below all but 2 and 1 of the modules 4, 5, 6 are new, then all."""
  learner, new = types.SimpleNamespace(options=types.SimpleNamespace(direction="bw")), ["new", -1]
  found = mntdp.MNTDP._divisions(learner, [4, 5, 6], same_labels)
  assert found == [[new, ["keep", 5], head], [new, new, head], [new, new, new]]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """A run of one network of the tests' model on a stream of mega-batches of the digits."""
  folder = tmp_path_factory.mktemp("root") / "run"
  alma_jax.run(small_config("sm", stream__num_megabatches=2, model__width=8, train__epochs=30,
                            train__learning_rate=1.0), folder)
  return folder


@pytest.mark.parametrize("learner", ["select", "oracle"])
def test_a_pretrained_root_competes(tmp_path, root, learner):
  """It knows all digits, and its features are better than random ones; so do those of another run of tasks."""
  config = task_config(learner, stream__num_megabatches=2, learner__root=str(root), train__epochs=2)
  run = alma_jax.run(config, tmp_path / "run")
  tasks = graph(tmp_path / "run")["tasks"]
  assert tasks[0]["origin"] is None
  assert tasks[0]["root"]
  assert json.loads((tmp_path / "run/config.json").read_text())["root_sha256"]
  tried = "scores" if learner == "select" else "errors"
  assert [len(line[tried]) for line in run.lines] == [2, 3]  # the root and a fresh network, and the first task's


def test_what_is_no_root(tmp_path, root, finished):
  alma_jax.run(task_config("select", stream__num_megabatches=1, learner__root=str(finished("select")),
                           train__epochs=1), tmp_path / "of_tasks")
  config = task_config("select", stream__num_megabatches=1, learner__root=str(root), model__width=4)
  with pytest.raises(BadInput, match=r"has another network than model.name='mlp', model.width=4 for images of shape"):
    alma_jax.run(config, tmp_path / "run")
  config.learner.root = str(tmp_path)
  with pytest.raises(BadInput, match=r"learner.root='.*' cannot be used: there is no run in"):
    alma_jax.run(config, tmp_path / "run")
  assert not (tmp_path / "run/metrics.jsonl").exists()
  of_tasks = json.loads((tmp_path / "of_tasks/config.json").read_text())
  (tmp_path / "of_tasks/config.json").write_text(json.dumps(of_tasks | {"root_sha256": "0"}))
  with pytest.raises(BadInput, match="the network of learner.root"):
    alma_jax.run(task_config("select", stream__num_megabatches=1, learner__root=str(finished("select")),
                             train__epochs=1), tmp_path / "of_tasks")


@pytest.mark.parametrize("learner", ["mntdp", "replay"])
def test_lca_is_the_mean_accuracy_of_the_first_steps(tmp_path, learner):
  """With as many steps as the training has, the last one is the network that is kept."""
  changes = dict(stream__num_megabatches=2, train__epochs=1, train__batch_size=300, train__weight_decay=(0.0, 1.0))
  if learner == "replay":
    changes["train__steps"] = 1
  first, second = (alma_jax.run(task_config(learner, log__lca=steps, **changes), tmp_path / str(steps))
                   for steps in (1, 2))
  for one, two in zip(first.lines, second.lines):  # a0, then a1 = the accuracy of the task; there is no step behind it
    last = one["accuracies"][-1]
    assert 3 * two["lca"] - 2 * one["lca"] == pytest.approx(last)
    assert one["lca"] != last
  assert first.summary["lca"] == pytest.approx(np.mean([line["lca"] for line in first.lines]))


def test_random_pairs(tmp_path):
  """Every task draws its own pairs; the one that is kept is noted."""
  config = task_config("independent", stream__num_megabatches=2, train__epochs=1, train__num_random=3,
                       train__learning_rate=(1e-4, 1e-1), train__weight_decay=(0.0, 1e-3))
  run = alma_jax.run(config, tmp_path / "run")
  rates, decays = run.metrics["learning_rate"], run.metrics["weight_decay"]
  assert ((rates > 1e-4) & (rates < 1e-1)).all()
  assert rates[0] != rates[1]
  assert set(decays) <= {0.0, 1e-3}
  assert run.metrics["fwd_macs"][0] == 3 * 300 * ((64 + 8) * 8 + 8 * 5)


@pytest.mark.parametrize("learner", ["mntdp", "replay"])
def test_predictions_for_a_task(finished, tmp_path, learner):
  run = alma_jax.load_run(finished(learner))
  x = np.zeros((3, 8, 8, 1), np.uint8)
  assert run.predict(x, task=1).shape == (3, 5)
  names = run.spec()["tasks"]
  assert len(names) == 5
  with pytest.raises(BadInput, match="no task is given of the 5 tasks"):
    run.predict(x)
  with pytest.raises(BadInput, match="task=6 is none of the 5 tasks"):
    run.predict(x, task=6)
  assert exporting.export(run, task=1) == run.path / "export/task-0001"
  folder = exporting.export(run, out=tmp_path / "out", task=5)
  predict = runpy.run_path(str(folder / "load.py"))["predict"]
  np.testing.assert_allclose(predict(x), run.predict(x, task=5), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_decay_is_decoupled_if_the_optimiser_says_so(optimizer):
  """It shrinks weights by rate x decay, or changes the gradient, of which the first step of Adam is the sign alone."""
  rate, decay, ends = 1e-2, 0.5, []
  for each in (0.0, decay):
    config = task_config("independent", train__weight_decay=(each,), train__learning_rate=(rate,),
                         train__optimizer=optimizer)
    setting = settings.prepare(configs.parse(config))
    data = setting.protocol.stage((1,), setting.learner, {}).data
    state, _ = setting.learner.grow(setting.learner.init(), data)
    fit = loop.begin(setting.learner.training(state, data))
    start = jax.device_get(fit.state.members.now.params)
    fit, _ = loop.advance(fit, 1)
    ends.append(jax.device_get(fit.state.members.now.params))
  for old, plain, decayed in zip(*map(jax.tree.leaves, (start, *ends)), strict=True):
    if optimizer == "adamw":
      np.testing.assert_allclose(plain - decayed, rate * decay * old, atol=1e-7)
    else:
      assert set(np.round(np.abs(plain - decayed) / rate, 1).ravel()) <= {0.0, 1.0, 2.0}
      assert (plain != decayed).any()
