"""What `pip install alma_jax` installs, and what the commands say if a package of an extra is missing."""
import ast
import importlib.metadata
import importlib.util
import re
import shutil
import sys
import tomllib

import pytest
from runs import ROOT, alma

from alma_jax import extras

MOST = 16  # packages that pyproject.toml requires
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules that import packages of extras: each after `extras.need`, or in functions that what is loaded leads to.
ONLY_THERE = {"data/examples.py", "data/tfds_folder.py", "monitor/board.py",
              "predictors/answers.py", "predictors/service.py", "runs/listeners.py", "sweeps/slurm.py", "web.py",
              "data/tokens.py"}


def required(lines):
  """The names of packages in requirements, as pip compares them."""
  return {re.sub("[-_.]+", "-", re.match(r"[\w.-]+", line).group()).lower() for line in lines}


def test_few_packages_are_required():
  assert len(PROJECT["dependencies"]) <= MOST


def test_an_extra_installs_what_its_name_promises():
  distributions = importlib.metadata.packages_distributions()
  for extra, packages in extras.EXTRAS.items():
    names = required(PROJECT["optional-dependencies"][extra])
    for package in packages:
      known = required(distributions.get(package, [package]))
      assert known & names or any(name.startswith(package) for name in names), (extra, package)


def test_packages_of_extras_are_imported_only_through_extras():
  """At other places a user without the extra would see a traceback. Type checkers may import everything."""
  needed = required(PROJECT["dependencies"])
  plain = {module for module, names in importlib.metadata.packages_distributions().items() if required(names) & needed}
  plain |= {*sys.stdlib_module_names, "alma_jax", "jaxlib", "rich", "threadpoolctl"}  # come with those required
  found = set()
  for path in sorted((ROOT / "alma_jax").rglob("*.py")):
    tree = ast.parse(path.read_text())
    typed = {inner for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
             for inner in ast.walk(node)}
    for node in ast.walk(tree):
      modules = ([node.module] if isinstance(node, ast.ImportFrom) and node.module else
                 [each.name for each in node.names] if isinstance(node, ast.Import) else [])
      found |= {(str(path.relative_to(ROOT / "alma_jax")), module.partition(".")[0]) for module in modules
                if node not in typed and module.partition(".")[0] not in plain}
  assert {path for path, _ in found} <= ONLY_THERE, found


@pytest.mark.parametrize(("package", "args"), [
    ("tokenizers", "main --config=lm:sm,tiny --config.dataset.name=text:{text}"),
    ("tensorflow_datasets", "main --config=mnist:sm --config.dataset.data_dir={tfds}"),
    ("tensorflow", "main --config=mnist:sm"),
    ("pyarrow", "main --config=npz:sm --config.dataset.name=npz:{parquet}"),
    ("pyarrow", "predict --workdir={empty} --out=a.parquet x.npz"),
    ("river", "main --config=digits:sm --config.log.drift=0.002"), ("river", "main --config=drift:sm,river:SEA"),
    ("wandb", "main --config=digits:sm --config.log.wandb=mine"),
    ("submitit", "sweep --config=sweeps/digits --launcher=slurm"),
    ("s3fs", "status s3://bucket/run"), ("gcsfs", "main --config=digits:sm --workdir gs://bucket/run"),
    ("plotly", "board {run} --port=0"), ("fastapi", "serve --workdir={run} --port=0")])
def test_a_missing_package_is_refused_by_one_sentence(tmp_path, tfds_dir, monkeypatch, package, args):
  places = dict(text=tmp_path / "text", empty=tmp_path / "empty", parquet=tmp_path / "a.parquet",
                run=tmp_path / "run")
  for name in ("text", "empty", "run"):
    places[name].mkdir()
  # Without the arrays that a run has cached beside the data: they need no package.
  places["tfds"] = shutil.copytree(tfds_dir, tmp_path / "tfds", ignore=shutil.ignore_patterns("alma_jax_*"))
  (places["text"] / "a.txt").write_text("It was a dark and stormy night. " * 200)
  (places["parquet"]).write_bytes(b"PAR1")
  (places["run"] / "config.json").write_text("{}")
  monkeypatch.setenv("TFDS_DATA_DIR", str(places["empty"]))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # data that were read before need no package
  real = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest))
  command, *rest = args.format(**places).split()
  done = alma(command, *rest, cwd=tmp_path)
  extra = next(extra for extra, packages in extras.EXTRAS.items() if package in packages)
  assert done.returncode == 2, done.stderr
  said = done.stderr.splitlines()[-1]
  assert said.startswith("error: ")
  assert said.endswith(f" needs the package {package}; run `pip install 'alma_jax[{extra}]'`.")
  assert not list(tmp_path.rglob("metrics.jsonl"))
