"""Whole runs: the command line, the run folder, bad input, what is compiled."""
import errno
import importlib
import importlib.machinery
import importlib.util
import io
import json
import re
import sys
import types
import warnings

import jax
import numpy as np
import pytest
from runs import alma, blobs, interrupted, launch, lines, scalars, slow, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.learners import stacked
from alma_jax.protocols.contract import Protocol
from alma_jax.protocols.tasks import Tasks
from alma_jax.runs import listeners
from alma_jax.runs.plots import Curve, draw
from alma_jax.runs.plots import curve as draw_curve
from alma_jax.store import run_files
from alma_jax.store.metrics import Measure
from alma_jax.training import program

TOY = ["--config.stream.num_megabatches=3", "--config.stream.waiting_time=2", "--config.train.epochs=1",
       "--config.model.width=2", "--config.log.tensorboard=False"]


@pytest.mark.parametrize(("name", "learner"), [
    ("digits", "sm"), ("npz", "sm"), slow("mnist", "ens"), slow("cifar", "sm")])
def test_every_config_through_the_entry_point(tmp_path, tfds_dir, name, learner):
  flags = [*TOY, f"--workdir={tmp_path / 'run'}", "--config.devices=1"]
  if name == "npz":
    data = *blobs(120), *blobs(30, seed=1)
    np.savez(tmp_path / "a.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), data)))
    flags.append(f"--config.dataset.name=npz:{tmp_path}/a.npz")
  elif name != "digits":
    flags.append(f"--config.dataset.data_dir={tfds_dir}")
  if learner == "ens":
    flags.append("--config.learner.num_members=2")
  done = launch(f"configs/{name}.py:{learner}", *flags)
  assert done.returncode == 0, done.stderr
  run = alma_jax.load_run(tmp_path / "run")
  assert run.metrics["t"].tolist() == [1, 2, 3]
  assert run.metrics["updated"].tolist() == [False, True, True]
  assert run.summary["num_stages"] == 2
  chance = run.metrics["untrained_error"][0]
  first, *rest = done.stdout.splitlines()
  assert first.split("  ")[0] == f"{run.config.dataset.name} · {run.config.label} · 3 mega-batches"
  assert first.endswith(f"  {tmp_path / 'run'}")
  last, num = run.summary["final_error"], 360 if name == "digits" else 30
  assert re.fullmatch(rf"  test error  {chance:.2f} █[▁-█]{{3}} {last:.2f} \({last * num:.0f} of {num} wrong\)     "
                      rf"guessing {chance:.2f}", rest[1])
  model = f"{run.config.model.name} of width 2, {run.lines[0]['num_params']:,} parameters"
  assert f"running in {tmp_path / 'run'}: {learner}, {model} at the start, 3 mega-batches\n" in done.stderr
  assert rest[2] == (f"  score       {run.summary['cer']:.4f}   sum of the 3 errors (CER), lower is better; guessing "
                     f"scores {3 * chance:.1f}")
  assert f" · {run.lines[-1]['num_params']:,} parameters · " in rest[3]
  assert f"  picture     {tmp_path / 'run'}/curve.png" in rest
  assert f"  next        python -m alma_jax.compare {tmp_path / 'run'} ANOTHER_RUN" in rest


def test_the_run_folder_holds_the_documented_files(tmp_path, arrays):
  alma_jax.run(small_config("ens", log__tensorboard=True, learner__num_members=2), tmp_path, data=arrays)
  assert {p.name for p in tmp_path.iterdir()} >= {
      "config.json", "metrics.jsonl", "train.jsonl", "summary.json", "curve.png", "tensorboard", "checkpoints"}
  metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert list(metrics[0]) == [
      "t", "stage", "updated", "error", "val_error", "loss", "num_params", "fwd_macs", "train_flops", "growth_macs",
      "seconds", "predict_macs", "prequential_error", "untrained_error"]
  first, second = metrics[:2]
  assert (first["stage"], first["loss"], first["val_error"], first["fwd_macs"]) == (None, None, None, 0)
  assert first["error"] == pytest.approx(2 / 3)  # three classes
  # 2 mega-batches of 30, 3 of each for validation; 2 epochs; 36 inputs, width 4, 3 classes; 2 members.
  macs = 36 * 4 + 4 * 4 + 4 * 3
  assert second["fwd_macs"] == 2 * macs * 2 * 54
  assert second["train_flops"] == 2 * 2 * (3 * macs - 36 * 4) * 2 * 54
  assert second["num_params"] == 2 * (macs + 4 + 4 + 3)
  assert [line["predict_macs"] for line in metrics] == [2 * macs] * len(metrics)
  assert first["untrained_error"] == pytest.approx(2 / 3)
  assert "untrained_error" not in second
  train = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
  assert [(entry["stage"], entry["epoch"]) for entry in train] == [(0, 1), (0, 2), (1, 1), (1, 2)]
  for key in ("train_loss", "train_error", "val_loss", "val_error"):
    assert len(train[0]["members"][key]) == 2
    assert train[0][key] == pytest.approx(np.mean(train[0]["members"][key]))
  summary = json.loads((tmp_path / "summary.json").read_text())
  assert set(summary) == {"cer", "cer_from_zero", "num_megabatches", "mean_error", "final_error", "cumulative_params",
                          "cumulative_fwd_macs",
                          "cumulative_train_flops", "cumulative_growth_macs", "num_stages", "wall_seconds",
                          "compile_seconds", "device", "versions", "config_sha256", "chance", "num_test"}
  assert summary["chance"] == pytest.approx(2 / 3)
  assert summary["cer"] == pytest.approx(sum(entry["error"] for entry in metrics))
  assert summary["cer_from_zero"] == pytest.approx(2 / 3 + summary["cer"])
  assert summary["cumulative_params"] == 5 * second["num_params"]
  config = json.loads((tmp_path / "config.json").read_text())
  del config["format"], config["data_fingerprint"], config["alma_jax_version"], config["made_with"]
  assert json.loads(json.dumps(configs.to_dict(configs.parse(config)))) == config


def test_the_regret_is_against_a_finished_run_on_the_same_stream(tmp_path, arrays):
  oracle = alma_jax.run(small_config(stream__waiting_time=1), tmp_path / "oracle", data=arrays)
  name = lambda path: dict(log__oracle=str(path))
  run = alma_jax.run(small_config(**name(oracle.path)), tmp_path / "run", data=arrays)
  assert run.summary["regret"] == run.summary["cer"] - oracle.summary["cer"] != 0
  again = alma_jax.run(small_config(), tmp_path / "run", data=arrays)  # log.oracle is no part of what a run is
  assert again.summary == run.summary
  half = tmp_path / "half"
  assert interrupted(small_config(), half, 1, data=arrays)
  other = (arrays[0][::-1].copy(), *arrays[1:])
  for changes, data, sentence in (
      (name(half), arrays, "is a run that has not finished; finish it first"),
      (name(oracle.path) | {"seed": 1}, arrays, r"on another stream: seed \(0 there, 1 here\)"),
      (name(oracle.path), other, "on another stream: its data differ"),
      (name(tmp_path / "nothing"), arrays, "there is no run in")):
    with pytest.raises(alma_jax.BadInput, match=sentence):
      alma_jax.run(small_config(**changes), tmp_path / "refused", data=data)
  assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("learner", ["sm", slow("boosting")])
def test_two_views_cost_twice_as_much_in_predictions_and_nothing_in_training(tmp_path, arrays, learner):
  one, two = (alma_jax.run(small_config(learner, train__augment=True, train__test_augment=on), tmp_path / str(on),
                           data=arrays).lines for on in (False, True))
  assert [line["predict_macs"] for line in two] == [2 * line["predict_macs"] for line in one]
  if learner != "boosting":  # which predicts for its training examples
    assert [line["fwd_macs"] for line in two] == [line["fwd_macs"] for line in one]
    assert [line["val_error"] for line in two] == [line["val_error"] for line in one]
  assert [line["loss"] for line in two] != [line["loss"] for line in one]


def test_scalars_in_tensorboard_are_those_of_the_lines(tmp_path, arrays):
  interrupted(small_config(log__tensorboard=True, train__epochs=6), tmp_path, 3, data=arrays)
  alma_jax.run(small_config(log__tensorboard=True, train__epochs=6), tmp_path, data=arrays)
  found = scalars(tmp_path / "tensorboard/stream")
  for entry in lines(tmp_path, "metrics.jsonl"):
    assert found["error", entry["t"]] == pytest.approx(entry["error"])


def test_tensorboard_is_imported_without_the_clients_of_clouds(tmp_path, monkeypatch):
  clients = {"boto3", "google.cloud.storage"}
  for name in [name for name in sys.modules if name in clients or name.partition(".")[0] == "tensorboardX"]:
    monkeypatch.delitem(sys.modules, name)
  listeners._Events(tmp_path, 0).close()
  assert "tensorboardX" in sys.modules
  assert not clients & set(sys.modules)
  assert importlib.import_module("boto3")  # it can be imported afterwards


def test_error_before_the_first_update(tmp_path, arrays):
  """Of the network; test_the_run_folder_holds_the_documented_files has that of guessing."""
  error, at_once = (
      alma_jax.run(small_config(stream__untrained_error="model", stream__waiting_time=wait), tmp_path / str(wait),
                   data=arrays).metrics["untrained_error"][0] for wait in (2, 1))
  assert error == at_once
  assert error * 30 == pytest.approx(round(error * 30))
  assert error == alma_jax.load_run(tmp_path / "2").metrics["error"][0]


def test_data_that_do_not_fit_are_refused(tmp_path, arrays):
  with pytest.raises(alma_jax.BadInput, match="data holds 3 arrays"):
    alma_jax.run(small_config(), tmp_path, data=arrays[:3])
  flat = (arrays[0].reshape(120, -1), arrays[1], arrays[2].reshape(30, -1), arrays[3])
  with pytest.raises(alma_jax.BadInput, match=r"train.augment=True changes images, but .* shape \(36,\)"):
    alma_jax.run(small_config(train__augment=True), tmp_path, data=flat)
  assert not list(tmp_path.iterdir())


def test_a_diverging_loss_stops_the_run_and_keeps_earlier_results(tmp_path, arrays):
  x = arrays[0].astype(np.float32)
  # Some training and validation examples so large that products overflow; constants that fit the others stay.
  stream_order = np.random.default_rng([0, 0]).permutation(len(x))
  x[stream_order[[-10, -9, -8, -3, -2, -1]]] = 9e29
  config = small_config(train__optimizer="sgd", train__learning_rate=1e3)
  with pytest.raises(alma_jax.Diverged, match="no longer finite in stage 2 of 2, epoch 1"):
    alma_jax.run(config, tmp_path, data=(x, arrays[1], arrays[2].astype(np.float32), arrays[3]))
  assert len(lines(tmp_path, "metrics.jsonl")) == 3
  assert len(lines(tmp_path, "train.jsonl")) == 2
  noted = json.loads((tmp_path / "diverged.json").read_text())
  assert (noted["stage"], noted["epoch"]) == (1, 1)
  assert "no longer finite in stage 2 of 2, epoch 1" in noted["line"]
  run = alma_jax.load_run(tmp_path)
  assert run.stages() == [0]
  assert np.isfinite(run.predict(arrays[2].astype(np.float32))).all()


@pytest.mark.parametrize(("metric", "chance"), [("error", 0.9), ("perplexity", None)])
def test_the_curve_of_a_run(metric, chance):
  from PIL import Image
  values = [None if chance is None else chance, 0.5, 0.5, 0.25]
  lines = [{"t": t + 1, metric: value, "updated": t in (1, 3)} for t, value in enumerate(values)]
  shown = Curve("four mega-batches", "CER 2", lines, Measure(metric), chance, Protocol.labels)
  with Image.open(io.BytesIO(draw_curve(shown))) as picture:
    assert picture.size == (1050, 630)
    red, _, blue = (np.asarray(channel, int) for channel in picture.convert("RGB").split())
  assert (blue > red + 20).sum() > 10_000  # the area below the curve


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **kwargs: COMPILED.append(event) if event.endswith("backend_compile_duration") else None)


