"""Metrics: their values in cases that can be counted by hand, their sums, and where a run shows them."""
import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
import sklearn.metrics
from runs import alma, blobs, launch, scalars, small_config, text_config
from test_live import drop, live_config, make_folder
from test_paths import task_config

import alma_jax
from alma_jax import config as configs
from alma_jax.config import registry, sections
from alma_jax.data import tokens
from alma_jax.errors import BadInput
from alma_jax.monitor import board
from alma_jax.problems import measures

IMAGES = [cls() for cls in registry.METRICS["images"].values()]
NAMES = tuple(metric.name for metric in IMAGES)
# Four examples of the classes 0, 0, 1, 3 of four; the second and the last are wrong.
PROBABILITIES = np.array([[.7, .1, .1, .1], [.2, .6, .1, .1], [.1, .5, .2, .2], [.3, .3, .3, .1]], np.float32)
LABELS = np.array([0, 0, 1, 3])


def measured(probabilities, labels, names=None, metrics=IMAGES):
  return measures.of_images(metrics, (probabilities.argmax(-1), probabilities), labels, names)


def drawn(num, classes, seed=0):
  """Probabilities, and labels that they are often right about; the last class has no examples."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, classes - 1, num)
  logits = rng.normal(size=(num, classes)) + 2 * np.eye(classes)[labels] * rng.integers(0, 2, (num, 1))
  return (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32), labels


def test_values_by_hand():
  found = measured(PROBABILITIES, LABELS, ("a", "b", "c", "d"))
  assert found["class_errors"] == [1 / 2, 0, None, 1]
  assert found["balanced_error"] == pytest.approx((1 / 2 + 0 + 1) / 3)
  # F1 is 2 TP / (2 TP + FP + FN): class 0 has TP 1, FP 1, FN 1; class 1 TP 1, FP 1; class 3 TP 0.
  assert found["macro_f1"] == pytest.approx((2 / 4 + 2 / 3 + 0) / 3)
  assert found["confusion"] == [[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
  assert found["nll"] == pytest.approx(-np.log([.7, .2, .5, .1]).mean(), rel=1e-6)
  # Each of .7, .6, .5, .3 has a bin of its own, since 15 of them are wider than 1/15 apart: right, wrong, right, wrong.
  assert found["calibration_error"] == pytest.approx((.3 + .6 + .5 + .3) / 4, rel=1e-6)
  assert "top5_error" not in found  # four classes
  assert found["classes"] == ["a", "b", "c", "d"]


def test_confidence_of_1_and_two_examples_of_one_bin():
  probabilities = np.array([[1, 0], [.97, .03], [.95, .05]], np.float32)
  # All are in the last bin, from 14/15: two of three are right, and the mean confidence is 2.92/3.
  assert measured(probabilities, np.array([0, 1, 0]))["calibration_error"] == pytest.approx(.92 / 3, rel=1e-6)


def test_the_five_likeliest():
  probabilities = np.array([[.3, .2, .2, .1, .1, .1], [.5, .5, 0, 0, 0, 0], [0, 0, .5, .5, 0, 0]], np.float32)
  top5 = lambda labels: measured(probabilities, np.array(labels))["top5_error"]
  assert top5([4, 0, 2]) == 0
  assert top5([5, 0, 2]) == pytest.approx(1 / 3)  # of equal ones the first count
  assert top5([4, 2, 2]) == pytest.approx(1 / 3)  # what is impossible is not among them


@pytest.mark.parametrize("classes", [2, 5, 6, 40])
def test_values_of_scikit_learn(classes):
  probabilities, labels = drawn(500, classes)
  predicted, found, there = probabilities.argmax(-1), measured(probabilities, labels), np.unique(labels)
  exact = probabilities / probabilities.sum(-1, keepdims=True, dtype=float)  # of float32 it warns
  assert found["confusion"] == sklearn.metrics.confusion_matrix(labels, predicted, labels=range(classes)).tolist()
  if classes > 2:  # with one class it warns
    assert found["balanced_error"] == pytest.approx(
        1 - np.mean(sklearn.metrics.recall_score(labels, predicted, labels=there, average=None)))
  assert found["macro_f1"] == pytest.approx(
      sklearn.metrics.f1_score(labels, predicted, average="macro"))
  assert found["nll"] == pytest.approx(
      sklearn.metrics.log_loss(labels, exact, labels=range(classes)), rel=1e-5)
  assert found["class_errors"][-1] is None
  assert ("top5_error" in found) == (classes > 5)
  if classes > 5:
    top = sklearn.metrics.top_k_accuracy_score(labels, probabilities, k=5, labels=range(classes))
    assert found["top5_error"] == pytest.approx(1 - top)


def test_sums_over_batches_are_those_of_the_whole(monkeypatch):
  probabilities, labels = drawn(333, 9)
  whole = measured(probabilities, labels)
  monkeypatch.setattr(measures, "_ROWS", 50)
  parts = measured(probabilities, labels)
  assert set(parts) == set(whole) == {*NAMES}
  for name, value in whole.items():
    if name in ("nll", "calibration_error"):
      assert parts[name] == pytest.approx(value, rel=1e-12)
    else:
      assert parts[name] == value


def test_a_mask_leaves_examples_out():
  probabilities, labels = drawn(60, 7)
  mask, some, all_of = np.arange(60) % 3 > 0, measures.Totals(IMAGES), measures.Totals(IMAGES)
  some.add((probabilities.argmax(-1), probabilities), labels, mask)
  all_of.add((probabilities.argmax(-1)[mask], probabilities[mask]), labels[mask], np.ones(mask.sum(), bool))
  assert some.entry() == all_of.entry()


def test_classes_that_a_network_does_not_know_are_errors():
  probabilities, labels = np.array([[.9, .1], [.2, .8]], np.float32), np.array([0, 2])
  found = measured(probabilities, labels, ("a", "b", "c"))
  assert found["class_errors"] == [0, None, 1]
  assert found["balanced_error"] == 0.5
  assert found["macro_f1"] == pytest.approx(1 / 3)
  assert found["confusion"] == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]
  assert found["classes"] == ["a", "b", "c"]
  # A probability of 0 counts as the smallest float32.
  assert found["nll"] == pytest.approx((-math.log(.9) - math.log(np.finfo(np.float32).tiny)) / 2, rel=1e-6)
  unnumbered = measured(probabilities, np.array([0, -1]), ("a", "b"))
  assert unnumbered["class_errors"] == [0, None, 1]
  assert unnumbered["classes"] == ["a", "b", "unknown"]
  many = np.concatenate([probabilities, np.zeros((2, 4))], 1).astype(np.float32)
  assert measured(many[:, :4], np.array([0, 6]))["top5_error"] == 0.5  # with the unknown ones, there are seven classes


def test_votes_decide_errors_and_probabilities_the_rest():
  votes = np.array([1, 1, 1, 3])
  found = measures.of_images(IMAGES, (votes, PROBABILITIES), LABELS, None)
  assert found["class_errors"] == [1, 0, None, 0]
  assert found["nll"] == measured(PROBABILITIES, LABELS)["nll"]
  assert found["calibration_error"] == measured(PROBABILITIES, LABELS)["calibration_error"]


def test_a_confusion_matrix_has_at_most_100_classes():
  for classes, there in ((100, True), (101, False)):
    assert ("confusion" in measured(*drawn(50, classes))) == there


def test_what_json_cannot_hold_is_null():
  @dataclasses.dataclass(frozen=True)
  class Odd(alma_jax.Metric):
    name: str = "odd"

    def sums(self, prediction, labels, mask):
      return np.zeros(1)

    def value(self, sums):
      return [(math.inf, 2), np.float32([1.5, math.nan])]

  assert measured(PROBABILITIES, LABELS, None, [Odd()]) == {"odd": [[None, 2], [1.5, None]]}


# ---------------------------------------------------------------- text

TEXT = "Ärger über 3 Öfen – 你好! <|endoftext|> naïve   x\n\n"


def trained(text):
  return tokens.train([text.encode()] * 3, 300)


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_bytes_of_tokens():
  tokenizer = trained(TEXT)
  num_bytes = tokens.num_bytes(tokenizer)
  for text in (TEXT, "something new: €, 🙂", "", TEXT[::-1]):
    assert num_bytes[tokens.encode_one(tokenizer, text)].sum() == len(text.encode())
  assert num_bytes[tokens.end_of(tokenizer)] == 0
  assert len(num_bytes) == tokens.vocabulary_size(tokenizer)


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_tokenizers_that_do_not_tell_the_bytes():
  tree = json.loads(trained(TEXT).to_str())
  split = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}
  chain = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
  byte_level = tree["pre_tokenizer"]
  known = lambda **changes: not np.isnan(tokens.num_bytes(tokens.parse(json.dumps(tree | changes)))).any()
  assert known()
  assert known(pre_tokenizer=chain(split, byte_level))
  assert not known(normalizer={"type": "Lowercase"})
  assert not known(pre_tokenizer=byte_level | {"add_prefix_space": True})
  assert not known(pre_tokenizer=chain(split | {"behavior": "Removed"}, byte_level))
  assert not known(pre_tokenizer={"type": "Whitespace"})
  assert not known(pre_tokenizer=None)
  added = {"id": 1000, "content": "<mask>", "special": False, "lstrip": True, "rstrip": False, "single_word": False,
           "normalized": False}
  found = tokens.num_bytes(tokens.parse(json.dumps(tree | {"added_tokens": [*tree["added_tokens"], added]})))
  assert np.isnan(found[-1])
  assert not np.isnan(found[:-1]).any()


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_bits_per_byte_by_hand():
  tokenizer = trained("aaaa bbbb ")
  ids = [tokens.end_of(tokenizer), *tokens.encode_one(tokenizer, "aaaa bbbb"), tokens.end_of(tokenizer)]
  targets = np.zeros((2, 8), int)
  length = np.array([len(ids) - 3, 2])  # the first window is the text but for two tokens, which are in the second
  targets[0, :length[0]], targets[1, :2] = ids[1:-2], ids[-2:]
  num_bytes = tokens.num_bytes(tokenizer)
  log_probs = np.log(np.full((2, 8), 1 / 8, np.float32))
  log_probs[1, 2:] = np.nan  # these do not count
  metrics = [measures.BitsPerByte()]
  value = lambda sizes: measures.of_text(metrics, log_probs, length,
                                         lambda rows: measures.Targets(targets[rows], sizes[targets[rows]]))
  # Each target, the END included, takes 3 bits; the text has 9 bytes.
  assert value(num_bytes) == {"bits_per_byte": pytest.approx(3 * (len(ids) - 1) / 9, rel=1e-6)}
  assert value(np.full(len(num_bytes), np.nan)) == {"bits_per_byte": None}


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_bits_per_byte_of_a_run(tmp_path, books):
  config = text_config(books, log__metrics=("bits_per_byte",), dataset__eval_tokens=0)
  run = alma_jax.run(config, tmp_path / "run")
  text = b"".join((books / "test" / name).read_bytes() for name in ("00.txt", "01.txt"))
  vocabulary = tokens.parse((tmp_path / "run/tokenizer.json").read_text())
  num_tokens = sum(len(tokens.encode_one(vocabulary, part.read_text())) + 1 for part in (books / "test").iterdir())
  assert run.classes is None
  last = run.lines[-1]
  assert last["bits_per_byte"] == pytest.approx(last["loss"] / math.log(2) * num_tokens / len(text), rel=1e-6)
  waited = [line for line in run.lines if line["prequential_perplexity"] is not None]
  assert waited
  assert all(0 < line["prequential_bits_per_byte"] < 9 for line in waited)
  args = ("evaluate", f"--workdir={run.path}", f"--data={books / 'test'}", f"--out={tmp_path / 'scores.json'}")
  done = alma(*args)
  assert done.returncode == 0, done.stderr
  scores = json.loads((tmp_path / "scores.json").read_text())
  # The windows of a run begin at the beginning of a document; those of alma evaluate follow one another.
  assert scores["bits_per_byte"] == pytest.approx(
      scores["loss"] / math.log(2) * scores["num_tokens"] / len(text), rel=1e-6)
  assert f"\nbits_per_byte {scores['bits_per_byte']:.4g}\n" in done.stdout


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run on images of three classes with names, with all metrics; its test set lacks the last class."""
  root, (x, y), (x_test, y_test) = tmp_path_factory.mktemp("run"), blobs(120), blobs(30, seed=1)
  names, keep = np.array(["cat", "dog", "owl"]), y_test < 2
  config = small_config(train__epochs=4, log__metrics=NAMES, log__tensorboard=True, log__predictor=True)
  return alma_jax.run(config, root / "run", data=(x, names[y], x_test[keep], names[y_test[keep]]))


