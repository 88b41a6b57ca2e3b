"""The fuzz targets of tests/slow/fuzz.py with few inputs, the same in every run; and files that unpack to much."""
import shutil

import fuzz
import fuzz_runs
import pytest

pytestmark = pytest.mark.slow

MOST = {"npz": 60, "images": 40, "parquet": 20, "text": 60, "live": 30, "tasks": 60, "config": 100, "sweep": 200,
        "runs": 8, "pages": 8, "resume": 8, "predictor": 16, "requests": 30}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """The runs that several targets damage, in a folder."""
  folder = tmp_path_factory.mktemp("made")
  fuzz_runs._made(folder)
  return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MOST)
def test_readers_work_or_refuse_with_one_sentence(name, tmp_path, request):
  if name in ("runs", "pages", "predictor", "requests"):
    shutil.copytree(request.getfixturevalue("made"), tmp_path, dirs_exist_ok=True)
  target = fuzz.targets()[name](tmp_path)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=MOST[name])
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["examples"] >= MOST[name] // 2
  assert found["worked"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["npz", "images", "parquet"])
def test_files_that_unpack_to_much_are_refused_before(name, tmp_path):
  target = fuzz.targets()[name](tmp_path)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=0)
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["refused"] == found["examples"] >= 3
