"""The script for SLURM and the manifest for Kubernetes of docs/clusters.md."""
import os
import pathlib
import re
import shlex
import socket
import stat
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from runs import ROOT

import alma_jax

PAGE = (ROOT / "docs/clusters.md").read_text()
(SCRIPT,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(MANIFEST,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
# `python` of the page is a run of seconds.
SMALL = ("--config=configs/digits.py:ens", "--config.train.epochs=2", "--config.learner.num_members=2",
         "--config.model.width=8", "--config.stream.num_megabatches=2", "--config.stream.waiting_time=1")


def commands(folder, **scripts):
  """A folder with these shell scripts, to be put into PATH."""
  for name, text in scripts.items():
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
  return {"PATH": f"{folder}:{os.environ['PATH']}"}


def small_python(folder):
  """The text of a `python` that has the config and the folder of the small run in the place of the page's."""
  given = " ".join(shlex.quote(flag) for flag in (*SMALL, f"--workdir={folder}"))
  return f"""for arg; do
  case $arg in --config=*|--config.dataset.*|--workdir=*) ;; *) kept+=("$arg") ;; esac
done
cd {ROOT} && exec {sys.executable} "${{kept[@]}}" {given}"""


def test_the_limits_of_the_parts_on_a_gpu_are_ten_minutes_together():
  """Each part has 5 more seconds to end, or its `grace`; two runs of ensembles are one line of the script."""
  script, seconds = (ROOT / "benchmarks/gpu.sh").read_text(), 0
  parts = re.findall(r'^ *(?:signal=INT grace=(\d+) )?part ("[^"]+"|\w+) (\d+) ', script, re.MULTILINE)
  for grace, name, limit in parts:
    seconds += (int(limit) + int(grace or 5)) * (2 if "ens of width" in name else 1)
  assert script.count('runs=("16 float32" "64 bfloat16")') == 1
  assert '--kill-after="${grace:-5}"' in script
  assert len(parts) == 6
  assert 500 < seconds <= 600


def test_the_tests_on_a_gpu_exist():
  script, learners = (ROOT / "benchmarks/gpu.sh").read_text(), (ROOT / "tests/test_learners.py").read_text()
  named = re.search(r"learners=\((.*?)\)", script, re.DOTALL)[1].split()
  assert len(named) == 4
  for name in named:
    assert f"def test_{name}(" in learners
  for file in re.findall(r"tests/test_\w+\.py", script):
    assert (ROOT / file).exists()


def test_kubernetes_accepts_the_manifest():
  service, job = yaml.safe_load_all(MANIFEST)
  for part in (service, job):
    assert kubernetes_validate.validate(part, "1.31", strict=True) == "1.31"
  job["spec"]["completion_mode"] = "Indexed"
  with pytest.raises(kubernetes_validate.ValidationError, match="completion_mode"):
    kubernetes_validate.validate(job, "1.31", strict=True)
  name = service["metadata"]["name"]
  assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
  assert job["spec"]["template"]["spec"]["subdomain"] == name
  (container,) = job["spec"]["template"]["spec"]["containers"]
  assert f"--coordinator={job['metadata']['name']}-0.{name}:1234" in container["args"][0]
  assert f"--num_processes={job['spec']['completions']}" in container["args"][0]
  assert job["spec"]["parallelism"] == job["spec"]["completions"]


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (2, False), (143, True)])
def test_a_stopped_job_queues_again(tmp_path, code, requeued):
  env = commands(tmp_path, srun=f"exit {code}", scontrol=f"echo \"$@\" > {tmp_path}/asked")
  done = subprocess.run(["bash", "-c", SCRIPT], env=os.environ | env | {"SLURM_JOB_ID": "17"})
  assert done.returncode == code
  assert (tmp_path / "asked").exists() == requeued
  if requeued:
    assert (tmp_path / "asked").read_text() == "requeue 17\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["slurm", "kubernetes"])
def test_the_page_starts_two_processes_of_one_run(tmp_path, launcher):
  binaries, run = tmp_path / "bin", tmp_path / "run"
  binaries.mkdir()
  if launcher == "slurm":
    srun = """shift
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
  all="$all $!"
done
for one in $all; do wait $one || exit $?; done"""
    env = commands(binaries, srun=srun, python=small_python(run)) | {
        "SLURM_JOB_ID": "17", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1"}
    started = [subprocess.Popen(["bash", "-c", SCRIPT], env=os.environ | env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)]
  else:
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
    *_, job = yaml.safe_load_all(MANIFEST)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell = [*container["command"], container["args"][0].replace("alma-0.alma:1234", f"127.0.0.1:{port}")]
    env = commands(binaries, python=small_python(run))
    started = [subprocess.Popen(shell, env=os.environ | env | {"JOB_COMPLETION_INDEX": str(i)}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for i in range(2)]
  outputs = [process.communicate(timeout=200)[0] for process in started]
  assert [process.returncode for process in started] == [0] * len(started), "\n".join(outputs)
  assert any("in 2 processes" in output for output in outputs), "\n".join(outputs)
  assert alma_jax.load_run(pathlib.Path(run)).metrics["t"].tolist() == [1, 2]
