"""The code and the commands of the pages in docs/ and of the README run as they stand."""
import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from runs import ROOT, alma, lines

import alma_jax
from alma_jax.config import learner_options, registry, sections
from alma_jax.errors import BadInput
from alma_jax.sweeps import jobs


def codes_of(page):
  return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def code_of(page):
  return codes_of(page)[0]


@pytest.fixture(autouse=True)
def _registries():
  """What a page registers is forgotten after its test."""
  before = [dict(registered) for registered in (registry.LEARNERS, registry.MODELS, learner_options.LEARNERS)]
  networks, path, modules = list(sections.NETWORKS), list(sys.path), set(sys.modules)
  yield
  for registered, kept in zip((registry.LEARNERS, registry.MODELS, learner_options.LEARNERS), before):
    registered.clear()
    registered.update(kept)
  sections.NETWORKS[:], sys.path[:] = networks, path
  for name in {"small_cnn", "no_head", "fittest"} & (set(sys.modules) - modules):
    del sys.modules[name]


def run_code(code, cwd):
  """Runs the code of a page; what it prints."""
  output = io.StringIO()
  with contextlib.chdir(cwd), contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
    exec(code, {"__name__": "__main__"})
  return output.getvalue()


PAGES = [str(path.relative_to(ROOT)) for path in [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]]
NOTEBOOKS = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("colabs/*.ipynb"))]
OURS = "/alma-jax/alma_jax/blob/main/"  # in addresses of GitHub and of Colab
MADE = ("api.md", "command-line.md", "contributing.md", "changelog.md")  # by docs/site_hooks.py
SMALL = ["--config.stream.num_megabatches=4", "--config.train.epochs=2", "--config.model.width=4", "--config.devices=1"]


