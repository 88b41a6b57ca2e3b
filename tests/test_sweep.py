"""Sweeps: points, jobs, processes that die, SLURM (a stand-in), predictions."""
import errno
import io
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tarfile
import time

import jax
import pandas as pd
import pytest
from runs import ROOT, alma

import alma_jax
from alma_jax import config as package_configs
from alma_jax import sweep as command
from alma_jax import sweeps
from alma_jax.data import tfds_folder
from alma_jax.errors import BadInput, InUse
from alma_jax.learners import contract
from alma_jax.models import cost
from alma_jax.reports import collect
from alma_jax.runs import settings
from alma_jax.store import run_files
from alma_jax.sweeps import axis, dry_run, jobs, launch, pool, product, states, worker, zipped

SMALL = {"stream.num_megabatches": 2, "stream.waiting_time": 1, "train.epochs": 2, "model.width": 4,
         "log.tensorboard": False}


def small_sweep(*points, **fixed):
  return sweeps.Sweep(str(ROOT / "configs/digits.py"), list(points), SMALL | fixed)


def sweep_file(folder, points, fixed=SMALL):
  path = folder / "small.py"
  path.write_text("from alma_jax.sweeps import Sweep\n\n\ndef get_sweep():\n"
                  f"  return Sweep({str(ROOT / 'configs/digits.py')!r}, {points!r}, {fixed!r})\n")
  return path


def sweep(*flags):
  return alma("sweep", *flags)


def finished(job, **summary):
  """Makes the job's folder that of a finished run of 10 s, 4 of them for compiling."""
  job.workdir.mkdir(parents=True)
  (job.workdir / "config.json").write_text(json.dumps(
      job.packed()["config"] | {"data_fingerprint": "0", "format": run_files.FORMAT}))
  (job.workdir / "summary.json").write_text(json.dumps(
      dict(cer=1.0, mean_error=0.5, final_error=0.5, wall_seconds=10.0, compile_seconds=4.0, device="cpu",
           cumulative_params=1, cumulative_fwd_macs=1, cumulative_train_flops=1, cumulative_growth_macs=0, num_stages=1,
           num_megabatches=2, config_sha256=package_configs.digest(job.config)) | summary))


def full(*unused):
  raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def fake_pool(monkeypatch):
  """A list for functions jobs -> Event, which take the place of the workers. Restores the handlers of signals."""
  numbers, acts = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), []
  handlers = [signal.getsignal(number) for number in numbers]
  monkeypatch.setattr(pool, "run", lambda jobs, *unused: (act(jobs) for act in acts))
  yield acts
  for number, handler in zip(numbers, handlers):
    signal.signal(number, handler)


