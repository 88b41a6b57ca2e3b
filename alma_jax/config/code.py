"""Hashes of the files that define a user's learner, network, data set or optimiser. Imports neither jax nor numpy."""
import hashlib
import inspect
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from alma_jax.config import layout, schema
from alma_jax.config.registry import is_own

# Top-level modules that are not the user's code, wherever Python is installed.
_NOT_OWN = {*sys.stdlib_module_names, "alma_jax"}


def code_of(config: schema.RunConfig) -> dict[str, str]:
  """Hashes of the files behind the user's classes that a config names, {name: SHA-256 of the file}.

  Files that these import from the same folder are listed too, under their paths. A class that is defined in a notebook
  has no file and is left out.
  """
  functions = {each.name: functions_of(type(each)) for each in layout.sections_of(config)
               if each.registries and is_own(type(each))}
  found = {name: file.resolve() for name, each in functions.items() for function in each
           if (file := pathlib.Path(function.__code__.co_filename)).is_file()}  # one file; generated methods have none
  for name, file in list(found.items()):
    imported = _imported([each.__globals__ for each in functions[name]], file.parent)
    found |= {path: each for path, each in imported.items() if each not in found.values()}
  return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in found.items()}


def functions_of(made: Callable[..., Any]) -> list[Any]:
  """The function, or the methods of the class that its own module defines."""
  # Flax wraps the methods of its modules. A class that runpy has loaded has no module in which it could be looked up.
  functions = [inspect.unwrap(each) for each in (made, *getattr(made, "__dict__", {}).values()) if callable(each)]
  return [each for each in functions if hasattr(each, "__code__") and each.__module__ == made.__module__]


def _imported(todo: list[dict[str, Any]], folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The user's modules in `folder` that modules with these globals import, {path relative to `folder`: file}."""
  found, seen = {}, set()
  while todo:
    for value in list(todo.pop().values()):
      name = value.__name__ if inspect.ismodule(value) else str(getattr(value, "__module__", ""))
      if name in seen or name.partition(".")[0] in _NOT_OWN:
        continue
      seen.add(name)
      module = value if inspect.ismodule(value) else sys.modules.get(name)
      file = getattr(module, "__file__", None)
      if not file or not {"site-packages", "dist-packages"}.isdisjoint(pathlib.Path(file).parts):
        continue
      path = pathlib.Path(file).resolve()
      if folder in path.parents:
        found[path.relative_to(folder).as_posix()] = path
        todo.append(vars(module))
  return found
