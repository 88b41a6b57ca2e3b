"""Stopping, killing and going on: a run ends the same."""
import signal
import subprocess
import sys
import time

import jax
import pytest
from runs import ROOT, assert_same_run, blobs, command, interrupted, launch, lines, one_step_a_dispatch, small_config

import alma_jax
from alma_jax import errors
from alma_jax.runs import loop
from alma_jax.training import loop as training


def test_another_seed_is_another_run(tmp_path, arrays):
  """Runs of equal seeds are compared below."""
  for seed in (0, 1):
    alma_jax.run(small_config("ens", seed=seed), tmp_path / str(seed), data=arrays)
  assert lines(tmp_path / "0", "train.jsonl") != lines(tmp_path / "1", "train.jsonl")


@pytest.mark.parametrize("stops", [True, False])
def test_a_signal_that_also_ends_the_compiler_of_a_gpu_stops_the_run(tmp_path, arrays, monkeypatch, stops):
  """Ctrl-C reaches every process of a terminal. Then a compilation fails as if the compiler were broken."""
  config, advance, calls = small_config("ens"), training.advance, []

  def broken(*args):
    calls.append(args)
    if len(calls) == 3:
      raise jax.errors.JaxRuntimeError("INTERNAL: ptxas exited with non-zero error code 2")
    return advance(*args)

  alma_jax.run(config, tmp_path / "whole", data=arrays)
  monkeypatch.setattr(training, "advance", broken)
  with pytest.raises(errors.Stopped if stops else jax.errors.JaxRuntimeError, match="last save" if stops else "ptxas"):
    alma_jax.run(config, tmp_path / "cut", data=arrays, should_stop=lambda: stops and len(calls) == 3)
  assert (tmp_path / "cut/stopped.json").exists() == stops
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_sigterm_saves_and_exits_with_143(tmp_path):
  flags = ["--config.train.epochs=20000", "--config.devices=1", f"--workdir={tmp_path}"]
  process = subprocess.Popen(command("configs/digits.py:sm", *flags, "--config.train.patience=0"), cwd=ROOT,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  while not (tmp_path / "train.jsonl").exists() or (tmp_path / "train.jsonl").stat().st_size < 10_000:
    assert process.poll() is None
    time.sleep(0.02)
  busy = launch("configs/digits.py:sm", *flags, "--config.train.patience=0")
  assert busy.returncode == 2
  assert "in use by another process" in busy.stderr
  process.terminate()
  _, said = process.communicate(timeout=60)
  assert process.returncode == 143, said
  assert "run the command again, and it continues from there" in said
  assert any(p.name.isdigit() for p in (tmp_path / "checkpoints").iterdir())


SLOW_DATA = """
import signal, sys, time
from alma_jax import main
from alma_jax.data.sets import digits

def load(*args):
  signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})  # none wakes the main thread
  print("loading", flush=True)
  while True:
    try:
      time.sleep(60)
    except Exception:  # as a download that is tried again and again
      pass

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
  signal.signal(number, signal.SIG_DFL)  # the tests themselves may run with some of them ignored
digits.Digits.load = load
sys.argv = ["main", "--config=configs/digits.py:sm", f"--workdir={sys.argv[1]}"]
sys.exit(main.main())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_stopped_while_data_are_loaded(tmp_path, number, code):
  process = subprocess.Popen([sys.executable, "-c", SLOW_DATA, str(tmp_path / "run")], cwd=ROOT,
                             stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == "loading\n"
  process.send_signal(number)
  assert process.wait(timeout=30) == code
  assert not (tmp_path / "run").exists()


def test_a_complete_run_says_so(tmp_path, arrays, capfd):
  first = alma_jax.run(small_config(), tmp_path, data=arrays)
  stamp = (tmp_path / "metrics.jsonl").stat().st_mtime_ns
  again = alma_jax.run(small_config(), tmp_path, data=arrays)
  assert capfd.readouterr().err.endswith(f"{tmp_path} is complete.\n")
  alma_jax.run(small_config(log__metrics=("macro_f1",), log__predictor=True), tmp_path, data=arrays)
  assert "is complete. It has ended, so it ignores log.metrics, log.predictor; " in capfd.readouterr().err
  assert again.summary == first.summary
  assert (tmp_path / "metrics.jsonl").stat().st_mtime_ns == stamp


def test_a_folder_of_another_run_is_refused_by_its_fields(tmp_path, arrays):
  alma_jax.run(small_config(), tmp_path, data=arrays)
  with pytest.raises(alma_jax.BadInput, match=r"differs in model.width \(4 there, 5 here\), seed \(0 there, 1 here\)"):
    alma_jax.run(small_config(model__width=5, seed=1), tmp_path, data=arrays)
  with pytest.raises(alma_jax.BadInput, match="differs in the data"):
    alma_jax.run(small_config(), tmp_path, data=(*blobs(120, seed=9), *blobs(30, seed=1)))
  (tmp_path / "notes.txt").write_text("mine")
  assert alma_jax.run(small_config(seed=1), tmp_path, data=arrays, overwrite=True).config.seed == 1
  assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["train.jsonl", "config.json", "checkpoints"])
def test_files_of_others_are_never_changed(tmp_path, arrays, name, overwrite):
  theirs = tmp_path / name / "x" if name == "checkpoints" else tmp_path / name
  theirs.parent.mkdir(exist_ok=True)
  theirs.write_text("[1, 2]")
  with pytest.raises(alma_jax.BadInput, match=f"{name}.* not from a run of alma_jax"):
    alma_jax.run(small_config(), tmp_path, data=arrays, overwrite=overwrite)
  assert theirs.read_text() == "[1, 2]"


def test_shortened_lines_are_refused(tmp_path, arrays):
  config = small_config(train__epochs=6, checkpoint__seconds=0.0)
  assert interrupted(config, tmp_path, 4, data=arrays)
  (tmp_path / "train.jsonl").write_text("")
  with pytest.raises(alma_jax.BadInput, match=r"train.jsonl has 0 whole lines, but the checkpoint covers"):
    alma_jax.run(config, tmp_path, data=arrays)


def test_a_divergence_after_resuming_inside_the_stage_loses_and_doubles_nothing(tmp_path, arrays, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = small_config(train__epochs=6, train__batch_size=16)  # 4 steps an epoch, 24 a stage
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  assert interrupted(config, tmp_path / "cut", 24 + 10, data=arrays)
  assert [(entry["stage"], entry["epoch"]) for entry in lines(tmp_path / "cut", "train.jsonl")][-1][0] == 1
  record = loop.Session._record

  def diverging(self, fitting, records, began):
    done = record(self, fitting, records, began)
    if (fitting.data.stage, self.now.epoch) == (1, 5):
      raise alma_jax.Diverged("as if")
    return done

  with monkeypatch.context() as patched:
    patched.setattr(loop.Session, "_record", diverging)
    with pytest.raises(alma_jax.Diverged):
      alma_jax.run(config, tmp_path / "cut", data=arrays)
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")