def test_the_learner_of_the_page(tmp_path):
  code = code_of("docs/add-a-learner.md")
  assert len(code.splitlines()) <= 40
  (tmp_path / "fittest.py").write_text(code)
  command = ["main", "--config=fittest.py", "--config.learner.num_members=2", *SMALL, "--workdir=run"]
  done = alma(*command, cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  done = alma(*command, "--config.learner.every=0", cwd=tmp_path)
  assert (done.returncode, "learner.every=0 should be at least 1" in done.stderr) == (2, True), done.stderr
  (tmp_path / "sweep.py").write_text("from alma_jax.sweeps import Sweep, axis\n\ndef get_sweep():\n"
                                     "  return Sweep('fittest.py', axis('seed', [0, 1]))\n")
  done = alma("sweep", "--config=sweep.py", "--workers=1", *SMALL, cwd=tmp_path)
  assert "2 of 2 runs are finished" in done.stdout, done.stderr


def test_the_learner_of_the_page_does_what_it_says(tmp_path, arrays, make_config):
  import jax
  import numpy as np
  from stages import Stages

  from alma_jax import config as configs
  from alma_jax.runs import settings
  (tmp_path / "fittest.py").write_text(code_of("docs/add-a-learner.md"))
  configs.load_file(str(tmp_path / "fittest.py"))
  setting = settings.prepare(configs.parse(make_config("fittest")), arrays)
  learner, stages = setting.learner, Stages(setting)
  state = learner.init()
  state = state._replace(host={"best": 2})
  grown, _ = learner.grow(state, stages[1])
  for old, new in zip(jax.tree.leaves(jax.device_get(state.live)), jax.tree.leaves(jax.device_get(grown.live))):
    for member in range(3):
      np.testing.assert_array_equal(new[member], old[2])
  same, _ = learner.grow(state, stages[0])
  assert same is state


def test_the_second_learner_of_the_page(tmp_path, monkeypatch, arrays, make_config):
  """It predicts with averaged weights, before and after it is saved, resumed and loaded."""
  import numpy as np
  from runs import assert_same_run, interrupted, one_step_a_dispatch

  from alma_jax import config as configs
  (tmp_path / "averaged.py").write_text(codes_of("docs/add-a-learner.md")[1])
  configs.load_file(str(tmp_path / "averaged.py"))
  one_step_a_dispatch(monkeypatch)
  config = make_config("averaged", train__epochs=2, checkpoint__seconds=1e9, checkpoint__keep_every=1)
  run = alma_jax.run(config, tmp_path / "whole", data=arrays)
  assert interrupted(config, tmp_path / "cut", 5, data=arrays)
  alma_jax.run(config, tmp_path / "cut", data=arrays)
  assert_same_run(tmp_path / "whole", tmp_path / "cut")
  wrong = run.predict(arrays[2]).argmax(1) != arrays[3]
  assert wrong.mean() == run.metrics["error"][-1]
  first, last = run.spec(0), run.spec(run.stages()[-1])
  assert first["num_leaves"] == 6
  assert not np.array_equal(first["leaf0"], last["leaf0"])
  plain = alma_jax.run(make_config("averaged", train__epochs=2, learner__decay=0), tmp_path / "plain", data=arrays)
  single = alma_jax.run(make_config("sm", train__epochs=2), tmp_path / "sm", data=arrays)
  np.testing.assert_array_equal(plain.metrics["error"], single.metrics["error"])
  assert not np.array_equal(run.metrics["loss"][-1], plain.metrics["loss"][-1])


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


def test_the_network_of_the_page(tmp_path):
  (tmp_path / "small_cnn.py").write_text(code_of("docs/add-a-model.md"))
  done = alma("main", "--config=small_cnn.py:sm", *SMALL, "--workdir=run", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  # 3x3x1x4+4, batch norm 2x4; 3x3x4x8+8, 2x8; 2x2x8x10+10.
  assert f"from {40 + 8 + 296 + 16 + 330:,} parameters" in done.stderr
  no_head = code_of("docs/add-a-model.md").replace('layers.Head(self.num_classes, self.dtype, name="output")',
                                                   "nn.Dense(self.num_classes)")
  (tmp_path / "no_head.py").write_text(no_head)
  done = alma("main", "--config=no_head.py:hmoe", *SMALL, "--workdir=headless", cwd=tmp_path)
  assert (done.returncode, "has no features for hmoe" in done.stderr) == (2, True), done.stderr
  done = alma("main", "--config=small_cnn.py:gmoe", *SMALL, "--workdir=other", cwd=tmp_path)
  assert done.returncode == 2
  assert "model.name='small_cnn' has no mixtures" in done.stderr


def test_the_arrays_of_the_page(tmp_path):
  code = code_of("docs/own-data.md").replace("2\nrun", "2\nconfig.train.epochs = 2\nrun")
  run_code(code, tmp_path)
  assert len(lines(tmp_path / "runs/own-arrays", "metrics.jsonl")) == 10


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_run_of_the_page(tmp_path, page):
  code = code_of(page).replace("waiting_time = 5\n", "waiting_time = 5\nconfig.train.epochs = 2\n")
  run_code(code, tmp_path)
  (folder,) = re.findall(r'alma_jax\.run\(config, "(.*?)"', code)
  assert len(lines(tmp_path / folder, "metrics.jsonl")) == 20


def test_the_sweep_of_the_page():
  names = {}
  exec(code_of("docs/sweeps-and-reports.md"), names)
  assert len(names["get_sweep"]().points) == 2 * 2 * 3


def test_the_fixed_fields_of_the_page(tmp_path):
  names = {}
  exec(codes_of("docs/sweeps-and-reports.md")[1], names)
  made = jobs.make(names["get_sweep"](), tmp_path, {"train.epochs": "3"})
  assert [job.name for job in made] == ["sm-seed0", "sm-seed1", "ens-seed0", "ens-seed1"]
  assert {(job.config.stream.waiting_time, job.config.train.epochs) for job in made} == {(5, 3)}


def test_the_readme_is_short_and_has_the_two_commands():
  text = (ROOT / "README.md").read_text()
  assert len(text.splitlines()) <= 150
  for what, command in ((".", "alma_jax.main --config=configs/digits.py:ens"), ("-r requirements.txt", "pytest -n 2")):
    install = f"    python3 -m venv .venv && .venv/bin/pip install {what} && .venv/bin/python -m "
    assert f"\n{install}{command}\n" in text


def test_no_two_examples_share_a_run_folder():
  code = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]
  folders = [folder for block in code for folder in re.findall(r'alma_jax\.run\(\w+, "(.*?)"', block)]
  assert len(set(folders)) == len(folders) >= 2


def test_names_that_are_taken():
  with pytest.raises(BadInput, match="there is a learner 'sm' already"):
    alma_jax.register_learner(alma_jax.config.learner_options.SM, None)
  with pytest.raises(BadInput, match="there is a network 'mlp' already"):
    alma_jax.register_model("mlp", None)
  with pytest.raises(BadInput, match="str should be a frozen dataclass"):
    alma_jax.register_learner(str, None)


def text_of(page):
  """A page as Markdown; of a notebook, the cells of text."""
  text = (ROOT / page).read_text()
  if not page.endswith(".ipynb"):
    return text
  return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


def anchors_of(path):
  """The anchors of a page's headings."""
  headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE)
  return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS])