@pytest.mark.parametrize(("learner", "replay"), [
    ("sm", 0.0), slow("boosting", 0.0), slow("sm", 1.0)])
def test_a_longer_stream_compiles_nothing_more(tmp_path, learner, replay):
  """5 stages and 25 compile the same number of functions."""
  data = (*blobs(500), *blobs(30, seed=1))
  counts = []
  for name, stages in ("warm", 5), ("short", 5), ("long", 25):  # the first also fills caches that jax never clears
    jax.clear_caches()
    COMPILED.clear()
    config = small_config(learner, stream__num_megabatches=stages, stream__waiting_time=1, stream__replay=replay,
                          train__epochs=1)
    alma_jax.run(config, tmp_path / name, data=data)
    assert program.advance._cache_size() == 1
    assert stacked._contribute._cache_size() == 1
    counts.append(len(COMPILED))
  assert counts[1] == counts[2] > 0


def test_predictions_of_saved_stages(tmp_path, arrays):
  config = small_config("gens", stream__waiting_time=1, checkpoint__keep_every=2, train__epochs=10, model__width=16)
  run = alma_jax.run(config, tmp_path, data=arrays)
  x_test, y_test = arrays[2:]
  probabilities = run.predict(x_test)
  assert probabilities.shape == (30, 3)
  np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
  assert np.mean(probabilities.argmax(-1) != y_test) == pytest.approx(run.summary["final_error"])
  assert run.stages() == [1, 3]
  assert np.mean(run.predict(x_test, stage=1).argmax(-1) != y_test) == pytest.approx(run.metrics["error"][1])
  np.testing.assert_array_equal(run.predict(x_test[..., None]), probabilities)
  with pytest.raises(alma_jax.BadInput, match=r"saved the stages \[1, 3\], not 0"):
    run.predict(x_test, stage=0)
  with pytest.raises(alma_jax.BadInput, match="predicted: it has examples of shape .* the training examples have"):
    run.predict(x_test[:, :5])
  with pytest.raises(alma_jax.BadInput, match="x cannot be predicted: .* give raw, unnormalised examples"):
    run.predict(x_test / 255)


