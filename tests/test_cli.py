"""The command `alma`, and the package's own configs by name."""
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from runs import ROOT, alma

import alma_jax
from alma_jax import config as configs
from alma_jax import main
from alma_jax.config import registry

NAMES = ("run", "sweep", "apart", "stream", "report", "sample", "export", "predict", "evaluate", "serve", "status",
         "compare", "board", "list", "fields")


def test_everything_is_listed():
  done = alma("cli", "list")
  said = " ".join(done.stdout.split())
  assert [said.count(f"Start here{more}") for more in (" to get good", " to find out", "")] == [2, 2, 4]
  names = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
  files = [path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in ROOT.glob("configs/**/*.py")]
  known = [form for kind in registry.KINDS for names_of in kind.values() for form in names_of.forms()]
  assert {*known, *files} <= set(names)
  assert {"digits", "mnist", "cifar10", "tfds:NAME", "npz:PATH", "folder:DIR", "text:DIR"} < set(names)
  assert {"s_minus", "nevis_mini", "tasks:PATH.py"} < set(names)
  assert all(len(line.split()) > 1 for line in done.stdout.splitlines() if re.match(r"  \w", line))
  assert done.returncode == 0


def test_help_of_the_command():
  for args in ([], ["--help"], ["-h"]):
    done = alma("cli", *args)
    assert done.returncode == 0
    assert all(f"  alma {name}" in done.stdout for name in NAMES)


def test_the_version_stands_in_one_place():
  assert alma("cli", "--version").stdout == f"alma_jax {alma_jax.__version__}\n"
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())
  assert project["project"]["dynamic"] == ["version"]
  assert project["tool"]["hatch"]["version"]["path"] == "alma_jax/version.py"
  assert f"\nversion: {alma_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
  assert f"## {alma_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_commands_are_passed_on(tmp_path):
  done = alma("cli", "run", "--config=digits:sm", "--config.train.epochs=1", "--config.devices=1",
              "--config.stream.num_megabatches=2", "--workdir=mine", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "mine/summary.json").exists()
  done = alma("cli", "export", "--workdir=mine", cwd=tmp_path)
  assert (done.returncode, (tmp_path / "mine/export/predictor.stablehlo").exists()) == (0, True)
  done = alma("cli", "sample", cwd=tmp_path)
  assert "required" in done.stderr
  assert "; alma sample --help lists the arguments." in done.stderr


@pytest.mark.parametrize("name", ["mnist", "mnist.py", "configs/mnist.py"])
def test_the_packages_configs_are_found_from_any_folder(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  assert configs.find(name) == ROOT / "configs/mnist.py"
  assert configs.load_file(name, "sm")["stream"]["num_megabatches"] == 500
  # A .py file of that name in the folder counts more.
  path = pathlib.Path(name)
  path.parent.mkdir(exist_ok=True)
  path.write_text("import alma_jax\n\ndef get_config(learner='sm'):\n  return alma_jax.base_config(learner)\n")
  if name == "mnist":  # any file may be called so
    return
  assert configs.find(name) == path
  assert configs.load_file(name)["stream"]["num_megabatches"] == 20


def test_a_file_without_py_does_not_replace_a_config(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("digits").write_text("my digits")
  assert configs.find("digits") == ROOT / "configs/digits.py"
  pathlib.Path("other").write_text("")
  assert configs.find("other") == pathlib.Path("other")


@pytest.mark.parametrize("name", ["sweeps/digits", "configs/sweeps/digits.py"])
def test_the_packages_sweeps_are_found_from_any_folder(tmp_path, monkeypatch, name):
  from alma_jax.sweeps import jobs
  monkeypatch.chdir(tmp_path)
  assert len(jobs.make(jobs.load(name), tmp_path)) == 8


def test_what_is_no_config_is_not_found(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert configs.find("mnits") is None
  assert configs.find("9" * 5000) is None


def test_ctrl_c_in_a_callback_of_the_garbage_collector_ends_a_command():
  """Python ignores exceptions there, and jax has such a callback."""
  done = subprocess.run([sys.executable, "-c", """
import gc, signal, sys
from alma_jax import commands

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its jobs in the background ignore it

def work():
  gc.callbacks.append(lambda *unused: signal.raise_signal(signal.SIGINT))
  gc.collect()
  print("went on")

sys.exit(commands.exit_code(work))"""], cwd=ROOT, capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_signals_are_watched_before_the_config_imports_jax(monkeypatch):
  order = []
  monkeypatch.setattr(main, "_watch_signals", lambda: order.append("watch") or (None, None))
  monkeypatch.setattr(main, "_parse", lambda argv: order.append("parse") or (None, None))
  monkeypatch.setattr(main, "_run", lambda *unused: 7)
  assert main.main([]) == 7
  assert order == ["watch", "parse"]
