"""Experts that are trained apart, killed, and on a cluster."""
import multiprocessing
import os
import signal

import pytest
from runs import ROOT, assert_same_run, small_config
from test_apart import weights
from test_sweep import stand_in  # noqa: F401

from alma_jax import config as configs
from alma_jax.learners import gate
from alma_jax.runs import mixture
from alma_jax.store import run_files
from alma_jax.sweeps import jobs, pool, states, worker

pytestmark = pytest.mark.slow


def test_a_killed_worker_changes_no_expert(tmp_path):
  """Real processes, two at a time. The one that is killed goes on from its checkpoint, beside the other."""
  often, never = (configs.parse(small_config("hmoe", model__num_experts=3, train__epochs=20, checkpoint__seconds=each))
                  for each in (0.5, 1e9))
  file, base = str(ROOT / "configs/digits.py"), mixture.base_config(often)
  mixture.publish(base, tmp_path / "gate3", 3)
  published = tmp_path / "gate3" / run_files.GATE

  def made(root, config):
    return [jobs.Job(f"expert{i}", mixture.expert_config(config, published, i), root / f"expert{i}", file, "hmoe")
            for i in range(3)]

  lost = []
  for event in pool.run(made(tmp_path / "killed", often), 2, tmp_path / "logs", lambda: False):
    if event.kind == states.LOST:
      lost.append(event.job.name)
    elif not lost and list((tmp_path / "killed/expert0/checkpoints").glob("[0-9]")):
      os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
  assert len(lost) == 1
  for job in made(tmp_path / "whole", never):
    assert worker.attempt(job.packed()) == (states.DONE, "")
    assert weights(job.workdir) == weights(tmp_path / "killed" / job.name)
    assert_same_run(job.workdir, tmp_path / "killed" / job.name)


def test_a_node_of_a_cluster_publishes_the_gate(tmp_path, stand_in, monkeypatch):
  from alma_jax.sweeps import slurm
  monkeypatch.setattr(slurm, "_SECONDS", 0.2)
  folder = tmp_path / "runs/slurm"
  folder.mkdir(parents=True)
  base = mixture.base_config(configs.parse(small_config("hmoe", model__num_experts=3)))
  job = jobs.Job("gate3", base, tmp_path / "runs/gate3", str(ROOT / "configs/digits.py"), "hmoe", 3)
  seen = [event.kind for event in slurm.run([job], 0, folder, {}, lambda: False) if event.job is not None]
  assert seen == [states.STARTED, states.DONE]
  assert len(gate.read(job.workdir / run_files.GATE)[0].counts) == 3