def test_weights_and_biases_gets_the_same_scalars(tmp_path, make_config, arrays, monkeypatch):
  """With a stand-in for the package, because tests must not need it."""
  told, finished = [], []

  class Told:
    define_metric = staticmethod(lambda name, step_metric: told.append((name, step_metric)))
    log = staticmethod(told.append)
    finish = staticmethod(lambda: finished.append(True))

  stand_in = types.ModuleType("wandb")
  stand_in.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
  stand_in.init = lambda **options: told.append(options) or Told
  monkeypatch.setitem(sys.modules, "wandb", stand_in)
  config = make_config(log__wandb="streams", stream__num_megabatches=2, stream__waiting_time=1)
  run = alma_jax.run(config, tmp_path / "run", data=arrays)
  assert (told[0]["project"], told[0]["resume"], told[0]["config"]["model.width"]) == ("streams", "allow", 4)
  assert told[1:3] == [("stream/*", "stream/t"), ("train/*", "train/line")]
  lines_told = [entry for entry in told[3:] if "stream/t" in entry]
  assert [entry["stream/error"] for entry in lines_told] == run.metrics["error"].tolist()
  assert [entry["train/line"] for entry in told[3:] if "train/line" in entry] == [1, 2, 3, 4]
  assert finished == [True]

def test_a_torn_last_line_is_not_read(tmp_path, make_config, arrays):
  run = alma_jax.run(make_config(), tmp_path / "run", data=arrays)
  whole = run.metrics["t"].tolist()
  with (run.path / "metrics.jsonl").open("a") as file:
    file.write('{"t": 5, "err')
  assert alma_jax.load_run(run.path).metrics["t"].tolist() == whole
  (run.path / "metrics.jsonl").write_text("{\n")
  with pytest.raises(alma_jax.BadInput, match="metrics.jsonl has a line that is not JSON"):
    alma_jax.load_run(run.path)