def test_metrics_of_a_run_are_those_of_its_predictions(run):
  x_test, y_test = blobs(30, seed=1)
  x_test, y_test = x_test[y_test < 2], y_test[y_test < 2]
  expected, last = measured(run.predict(x_test), y_test, ("cat", "dog", "owl")), run.lines[-1]
  assert last["class_errors"][2] is None
  for name, value in expected.items():
    if isinstance(value, float):
      assert last[name] == pytest.approx(value, rel=1e-5)
    else:
      assert last[name] == value
  assert last["nll"] == pytest.approx(last["loss"], rel=1e-12)
  assert sum(map(sum, last["confusion"])) == len(y_test)
  waiting = [line for line in run.lines if not line["updated"]]
  assert waiting
  assert not any(name in line for line in waiting for name in NAMES)
  later = [line for line in run.lines if line["prequential_error"] is not None]
  for line in later:
    num = np.sum(line["prequential_confusion"], 1)
    errors = np.array(line["prequential_class_errors"], float)
    assert line["prequential_error"] == pytest.approx((errors * num).sum() / num.sum())


def test_metrics_change_no_results(run, tmp_path):
  x, y = blobs(120)
  x_test, y_test = blobs(30, seed=1)
  plain = alma_jax.run(small_config(train__epochs=4), tmp_path / "plain", data=(
      x, y, x_test[y_test < 2], y_test[y_test < 2]))
  assert plain.classes == ["0", "1", "2"]
  keys = {*plain.lines[-1]} - {"seconds"}
  assert [{key: line.get(key) for key in keys} for line in run.lines] == [
      {key: line.get(key) for key in keys} for line in plain.lines]


