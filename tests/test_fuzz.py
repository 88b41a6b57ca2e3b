"""The fuzz targets of benchmarks/fuzz.py with few inputs, the same in every run; and files that unpack to much."""
import pytest
from runs import ROOT

QUICK = {"npz": 120, "images": 40, "parquet": 40, "text": 120, "live": 60, "tasks": 80, "config": 200, "sweep": 60}


@pytest.fixture
def fuzz(monkeypatch):
  """The module benchmarks/fuzz.py."""
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import fuzz
  return fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUICK)
def test_readers_work_or_refuse_with_one_sentence(fuzz, name, tmp_path):
  check(fuzz, name, tmp_path, QUICK[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["runs", "pages", "resume", "predictor", "requests"])
def test_readers_of_runs_work_or_refuse_with_one_sentence(fuzz, name, tmp_path):
  check(fuzz, name, tmp_path, 30)


def check(fuzz, name, folder, most):
  target = fuzz.targets()[name](folder)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=most)
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["examples"] >= most // 2
  assert found["refused"]
  assert found["worked"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["npz", "images", "parquet"])
def test_files_that_unpack_to_much_are_refused_before(fuzz, name, tmp_path):
  target = fuzz.targets()[name](tmp_path)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=0)
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["refused"] == found["examples"] >= 3
