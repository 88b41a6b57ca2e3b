"""The code and the commands of the pages in docs/ and of the README run as they stand."""
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import ROOT, alma, assert_same_run, interrupted, lines, one_step_a_dispatch, slow

import alma_jax
from alma_jax import config as configs
from alma_jax.config import document
from alma_jax.data import datasets
from alma_jax.errors import BadInput
from alma_jax.learners.stacked import Stacked
from alma_jax.sweeps import jobs


def codes_of(page):
  return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def code_of(page):
  return codes_of(page)[0]


@pytest.fixture(autouse=True)
def _modules():
  """The files of pages that a test has imported are forgotten after it."""
  path, modules = list(sys.path), set(sys.modules)
  yield
  sys.path[:] = path
  for name in {"small_cnn", "fittest", "rows", "brier"} & (set(sys.modules) - modules):
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


# What each page that adds something shows: its file, a learner, a command line, and what `alma list FILE` then lists.
ADDED = {
    "docs/add-a-learner.md": ("fittest.py", "fittest", ["--config.learner.num_members=2"], "fittest"),
    "docs/add-a-model.md": ("small_cnn.py", "sm", ["--config.model.num_layers=1"], "small_cnn"),
    "docs/add-a-data-set.md": ("rows.py", "ens", ["--config.dataset.test_every=4"], "csv:PATH"),
    "docs/add-a-protocol.md": ("turns.py", "gens", [], "in_turn"),
    "docs/add-a-metric.md": ("brier.py", "sm", [], "brier")}


