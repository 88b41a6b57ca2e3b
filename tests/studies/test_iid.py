"""benchmarks/iid.py: mega-batches one after the other against all at once."""
import re

import pytest
from made_studies import _path, script  # noqa: F401
from runs import lines

pytestmark = pytest.mark.slow

FIELDS = {"stream.num_megabatches": 3, "train.epochs": 1, "model.width": 4, "log.tensorboard": False, "devices": 1}


@pytest.fixture
def iid(monkeypatch, capsys):
  """Runs the script on the digits; (exit code, output, errors)."""
  def run(*flags, **changes):
    fields = [f"--config.{field}={value}" for field, value in (FIELDS | changes).items()]
    return script("iid", monkeypatch, capsys, "--config=configs/digits.py:sm", *fields, *flags)

  return run


def test_the_printed_numbers_are_those_of_the_runs(tmp_path, iid):
  code, out, err = iid(f"--workdir={tmp_path}", "--k=2,3")
  assert code == 0, err
  printed = re.findall(r"^error after (\d) mega-batches: sequential (\S+), iid (\S+)$", out, re.MULTILINE)
  error = {name: [line["error"] for line in lines(tmp_path / name, "metrics.jsonl")]
           for name in ("sequential", "iid2", "iid")}
  assert printed == [(str(k), f"{error['sequential'][k - 1]:.4f}", f"{error[name][k - 1]:.4f}")
                     for k, name in ((2, "iid2"), (3, "iid"))]
  stages = {name: {line["stage"] for line in lines(tmp_path / name, "train.jsonl")} for name in error}
  assert stages == {"sequential": {0, 1, 2}, "iid2": {0, 1}, "iid": {0}}


def test_what_is_refused_before_any_training(tmp_path, iid):
  for k in ("1", "4", "two", "2,", "-2"):
    assert iid(f"--workdir={tmp_path}/runs", f"--k={k}") == (
        2, "", f"error: --k={k} should be numbers from 2 to stream.num_megabatches=3, as in --k=2,3.\n")
  code, _, err = iid(f"--workdir={tmp_path}/runs", **{"model.width": 0})
  assert (code, err.count("\n")) == (2, 1)
  assert "model.width=0 lets train.budget decide" in err
  assert not (tmp_path / "runs").exists()