def test_metrics_are_shown(run, tmp_path):
  last = run.lines[-1]
  status = alma("status", run.path).stdout
  largest = max((error, name) for error, name in zip(last["class_errors"][:2], ("cat", "dog")))
  assert f"balanced_error {last['balanced_error']:.4g}, " in status
  assert re.search(r"class_errors largest (cat|dog) ", status)
  assert f" {largest[0]:.4g}" in status
  assert "prequential_nll" not in status
  assert alma("report", run.path, f"--out={tmp_path / 'report'}").returncode == 0
  report = (tmp_path / "report/report.md").read_text()
  assert "| learner | seeds | cat | dog |" in report
  assert f" {last['macro_f1']:.4f} " in report
  (shown,) = board.Board([str(run.path)]).runs()
  assert f"nll {last['nll']:.4g}" in shown["further"]


def test_tensorboard_names_the_classes(run):
  found = scalars(run.path / "tensorboard/stream")
  tags = {tag for tag, _ in found}
  assert {"class_errors/cat", "class_errors/dog", "prequential_class_errors/owl", "macro_f1"} <= tags
  assert not any(tag.startswith(("confusion", "prequential_confusion", "classes")) for tag in tags)
  assert found["class_errors/cat", 4] == pytest.approx(run.lines[-1]["class_errors"][0])