def test_points_by_hand():
  assert axis("seed", [0, 1]) == [{"seed": 0}, {"seed": 1}]
  assert product(axis("a", [1, 2]), axis("b", [3, 4])) == [
      {"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4}]
  assert zipped(axis("a", [1, 2]), axis("b", [3, 4])) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
  assert product(zipped(axis("a", [1, 2]), axis("b", [3, 4])), axis("c", [5])) == [
      {"a": 1, "b": 3, "c": 5}, {"a": 2, "b": 4, "c": 5}]


def test_jobs_have_configs_and_folders_of_their_own(tmp_path):
  points = product(axis("learner", ["sm", "ens"]), axis("width", [4, 8]), axis("stream.waiting_time", [2]))
  made = jobs.make(small_sweep(*points), tmp_path, {"train.epochs": "7", "train.learning_rate": "0.5"})
  assert [job.name for job in made] == ["sm-width4-waiting_time2", "sm-width8-waiting_time2",
                                        "ens-width4-waiting_time2", "ens-width8-waiting_time2"]
  assert [(job.config.learner.name, job.config.model.width) for job in made] == [
      ("sm", 4), ("sm", 8), ("ens", 4), ("ens", 8)]
  assert {(job.config.train.epochs, job.config.train.learning_rate, job.config.stream.schedule.waiting_time)
          for job in made} == {(7, 0.5, 2)}
  assert made[0].workdir == tmp_path / made[0].name


def test_a_learner_that_all_points_share(tmp_path):
  (job,) = jobs.make(small_sweep({"seed": 3}, learner="sm"), tmp_path)
  assert (job.config.learner.name, job.name) == ("sm", "seed3")
  with pytest.raises(BadInput, match="the axis 'learner' needs names of learners, not 3"):
    jobs.make(small_sweep({"seed": 3}, learner=3), tmp_path)


def test_other_seeds_than_those_of_the_file(tmp_path):
  """Each kind of run once for each of the seeds, with the names that the file gives its own seeds."""
  points = product(axis("seed", [0, 1]), [*product(axis("learner", ["sm"]), axis("width", [4, 8])), {"learner": "ens"}])
  made = jobs.make(jobs.with_seeds(small_sweep(*points), [3, 1]), tmp_path)
  assert [job.name for job in made] == [
      f"seed{seed}-{kind}" for seed in (3, 1) for kind in ("sm-width4", "sm-width8", "ens")]
  assert [job.config.seed for job in made] == [3, 3, 3, 1, 1, 1]
  own = {job.name: package_configs.identity(job.config)
         for job in jobs.make(small_sweep(*points), tmp_path)}
  assert {job.name: package_configs.identity(job.config) for job in made[3:]}.items() <= own.items()


def test_a_folder_of_another_run_is_refused(tmp_path):
  (job,) = jobs.make(small_sweep({"learner": "sm"}), tmp_path)
  assert states.state(job, {}).kind == states.NEW
  job.workdir.mkdir()
  for changes, kind in (({}, states.BEGUN), ({"train.epochs": "3"}, states.REFUSED)):
    (other,) = jobs.make(small_sweep({"learner": "sm"}), tmp_path, changes)
    stored = other.packed()["config"] | {"data_fingerprint": "0", "format": run_files.FORMAT}
    (job.workdir / "config.json").write_text(json.dumps(stored))
    assert states.state(job, {}).kind == kind
  state = states.state(job, {})
  assert "differs in train.epochs (3 there, 2 here); move it away" in state.line
  shown = launch.Board([job], {job.name: state}, 1).summary()
  assert shown.startswith("0 of 1 runs are finished.\nrefused: sm: ")
  assert "--retry" not in shown
  for text in ("{", "[]", "{}"):
    (job.workdir / "config.json").write_text(text)
    assert states.state(job, {}).kind == states.REFUSED


def test_a_run_is_finished_by_a_summary_of_a_run(tmp_path):
  (job,) = jobs.make(small_sweep({"learner": "sm"}), tmp_path)
  finished(job)
  assert states.state(job, {}).kind == states.FINISHED
  for text in ("", "{", "{}", "[1]", '{"cer": null}', '{"cer": true}', '{"cer": NaN}'):
    (job.workdir / "summary.json").write_text(text)
    state = states.state(job, {})
    assert state.kind == states.REFUSED
    assert ("cannot be read as JSON" if len(text) < 2 else
            "; delete it, and run the run's own command to write it again.") in state.line


def test_a_damaged_file_of_failures(tmp_path, capsys, fake_pool):
  flags = [f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs"]
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/failures.json").write_text("{")
  assert command.main(flags) == command.main([*flags, "--dry_run"]) == 2
  assert capsys.readouterr().err.count("failures.json cannot be read as JSON") == 2
  assert command.main([*flags, "--retry"]) == 1  # nothing has run
  assert "0 of 1 runs are finished" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_exit_codes_of_signals(tmp_path, capsys, fake_pool, number):
  def stopped(made):
    os.kill(os.getpid(), number)
    return states.Event(states.STOPPED, made[0], "saved")

  signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)  # nohup ignores it
  fake_pool.append(stopped)
  flags = [f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs"]
  assert command.main(flags) == 128 + number
  assert "stopped; run the command again, and the sweep continues" in capsys.readouterr().err


def test_an_ignored_sighup_stays_ignored(tmp_path, fake_pool):
  def hang_up(made):
    os.kill(os.getpid(), signal.SIGHUP)
    return states.Event(states.FAILED, made[0], "it broke")

  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  fake_pool.append(hang_up)
  assert command.main([f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs"]) == 1


def test_a_full_disk_stops_no_run(tmp_path, capfd, monkeypatch, fake_pool):
  """If failures.json cannot be written there is a warning; output to a full disk is lost, and the sweep goes on."""
  fake_pool.append(lambda made: states.Event(states.FAILED, made[0], "it broke"))
  monkeypatch.setattr(run_files, "write_json", full)
  flags = [f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs"]
  assert command.main(flags) == 1
  out, err = capfd.readouterr()
  assert "failed: run: it broke" in out
  assert "failures.json cannot be written: No space left on device; run the command again, and it runs" in err
  assert "Traceback" not in err
  monkeypatch.setattr("sys.stderr", open("/dev/full", "w"))  # noqa: SIM115
  shown = launch.Board(*board_of(tmp_path, 1), 1)
  shown.update(states.Event(states.FAILED, next(iter(shown._jobs.values())), "it broke"))
  shown.close()
  assert command.main(flags) == 1


def board_of(folder, num):
  """Jobs of `num` seeds, and their states."""
  made = jobs.make(small_sweep(*axis("seed", range(num))), folder / "board")
  return made, {job.name: states.state(job, {}) for job in made}


def test_a_log_that_cannot_be_written(tmp_path, monkeypatch):
  (job,) = jobs.make(small_sweep({"learner": "sm"}), tmp_path)
  monkeypatch.setattr("alma_jax.runs.experiment.run", lambda *args, **named: 1 / 0)
  monkeypatch.setattr("sys.stderr", open("/dev/full", "w"))  # noqa: SIM115
  assert worker.attempt(job.packed()) == (worker.BROKEN, "ZeroDivisionError: division by zero")


def test_a_folder_that_may_not_be_read(tmp_path, capsys, monkeypatch):
  def refuse(path):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))

  monkeypatch.setattr(pathlib.Path, "exists", refuse)
  path = sweep_file(tmp_path, [{}])
  assert command.main([f"--config={path}", f"--workdir={tmp_path}/runs"]) == 2
  assert capsys.readouterr().err == (
      f"error: the folder {tmp_path}/runs cannot be made, read or written: Permission denied.\n")


@pytest.mark.parametrize("name", [name for name in package_configs.packaged() if name.startswith("sweeps/")])
def test_the_sweep_files_of_the_package(name, tmp_path):
  """Every point is a config that can be checked, and all runs of a study have several seeds."""
  made = jobs.make(jobs.load(name), tmp_path)
  assert len({job.config.seed for job in made}) > 1


def test_a_sweep_file_with_an_argument(tmp_path):
  small, full = (jobs.make(jobs.load(f"configs/sweeps/cifar.py{arg}"), tmp_path) for arg in ("", ":full"))
  widths = [{job.config.model.width for job in made} for made in (small, full)]
  assert widths[0] == {4, 8} | {6, 12}  # and those near the costs of Firefly
  assert widths[1] == {4, 8, 16, 32, 64} | {6, 12, 24, 48, 96}
  rivals = [job.config for job in small if job.config.learner.name == "moe"]
  assert {(c.model.width, c.model.num_experts, c.stream.schedule.waiting_time) for c in rivals} == {
      (4, 3, 10), (4, 3, 1), (8, 3, 10), (8, 3, 1)}
  assert {job.config.train.epochs for job in full} == {100}


@pytest.mark.slow
def test_a_sweep_goes_on_on_another_machine(tmp_path, monkeypatch):
  """What benchmarks/pack.py takes of a finished run is what a sweep and a report read."""
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import pack
  here, there = (jobs.make(small_sweep({"seed": 0}, {"seed": 1}), tmp_path / name / "runs")
                 for name in ("here", "there"))
  for job in here:
    alma_jax.run(job.config, job.workdir)
  (here[1].workdir / "summary.json").unlink()
  stored = json.loads((here[0].workdir / "config.json").read_text())
  stored["dataset"]["data_dir"] = "/of/this/machine"
  (here[0].workdir / "config.json").write_text(json.dumps(stored))
  assert pack.pack(tmp_path / "here/runs", tmp_path / "runs.tar.xz") == 1
  with tarfile.open(tmp_path / "runs.tar.xz") as tar:
    tar.extractall(tmp_path / "there", filter="data")
  assert [states.state(job, {}).kind for job in there] == [states.FINISHED, states.NEW]
  assert "of/this/machine" not in (there[0].workdir / "config.json").read_text()
  (before,), (after,) = (collect.collect([job.workdir])[0] for job in (here[0], there[0]))
  pd.testing.assert_frame_equal(*(study.runs.drop(columns=["run", "dataset.data_dir"], errors="ignore")
                                  for study in (before, after)))
  pd.testing.assert_frame_equal(*(study.stream.drop(columns="run") for study in (before, after)))
  with pytest.raises(BadInput, match="there is no finished run in"):
    pack.pack(tmp_path, tmp_path / "none.tar.xz")
  assert not (tmp_path / "none.tar.xz").exists()


def test_runs_that_cannot_be_are_named_among_the_others(tmp_path):
  path = sweep_file(tmp_path, [{"num_megabatches": num} for num in (2, 3, 4)] + [
      {"num_megabatches": 5000, "seed": seed} for seed in range(3)])
  (tmp_path / "runs").mkdir()
  (tmp_path / "runs/failures.json").write_text('{"num_megabatches3": "it broke"}')
  (tmp_path / "runs/num_megabatches4").mkdir()
  (tmp_path / "runs/num_megabatches4/config.json").write_text("{}")
  flags = [f"--config={path}", f"--workdir={tmp_path}/runs", "--dry_run", "--config.train.batch_size=64"]
  done = sweep(*flags)
  assert done.returncode == 0, done.stderr
  assert ("\n6 runs: 1 failed (--retry runs them again), 1 refused, because their folders hold something else, 3 that "
          "cannot be run, 1 left\nthose left take at most ") in done.stdout
  assert "\nchanged in all runs: train.batch_size=64\n" in done.stdout
  assert re.search("num_megabatches4 .* refused: .*config.json is not from a run of alma_jax", done.stdout)
  assert "3 that cannot be run, 2 left\n" in sweep(*flags, "--retry").stdout
  assert "num_megabatches5000-seed0 and 2 others cannot be run: stream.num_megabatches=5000 exceeds" in done.stdout
  assert re.search("num_megabatches2 .* new", done.stdout)
  assert re.search("num_megabatches3 .* failed: it broke", done.stdout)


def test_a_network_that_does_not_fit_a_stream_is_found_though_both_are_known(tmp_path):
  learners = zipped(axis("learner", ["sm", "hmoe"]), axis("num_experts", [1, 16]))
  sweep = small_sweep(*product(learners, axis("val_fraction", [0.1, 0.95])),
                      **{"stream.num_megabatches": 20, "stream.waiting_time": 1})
  found = dry_run.predict([job.config for job in jobs.make(sweep, tmp_path)], here=True)
  assert [isinstance(one, BadInput) for one in found] == [False, False, False, True]
  assert "16 clusters exceed the 4 training examples" in str(found[3])


def test_a_dry_run_needs_known_data_only_where_the_config_names_their_folder(tmp_path, tfds_dir, monkeypatch):
  def predicted(folder):
    (job,) = jobs.make(small_sweep({}, **{"dataset.name": "mnist", "dataset.data_dir": str(folder)}), tmp_path)
    return dry_run.predict([job.config])[0]

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "empty"))
  here, there, missing = predicted(""), predicted(tfds_dir), predicted(tmp_path / "empty")
  assert here.steps == there.steps > 0
  assert "holds no prepared TFDS data set 'mnist'" in str(missing)
  flags = [f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs", "--dry_run",
           "--config.dataset.name=mnist"]
  assert "\nmnist is not on this machine yet; the first run downloads it" in sweep(*flags).stdout
  assert "downloads" not in sweep(*flags, f"--config.dataset.data_dir={tfds_dir}").stdout
  monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
  for name in ("mnist", "tfds:mnist"):
    assert "downloads" not in sweep(*flags, f"--config.dataset.name={name}").stdout


def test_a_download_that_fails_is_tried_once_a_prediction(tmp_path, monkeypatch):
  tried = []

  def fail(root, name):
    tried.append(name)
    raise BadInput(f"there is no way to {name}.")

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(tfds_folder, "_downloaded", fail)
  points = product(axis("dataset.name", ["s_minus", "s_pl"]), axis("learner", ["independent", "finetune"]))
  made = jobs.make(sweeps.Sweep(str(ROOT / "configs/tasks.py"), points), tmp_path)
  for num in (1, 2):
    found = dry_run.predict([job.config for job in made], here=True)
    assert all("there is no way to" in str(one) for one in found)
    assert len(tried) == num * len(set(tried))


@pytest.mark.parametrize("learner", ["gens", "gmoe", "ff", "hmoe"])
def test_less_is_traced_for_predictions_and_the_costs_are_the_same(learner, tmp_path):
  (job,) = jobs.make(small_sweep({"learner": learner}), tmp_path)
  learner = settings.prepare(job.config).learner
  state = contract.untrained(learner) or learner.init()
  with cost.predicting():
    traced = contract.untrained(learner) or learner.init()
    predicted = learner.cost(traced)
  shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), one.live) for one in (state, traced)]
  assert shapes[0] == shapes[1]
  assert predicted._replace(train_flops=0) == learner.cost(state)._replace(train_flops=0)


