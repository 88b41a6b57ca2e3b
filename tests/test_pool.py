"""The pool of a stream of tasks: damaged modules, and the predictors of tasks."""
import argparse
import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from runs import ROOT, alma, assert_same_run, without_program
from test_checkpoint import flip
from test_paths import task_config
from test_serve import ask, serving

import alma_jax
from alma_jax import evaluate
from alma_jax.data import task_names, task_streams
from alma_jax.data.form import Form
from alma_jax.errors import BadInput
from alma_jax.predictors import description, folder

X = np.random.default_rng(0).integers(0, 16, (5, 8, 8, 1), np.uint8)


def config(**changes):
  return task_config("independent", stream__num_megabatches=3, train__epochs=2, train__weight_decay=(0.0,), **changes)


def files_of(run, module):
  return sorted((run / "pool").rglob(f"{module:05d}-*"), key=lambda path: len(path.parts))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run on three tasks, of three modules each."""
  path = tmp_path_factory.mktemp("pool") / "run"
  alma_jax.run(config(log__predictor=True), path)
  return path


@pytest.fixture
def without_task_2(finished, tmp_path):
  """The run, without its predictors and with both files of a module of its second task damaged."""
  path = tmp_path / "run"
  shutil.copytree(finished, path)
  shutil.rmtree(path / "predictor")
  for file in files_of(path, 4):
    flip(file)
  return path


def stopped_after_a_task(config, path):
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(config, path, should_stop=lambda: b"\n" in (path / "metrics.jsonl").read_bytes())


def test_the_pool_is_the_only_store_of_modules(finished):
  assert [len(files_of(finished, module)) for module in range(10)] == [2] * 9 + [0]
  assert not (finished / "checkpoints/frozen").exists()


def test_tasks_without_a_lost_module_still_answer(finished, without_task_2, tmp_path):
  whole, run = alma_jax.load_run(finished), alma_jax.load_run(without_task_2)
  for task in (1, 3):
    np.testing.assert_array_equal(run.predict(X, task=task), whole.predict(X, task=task))
  with pytest.raises(BadInput, match=r"^task 2 \('2 digits 5 to 9'\) of .* cannot answer, .* other 2 can: .*/00004-"):
    run.predict(X, task="2 digits 5 to 9")
  np.savez(tmp_path / "x.npz", x=X, y=np.zeros(5, int))
  assert alma("export", f"--workdir={without_task_2}", "--task=3").returncode == 0
  for command, *args in (("predict", tmp_path / "x.npz"), ("export",), ("evaluate", f"--data={tmp_path}/x.npz")):
    done = alma(command, f"--workdir={without_task_2}", "--task=2", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: task 2 ('2 digits 5 to 9') of")
    assert done.stderr.count("\n") == 1


def test_a_run_without_a_module_that_it_needs_changes_nothing_and_goes_on_once_it_is_back(finished, tmp_path):
  changed, path = config(checkpoint__keep=1), tmp_path / "run"
  stopped_after_a_task(changed, path)
  sound, copy = files_of(path, 0)
  kept = sound.read_bytes()
  flip(sound)
  flip(copy)
  contents = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
  with pytest.raises(BadInput, match=r"cannot go on, .*/00000-.* restore one of them; nothing was changed"):
    alma_jax.run(changed, path)
  assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == contents
  copy.write_bytes(kept)
  with pytest.warns(UserWarning, match="was damaged, and was written again from its other copy"):
    alma_jax.run(changed, path)
  assert sound.read_bytes() == kept
  assert_same_run(finished, path)


def probabilities(text):
  rows = list(csv.DictReader(io.StringIO(text)))
  return np.array([[float(value) for name, value in row.items() if name.startswith("p_")] for row in rows])


def test_commands_answer_for_a_task(finished, tmp_path):
  """From the folder `predictor`, which holds one of every task, and from a checkpoint."""
  run = alma_jax.load_run(finished)
  plain = tmp_path / "run"
  shutil.copytree(finished, plain, ignore=shutil.ignore_patterns("predictor"))
  np.savez(tmp_path / "x.npz", x=X)
  for path in (finished, plain):
    for task in (2, "2 digits 5 to 9"):
      done = alma("predict", f"--workdir={path}", "--task", task, tmp_path / "x.npz")
      assert done.returncode == 0, done.stderr
      np.testing.assert_allclose(probabilities(done.stdout), run.predict(X, task=2), atol=2e-6)
    done = alma("predict", f"--workdir={path}", tmp_path / "x.npz")
    assert (done.returncode, done.stderr.startswith("error: no task is given of the 3 tasks")) == (2, True)
  stored = folder.read(folder.of_task(finished / "predictor", 1))
  assert b"task 2 of 3, '2 digits 5 to 9'" in stored.files[folder.CARD]
  facts = json.loads(stored.files[folder.FACTS])
  assert (facts["provenance"]["num_tasks"], "num_megabatches" in facts["provenance"]) == (3, False)
  assert "vote" not in facts["output"]
  with np.load(io.BytesIO(stored.files[folder.WEIGHTS])) as weights:
    assert sum(weights[name].size for name in weights.files) == 64 * 8 + 8 + 8 * 8 + 8 + 8 * 5 + 5


def test_a_text_that_is_a_name_is_that_name_even_if_it_is_a_number(finished, tmp_path):
  names = ["2", "1", "3 more"]
  assert [task_names.number_of(task, names) for task in ("2", "1", 2, 1, "3", np.int64(3), "3 more")] == [
      0, 1, 1, 0, 2, 2, 2]
  assert {task_names.number_of(task, names) for task in (True, 0, 4, "0", "4", "x", None, 1.0, "-1")} == {None}
  assert [task_names.is_meant(task, 2, "1") for task in ("1", 2, "2", 1, True)] == [True, True, True, False, False]
  run = alma_jax.load_run(finished)
  with pytest.raises(BadInput, match="task=True is none of the 3 tasks"):
    run.predict(X, task=True)
  path = tmp_path / "run"
  shutil.copytree(finished, path)
  graph = json.loads((path / "graph.json").read_text())
  for task, name in zip(graph["tasks"], names):
    task["name"] = name
  (path / "graph.json").write_text(json.dumps(graph))
  np.savez(tmp_path / "x.npz", x=X)
  done = alma("predict", f"--workdir={path}", "--task=1", tmp_path / "x.npz")
  np.testing.assert_allclose(probabilities(done.stdout), run.predict(X, task=2), atol=2e-6)


def test_a_service_refuses_what_is_for_another_task(finished):
  with serving(folder.of_task(finished / "predictor", 1)) as port:
    for task in (2, "2", "2 digits 5 to 9"):
      assert ask(port, {"inputs": X[:1].tolist(), "task": task})[0] == 200
    for body, sentence in (({"task": 3}, "is for task 3, but this service answers for task 2 ('2 digits 5 to 9'"),
                           ({"task": None}, "for task null"), ({"stage": 1}, "has the unknown field 'stage'")):
      status, answer = ask(port, {"inputs": X[:1].tolist()} | body)
      assert status == 400
      assert sentence in answer["detail"]


def test_the_examples_of_a_task(finished, capsys):
  blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/task-streams.md").read_text(), re.DOTALL)
  (code,) = [block for block in blocks if "load_run" in block]
  exec(code.replace('"RUN"', repr(str(finished))), names := {"alma_jax": alma_jax})
  printed = capsys.readouterr().out.split()
  assert float(printed[0]) == pytest.approx(float(printed[1]))
  run = names["run"]
  assert run.accuracies.shape == (3, 3)
  assert run.accuracies[2].tolist() == run.lines[2]["accuracies"]
  assert np.isnan(run.accuracies[np.triu_indices(3, 1)]).all()


def test_a_finished_run_writes_again_what_was_changed(finished, tmp_path):
  path = tmp_path / "run"
  shutil.copytree(finished, path)
  names = "metrics.jsonl", "accuracy.csv", "graph.json", "summary.json"
  before = {name: (path / name).read_bytes() for name in names}
  alma_jax.run(config(log__predictor=True), path)  # warnings are errors
  for name, data in before.items():
    (path / name).write_bytes(data.replace(b"0.", b"1.", 1) if b"0." in data else b"{}")
  with pytest.warns(UserWarning, match="was not what the run has written, and was written again") as caught:
    alma_jax.run(config(log__predictor=True), path)
  assert len(caught) == 4
  assert {name: (path / name).read_bytes() for name in before} == before


def test_evaluate_notices_another_scale(finished, tmp_path):
  data = task_streams.make("digits", seed=0, num_tasks=3).task(1)
  for name, x in (("same", data.x_test), ("dark", data.x_test // 16)):
    np.savez(tmp_path / f"{name}.npz", x=x, y=data.y_test + 5)
    done = alma("evaluate", f"--workdir={finished}", "--task=2", f"--data={tmp_path}/{name}.npz")
    assert done.returncode == 0, done.stderr
    assert ("if their scale differs" in done.stderr) == (name == "dark")


def test_evaluate_takes_named_data_as_tasks_have_them():
  """Labels count the classes, whatever their names are: scikit-learn's digits have none."""
  form = dict(example_shape=[8, 8, 1], dtype="uint8", image_size=0, classes=10, class_names=list("abcdefghij"),
              sha256={})
  task = dict(number=8, name="8")
  for facts, most in (({}, 16), (dict(task=task), 16), (dict(task=task, provenance=dict(dataset="digits")), 255)):
    batches = [*evaluate._batches(argparse.Namespace(data="digits", data_dir=""),
                                  without_program(description.of(form | facts), 100))]
    assert max(batch.x.max() for batch in batches) == most
    assert set(np.concatenate([batch.labels.numbers for batch in batches])) == {*range(10)}


