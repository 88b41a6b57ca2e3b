"""benchmarks/part.py: the beginning of every training document of a text."""
import pytest
from made_studies import _path, script  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture
def part(tmp_path, monkeypatch, capsys):
  """Runs the script; (exit code, output, errors).

  The documents of {tmp_path}/text have paragraphs of 400 bytes, lines of 400 bytes, one line, and next to nothing.
  """
  documents = {"paragraphs": b"p" * 398 + b"\n\n", "lines": b"l" * 399 + b"\n", "line": b"x" * 400, "short": b"s"}
  for split in ("train", "valid", "test"):
    (tmp_path / "text" / split).mkdir(parents=True)
    for name, piece in documents.items():
      (tmp_path / "text" / split / f"{name}.txt").write_bytes(piece * (1 if name == "short" else 10))

  def run(**changes):
    flags = {"text": tmp_path / "text", "kilobytes": 1, "out": tmp_path / "part"} | changes
    return script("part", monkeypatch, capsys, *(f"--{name}={value}" for name, value in flags.items()))

  return run


def test_documents_are_cut_after_the_last_whole_paragraph_that_fits(tmp_path, part):
  code, _, err = part()
  assert (code, err) == (0, "")
  size = lambda split: {path.stem: path.stat().st_size for path in (tmp_path / "part" / split).iterdir()}
  # A paragraph without the empty line after it.
  assert size("train") == {"paragraphs": 799, "lines": 800, "line": 1000, "short": 1}
  assert size("test") == size("valid") == {"paragraphs": 4000, "lines": 4000, "line": 4000, "short": 1}


@pytest.mark.parametrize(("changes", "message"), [
    ({"text": "nowhere"}, "there is no folder 'nowhere'."),
    ({"text": "tests"}, "tests should hold the folders train, valid and test, with .txt files; see "
                        "dataset.name=text:DIR."),
    ({"out": "tests"}, "tests exists; write --out=FOLDER with the name of a new folder.")])
def test_folders_that_cannot_be(tmp_path, part, changes, message):
  assert part(**changes) == (2, "", f"error: {message}\n")
  assert not (tmp_path / "part").exists()
