"""The short form of benchmarks/torture.py, without kills, signals and sweeps, which have tests of their own."""
import re
import subprocess
import sys

import pytest
from runs import ROOT

pytestmark = pytest.mark.slow
PARTS = "flips", "disk", "permissions", "clock", "memory", "two", "moved"


@pytest.mark.timeout(900)
def test_a_short_torture():
  done = subprocess.run(
      [sys.executable, "benchmarks/torture.py", "--minutes=1", "--counts=0.015", "--cases", "gens", "--parts", *PARTS],
      cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", done.stdout, re.MULTILINE)
  trials = {part: int(count) for part, count, *_ in rows}
  left_out = set(re.findall(r"^(\w+): left out", done.stdout, re.MULTILINE))
  assert left_out <= {"disk", "permissions"}
  assert {part for part, count in trials.items() if count} | left_out == set(PARTS)
  assert all(failed == "0" for *_, failed in rows)
