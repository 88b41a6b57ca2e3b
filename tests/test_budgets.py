"""No part of the project grows unnoticed: lines of the files that git lists, against a table."""
import collections
import subprocess

import pytest
from runs import ROOT

# {part: (most lines, its packages and modules in alma_jax/)}. A change that needs more raises the number in the open.
BASE = ("errors.py", "messages.py", "types.py", "keys.py", "files.py", "extras.py", "web.py", "version.py")
PACKAGE = {
    "base": (504, BASE), "config": (2608, ("config",)), "parallel": (1139, ("parallel",)), "data": (6212, ("data",)),
    "models, training and growth": (4761, ("models", "training", "growth")), "problems": (1991, ("problems",)),
    "learners": (4109, ("learners",)), "protocols": (1040, ("protocols",)), "runs": (3043, ("runs",)),
    "store": (2313, ("store",)), "predictors": (1370, ("predictors",)), "sweeps": (1192, ("sweeps",)),
    "reports": (3701, ("reports",)), "commands and monitor": (2606, ("monitor",))}  # and all other modules
FOLDERS = {"alma_jax": 36589, "tests": 21246, "tests/slow": 3470, "benchmarks": 8211}


def part_of(path):
  """The parts that a path counts for."""
  folder, name, *_ = path.split("/")
  if folder == "alma_jax":
    yield next((part for part, (_, names) in PACKAGE.items() if name in names), "commands and monitor")
  yield "tests/slow" if path.startswith("tests/slow/") else folder


@pytest.fixture(scope="module")
def lines():
  """{part: its lines}."""
  listed = subprocess.run(["git", "ls-files", "-z", "alma_jax", "tests", "benchmarks"], cwd=ROOT, capture_output=True)
  if listed.returncode:
    pytest.skip("this is no checkout of git")
  found = collections.Counter()
  for path in filter(None, listed.stdout.decode().split("\0")):
    if (ROOT / path).is_file():
      for part in part_of(path):
        found[part] += (ROOT / path).read_bytes().count(b"\n")
  return found


@pytest.mark.parametrize(("part", "most"), [*((part, most) for part, (most, _) in PACKAGE.items()), *FOLDERS.items()])
def test_a_part_keeps_its_budget(lines, part, most):
  assert lines[part] <= most, f"{part} has {lines[part]} lines; its budget is {most}"


def test_every_name_of_the_table_is_there():
  for _, names in PACKAGE.values():
    assert all((ROOT / "alma_jax" / name).exists() for name in names), names
