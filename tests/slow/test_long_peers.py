"""Processes of one run that end or load at different times, or differ."""
import os
import signal
import subprocess
import sys
import time

import pytest
from runs import ROOT
from test_peers import free_port

pytestmark = pytest.mark.slow


def start_two(tmp_path, *flags, of_second=(), script=("-m", "alma_jax.main"), env=None):
  command = [sys.executable, *script, f"--config={ROOT}/configs/digits.py:ens", *flags,
             "--config.learner.num_members=2", f"--workdir={tmp_path}/run", f"--coordinator=127.0.0.1:{free_port()}",
             "--num_processes=2"]
  return [subprocess.Popen([*command, f"--process_id={i}", *(of_second if i else ())], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | (env or {} if i else {}))
          for i in range(2)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_two_processes_end_together(tmp_path, number):
  processes = start_two(tmp_path, "--config.train.epochs=20000", "--config.checkpoint.seconds=0.5",
                        "--config.log.progress=false")
  while not list((tmp_path / "run" / "checkpoints").glob("[0-9]*")):
    assert processes[0].poll() is None
    time.sleep(0.1)
  processes[1].send_signal(number)
  said = [process.communicate(timeout=120)[1] for process in processes]
  if number == signal.SIGTERM:
    assert [process.returncode for process in processes] == [143, 143]
    assert "run the command again, and it continues from there" in said[0]
  else:
    assert processes[0].returncode == 1
    assert said[0].splitlines()[-1].startswith("error: process 1 has ended unexpectedly; run the command again")
    assert len(said[0].splitlines()) < 6, said[0]


def test_two_processes_of_different_configs_are_refused_before_compute(tmp_path):
  processes = start_two(tmp_path, of_second=["--config.train.learning_rate=0.05", "--config.train.epochs=6"])
  for process in processes:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said.splitlines()[-1].endswith(
        "the processes of this run differ in settings: train.epochs is 100 in process 0 and 6 in process 1; "
        "train.learning_rate is 1.0 in process 0 and 0.05 in process 1.")
  assert not (tmp_path / "run").exists()


SLOW = """
import sys, time
from alma_jax import main
from alma_jax.runs import settings
prepare = settings.prepare

def slow(*args):
  time.sleep(35 if "--process_id=1" in sys.argv else 0)
  return prepare(*args)

settings.prepare = slow
sys.exit(main.main())
"""

def test_a_process_that_loads_slowly_is_waited_for(tmp_path, monkeypatch):
  script = tmp_path / "slow.py"
  script.write_text(SLOW)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  processes = start_two(tmp_path, "--config.train.epochs=2", "--peer_timeout=300", script=[str(script)])
  said = [process.communicate(timeout=180)[1] for process in processes]
  assert "waiting for process 1 to report the data or devices" in said[0]
  assert [process.returncode for process in processes] == [0, 0], said


def test_different_numbers_of_devices_get_a_sentence(tmp_path):
  processes = start_two(tmp_path, "--config.train.epochs=2", env={"JAX_NUM_CPU_DEVICES": "2"})
  for process in processes:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "differ in data or devices: devices is '1 x cpu' in process 0 and '2 x cpu' in process 1." in said
    assert "Traceback" not in said