def test_other_objects_than_configs_are_refused():
  with pytest.raises(alma_jax.BadInput, match="the config 'ens' is of type str; it should be a ConfigDict"):
    alma_jax.run("ens")


def test_what_may_not_be_read_is_one_sentence(monkeypatch, tmp_path, capsys):
  """As for a user without permission: as root every file may be read."""
  def refuse(path):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))

  monkeypatch.setattr(run_files, "read_json", refuse)
  (tmp_path / "config.json").touch()
  done = alma("export", "--workdir", tmp_path)
  assert done.returncode == 2
  assert done.stderr == (f"error: {tmp_path}/config.json cannot be opened or written: permission denied; name another "
                         "one, or change its permissions.\n")


def test_the_curve_of_a_long_stream_of_tasks_warns_of_nothing():
  lines = [dict(t=t, task=f"task {t}", error=0.5, updated=True) for t in range(1, 100)]
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    for shown in (lines, [dict(line, error=0.0) for line in lines]):
      for num in (len(shown), 5):
        made = Curve("select", "", shown[:num], Measure("error"), None, Tasks.labels)
        assert draw_curve(made).startswith(b"\x89PNG")


def test_several_curves_and_what_cannot_be_drawn_together(tmp_path, arrays):
  runs = [alma_jax.run(small_config(learner), tmp_path / learner, data=arrays) for learner in ("sm", "ens")]
  figure = alma_jax.plot(*runs)
  assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
      f"data · {run.config.label} · CER {run.summary['cer']:.4f}" for run in runs]
  assert runs[0]._repr_png_().startswith(b"\x89PNG")
  for none in ((), (alma_jax.load_run(tmp_path / "sm"),)):
    if none:
      none[0].lines.clear()
    with pytest.raises(alma_jax.BadInput, match="plot needs runs that have seen a mega-batch"):
      alma_jax.plot(*none)