def test_names_of_classes(run, tmp_path):
  assert run.classes == ["cat", "dog", "owl"]
  x, y = blobs(30, seed=1)
  names = [str(name) for name in np.array(["cat", "dog", "owl"])[run.predict(x).argmax(1)]]
  assert np.mean(np.array(names) != np.array(["cat", "dog", "owl"])[y]) < 0.5
  shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
  with pytest.raises(BadInput, match="copy has saved nothing yet, so its classes are not known"):
    assert alma_jax.load_run(tmp_path / "copy").classes


def test_evaluate_has_the_metrics_of_the_run(run, tmp_path):
  x_test, y_test = blobs(30, seed=1)
  names = np.array(["cat", "dog", "owl"])
  np.savez(tmp_path / "test.npz", x=x_test[y_test < 2], y=names[y_test[y_test < 2]])
  done = alma("evaluate", f"--workdir={run.path}", f"--data={tmp_path / 'test.npz'}", "--out", tmp_path / "all.json")
  assert done.returncode == 0, done.stderr
  scores = json.loads((tmp_path / "all.json").read_text())
  for name in NAMES:
    if name in ("nll", "calibration_error"):
      assert scores[name] == pytest.approx(run.lines[-1][name], rel=1e-5)
    else:
      assert scores.get(name) == run.lines[-1].get(name)
  assert scores["classes"] == ["cat", "dog", "owl"]
  assert re.search(r"^  cat  \d", done.stdout, re.MULTILINE)
  assert f"\nmacro_f1 {scores['macro_f1']:.4g}\n" in done.stdout
  other = alma("evaluate", f"--workdir={run.path}", f"--data={tmp_path / 'test.npz'}", "--metrics=macro_f1",
               "--out", tmp_path / "one.json")
  assert "confusion" not in json.loads((tmp_path / "one.json").read_text())
  assert other.stdout.splitlines()[-1] == f"macro_f1 {scores['macro_f1']:.4g}"
  bad = alma("evaluate", f"--workdir={run.path}", f"--data={tmp_path / 'test.npz'}", "--metrics=macro_f2")
  assert (bad.returncode, "--metrics='macro_f2' is not one of" in bad.stderr) == (2, True)


