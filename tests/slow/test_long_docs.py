"""Longer code of the pages, and a page with a fault."""
import shutil

import pytest
from runs import ROOT, alma, lines
from test_docs import SMALL, _modules, build_site, code_of, run_code  # noqa: F401

pytestmark = pytest.mark.slow

SMALL_TEXT = [
    "--config.stream.num_megabatches=2", "--config.train.steps=3", "--config.train.warmup_steps=1",
    "--config.dataset.vocab_size=300", "--config.dataset.sequence_length=16", "--config.model.width=16",
    "--config.model.num_layers=2", "--config.devices=1"]


def test_a_config_file_may_import_others_of_its_folder_and_its_changes_are_noticed(tmp_path):
  (tmp_path / "own").mkdir()
  (tmp_path / "own/small_cnn.py").write_text(code_of("docs/add-a-model.md"))
  code = "import small_cnn\n" + code_of("docs/add-a-learner.md")
  (tmp_path / "own/both.py").write_text(code)
  command = ["main", "--config=own/both.py:fittest", "--config.model.name=small_cnn", *SMALL,
             "--workdir=run"]
  done = alma(*command, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  (tmp_path / "own/both.py").write_text(code + "# another version\n")
  for _ in range(2):
    done = alma(*command, cwd=tmp_path)
    assert "the file that defines 'fittest' has changed since the run in run began" in done.stderr
    assert "'small_cnn'" not in done.stderr
    assert (done.returncode, "run is complete" in done.stderr) == (0, True)
  done = alma(*command, "--overwrite", cwd=tmp_path)
  assert (done.returncode, "has changed" in done.stderr) == (0, False)
  with (tmp_path / "own/small_cnn.py").open("a") as file:
    file.write("# another version\n")
  done = alma(*command, cwd=tmp_path)
  assert "the file that defines 'small_cnn' has changed" in done.stderr
  assert "'fittest'" not in done.stderr


def test_the_arrays_of_the_page(tmp_path):
  code = code_of("docs/own-data.md").replace("2\nrun", "2\nconfig.train.epochs = 2\nrun")
  run_code(code, tmp_path)
  assert len(lines(tmp_path / "runs/own-arrays", "metrics.jsonl")) == 10


def test_every_command_of_the_tutorial_runs(tmp_path, monkeypatch):
  """From a fresh folder, in the order of the pages; and the pages name all of their pictures."""
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import tutorial
  for page in tutorial.PAGES:
    done = tutorial.run(page, tmp_path)
    assert done.returncode == 0, (page, done.stderr)
  assert all((tmp_path / path).is_file() for path in tutorial.PICTURES.values())


def test_fields_that_are_not_those_of_the_code_stop_the_build(tmp_path):
  """What is wrong within pages, test_links_and_named_files_are_there and .ci/docs find."""
  root = tmp_path / "checkout"
  root.mkdir()
  for path in ROOT.iterdir():
    if path.name in (".ci", "docs"):
      shutil.copytree(path, root / path.name)
    elif not path.name.startswith("."):
      (root / path.name).symlink_to(path)
  with (root / "docs/fields.md").open("a") as file:
    file.write("\none more\n")
  done = build_site(root, tmp_path)
  assert (done.returncode, "< one more" in done.stdout) == (1, True), done.stderr


def test_the_learner_of_the_page_learns_text(tmp_path):
  code = code_of("docs/add-a-learner.md").replace("base_config", "language_config").replace(
      "  @property", "  problems = ('text',)\n\n  @property", 1)
  (tmp_path / "fittest.py").write_text(code)
  for split in ("train", "valid", "test"):
    (tmp_path / "text" / split).mkdir(parents=True)
    for i in range(4):
      (tmp_path / "text" / split / f"{i}.txt").write_text(f"{split} {i} one two three four " * 200)
  done = alma("main", "--config=fittest.py:fittest", "--config.dataset.name=text:text", *SMALL_TEXT, "--workdir=run",
              cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert [line["perplexity"] for line in lines(tmp_path / "run", "metrics.jsonl")][-1] < 257


def test_options_of_the_page_are_checked_and_swept(tmp_path):
  (tmp_path / "fittest.py").write_text(code_of("docs/add-a-learner.md"))
  done = alma("main", "--config=fittest.py", "--config.learner.num_members=0", cwd=tmp_path)
  assert (done.returncode, "learner.num_members=0 should be at least 1" in done.stderr) == (2, True), done.stderr
  (tmp_path / "sweep.py").write_text("from alma_jax.sweeps import Sweep, axis\n\ndef get_sweep():\n"
                                     "  return Sweep('fittest.py', axis('seed', [0]))\n")
  done = alma("sweep", "--config=sweep.py", "--workers=1", *SMALL, cwd=tmp_path)
  assert "1 of 1 runs are finished" in done.stdout, done.stderr