def test_the_part_before_the_first_training_does_not_squeeze_the_rest():
  """0.9 before, 0.1 at most after it: the axis ends at 0.13, and the hatched part says what it cuts off."""
  lines = [dict(t=t, error=error, updated=t > 2) for t, error in enumerate((0.9, 0.9, 0.1, 0.05), 1)]
  (axes,) = draw(Curve("", "CER 1.95", lines, Measure("error"), 0.9, Protocol.labels)).axes
  assert axes.get_ylim() == (0, pytest.approx(0.13))
  assert {"0.90 before the first training", "area: CER 1.95"} <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize(("errors", "place"), [
    ([0.5] * 20, (10, 0)),  # the middle is 10.5
    ([0.02] * 10 + [0.3] * 10, (15, 0)),  # the middle
    ([0.02] * 6 + [0.3] * 8 + [0.02] * 6, (10, 0)),  # at t=10 and 11, all within 3 of it are high
    ([0.9] * 3 + [0.05] * 17, (4, 0)),  # the axis ends at 0.065, so all are high; the middle is 3.6
    ([0.3] + [0.004] * 18 + [0.3], (5, 0.004))])  # low wherever there is room: above it
def test_the_area_is_named_where_a_text_has_room(errors, place):
  lines = [dict(t=t, error=error, updated=t > 3) for t, error in enumerate(errors, 1)]
  (axes,) = draw(Curve("", "CER 1", lines, Measure("error"), 0.9, Protocol.labels)).axes
  (text,) = (text for text in axes.texts if text.get_text() == "area: CER 1")
  assert text.xy == place