def test_a_prediction_counts_the_experts_that_growth_adds(tmp_path):
  (job,) = jobs.make(small_sweep({"learner": "gmoe", "split_by": "random", "grow_every": 1}), tmp_path)
  (found,) = dry_run.predict([job.config])
  assert found.macs == alma_jax.run(job.config, job.workdir).summary["cumulative_fwd_macs"]


def test_predictions_allocate_nothing(tmp_path):
  """10^14 weights are counted, and refused only where they would run."""
  (job,) = jobs.make(small_sweep({"width": 10**7}), tmp_path)
  assert dry_run.predict([job.config])[0].macs > 10**14
  refused, = dry_run.predict([job.config], here=True)
  assert isinstance(refused, BadInput)
  assert "lower model.width=10000000" in str(refused)


def test_a_dry_run_does_not_wait_for_a_live_stream(tmp_path, capsys):
  (tmp_path / "live/stream").mkdir(parents=True)
  flags = [f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs", "--dry_run",
           f"--config.dataset.name=live:{tmp_path}/live"]
  assert command.main(flags) == 2
  assert f"the costs of dataset.name=live:{tmp_path}/live depend on mega-batches" in capsys.readouterr().err


def test_a_dry_run_estimates_from_finished_runs(tmp_path, capsys):
  path = sweep_file(tmp_path, [{"epochs": 2}, {"epochs": 2, "seed": 1}, {"epochs": 4},
                               {"epochs": 4, "width": 10**7}])
  flags = [f"--config={path}", f"--workdir={tmp_path}/runs", "--dry_run", "--workers=1"]
  assert command.main(flags) == 0
  assert "seconds" not in capsys.readouterr().out
  finished(jobs.make(jobs.load(path), tmp_path / "runs")[0])
  assert command.main(flags) == 0
  out = capsys.readouterr().out
  assert re.search(r"epochs2 .* 10  finished", out)
  assert re.search(r"epochs2-seed1 .* ~10  new", out)
  assert "roughly 20 s with 1 worker, estimated from finished runs" in out
  assert "epochs4-width10000000 cannot be run: the run needs at least" in out


