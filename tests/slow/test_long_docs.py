"""Longer code of the pages, and pages with faults."""
import shutil

import pytest
from runs import ROOT, alma, lines
from test_docs import SMALL, _registries, build_site, code_of, run_code  # noqa: F401


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


FAULTS = {"a link": ("live.md", "[x](nowhere.md)", "'nowhere.md'"),
          "an anchor": ("live.md", "[x](running.md#nowhere)", "does not contain an anchor '#nowhere'"),
          "a picture": ("live.md", "![x](images/nowhere.png)", "'images/nowhere.png'"),
          "a page outside of the nav": ("results/lonely.md", "# Alone", "results/lonely.md"),
          "a field": ("fields.md", "one more", "< one more")}

@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_page_stops_the_build(tmp_path, fault):
  root = tmp_path / "checkout"
  root.mkdir()
  for path in ROOT.iterdir():
    if path.name in (".ci", "docs"):
      shutil.copytree(path, root / path.name)
    elif not path.name.startswith("."):
      (root / path.name).symlink_to(path)
  page, planted, said = FAULTS[fault]
  with (root / "docs" / page).open("a") as file:
    file.write(f"\n{planted}\n")
  done = build_site(root, tmp_path)
  assert done.returncode != 0
  assert said in done.stdout + done.stderr
