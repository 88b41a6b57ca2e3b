"""Whole runs: the command line, the run folder, stopping and going on."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import blobs, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax import experiment
from alma_jax.learners import program, stacked

ROOT = pathlib.Path(__file__).parents[1]
LEARNERS = ["sm", "ens", "umix", "gens"]


def command(config, *flags):
  return [sys.executable, "-m", "alma_jax.main", f"--config={config}", *map(str, flags)]


def launch(config, *flags):
  return subprocess.run(command(config, *flags), cwd=ROOT, capture_output=True, text=True, check=False)


def lines(path, name):
  """Entries of a .jsonl file without what depends on the clock."""
  entries = [json.loads(line) for line in (pathlib.Path(path) / name).read_text().splitlines()]
  return [{k: v for k, v in entry.items() if not k.endswith("seconds")} for entry in entries]


def assert_same_run(first, second):
  assert lines(first, "metrics.jsonl") == lines(second, "metrics.jsonl")
  assert lines(first, "train.jsonl") == lines(second, "train.jsonl")
  summaries = [json.loads((pathlib.Path(p) / "summary.json").read_text()) for p in (first, second)]
  clean = [{k: v for k, v in s.items() if not k.endswith("seconds")} for s in summaries]
  assert clean[0] == clean[1]


def interrupted(config, workdir, dispatches, **options):
  """Runs until so many dispatches were made, saves and stops."""
  left = [dispatches]

  def should_stop():
    left[0] -= 1
    return left[0] < 0

  try:
    alma_jax.run(config, workdir, should_stop=should_stop, **options)
  except alma_jax.Stopped:
    return True
  return False


def one_step_a_dispatch(monkeypatch):
  monkeypatch.setattr(experiment, "_TARGET_SECONDS", 1e-9)
  monkeypatch.setattr(experiment, "_FIRST_ROWS", 1)


TOY = ["--config.stream.num_megabatches=3", "--config.stream.waiting_time=2", "--config.train.epochs=1",
       "--config.model.width=2", "--config.log.tensorboard=False"]


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", ["digits", "mnist", "cifar", "npz"])
def test_every_config_through_the_entry_point(tmp_path, tfds_dir, name, learner):
  flags = [*TOY, f"--workdir={tmp_path / 'run'}", "--config.devices=1"]
  if name == "npz":
    np.savez(tmp_path / "a.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), (*blobs(120), *blobs(30)))))
    flags.append(f"--config.dataset.name=npz:{tmp_path}/a.npz")
  elif name != "digits":
    flags.append(f"--config.dataset.data_dir={tfds_dir}")
  if learner in ("ens", "umix"):
    flags.append("--config.learner.num_members=2")
  done = launch(f"configs/{name}.py:{learner}", *flags)
  assert done.returncode == 0, done.stderr
  run = alma_jax.load_run(tmp_path / "run")
  assert run.metrics["t"].tolist() == [1, 2, 3]
  assert run.metrics["updated"].tolist() == [False, True, True]
  assert run.summary["num_stages"] == 2
  assert f"CER {run.summary['cer']:.4f} over 3 mega-batches" in done.stdout


def test_the_run_folder_holds_what_the_design_says(tmp_path, arrays):
  alma_jax.run(small_config("ens", log__tensorboard=True, learner__num_members=2), tmp_path, data=arrays)
  assert {p.name for p in tmp_path.iterdir()} >= {
      "config.json", "metrics.jsonl", "train.jsonl", "summary.json", "curve.png", "tensorboard", "checkpoints"}
  metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert list(metrics[0]) == ["t", "stage", "updated", "error", "val_error", "loss", "num_params", "fwd_macs",
                              "train_flops", "seconds"]
  first, second = metrics[:2]
  assert (first["stage"], first["loss"], first["val_error"], first["fwd_macs"]) == (None, None, None, 0)
  assert first["error"] == pytest.approx(2 / 3)  # three classes
  # 2 mega-batches of 30, 3 of each for validation; 2 epochs; 36 inputs, width 4, 3 classes; 2 members.
  macs = 36 * 4 + 4 * 4 + 4 * 3
  assert second["fwd_macs"] == 2 * macs * 2 * 54
  assert second["train_flops"] == 2 * 2 * (3 * macs - 36 * 4) * 2 * 54
  assert second["num_params"] == 2 * (macs + 4 + 4 + 3)
  train = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
  assert [(entry["stage"], entry["epoch"]) for entry in train] == [(0, 1), (0, 2), (1, 1), (1, 2)]
  for key in ("train_loss", "train_error", "val_loss", "val_error"):
    assert len(train[0]["members"][key]) == 2
    assert train[0][key] == pytest.approx(np.mean(train[0]["members"][key]))
  summary = json.loads((tmp_path / "summary.json").read_text())
  assert set(summary) == {"cer", "mean_error", "final_error", "cumulative_params", "cumulative_fwd_macs",
                          "cumulative_train_flops", "num_stages", "wall_seconds", "compile_seconds", "device",
                          "versions"}
  assert summary["cer"] == pytest.approx(sum(entry["error"] for entry in metrics))
  assert summary["cumulative_params"] == 5 * second["num_params"]
  config = json.loads((tmp_path / "config.json").read_text())
  del config["data_fingerprint"]
  assert configs.to_dict(configs.parse(config)) == config


def test_scalars_in_tensorboard_are_those_of_the_lines(tmp_path, arrays):
  interrupted(small_config(log__tensorboard=True, train__epochs=6), tmp_path, 3, data=arrays)
  alma_jax.run(small_config(log__tensorboard=True, train__epochs=6), tmp_path, data=arrays)
  from tensorboardX.proto.event_pb2 import Event
  from tensorboardX.record_writer import RecordWriter  # noqa: F401 (the format below is its)
  found = {}
  for file in sorted((tmp_path / "tensorboard" / "stream").iterdir()):
    data, at = file.read_bytes(), 0
    while at < len(data):
      size = int.from_bytes(data[at:at + 8], "little")
      event = Event.FromString(data[at + 12:at + 12 + size])
      at += 16 + size
      for value in event.summary.value:
        found[value.tag, event.step] = value.simple_value
  for entry in lines(tmp_path, "metrics.jsonl"):
    assert found["error", entry["t"]] == pytest.approx(entry["error"])


@pytest.mark.parametrize("untrained", ["chance", "model"])
def test_error_before_the_first_update(tmp_path, arrays, untrained):
  run = alma_jax.run(small_config(stream__untrained_error=untrained), tmp_path, data=arrays)
  if untrained == "chance":
    assert run.metrics["error"][0] == pytest.approx(2 / 3)
  else:
    assert run.metrics["error"][0] * 30 == pytest.approx(round(run.metrics["error"][0] * 30))


def test_equal_seeds_equal_runs(tmp_path, arrays):
  for name, seed in (("a", 0), ("b", 0), ("c", 1)):
    alma_jax.run(small_config("ens", seed=seed), tmp_path / name, data=arrays)
  assert_same_run(tmp_path / "a", tmp_path / "b")
  assert lines(tmp_path / "a", "train.jsonl") != lines(tmp_path / "c", "train.jsonl")


@pytest.mark.parametrize("replay", [0.0, 0.5])
@pytest.mark.parametrize("learner", LEARNERS)
def test_stopped_at_any_dispatch_a_run_ends_the_same(tmp_path, arrays, monkeypatch, learner, replay):
  one_step_a_dispatch(monkeypatch)
  config = small_config(learner, train__epochs=3, train__patience=2, checkpoint__seconds=1e9, stream__replay=replay,
                        train__batch_size=16)
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  for dispatches in (0, 1, 6, 13):
    assert interrupted(config, tmp_path / "cut", dispatches, data=arrays)
    assert not (tmp_path / "cut" / "summary.json").exists()
    alma_jax.run(config, tmp_path / "cut", data=arrays)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut")


def test_stopped_again_and_again(tmp_path, arrays, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = small_config("gens", train__epochs=3, stream__waiting_time=1, checkpoint__keep_every=2)
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  rounds = 0
  while interrupted(config, tmp_path / "cut", 2, data=arrays):
    rounds += 1
  assert rounds > 4
  assert_same_run(tmp_path / "whole", tmp_path / "cut")
  run = alma_jax.load_run(tmp_path / "cut")
  assert run.stages() == [1, 2, 3] or run.stages() == [1, 3]


def test_convolutional_runs_resume_inside_a_stage(tmp_path, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  data = (*blobs(80, (32, 32, 3)), *blobs(12, (32, 32, 3), seed=1))
  config = small_config("ens", learner__num_members=2, model__name="vgg", model__width=2, train__batch_size=16,
                        train__optimizer="sgd", train__learning_rate=0.01, train__momentum=0.9, train__augment=True,
                        stream__num_megabatches=2, stream__waiting_time=1)
  alma_jax.run(config, tmp_path / "whole", data=data)
  assert interrupted(config, tmp_path / "cut", 4, data=data)
  alma_jax.run(config, tmp_path / "cut", data=data)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_killed_without_warning(tmp_path):
  flags = ["--config.train.epochs=300", "--config.checkpoint.seconds=0.05", "--config.devices=1"]
  config = "configs/digits.py:ens"
  assert launch(config, *flags, f"--workdir={tmp_path}/whole").returncode == 0
  for _ in range(2):
    before = _size(tmp_path / "cut" / "train.jsonl")
    process = subprocess.Popen(command(config, *flags, f"--workdir={tmp_path}/cut"), cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while _size(tmp_path / "cut" / "train.jsonl") <= before + 100_000 and time.monotonic() < deadline:
      time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
  assert launch(config, *flags, f"--workdir={tmp_path}/cut").returncode == 0
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


def _size(path):
  return path.stat().st_size if path.exists() else 0


def test_sigterm_saves_and_exits_with_143(tmp_path):
  flags = ["--config.train.epochs=20000", "--config.devices=1", f"--workdir={tmp_path}"]
  process = subprocess.Popen(command("configs/digits.py:sm", *flags, "--config.train.patience=0"), cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  while _size(tmp_path / "train.jsonl") < 10_000:
    assert process.poll() is None
    time.sleep(0.02)
  busy = launch("configs/digits.py:sm", *flags, "--config.train.patience=0")
  assert busy.returncode == 2
  assert "in use by a live process" in busy.stderr
  process.terminate()
  _, said = process.communicate(timeout=60)
  assert process.returncode == 143, said
  assert "the same command goes on from there" in said
  assert any(p.name.isdigit() for p in (tmp_path / "checkpoints").iterdir())


def test_a_complete_run_says_so(tmp_path, arrays, capfd):
  first = alma_jax.run(small_config(), tmp_path, data=arrays)
  stamp = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
  again = alma_jax.run(small_config(), tmp_path, data=arrays)
  assert "is complete" in capfd.readouterr().err
  assert again.summary == first.summary
  assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == stamp


def test_a_folder_of_another_run_is_refused_by_its_fields(tmp_path, arrays):
  alma_jax.run(small_config(), tmp_path, data=arrays)
  with pytest.raises(alma_jax.BadInput, match=r"differs in model.width \(4 there, 5 here\), seed \(0 there, 1 here\)"):
    alma_jax.run(small_config(model__width=5, seed=1), tmp_path, data=arrays)
  with pytest.raises(alma_jax.BadInput, match="differs in the data"):
    alma_jax.run(small_config(), tmp_path, data=(*blobs(120, seed=9), *blobs(30)))
  (tmp_path / "notes.txt").write_text("mine")
  assert alma_jax.run(small_config(seed=1), tmp_path, data=arrays, overwrite=True).config.seed == 1
  assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["train.jsonl", "config.json", "checkpoints"])
def test_files_of_others_are_never_touched(tmp_path, arrays, name, overwrite):
  theirs = tmp_path / name / "x" if name == "checkpoints" else tmp_path / name
  theirs.parent.mkdir(exist_ok=True)
  theirs.write_text("[1, 2]")
  with pytest.raises(alma_jax.BadInput, match=f"holds {name}, but not from a run of this program"):
    alma_jax.run(small_config(), tmp_path, data=arrays, overwrite=overwrite)
  assert theirs.read_text() == "[1, 2]"


def test_data_that_do_not_fit_are_refused(tmp_path, arrays):
  with pytest.raises(alma_jax.BadInput, match="data holds 3 arrays"):
    alma_jax.run(small_config(), tmp_path, data=arrays[:3])
  flat = (arrays[0].reshape(120, -1), arrays[1], arrays[2].reshape(30, -1), arrays[3])
  with pytest.raises(alma_jax.BadInput, match=r"flips and crops images, but .* shape \(36,\)"):
    alma_jax.run(small_config(train__augment=True), tmp_path, data=flat)
  assert not list(tmp_path.iterdir())


def test_shortened_lines_are_refused(tmp_path, arrays):
  config = small_config(train__epochs=6, checkpoint__seconds=0.0)
  assert interrupted(config, tmp_path, 4, data=arrays)
  (tmp_path / "train.jsonl").write_text("")
  with pytest.raises(alma_jax.BadInput, match=r"train.jsonl has 0 lines, but the checkpoint covers"):
    alma_jax.run(config, tmp_path, data=arrays)


def test_a_diverging_loss_stops_the_run_and_keeps_what_was(tmp_path, arrays):
  x = arrays[0].astype(np.float32)
  # Half of the examples are so large that products overflow once they come up.
  stream_order = np.random.default_rng([0, 0]).permutation(len(x))
  x[stream_order[-20:]] = 3e38
  config = small_config(train__optimizer="sgd", train__learning_rate=1e3)
  with pytest.raises(alma_jax.Diverged, match="no longer finite in stage 1, epoch 1"):
    alma_jax.run(config, tmp_path, data=(x, arrays[1], arrays[2].astype(np.float32), arrays[3]))
  assert len(lines(tmp_path, "metrics.jsonl")) == 3
  assert len(lines(tmp_path, "train.jsonl")) == 2
  run = alma_jax.load_run(tmp_path)
  assert run.stages() == [0]
  assert np.isfinite(run.predict(arrays[2].astype(np.float32))).all()


def test_a_divergence_after_resuming_inside_the_stage_loses_and_doubles_nothing(tmp_path, arrays, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = small_config(train__epochs=6, train__batch_size=16)  # 4 steps an epoch, 24 a stage
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  assert interrupted(config, tmp_path / "cut", 24 + 10, data=arrays)
  assert [(entry["stage"], entry["epoch"]) for entry in lines(tmp_path / "cut", "train.jsonl")][-1][0] == 1
  record = experiment._Runner._record

  def diverging(self, records, data, began):
    done = record(self, records, data, began)
    if (data.stage, self._epoch) == (1, 5):
      raise alma_jax.Diverged("as if")
    return done

  with monkeypatch.context() as patched:
    patched.setattr(experiment._Runner, "_record", diverging)
    with pytest.raises(alma_jax.Diverged):
      alma_jax.run(config, tmp_path / "cut", data=arrays)
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


BAD_COMMANDS = [
    ("configs/digits.py:foo", [], "the learners are sm, ens, umix, gens"),
    ("configs/none.py:sm", [], "configs/none.py"),
    ("configs/digits.py:sm", ["--config.train.epoch=3"], "train.epoch"),
    ("configs/digits.py:sm", ["--config.train.epochs=many"], "many"),
    ("configs/digits.py:sm", ["--config.model.name=resnet"], "mlp, vgg"),
    ("configs/digits.py:sm", ["--config.dataset.name=imagenet"], "there are digits, mnist"),
    ("configs/digits.py:sm", ["--config.stream.num_megabatches=2000", "--config.stream.val_fraction=0.5"],
     "exceeds the 1437 training examples"),
    ("configs/digits.py:sm", ["--config.model.name=vgg"], "at least 32x32 pixels"),
    ("configs/digits.py:sm", ["--nosuchflag=1"], "nosuchflag"),
    ("configs/digits.py:sm", ["extra"], "unexpected argument 'extra'"),
    ("configs/digits.py:sm", ["--coordinator=localhost:1"], "go together"),
    ("configs/digits.py:sm", ["--coordinator=a:1", "--num_processes=1", "--process_id=3"], "below --num_processes=1"),
    ("configs/digits.py:sm", ["--config.checkpoint.seconds=inf"], "a finite number"),
    ("configs/mnist.py:sm", ["--config.dataset.data_dir=/nowhere"], "no prepared TFDS data set 'mnist'"),
    ("configs/npz.py:sm", [], "there is no file 'data.npz'"),
    ("configs/digits.py:sm", ["--workdir=/proc/nowhere"], "cannot be made"),
]


@pytest.mark.parametrize(("config", "flags", "sentence"), BAD_COMMANDS)
def test_bad_commands_get_one_sentence_and_exit_code_2(config, flags, sentence, tmp_path):
  if not any(flag.startswith("--workdir") for flag in flags):
    flags = [*flags, f"--workdir={tmp_path}/run"]
  env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=1")
  done = subprocess.run(command(config, *flags), cwd=ROOT, capture_output=True, text=True, check=False, env=env)
  assert done.returncode == 2, done.stderr
  assert sentence in done.stderr
  assert done.stderr.startswith("error: ")
  assert "Traceback" not in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1, done.stderr
  assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_help_lists_the_flags():
  done = launch("configs/digits.py:sm", "--help")
  assert done.returncode == 0
  assert "--workdir" in done.stdout


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **kwargs: COMPILED.append(event) if event.endswith("backend_compile_duration") else None)


@pytest.mark.parametrize("replay", [0.0, 1.0])
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_longer_stream_compiles_nothing_more(tmp_path, learner, replay):
  """5 stages and 50 compile the same number of functions."""
  data = (*blobs(1000), *blobs(30))
  counts = []
  for name, stages in ("warm", 5), ("short", 5), ("long", 50):  # the first also fills what jax never clears
    jax.clear_caches()
    COMPILED.clear()
    config = small_config(learner, stream__num_megabatches=stages, stream__waiting_time=1, stream__replay=replay,
                          train__epochs=1)
    alma_jax.run(config, tmp_path / name, data=data)
    assert program.advance._cache_size() == stacked._contribute._cache_size() == 1
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
  with pytest.raises(alma_jax.BadInput, match="do not look like the training examples"):
    run.predict(x_test[:, :5])
  with pytest.raises(alma_jax.BadInput, match="give raw, unnormalised inputs"):
    run.predict(x_test / 255)


def test_load_run_needs_a_run(tmp_path):
  with pytest.raises(alma_jax.BadInput, match="there is no run"):
    alma_jax.load_run(tmp_path)