@pytest.mark.parametrize("page", [slow(page) if page == "docs/add-a-model.md" else page for page in ADDED])
def test_what_a_page_adds_runs_is_resumed_and_listed(tmp_path, monkeypatch, page):
  file, learner, flags, listed = ADDED[page]
  text = (ROOT / page).read_text()
  assert f"\n    alma run --config={file}:{learner}" in text
  assert len(code_of(page).splitlines()) <= 60
  assert len(text.splitlines()) <= 75 or page == "docs/add-a-protocol.md"
  (tmp_path / file).write_text(code_of(page))
  for command in re.findall(r'    python -c "(.*)"', text):  # makes the data
    run_code(command, tmp_path)
  assert_added(tmp_path, monkeypatch, f"{file}:{learner}", [*SMALL, *flags])
  assert_listed(tmp_path, file, listed)
  if listed == "small_cnn":  # 3x3x1x4+4, batch norm 2x4; 4x4x4x10+10
    assert lines(tmp_path / "whole", "metrics.jsonl")[0]["num_params"] == 40 + 8 + 650
  if listed == "brier":
    last, data = lines(tmp_path / "whole", "metrics.jsonl")[-1], datasets.load("digits")
    probabilities = alma_jax.load_run(tmp_path / "whole").predict(data.x_test)
    assert last["brier"] == pytest.approx(((probabilities - np.eye(10)[data.y_test]) ** 2).sum(1).mean(), rel=1e-5)
    assert 0 < last["prequential_brier"] < 2
    done = alma("evaluate", "--workdir=whole", "--config=brier.py", cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == [
        f"brier {last['brier']:.4g}", f"balanced_error {last['balanced_error']:.4g}"]


def assert_added(cwd, monkeypatch, config, flags):
  """A run of `config` that is stopped and resumed by its command ends like one that is not."""
  path, _, learner = config.partition(":")
  command = ["main", f"--config={config}", *flags]
  done = alma(*command, "--workdir=whole", cwd=cwd)
  assert done.returncode == 0, done.stderr
  texts = dict(flag.removeprefix("--config.").split("=", 1) for flag in flags)
  with contextlib.chdir(cwd):
    given = configs.overridden(configs.load_file(path, learner), texts)
    one_step_a_dispatch(monkeypatch)
    assert interrupted(given, "cut", 5)
  done = alma(*command, "--workdir=cut", cwd=cwd)
  assert done.returncode == 0, done.stderr
  assert_same_run(cwd / "whole", cwd / "cut")


def assert_listed(cwd, file, name):
  """`alma list FILE` has a name that `alma fields`, the list of alma_jax's own fields, does not have."""
  listing = alma("cli", "list", file, cwd=cwd).stdout
  assert re.search(rf"^  {name} +\w", listing, re.MULTILINE), listing
  assert name not in document.markdown()


def with_learner_of_tasks():
  """The code of the page's learner of tasks, with what the page says is like that of its first learner."""
  code = code_of("docs/add-a-learner.md")
  own = code.replace("class Fittest", "class Unused").replace("alma_jax.Options", "alma_jax.TaskOptions").replace(
      "base_config", "task_config").replace("fittest", "from_first").replace("Fittest(context)", "FromFirst(context)")
  return f"{own}\n\n{codes_of('docs/add-a-learner.md')[1]}"


def with_optimizer():
  """A config file with the page's optimiser."""
  code = codes_of("docs/add-a-model.md")[1]
  return (f"import dataclasses\nimport alma_jax\nimport optax\n\n{code}\n\ndef get_config(learner='sm'):\n"
          "  config = alma_jax.base_config(learner)\n  config.train.optimizer = 'lion'\n"
          "  config.train.learning_rate = 1e-3\n  return config\n")


@pytest.mark.parametrize(("made", "config", "name", "flags"), [
    (with_learner_of_tasks, "own.py:from_first", "from_first",
     ["--config.stream.num_megabatches=2", "--config.train.epochs=2", "--config.model.width=4", "--config.devices=1"]),
    slow(with_optimizer, "own.py:sm", "lion", [*SMALL, "--config.train.b1=0.8"])])
def test_a_learner_of_tasks_and_an_optimiser_are_resumed_and_listed(tmp_path, monkeypatch, made, config, name, flags):
  (tmp_path / "own.py").write_text(made())
  assert_added(tmp_path, monkeypatch, config, flags)
  assert_listed(tmp_path, "own.py", name)


def test_the_learner_of_the_page_does_what_it_says(tmp_path, arrays, make_config):
  from stages import Stages

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


@dataclasses.dataclass(frozen=True)
class AveragedOptions(alma_jax.Options):
  """A network whose predictions are those of an average of its weights over all stages."""
  name: str = "averaged"
  decay: float = alma_jax.field(0.5, "share of the old average after a stage", at_least=0, below=1)

  def make(self, context):
    return Averaged(context)


class Averaged(Stacked):
  """Keeps weights that predict in `host`, and predicts by `contribution` with them as `live`."""

  def finish(self, state, data, trained):
    result = super().finish(state, data, trained)
    new = [np.asarray(leaf) for leaf in jax.tree.leaves(result.state.live)]
    old = state.host.get("num_leaves") and [state.host[f"leaf{i}"] for i in range(len(new))]
    mean = [self.options.decay * a + (1 - self.options.decay) * b for a, b in zip(old, new)] if old else new
    host = {"num_leaves": len(new)} | {f"leaf{i}": leaf for i, leaf in enumerate(mean)}
    return result._replace(state=result.state._replace(host=host))

  def contribution(self, state, block, inputs):
    if state.host:
      leaves = [state.host[f"leaf{i}"] for i in range(state.host["num_leaves"])]
      state = state._replace(live=jax.tree.unflatten(jax.tree.structure(state.live), leaves))
    return super().contribution(state, block, inputs)


def test_a_learner_that_predicts_with_other_weights(tmp_path, monkeypatch, arrays, make_config):
  """Before and after it is saved, resumed and loaded."""
  alma_jax.register(AveragedOptions)
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


def test_the_network_of_the_page_refuses_learners(tmp_path):
  (tmp_path / "small_cnn.py").write_text(code_of("docs/add-a-model.md"))
  no_head = code_of("docs/add-a-model.md").replace('layers.Head(self.num_classes, self.dtype, name="output")',
                                                   "nn.Dense(self.num_classes)")
  (tmp_path / "no_head.py").write_text(no_head)
  done = alma("main", "--config=no_head.py:hmoe", *SMALL, "--workdir=headless", cwd=tmp_path)
  assert (done.returncode, "has no features for hmoe" in done.stderr) == (2, True), done.stderr
  done = alma("main", "--config=small_cnn.py:gmoe", *SMALL, "--workdir=other", cwd=tmp_path)
  assert done.returncode == 2
  assert "model.name='small_cnn' has no mixtures" in done.stderr


@pytest.mark.slow
def test_the_run_of_the_page(tmp_path):
  code = code_of("docs/python.md").replace("waiting_time = 5\n", "waiting_time = 5\nconfig.train.epochs = 2\n")
  run_code(code, tmp_path)
  (folder,) = re.findall(r'alma_jax\.run\(config, "(.*?)"', code)
  assert len(lines(tmp_path / folder, "metrics.jsonl")) == 20


def test_the_stream_of_the_page(tmp_path):
  code = codes_of("docs/python.md")[1].replace('"configs/live.py:anytime"', "config").replace("1700", "500")
  code = f"from test_live import live_config\nconfig = live_config('DIR', stream__waiting_time=1)\n{code}"
  assert [line.split()[0] for line in run_code(code, tmp_path).splitlines()] == ["1", "2", "3", "4", "5"]
  assert not run_code(code, tmp_path), "it goes on where it was"


def test_the_sweeps_of_the_page(tmp_path):
  first, second, third = codes_of("docs/sweeps-and-reports.md")[:3]
  names = {}
  exec(first, names)
  assert len(names["get_sweep"]().points) == 2 * 2 * 3
  exec(third, names)  # which needs the imports of the first
  assert len(names["get_sweep"]().points) == (2 + 2) * 3
  exec(second, names)
  made = jobs.make(names["get_sweep"](), tmp_path, {"train.epochs": "3"})
  assert [job.name for job in made] == ["sm-seed0", "sm-seed1", "ens-seed0", "ens-seed1"]
  assert {(job.config.stream.schedule.waiting_time, job.config.train.epochs) for job in made} == {(5, 3)}


def test_every_page_of_the_tutorial_has_commands_and_ends_with_a_picture(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import tutorial
  assert {path.stem for path in (ROOT / "docs/tutorial").iterdir()} == set(tutorial.PAGES)
  for page in tutorial.PAGES:
    text = (ROOT / f"docs/tutorial/{page}.md").read_text()
    assert "alma " in tutorial.script(page)
    assert text.count("\n    alma ") <= tutorial.script(page).count("alma "), "an indented block is a command"
    assert "](../images/" in text[text.rindex("\n    "):], page


def test_the_readme_is_short_and_has_the_two_commands():
  text = (ROOT / "README.md").read_text()
  assert len(text.splitlines()) <= 60
  for what, command in ((".", "alma_jax.main --config=configs/digits.py:anytime"),
                        ("-r requirements.txt", "pytest -n 2")):
    install = f"    python3 -m venv .venv && .venv/bin/pip install {what} && .venv/bin/python -m "
    assert f"\n{install}{command}\n" in text


def test_no_two_examples_share_a_run_folder():
  code = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)]
  folders = [folder for block in code for folder in re.findall(r'alma_jax\.run\(\w+, "(.*?)"', block)]
  assert len(set(folders)) == len(folders) >= 2