@pytest.mark.parametrize(("shape", "image_size", "name", "expected"), [
    ((28, 28, 1), 0, "mnist", (28, 28, 1)),  # as they are
    ((32, 32, 3), 0, "mnist", (32, 32, 3)),
    ((16, 16, 3), 16, "mnist", (16, 16, 3)),
    ((16, 16, 3), 0, "mnist", (28, 28, 1)),  # refused by what follows
])
def test_named_data_get_the_shape_of_a_task(shape, image_size, name, expected):
  x = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1)).astype(np.uint8)
  form = Form(shape, np.dtype(np.uint8), image_size)
  found = evaluate._of_a_task(x, name, form, dict(provenance=dict(dataset="nevis_mini")))
  assert found.shape == (3, *expected)
  if expected[0] == 32:
    np.testing.assert_array_equal(found[:, 2:30, 2:30], np.broadcast_to(x, (3, 28, 28, 3)))
    assert found[:, :2].max() == found[:, :, 30:].max() == 0


def test_evaluate_scores_a_task_and_refuses_what_it_has_seen(finished, tmp_path):
  data = task_streams.make("digits", seed=0, num_tasks=3).task(1)
  np.savez(tmp_path / "test.npz", x=data.x_test, y=data.y_test + 5)  # the digits from 5 on: labels are names of classes
  np.savez(tmp_path / "train.npz", x=data.x_train, y=data.y_train + 5)
  done = alma("evaluate", f"--workdir={finished}", "--task=2", f"--data={tmp_path}/test.npz")
  assert done.returncode == 0, done.stderr
  error = alma_jax.load_run(finished).metrics["error"][1]
  assert done.stdout.startswith(f"error {error:.4f} ")
  assert alma("evaluate", f"--workdir={finished}", "--task=2").stdout == done.stdout
  done = alma("evaluate", f"--workdir={finished}", "--task=2", f"--data={tmp_path}/train.npz")
  assert done.returncode == 2
  assert "are in the stream of the run" in done.stderr


def test_predictors_of_tasks_that_are_late_catch_up(tmp_path):
  path = tmp_path / "run"
  stopped_after_a_task(config(), path)
  alma_jax.run(config(log__predictor=True), path)
  versions = [folder.latest_version(folder.of_task(path / "predictor", t)) for t in range(3)]
  assert all(versions), versions
