"""benchmarks/part.py: the beginning of every training document of a text."""
import subprocess
import sys

import pytest
from runs import ROOT

pytestmark = pytest.mark.slow


def part(folder, **changes):
  """The finished process of the script."""
  flags = [f"--{name}={value}" for name, value in (
      {"text": folder / "text", "kilobytes": 1, "out": folder / "part"} | changes).items()]
  return subprocess.run([sys.executable, "benchmarks/part.py", *flags], cwd=ROOT, capture_output=True, text=True,
                        check=False)


@pytest.fixture
def text(tmp_path):
  """Training documents with paragraphs of 400 bytes, with lines of 400 bytes, with one line, and a short one."""
  documents = {"paragraphs": b"p" * 398 + b"\n\n", "lines": b"l" * 399 + b"\n", "line": b"x" * 400, "short": b"s"}
  for split in ("train", "valid", "test"):
    (tmp_path / "text" / split).mkdir(parents=True)
    for name, piece in documents.items():
      (tmp_path / "text" / split / f"{name}.txt").write_bytes(piece * (1 if name == "short" else 10))
  return tmp_path


def test_documents_are_cut_after_the_last_whole_paragraph_that_fits(text):
  done = part(text)
  assert (done.returncode, done.stderr) == (0, "")
  size = lambda split: {path.stem: path.stat().st_size for path in (text / "part" / split).iterdir()}
  # A paragraph without the empty line after it.
  assert size("train") == {"paragraphs": 799, "lines": 800, "line": 1000, "short": 1}
  assert size("test") == size("valid") == {"paragraphs": 4000, "lines": 4000, "line": 4000, "short": 1}


@pytest.mark.parametrize(("changes", "message"), [
    ({"text": "nowhere"}, "error: there is no folder 'nowhere'.\n"),
    ({"text": "tests"}, "error: tests should hold the folders train, valid and test, with .txt files; see "
                        "dataset.name=text:DIR.\n"),
    ({"out": "tests"}, "error: tests exists; write --out=FOLDER with the name of a new folder.\n")])
def test_folders_that_cannot_be(text, changes, message):
  done = part(text, **changes)
  assert (done.returncode, done.stderr) == (2, message)
  assert not (text / "part").exists()
