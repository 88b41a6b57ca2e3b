"""Sweeps with real workers, and with a stand-in for SLURM."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from runs import ROOT, lines
from test_sweep import SMALL, finished, small_sweep, stand_in, sweep, sweep_file  # noqa: F401

import alma_jax
from alma_jax.sweeps import axis, dry_run, jobs, pool, product, states

pytestmark = pytest.mark.slow


def test_a_sweep_from_the_command_line(tmp_path):
  """One run diverges; the others finish. Finished ones are skipped, failed ones wait for --retry."""
  good = {"optimizer": "sgd", "learning_rate": 0.1}
  points = [{"learner": "sm", **good}, {"learner": "sm", "optimizer": "sgd", "learning_rate": 1e30},
            {"learner": "ens", "num_members": 2, **good}]
  flags = [f"--config={sweep_file(tmp_path, points)}", f"--workdir={tmp_path}/runs", "--workers=2"]
  done = sweep(*flags)
  assert done.returncode == 1, done.stderr
  assert "2 of 3 runs are finished" in done.stdout
  name = "sm-optimizersgd-learning_rate1e_30"
  assert re.search(rf"failed: {name}: train_loss is no longer finite in stage 1", done.stdout)
  assert "finished in" in done.stderr
  assert "running in" in (tmp_path / "runs/logs" / f"{name}.log").read_text()
  finished = tmp_path / "runs/sm-optimizersgd-learning_rate0.1"
  alone = alma_jax.run(jobs.make(small_sweep(points[0]), tmp_path)[0].config, tmp_path / "alone")
  assert lines(finished, "metrics.jsonl") == lines(alone.path, "metrics.jsonl")
  before = (finished / "summary.json").stat().st_mtime_ns
  again = sweep(*flags)
  assert (again.returncode, again.stderr) == (1, "")
  assert "--retry runs the failed ones again" in again.stdout
  assert sweep(*flags, "--retry").stderr.count("failed: train_loss") == 1
  assert (finished / "summary.json").stat().st_mtime_ns == before


def test_a_killed_worker_is_replaced_and_its_run_resumed(tmp_path):
  made = jobs.make(small_sweep({"seed": 0}, {"seed": 1}, **{
      "train.epochs": 40, "checkpoint.seconds": 0.0, "log.tensorboard": True}), tmp_path)
  (tmp_path / "logs/seed1.log").mkdir(parents=True)  # a log that cannot be opened
  seen, killed = [], False
  for event in pool.run(made, 1, tmp_path / "logs", lambda: False):
    if event.job is not None:
      seen.append((event.kind, event.job.name, event.line))
    elif not killed and _has_checkpoint(made[0]):
      (child,) = _children()
      semaphores = [line for line in pathlib.Path(f"/proc/{child}/maps").read_text().splitlines() if "/sem." in line]
      assert semaphores
      assert all(line.endswith("(deleted)") for line in semaphores)  # else they outlive a process that is killed
      os.kill(child, signal.SIGKILL)
      killed = True
    elif killed and _has_checkpoint(made[1]):  # as when the terminal is closed
      for child in _children():
        os.kill(child, signal.SIGHUP)
  assert seen == [("started", "seed0", ""), ("lost", "seed0", "its process was killed by SIGKILL"),
                  ("started", "seed0", ""), ("done", "seed0", ""), ("started", "seed1", ""), ("done", "seed1", "")]
  assert (tmp_path / "logs/seed0.log").read_text().count("resuming") == 1
  assert all(states.state(job, {}).kind == states.FINISHED for job in made)
  alone = alma_jax.run(made[0].config, tmp_path / "alone")
  for name in ("metrics.jsonl", "train.jsonl"):
    assert lines(made[0].workdir, name) == lines(alone.path, name)


def _has_checkpoint(job):
  return any(path.name.isdigit() for path in job.workdir.glob("checkpoints/*"))


def _children():
  """Worker processes of this one."""
  mine = f"/proc/{os.getpid()}/task"
  numbers = {int(n) for task in os.listdir(mine)
             for n in pathlib.Path(mine, task, "children").read_text().split()}
  return [n for n in numbers if b"spawn_main" in pathlib.Path(f"/proc/{n}/cmdline").read_bytes()]


def test_a_sweep_that_is_stopped_goes_on(tmp_path):
  path = sweep_file(tmp_path, [{"seed": 0}, {"seed": 1}], SMALL | {"train.epochs": 3000})
  flags = [f"--config={path}", f"--workdir={tmp_path}/runs", "--workers=1"]
  process = subprocess.Popen([sys.executable, "-m", "alma_jax.sweep", *flags], cwd=ROOT, stderr=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
  deadline = time.monotonic() + 100
  while not (tmp_path / "runs/seed0/train.jsonl").exists() and time.monotonic() < deadline:
    time.sleep(0.1)
  process.terminate()
  out, err = process.communicate(timeout=60)
  assert process.returncode == 143, err
  assert "stopped; run the command again, and the sweep continues" in err
  assert "0 of 2 runs are finished" in out
  assert not (tmp_path / "runs/seed1").exists()
  assert not (tmp_path / "runs/failures.json").exists()
  assert list((tmp_path / "runs/seed0/checkpoints").iterdir())


def test_predicted_multiply_adds_are_those_spent(tmp_path):
  points = product(axis("learner", ["ens", "gens"]), axis("waiting_time", [1, 3]))
  made = jobs.make(small_sweep(*points, **{"train.patience": 0, "stream.num_megabatches": 4}), tmp_path)
  for job, found in zip(made, dry_run.predict([job.config for job in made])):
    run = alma_jax.run(job.config, job.workdir)
    assert run.summary["cumulative_fwd_macs"] == found.macs
  # 1437 digits in 4 mega-batches, less a tenth: 324 or 323 in 3 batches of 128, 2 epochs; waiting for 3: 8 and 3.
  assert [dry_run.predict([job.config])[0].steps for job in made[2:]] == [4 * 2 * 3, 2 * (8 + 3)]


def test_slurm_requeues_what_is_preempted(tmp_path, stand_in, monkeypatch):
  from alma_jax.sweeps import slurm
  monkeypatch.setattr(slurm, "_SECONDS", 0.2)
  folder = tmp_path / "runs/slurm"
  folder.mkdir(parents=True)
  made = jobs.make(small_sweep({"seed": 0, "epochs": 400}, {"seed": 1}, **{"checkpoint.seconds": 0.0}),
                   tmp_path / "runs")
  seen, preempted = [], False
  for event in slurm.run(made, 1, folder, {"slurm_partition": "some", "timeout_min": 90}, lambda: False):
    if event.job is not None:
      seen.append((event.kind, event.job.name))
    elif not preempted and _has_checkpoint(made[0]):
      os.kill(int((stand_in / "pid_0").read_text()), signal.SIGUSR2)
      preempted = True
  assert sorted(seen) == [("done", made[0].name), ("done", made[1].name), ("started", made[0].name),
                          ("started", made[1].name)]
  assert (stand_in / "requeued_0").exists()
  script = (stand_in / "script").read_text()
  assert "--partition=some" in script
  assert "--array=0-1%1" in script
  assert "--time=90" in script
  log = (folder / "7_0_0_log.err").read_text()
  assert "resuming" in log
  assert [kind for kind, *_ in (states.state(job, {}) for job in made)] == [states.FINISHED] * 2
