"""`alma predict` and `alma evaluate`: all kinds of input, the run's own predictions, one sentence for bad input."""
import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from runs import alma, blobs, small_config, text_config

import alma_jax
from alma_jax.data import labels
from alma_jax.errors import BadInput
from alma_jax.predictors import texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with a run, its data, and other data in every format."""
  root = tmp_path_factory.mktemp("predict")
  data = dict(zip(("x_train", "y_train", "x_test", "y_test"), (*blobs(120), *blobs(30, seed=1))))
  np.savez(root / "data.npz", **data)
  alma_jax.run(small_config("gens", dataset__name=f"npz:{root}/data.npz", log__predictor=True,
                            learner__combine="vote"), root / "run")
  x, y = blobs(20, seed=2)
  np.savez(root / "new.npz", x=x, y=y)
  images = []
  for i, (pixels, label) in enumerate(zip(x, y)):
    path = root / f"images/{label}/{i:02d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    images.append(dict(bytes=path.read_bytes(), path=None))
  pq.write_table(pa.table({"image": images, "label": y}), root / "new.parquet", row_group_size=7)
  pq.write_table(pa.table({"x": x.tolist(), "y": y}), root / "lists.parquet")
  return root


def predicted(text):
  """(classes, probabilities) of a CSV text."""
  rows = list(csv.DictReader(io.StringIO(text)))
  return [int(row["class"]) for row in rows], np.array([[float(row[f"p_{k}"]) for k in range(3)] for row in rows])


@pytest.mark.parametrize("name", ["new.npz", "new.parquet", "lists.parquet"])
def test_arrays_are_predicted_as_the_run_does(folder, name):
  done = alma("predict", f"--workdir={folder}/run", folder / name)
  assert done.returncode == 0, done.stderr
  _, probabilities = predicted(done.stdout)
  wanted = alma_jax.load_run(folder / "run").predict(blobs(20, seed=2)[0])
  np.testing.assert_allclose(probabilities, wanted, atol=2e-6)
  assert [row["row"] for row in csv.DictReader(io.StringIO(done.stdout))] == [str(i) for i in range(20)]


def test_images_are_predicted_into_parquet(folder, tmp_path):
  done = alma("predict", f"--workdir={folder}/run", folder / "images", f"--out={tmp_path}/o.parquet")
  assert (done.returncode, done.stdout) == (0, f"{tmp_path}/o.parquet\n")
  table = pq.read_table(tmp_path / "o.parquet").to_pylist()
  assert [row["input"] for row in table] == sorted(map(str, (folder / "images").rglob("*.png")))
  files = [f"{folder}/images/0/00.png", f"{folder}/images/1/01.png"]
  some, _ = predicted(alma("predict", f"--workdir={folder}/run", *files).stdout)
  assert some == [row["class"] for row in table if row["input"] in files]
  assert [path.name for path in tmp_path.iterdir()] == ["o.parquet"]


def test_runs_without_a_predictor_and_exported_ones_answer_alike(folder, tmp_path, make_config, arrays):
  plain = alma_jax.run(make_config(), tmp_path / "plain", data=arrays)
  assert alma("export", f"--workdir={plain.path}").returncode == 0
  answers = [alma("predict", f"--workdir={place}", folder / "new.npz").stdout
             for place in (plain.path, plain.path / "export")]
  assert answers[0] == answers[1] != ""
  np.testing.assert_allclose(predicted(answers[0])[1], plain.predict(blobs(20, seed=2)[0]), atol=2e-6)


def test_evaluate_repeats_the_error_of_the_run(folder, tmp_path):
  done = alma("evaluate", f"--workdir={folder}/run", f"--data=npz:{folder}/data.npz", "--out", tmp_path / "scores.json")
  assert done.returncode == 0, done.stderr
  scores, run = json.loads((tmp_path / "scores.json").read_text()), alma_jax.load_run(folder / "run")
  assert scores["error"] == run.metrics["error"][-1]
  assert scores["loss"] == pytest.approx(run.metrics["loss"][-1], rel=1e-5)
  assert (scores["num_examples"], scores["class_examples"], scores["overlap"]) == (30, [10, 10, 10], 0)
  assert done.stdout.startswith(f"error {scores['error']:.4f} ± ")
  own = alma("evaluate", f"--workdir={folder}/run", "--out", tmp_path / "own.json")
  assert (own.returncode, own.stdout) == (0, done.stdout)
  assert json.loads((tmp_path / "own.json").read_text())["num_examples"] == 30
  errors = {alma("evaluate", f"--workdir={folder}/run", "--data", folder / name).stdout
            for name in ("new.npz", "new.parquet", "images")}
  assert len(errors) == 1


def test_a_mistake_has_its_row_in_a_file_without_a_test_part(tmp_path, arrays):
  np.savez(tmp_path / "all.npz", x=arrays[0], y=arrays[1])
  alma_jax.run(small_config("sm", dataset__name=f"npz:{tmp_path / 'all.npz'}", train__epochs=1), tmp_path / "run")
  out = tmp_path / "scores.json"
  assert alma("evaluate", f"--workdir={tmp_path / 'run'}", f"--out={out}").returncode == 0
  mistakes = json.loads(out.read_text())["mistakes"]
  assert mistakes
  assert all(arrays[1][each["row"]] == each["label"] for each in mistakes)
  done = alma("evaluate", f"--workdir={tmp_path / 'run'}", "--data=")
  assert (done.returncode, "--data is empty" in done.stderr) == (2, True)


def test_evaluate_scores_what_a_run_has_held_out(tmp_path):
  """Of a folder without a test part; the files of its mistakes are those that `alma predict` gets wrong, too."""
  for i, (pixels, label) in enumerate(zip(*blobs(60))):
    path = tmp_path / f"images/{['cat', 'dog', 'owl'][label]}/{i:02d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
  run = alma_jax.run(small_config(dataset__name=f"folder:{tmp_path}/images", train__epochs=1), tmp_path / "run")
  args = "evaluate", f"--workdir={run.path}"
  done = alma(*args, f"--out={tmp_path}/scores.json")
  assert done.returncode == 0, done.stderr
  scores = json.loads((tmp_path / "scores.json").read_text())
  mistakes, num = scores["mistakes"], scores["num_examples"]
  assert (scores["error"], num, scores["overlap"]) == (run.summary["final_error"], 12, 0)
  assert 0 < len(mistakes) == round(scores["error"] * num)
  answers = csv.DictReader(io.StringIO(alma("predict", args[1], *(each["input"] for each in mistakes)).stdout))
  assert [row["class"] for row in answers] == [each["predicted"] for each in mistakes]
  assert all(f"/{each['label']}/" in each["input"] and each["label"] != each["predicted"] for each in mistakes)
  refused = alma(*args, f"--data={tmp_path}/images").stderr
  assert "48 of the 60 examples" in refused
  assert "leave out --data to score what the run has held out" in refused
  path.unlink()
  changed = alma(*args)
  assert (changed.returncode, changed.stderr.count("\n")) == (2, 1)
  assert "has changed since the run began" in changed.stderr


@pytest.mark.parametrize(("classes", "y", "names", "expected"), [
    ("5 3 0", [5, 3, 0], None, [0, 1, 2]),
    ("5 3 0", [5.0, 3.0, 0.0], None, [0, 1, 2]),
    ("5 3 0", [0, 1], None, "the class '1', which the predictor does not know; its classes are 5, 3, 0; give labels by "
     "these names, not by their places."),
    ("0 1 10 11 2", [2, 4], "0 1 10 11 2", [2, 4]),
    ("0 1 10 11 2", [2, 10], None, [4, 2]),
    ("truck cat dog", [0, 1, 2], None, [0, 1, 2]),
    ("truck cat dog", [0, 1, 2], "cat dog truck", [1, 2, 0]),
    ("truck cat dog", ["dog", "cat"], "cat dog truck", [2, 1]),
    ("truck cat dog", [0.0, 3.0], "cat dog truck frog", "the class 'frog'"),
    ("crane crane dog", [0, 1, 2], "crane crane dog", [0, 1, 2]),
    ("", [2.0, 1.0], "cat dog truck", [2, 1]),
    ("", ["2", "01"], None, [2, 1]),
    ("", ["2", "3"], None, "the class '3', which the predictor does not know; its classes are the numbers 0 to 2."),
    ("", [np.inf, 1.0], None, "the label inf"),
])
def test_labels_become_numbers_of_the_predictors_classes(classes, y, names, expected):
  of_predictor = labels.Classes("the predictor", tuple(classes.split()), len(classes.split()) or 3)
  number = lambda: of_predictor.number(labels.read(np.array(y), names and tuple(names.split())))
  if isinstance(expected, str):
    with pytest.raises(BadInput, match=expected):
      number()
  else:
    np.testing.assert_array_equal(number(), expected)


def test_examples_of_the_stream_are_no_test(folder, tmp_path):
  x, y = blobs(120)
  np.savez(tmp_path / "seen.npz", x=np.concatenate([x[:5], blobs(20, seed=2)[0]]), y=np.r_[y[:5], blobs(20)[1]])
  done = alma("evaluate", f"--workdir={folder}/run", f"--data={tmp_path}/seen.npz")
  assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
  assert "5 of the 25 examples" in done.stderr
  assert "--allow_overlap" in done.stderr
  allowed = alma("evaluate", f"--workdir={folder}/run", f"--data={tmp_path}/seen.npz", "--allow_overlap",
                 f"--out={tmp_path}/scores.json")
  assert "warning: 5 of the 25 examples" in allowed.stderr
  assert (allowed.returncode, json.loads((tmp_path / "scores.json").read_text())["overlap"]) == (0, 5)


@pytest.mark.slow
def test_texts_are_scored(tmp_path, books):
  from test_serve import ask, serving  # needs the packages of the services
  run = alma_jax.run(text_config(books, "gens", stream__num_megabatches=2, log__predictor=True), tmp_path / "run")
  (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 9)
  (tmp_path / "b.jsonl").write_text('"the dog"\n\n{"text": "a cat, a dog"}\n')
  done = alma("predict", f"--workdir={run.path}", tmp_path / "a.txt", tmp_path / "b.jsonl")
  assert done.returncode == 0, done.stderr
  rows = list(csv.DictReader(io.StringIO(done.stdout)))
  assert [(row["input"], row["row"]) for row in rows] == [
      (f"{tmp_path}/a.txt", ""), (f"{tmp_path}/b.jsonl", "0"), (f"{tmp_path}/b.jsonl", "2")]
  for row in rows:
    mean = -float(row["log_probability"]) / int(row["num_tokens"])
    assert float(row["perplexity"]) == pytest.approx(np.exp(mean))
  done = alma("evaluate", f"--workdir={run.path}", f"--data=text:{tmp_path}/a.txt", "--out", tmp_path / "s.json")
  assert json.loads((tmp_path / "s.json").read_text())["perplexity"] == pytest.approx(float(rows[0]["perplexity"]))
  done = alma("evaluate", f"--workdir={run.path}", f"--data={books}/train/00.txt")
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert "1 of the 1 examples" in done.stderr
  of_test, own = (alma("evaluate", f"--workdir={run.path}", *given) for given in ((f"--data={books}/test",), ()))
  assert (of_test.returncode, own.returncode, own.stdout) == (0, 0, of_test.stdout)
  with serving(run.path / "predictor") as port:
    status, answer = ask(port, {"texts": ["the dog", "a cat, a dog"]})
    assert status == 200
    assert [each["perplexity"] for each in answer["texts"]] == pytest.approx(
        [float(row["perplexity"]) for row in rows[1:]])
    for body in ({"texts": []}, {"texts": [""]}, {"texts": "a"}, {"inputs": [[1]]}):
      assert ask(port, body)[0] == 400


def test_every_token_is_a_target_once():
  class Tokenizer:
    def token_to_id(self, name):
      return 0

    def encode(self, text, add_special_tokens):
      return type("Encoding", (), {"ids": [int(c) for c in text]})

  tokens, counts = texts.windows(Tokenizer(), ["123", "4"], 2)
  assert tokens.tolist() == [[0, 1, 2], [2, 3, 0], [0, 4, 0]]
  assert counts.tolist() == [2, 2, 2]
  tokens, counts = texts.windows(Tokenizer(), ["12"], 2)
  assert (tokens.tolist(), counts.tolist()) == ([[0, 1, 2], [2, 0, 0]], [2, 1])


def test_halves_of_characters_are_replaced(tmp_path):
  (tmp_path / "a.jsonl").write_text(r'{"text": "a\ud800b"}' '\n"c\u2028d"\n')
  assert [document.text for document in texts.read([str(tmp_path / "a.jsonl")])] == [b"a?b", "c\u2028d".encode()]
