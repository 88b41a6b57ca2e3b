"""The layers of the package: no module imports from a layer above its own."""
import ast

import pytest
from runs import ROOT

# From the lowest to the highest. A module at the top of the package is a layer as well.
LAYERS = ("version", "errors", "stack_traces", "shortages", "messages", "files", "web", "types", "keys", "config",
          "commands", "parallel", "data", "models", "tasks", "training", "growth", "learners", "predictors", "runs",
          "sweeps", "reports", "monitor")
COMMANDS = ("__init__", "cli", "main", "sweep", "apart", "report", "sample", "export", "predict", "evaluate", "serve",
            "status", "compare", "board")  # they may import anything
MODULES = sorted((ROOT / "alma_jax").rglob("*.py"))


def layer(name):
  """E.g. "data" of "alma_jax.data.text"."""
  return name.split(".")[1]


def imported(path):
  """Layers that a module imports from, wherever the import stands."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom) and node.module == "alma_jax":
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("alma_jax."):
      yield layer(node.module)
    elif isinstance(node, ast.Import):
      yield from (layer(alias.name) for alias in node.names if alias.name.startswith("alma_jax."))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_from_a_layer_above(path):
  mine = path.relative_to(ROOT / "alma_jax").parts[0].removesuffix(".py")
  if mine in COMMANDS:
    return
  above = {name for name in imported(path) if LAYERS.index(name) > LAYERS.index(mine)}
  assert not above


def test_every_package_says_what_it_is():
  for package in {path.parent for path in MODULES}:
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text())), package


def test_the_list_of_slow_tests_names_tests():
  """A renamed test would otherwise run among the fast ones without a word."""
  listed = [line for line in (ROOT / "tests/slow.txt").read_text().splitlines() if not line.startswith("#")]
  assert listed == sorted(set(listed))
  for line in listed:
    file, name = line.split("[")[0].split("::")
    assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(), line
