"""The layers of the package: no module imports from a layer above its own, and no modules import each other.

What starts at once does not import jax.
"""
import ast
import graphlib
import json
import pkgutil
import re
import subprocess
import sys

from reports import write_run
from runs import ROOT

# From the lowest to the highest. A module at the top of the package is a layer as well.
LAYERS = ("version", "errors", "messages", "extras", "files", "web", "types", "keys", "config",
          "commands", "parallel", "data", "models", "problems", "training", "growth", "learners", "predictors", "store",
          "protocols", "runs", "sweeps", "reports", "monitor")
COMMANDS = ("__init__", "cli", "main", "sweep", "apart", "stream", "report", "sample", "export", "predict", "evaluate",
            "serve", "status", "compare", "board", "demo")  # they may import anything
FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
         for path in sorted((ROOT / "alma_jax").rglob("*.py"))}


def imported(path):
  """The modules of the package that a module imports, wherever the import stands."""
  for node in ast.walk(ast.parse(path.read_text())):
    names = []
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "alma_jax":
      names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
      names = [alias.name for alias in node.names if alias.name.startswith("alma_jax.")]
    yield from (name if name in FILES else name.rpartition(".")[0] for name in names)


def layer(module):
  """E.g. "data" of "alma_jax.data.text", and "__init__" of "alma_jax"."""
  return [*module.split("."), "__init__"][1]


def test_nothing_imports_from_a_layer_above():
  rank = {name: i for i, name in enumerate((*LAYERS, *COMMANDS))}
  lower = [module for module in FILES if layer(module) not in COMMANDS]
  above = [(module, name) for module in lower for name in imported(FILES[module])
           if rank[layer(name)] > rank[layer(module)]]
  assert not above


def test_no_modules_import_each_other():
  graphlib.TopologicalSorter({module: {*imported(path)} - {module} for module, path in FILES.items()}).prepare()


def loaded(*lines):
  """Which of jax and numpy a process has imported after these lines of Python."""
  code = "\n".join(["import json, sys", *lines, "print(json.dumps([x for x in ('jax', 'numpy') if x in sys.modules]))"])
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
  return json.loads(done.stdout.splitlines()[-1])


def test_imports_and_help_come_without_numpy():
  assert loaded("import alma_jax, alma_jax.config", "from alma_jax import cli", "assert cli.main(['--help']) == 0",
                "assert cli.main(['run', '--help']) == 0") == []


def test_finished_runs_are_shown_without_jax(tmp_path):
  for learner in ("sm", "ens"):
    write_run(tmp_path / learner, [0.5, 0.4], learner)
  assert loaded("import os", "from alma_jax import cli", f"os.chdir({str(tmp_path)!r})",
                *(f"assert cli.main({args}) == 0" for args in (["status", "."], ["compare", "sm", "ens"],
                                                               ["report", "."]))) == ["numpy"]


def test_every_package_says_what_it_is():
  for package in {path.parent for path in FILES.values()}:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text())), package


def test_the_page_of_the_architecture_is_true():
  """It has a paragraph for each package, in the order of the layers, and names only what exists."""
  page, picture = ((ROOT / "docs" / name).read_text() for name in ("architecture.md", "images/architecture.svg"))
  packages = [name for name in LAYERS if (ROOT / "alma_jax" / name).is_dir()]
  assert re.findall(r"^\*\*`(\w+)`\*\*", page, re.MULTILINE) == packages
  code = [path.read_text() for path in FILES.values()]
  for name in re.findall(r"`([\w./]+)`", page) + re.findall(r">([\w/]+/(?:\w+[.]py)?)<", picture):
    first, _, rest = name.partition(".")
    if "/" in name or rest == "py":
      assert (ROOT / "alma_jax" / name).exists() or (ROOT / name).exists(), name
    elif first in (*LAYERS, *COMMANDS):
      pkgutil.resolve_name(f"alma_jax.{name}")
    elif first[0].isupper():
      method = f"\n  def {rest}(" if rest else ""
      assert any(re.search(rf"^class {first}\b", text, re.MULTILINE) and method in text for text in code), name


def test_files_of_slow_folders_are_marked():
  for path in (ROOT / "tests").glob("s*/test_*.py"):
    assert re.search(r"^pytestmark = .*pytest\.mark\.slow", path.read_text(), re.MULTILINE), path
