"""benchmarks/iid.py: mega-batches one after the other against all at once."""
import re
import subprocess
import sys

import pytest
from runs import ROOT, lines

pytestmark = pytest.mark.slow

FIELDS = {"stream.num_megabatches": 3, "train.epochs": 1, "model.width": 4, "log.tensorboard": False, "devices": 1}


def iid(*flags, **changes):
  """The finished process of the script, on the digits."""
  fields = [f"--config.{field}={value}" for field, value in (FIELDS | changes).items()]
  return subprocess.run([sys.executable, "benchmarks/iid.py", "--config=configs/digits.py:sm", *fields, *flags],
                        cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_printed_numbers_are_those_of_the_runs_and_a_second_call_trains_nothing(tmp_path):
  done = iid(f"--workdir={tmp_path}", "--k=2,3")
  assert done.returncode == 0, done.stderr
  printed = re.findall(r"^error after (\d) mega-batches: sequential (\S+), iid (\S+)$", done.stdout, re.MULTILINE)
  error = {name: [line["error"] for line in lines(tmp_path / name, "metrics.jsonl")]
           for name in ("sequential", "iid2", "iid")}
  assert printed == [(str(k), f"{error['sequential'][k - 1]:.4f}", f"{error[name][k - 1]:.4f}")
                     for k, name in ((2, "iid2"), (3, "iid"))]
  stages = {name: {line["stage"] for line in lines(tmp_path / name, "train.jsonl")} for name in error}
  assert stages == {"sequential": {0, 1, 2}, "iid2": {0, 1}, "iid": {0}}
  written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json*")}
  again = iid(f"--workdir={tmp_path}", "--k=2,3")
  assert again.returncode == 0, again.stderr
  assert again.stdout.splitlines()[-2:] == done.stdout.splitlines()[-2:]
  assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json*")} == written


@pytest.mark.parametrize("k", ["1", "4", "two", "2,", "-2"])
def test_numbers_of_megabatches_that_cannot_be(tmp_path, k):
  done = iid(f"--workdir={tmp_path}/runs", f"--k={k}")
  assert (done.returncode, done.stderr) == (
      2, f"error: --k={k} should be numbers from 2 to stream.num_megabatches=3, as in --k=2,3.\n")
  assert not (tmp_path / "runs").exists()


def test_what_a_run_refuses_is_refused_before_any_training(tmp_path):
  done = iid(f"--workdir={tmp_path}/runs", **{"model.width": 0})
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert "model.width=0 lets train.budget decide" in done.stderr
  assert not (tmp_path / "runs").exists()