@pytest.mark.parametrize(("base", "inside", "tree", "sentence"), [
    (alma_jax.DataSet, {"problems": ("text",)}, {"problem": "text", "dataset": {"name": "mine"}},
     "dataset.name='mine' stands for Mine, which should inherit from alma_jax.config.text_sections.Text"),
    (alma_jax.Optimizer, {"decay": 0.1, "__annotations__": {"decay": float}}, {"train": {"optimizer": "mine"}},
     "train.decay is declared twice, by alma_jax and by your class; rename")])
def test_what_cannot_be_part_of_a_config(base, inside, tree, sentence):
  alma_jax.register(dataclasses.dataclass(frozen=True)(type("Mine", (base,), {"name": "mine", **inside})))
  with pytest.raises(BadInput, match=sentence):
    configs.parse(tree)


def test_fields_of_live_streams_count_for_a_data_set_of_the_users():
  inside = {"name": "mine", "max_examples": 10, "__annotations__": {"max_examples": int}}
  alma_jax.register(dataclasses.dataclass(frozen=True)(type("Mine", (alma_jax.DataSet,), inside)))
  digests = [configs.digest(configs.parse({"dataset": {"name": name, "max_examples": num}}))
             for name in ("mine", "live:here") for num in (10, 20)]
  assert len(set(digests)) == 3
  assert digests[2] == digests[3]


def test_threads_may_read_configs_at_once():
  code = ("import concurrent.futures, alma_jax\n"
          "from alma_jax import config\n"
          "with concurrent.futures.ThreadPoolExecutor(8) as pool:\n"
          "  list(pool.map(lambda _: config.parse({'dataset': {'name': 'mnist'}}), range(8)))")
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_class_that_is_no_dataclass_cannot_be_registered():
  with pytest.raises(BadInput, match="Mine is not a dataclass"):
    alma_jax.register(type("Mine", (alma_jax.Options,), {"name": "mine"}))


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
  for name in re.findall(r"(?:configs|benchmarks|docs|colabs|tests)/[\w/]+\.(?:py|sh|md|ipynb)", text):
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


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
  """.ci/run names the folder of the site that it has built."""
  for file in (".ci/run", ".github/workflows/checks.yml"):
    assert re.search(r"^ *(- run: )?\.ci/docs ", (ROOT / file).read_text(), re.MULTILINE), file
  site = pathlib.Path(os.environ.get("ALMA_JAX_TEST_SITE", tmp_path / "site"))
  if not site.exists():
    done = build_site(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
  assert 'url=../../findings/"' in (site / "results/claims/index.html").read_text()  # an address of version 0.1
  page = (site / "protocol/index.html").read_text()
  assert '<abbr title="Cumulative error rate: ' in page
  assert r"\(\sum_{t=1}^{B} e_t\)" in page
  for path in site.rglob("*.html"):  # nothing is loaded from other sites
    assert not re.search(r'(<script|<img|<link rel="stylesheet")[^>]*(src|href)="(https?:)?//', path.read_text()), path


def test_the_tables_of_the_anytime_study_are_those_of_its_runs(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import results

  pages = (ROOT / "docs/anytime.md").read_text() + (ROOT / "docs/results/anytime/README.md").read_text()
  tables = results.tables()
  assert len(tables) == 16
  for title, table in tables:
    assert len(table.splitlines()) > 2, title
    assert table in pages, title
  assert [len(panel.lines[0].x) for panel in results.fronts().panels] == [2, 2]  # budgets


def test_the_tables_of_the_drift_study_are_those_of_its_runs(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  import drift_study

  folder = ROOT / "docs/results/drift"
  page, tables = (folder / "README.md").read_text(), drift_study.tables(drift_study.read(folder))
  assert len(tables) >= 3
  for title, table in tables:
    assert table in page, title