@pytest.mark.parametrize(("config", "name", "meant"), [
    ("digits:sm", "balanced_eror", "did you mean 'balanced_error'?"),
    ("digits:sm", "bits_per_byte", "is not one of balanced_error, "),
    ("lm:sm", "confusion", "is not one of bits_per_byte"),
    ("tasks:select,digits", "topp5_error", "did you mean 'top5_error'?")])
def test_an_unknown_metric_is_refused(tmp_path, config, name, meant):
  done = launch(config, f"--config.log.metrics=nll,{name}" if name != "confusion" else "--config.log.metrics=confusion",
                f"--workdir={tmp_path / 'run'}")
  assert done.returncode == 2
  assert f"log.metrics='{name}'" in done.stderr
  assert meant in done.stderr
  assert len(done.stderr.splitlines()) == 1
  assert not (tmp_path / "run").exists()


def test_a_metric_without_a_method():
  with pytest.raises(BadInput, match="Metric has no method sums"):
    alma_jax.Metric().sums(None, None, None)
  with pytest.raises(BadInput, match="Metric has no method value"):
    alma_jax.Metric().value(None)


def test_the_field_is_a_list_of_names():
  read = lambda value: configs.parse(small_config(log__metrics=value)).log.metrics
  assert read("nll") == ("nll",)
  assert read(["nll", "macro_f1"]) == ("nll", "macro_f1")
  tree = configs.overridden(configs.to_dict(configs.parse(small_config())), {"log.metrics": "('nll', macro_f1)"})
  assert configs.parse(tree).log.metrics == ("nll", "macro_f1")
  with pytest.raises(BadInput, match=re.escape("log.metrics=3 should be a name, or several")):
    read(3)


def test_a_live_stream_with_new_classes(tmp_path, arrays):
  """The third mega-batch brings the class 1; the test set has all three from the beginning."""
  folder, (x, y) = make_folder(tmp_path / "live", arrays), arrays[:2]
  for t, classes in enumerate(([0, 2], [0, 2], [0, 1, 2], [0, 1, 2]), 1):
    which = np.flatnonzero(np.isin(y, classes))[20 * t:][:24]
    drop(folder, t, x[which], y[which])
  (folder / "end").touch()
  config = live_config(folder, stream__waiting_time=1, train__epochs=12, log__metrics=("class_errors", "confusion"))
  found = alma_jax.run(config, tmp_path / "run").lines
  first, second, third, last = found
  assert first["classes"] == ["0", "2", "unknown"]
  assert len(first["class_errors"]) == 3  # the last are the test examples of a class that has not come
  assert first["class_errors"][2] == 1
  assert third["prequential_class_errors"][2] == 1  # before the training that adds it
  assert third["classes"] == ["0", "2", "1"]
  assert np.shape(third["prequential_confusion"]) == (3, 3)
  assert len(second["prequential_class_errors"]) == 2
  assert last["class_errors"][2] < 1
  for line in (first, last):
    assert sum(map(sum, line["confusion"])) == len(arrays[3])
    assert 1 - np.trace(line["confusion"]) / len(arrays[3]) == pytest.approx(line["error"])