def test_time_left_from_the_first_finished_run_on(tmp_path):
  shown = launch.Board(*board_of(tmp_path, 3), 1)
  made = list(shown._jobs.values())
  shown.update(states.Event(states.STARTED, made[0]))
  assert shown.line() == "0 finished, 1 running, 0 failed, 2 waiting"
  finished(made[0])
  shown.update(states.Event(states.DONE, made[0]))
  assert shown.line() == "1 finished, 0 running, 0 failed, 2 waiting, about 20 s left"
  made[1].workdir.mkdir(parents=True)
  (made[1].workdir / "metrics.jsonl").write_text("one of two mega-batches\n")
  shown.update(states.Event(states.STARTED, made[1]))
  finished(made[2])
  shown.update(states.Event(states.DONE, made[2]))
  assert shown.line() == "2 finished, 1 running, 0 failed, 0 waiting, about 5 s left"


def test_time_left_counts_runs_with_an_estimate(tmp_path):
  made, before = board_of(tmp_path, 3)
  finished(made[0])
  shown = launch.Board(made, before | {made[0].name: states.state(made[0], {})}, 1)
  assert shown.line() == "1 finished, 0 running, 0 failed, 2 waiting, about 20 s left"
  assert states.time_left({"a": before["seed1"], "b": before["seed2"]}, {"a": 7.0}, 1) == "roughly 14 s"
  assert states.time_left({"a": before["seed1"]}, {}, 2) == ""
  assert states.time_left({"a": before["seed1"]._replace(done=3, total=0)}, {"a": 7.0}, 1) == "about 7 s"


