"""The fuzz targets of benchmarks/fuzz.py with few inputs, the same in every run; and files that unpack to much."""
import io
import zipfile

import numpy as np
import pytest
from runs import ROOT, alma, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.data import examples, text_files
from alma_jax.errors import BadInput
from alma_jax.monitor import view
from alma_jax.predictors import folder, texts
from alma_jax.runs import exporting

QUICK = {"npz": 60, "images": 40, "parquet": 20, "text": 60, "live": 30, "tasks": 60, "config": 100, "sweep": 200}
OF_RUNS = {"runs": 8, "pages": 8, "resume": 8, "predictor": 16, "requests": 30}


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
@pytest.mark.parametrize("name", OF_RUNS)
def test_readers_of_runs_work_or_refuse_with_one_sentence(fuzz, name, tmp_path):
  check(fuzz, name, tmp_path, OF_RUNS[name])


def check(fuzz, name, folder, most):
  target = fuzz.targets()[name](folder)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=most)
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["examples"] >= most // 2
  assert found["worked"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["npz", "images", "parquet"])
def test_files_that_unpack_to_much_are_refused_before(fuzz, name, tmp_path):
  target = fuzz.targets()[name](tmp_path)
  with fuzz.limited():
    found = fuzz.fuzz(target, 60, 0, most=0)
  assert not found["failures"], next(iter(found["failures"].items()))
  assert found["refused"] == found["examples"] >= 3


def npz_member(data):
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as archive:
    archive.writestr("x", data)
    archive.writestr("y", data)
  return file.getvalue()


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
ENTRIES = {
    "bytes.npz": (npz_member(b"no array"), "not an .npz file of plain arrays"),
    "class/eps.png": (EPS, "no image"),
    "deep.jsonl": (b"[" * 10**5 + b"\n", "nested too deeply"),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_are_refused(name, tmp_path):
  data, sentence = ENTRIES[name]
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_bytes(data)
  with pytest.raises(BadInput, match=sentence):
    list(text_files.read(path)) if path.suffix == ".jsonl" else examples.Reader().whole(
        path if path.parent == tmp_path else tmp_path)


def test_halves_of_characters_are_replaced_in_texts_and_refused_elsewhere(tmp_path):
  (tmp_path / "a.jsonl").write_text(r'{"text": "a\ud800b"}' '\n"c\u2028d"\n')
  assert [document.text for document in texts.read([str(tmp_path / "a.jsonl")])] == [b"a?b", "c\u2028d".encode()]
  (tmp_path / "config.json").write_text(r'{"data_fingerprint": "\ud800"}')
  with pytest.raises(BadInput, match="cannot be read as JSON"):
    view.view(tmp_path)


def test_numbers_that_no_float_can_be_are_refused():
  tree = small_config().to_dict()
  tree["train"]["learning_rate"] = 10**400
  with pytest.raises(BadInput, match="train.learning_rate=1000"):
    configs.parse(tree)


def test_an_exported_predictor_is_verified(tmp_path, arrays):
  run = alma_jax.run(small_config(), tmp_path / "run", data=arrays)
  place = exporting.export(run)
  program = bytearray((place / folder.PROGRAM).read_bytes())
  program[len(program) // 2] ^= 1
  (place / folder.PROGRAM).write_bytes(program)
  np.savez(tmp_path / "x.npz", x=arrays[2])
  done = alma("predict", f"--workdir={place}", tmp_path / "x.npz")
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert f"{folder.PROGRAM} is not what was written" in done.stderr