def test_links_and_named_files_are_there(page):
  text = text_of(page)
  for link in re.findall(r"\]\(([^) ]+)\)", text):
    target, _, anchor = link.partition("#")
    if OURS in target:
      target = str(ROOT / target.partition(OURS)[2])
    elif target.startswith(("http", "mailto:")) or target in MADE:
      continue
    path = (ROOT / page).parent / target if target else ROOT / page
    assert path.exists(), link
    assert not anchor or anchor in anchors_of(path), link
  for name in re.findall(r"(?:configs|benchmarks|docs|colabs)/[\w/]+\.(?:py|sh|md|ipynb)", text):
    assert pathlib.Path(ROOT / name).exists() or "NAME" in name, name


def test_no_page_promises_how_fast_a_machine_is():
  """Times are measurements, with their machine."""
  for path in [*(ROOT / page for page in (*PAGES, *NOTEBOOKS)), *ROOT.glob("configs/**/*.py")]:
    found = re.search(r"under a minute|\(a minute\)|sweep of seconds|: minutes\b|takes (some )?(seconds|minutes)",
                      path.read_text())
    assert found is None or path.name == "CHANGELOG.md", (path, found[0])


def build_site(root, tmp_path):
  """What .ci/docs says of the pages of a checkout: the step of .ci/run and of the GitHub workflow."""
  pytest.importorskip("mkdocs")
  return subprocess.run([root / ".ci/docs", pathlib.Path(sys.executable).parent, tmp_path / "site"],
                        capture_output=True, text=True)


def test_the_site_builds_without_a_warning(tmp_path):
  for file in (".ci/run", ".github/workflows/checks.yml"):
    assert re.search(r"^ *(- run: )?\.ci/docs ", (ROOT / file).read_text(), re.MULTILINE), file
  done = build_site(ROOT, tmp_path)
  assert done.returncode == 0, done.stderr


FAULTS = {"a link": ("live.md", "[x](nowhere.md)", "'nowhere.md'"),
          "an anchor": ("live.md", "[x](running.md#nowhere)", "does not contain an anchor '#nowhere'"),
          "a picture": ("live.md", "![x](images/nowhere.png)", "'images/nowhere.png'"),
          "a page outside of the nav": ("results/lonely.md", "# Alone", "results/lonely.md"),
          "a field": ("fields.md", "one more", "< one more")}


@pytest.mark.slow
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


def test_the_tables_of_the_anytime_study_are_those_of_its_runs(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import results

  pages = (ROOT / "docs/anytime.md").read_text() + (ROOT / "docs/results/anytime/README.md").read_text()
  tables = results.tables()
  assert len(tables) == 9
  for title, table in tables:
    assert len(table.splitlines()) > 2, title
    assert table in pages, title