def test_a_name_on_the_command_line_drops_fixed_fields_but_no_axis(tmp_path):
  flags = {"stream.schedule": "geometric"}
  assert jobs.make(small_sweep({}, waiting_time=1), tmp_path, flags)[0].config.stream.schedule.name == "geometric"
  with pytest.raises(BadInput, match="the axis 'waiting_time' of the sweep is not a field"):
    jobs.make(small_sweep({"waiting_time": 1}), tmp_path, flags)


def test_estimates_by_hand(tmp_path):
  """The mean seconds of finished runs that differ in the stream and the seed alone."""
  points = [{"seed": 0}, {"seed": 1}, {"waiting_time": 2}, {"epochs": 4}, {"num_members": 3}, {"precision": "bfloat16"}]
  made = jobs.make(small_sweep(*points), tmp_path)
  names = [job.name for job in made]
  assert states.estimate(made) == {}
  finished(made[0], wall_seconds=12.0)
  assert states.estimate(made) == dict.fromkeys(names[:3], 12.0)
  finished(made[1], wall_seconds=14.0)
  (made[1].workdir / "config.json").write_text("[]")
  assert states.estimate(made)[names[2]] == 12.0
  finished(made[3], wall_seconds=5.0)
  assert states.estimate(made)[names[3]] == 5.0
  left = dict.fromkeys("abc", states.State(states.NEW, 0, 2))
  assert states.time_left(left, dict(a=6.0, b=2.0, c=1.0), 2) == "about 6 s"
  assert states.time_left(left, dict(a=3.0, b=3.0, c=3.0), 2) == "about 4.5 s"