@pytest.mark.parametrize("learner", ["select", "replay"])
def test_metrics_of_the_newest_task(tmp_path, learner):
  config = task_config(learner, log__metrics=("class_errors", "confusion", "top5_error"), train__epochs=2)
  config.stream.num_megabatches, config.train.steps = 2, 10
  run = alma_jax.run(config, tmp_path / "run")
  assert len(run.classes) == 2
  for line, classes in zip(run.lines, run.classes):
    assert line["classes"] == classes
    confusion = np.array(line["confusion"])
    assert confusion.shape == (len(classes), len(classes))
    assert 1 - np.trace(confusion) / confusion.sum() == pytest.approx(line["error"])
    assert 1 - line["accuracies"][-1] == pytest.approx(line["error"])
    np.testing.assert_allclose(line["class_errors"], 1 - np.diag(confusion) / confusion.sum(1), atol=1e-15)
    assert "top5_error" not in line


def test_metrics_of_a_network_that_has_diverged():
  probabilities, labels = np.full((4, 7), np.nan, np.float32), np.arange(4)
  found = measured(probabilities, labels)
  assert (found["top5_error"], found["calibration_error"], found["nll"]) == (1, None, None)


def test_a_live_class_without_a_new_output_has_its_name(tmp_path, arrays):
  """The network has two outputs from the beginning, so the second class adds none."""
  folder, (x, y) = make_folder(tmp_path / "live"), arrays[:2]
  for t, classes in enumerate(([2], [2, 0]), 1):
    which = np.flatnonzero(np.isin(y, classes))[30 * t:][:30]
    drop(folder, t, x[which], y[which])
  (folder / "end").touch()
  run = alma_jax.run(live_config(folder, stream__waiting_time=1, train__epochs=2), tmp_path / "run")
  assert run.classes == ["2", "0"]
  assert run.predict(x[:3]).shape == (3, 2)


@pytest.mark.parametrize("name", [
    "t", "loss", "num_params", "seconds", "classes", "val_f1", "prequential_f1", "my metric"])
def test_a_metric_takes_no_name_of_a_column(name):
  own = dataclasses.make_dataclass("Own", [("name", str, name)], bases=(alma_jax.Metric,), frozen=True)
  with pytest.raises(BadInput, match=f"^Own.name={name!r} cannot be the name of a metric"):
    alma_jax.register(own)


def test_the_columns_of_lines_are_known(run):
  known = sections.COLUMNS | {*run.config.log.metrics}
  columns = {key.removeprefix("prequential_").removeprefix("val_") for line in run.lines for key in line}
  assert columns <= known


@dataclasses.dataclass(frozen=True)
class Wrong(alma_jax.Metric):
  name: str = "wrong"

  def sums(self, prediction, labels, mask):
    return np.ones(self.size(mask))

  def value(self, sums):
    return self.result


@pytest.mark.parametrize(("size", "result", "sentence"), [
    (len, 1.0, r"the sums of the metric 'wrong' have the shapes \(3,\) for one batch and \(2,\) for another; "),
    (lambda mask: 1, "high", "the metric 'wrong' has the value 'high'; it should be a number, "),
    (lambda mask: 1, True, "the metric 'wrong' has the value True; "),
    (lambda mask: 1, np.ones((2, 2, 2)), r"the metric 'wrong' has the value array\(")])
@pytest.mark.parametrize("batch", [measures.blank_images(4), measures.blank_text])
def test_a_metric_is_tried_before_any_training(monkeypatch, batch, size, result, sentence):
  monkeypatch.setattr(Wrong, "size", staticmethod(size), raising=False)
  monkeypatch.setattr(Wrong, "result", result, raising=False)
  with pytest.raises(BadInput, match=sentence):
    measures.tried([Wrong()], batch)


def test_a_run_is_read_without_the_file_of_its_metric(run, tmp_path):
  shutil.copytree(run.path, tmp_path / "copy")
  config = json.loads((tmp_path / "copy/config.json").read_text())
  config["log"]["metrics"] = ["lost", "macro_f1"]
  (tmp_path / "copy/config.json").write_text(json.dumps(config))
  copy = alma_jax.load_run(tmp_path / "copy")
  assert copy.config.log.metrics == ("macro_f1",)
  assert copy.lines == run.lines