def test_a_worker_waits_for_a_folder_that_is_being_left(tmp_path, monkeypatch):
  """As after a sweep was killed: its workers save before they end."""
  from alma_jax.runs import experiment
  (job,) = jobs.make(small_sweep({"learner": "sm"}), tmp_path)
  calls = []

  def run(*unused, **named):
    calls.append(named)
    if len(calls) < 3:
      raise InUse("it is in use.")

  monkeypatch.setattr(experiment, "run", run)
  monkeypatch.setattr(time, "sleep", lambda seconds: None)
  assert worker.attempt(job.packed()) == (states.DONE, "")
  assert len(calls) == 3
  calls.clear()
  assert worker.attempt(job.packed(), lambda: True) == (states.STOPPED, "stopped before it could begin.")
  calls.clear()
  monkeypatch.setattr(worker, "_IN_USE", -1.0)
  assert worker.attempt(job.packed()) == (states.FAILED, "it is in use.")


def test_cores_are_divided(monkeypatch):
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  monkeypatch.setattr(pool, "usable_cores", lambda: list(range(8)))
  monkeypatch.setattr(pool, "num_gpus", lambda: 0)
  assert [cores for _, cores in pool.places(3)] == [[0, 1], [2, 3, 4], [5, 6, 7]]
  assert [cores for _, cores in pool.places(9)][-1] == [7]
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
  monkeypatch.setattr(pool, "num_gpus", lambda: 2)
  assert [env["CUDA_VISIBLE_DEVICES"] for env, _ in pool.places(3)] == ["3", "3", "5"]
  assert pool.places(1)[0].environment["CUDA_VISIBLE_DEVICES"] == "3,5"


def test_the_bar(tmp_path, monkeypatch):
  monkeypatch.setattr("sys.stderr", terminal := io.StringIO())
  terminal.isatty = lambda: True
  made = jobs.make(small_sweep({"seed": 0}, {"seed": 1}, {"seed": 2}), tmp_path)
  shown = launch.Board(made, {job.name: states.state(job, {}) for job in made}, 2)
  shown.update(states.Event(states.STARTED, made[0]))
  shown.update(states.Event(states.STARTED, made[1]))
  shown.update(states.Event(states.FAILED, made[1], "it broke"))
  assert "0 finished, 1 running, 1 failed, 1 waiting" in terminal.getvalue().split("\r")[-1]
  assert "seed1 failed: it broke" in terminal.getvalue()
  assert shown.summary().splitlines() == ["0 of 3 runs are finished.", "failed: seed1: it broke",
                                          "--retry runs the failed ones again."]


_STAND_IN = '''#!{python}
"""As much of SLURM as submitit needs: tasks of an array run one after the other on this machine."""
import os, pathlib, re, subprocess, sys
home = pathlib.Path(os.environ["STAND_IN"])
name, args = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if name == "sbatch" and args[0] != "--run":
  text = pathlib.Path(args[0]).read_text()
  (home / "script").write_text(text)
  nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
  subprocess.Popen([sys.argv[0], "--run", args[0]], start_new_session=True, **nowhere)
  print("Submitted batch job 7")
elif name == "sbatch":
  array = re.search(r"--array=0-(\\d+)", pathlib.Path(args[1]).read_text())
  for task in range(int(array.group(1)) + 1 if array else 1):
    env, state = dict(os.environ, SLURM_JOB_ID=str(100 + task) if array else "7", TASK=str(task)), home / "7"
    if array:
      env, state = env | dict(SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(task)), home / f"7_{{task}}"
    while True:
      state.write_text("RUNNING")
      code = subprocess.run(["bash", args[1]], env=env).returncode
      if not (home / f"requeue_{{task}}").exists():
        break
      (home / f"requeue_{{task}}").rename(home / f"requeued_{{task}}")
    state.write_text("COMPLETED" if code == 0 else "FAILED")
elif name == "srun":
  task = os.environ["TASK"]
  files = {{}}
  while args[0].startswith("-"):
    option = args.pop(0)
    if option in ("--output", "--error"):
      files[option] = args.pop(0).replace("%A", "7").replace("%a", task).replace("%t", "0").replace("%j", "7_" + task)
  with open(files["--output"], "a") as out, open(files["--error"], "a") as err:
    process = subprocess.Popen(args, stdout=out, stderr=err)
    (home / f"pid_{{task}}").write_text(str(process.pid))
    sys.exit(process.wait() and 1)
elif name == "sacct":
  print("JobID|State|NodeList")
  for path in home.glob("7*"):
    print(f"{{path.name}}|{{path.read_text()}}|here")
elif name == "scontrol" and args[0] == "requeue":
  (home / f"requeue_{{os.environ['TASK']}}").touch()
'''


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
  """Commands in the place of SLURM's, and the folder of their state."""
  binaries, home = tmp_path / "bin", tmp_path / "slurm_state"
  binaries.mkdir()
  home.mkdir()
  for name in ("sbatch", "srun", "sacct", "scontrol"):
    (binaries / name).write_text(_STAND_IN.format(python=sys.executable))
    (binaries / name).chmod((binaries / name).stat().st_mode | stat.S_IXUSR)
  monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
  monkeypatch.setenv("STAND_IN", str(home))
  return home


def test_slurm_where_there_is_none(tmp_path):
  """In a process of its own: submitit writes to the standard error of the process that imports it."""
  flags = f"--config={sweep_file(tmp_path, [{}])}", f"--workdir={tmp_path}/runs", "--launcher=slurm"
  done = subprocess.run([sys.executable, "-m", "alma_jax.sweep", *flags], cwd=ROOT, capture_output=True, text=True,
                        check=False)
  assert done.returncode == 2
  assert "there is no SLURM here (no sbatch)" in done.stderr


def test_slurm_with_one_job_that_fails_and_is_submitted_again(tmp_path, stand_in, monkeypatch):
  from alma_jax.sweeps import slurm
  monkeypatch.setattr(slurm, "_SECONDS", 0.2)
  folder = tmp_path / "runs/slurm"
  folder.mkdir(parents=True)
  (job,) = jobs.make(small_sweep({"seed": 0}, **{"dataset.name": f"npz:{tmp_path}/none.npz"}), tmp_path / "runs")
  (folder / "jobs.json").write_text('{"seed0": "6_0"}')  # of a job that SLURM has forgotten
  seen = [event for event in slurm.run([job], 0, folder, {}, lambda: False) if event.job is not None]
  assert [event.kind for event in seen] == ["failed"]
  assert seen[0].line.startswith("there is no file")
  assert "--time=1440" in (stand_in / "script").read_text()
  with pytest.raises(BadInput, match="SLURM does not accept these options"):
    list(slurm.run([job], 0, folder, {"nonsense": 1}, lambda: False))
  monkeypatch.setattr(run_files, "write_json", full)
  with pytest.raises(BadInput, match="jobs.json cannot be written: No space left on device"):
    list(slurm.run([job], 0, folder, {}, lambda: False))
