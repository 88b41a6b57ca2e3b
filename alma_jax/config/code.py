"""Python files of users: runs config files, and hashes the files that define a learner, a network or a data set.

A config file has a function get_config. The package's own are found from any folder. Imports neither jax nor numpy.
"""
import hashlib
import inspect
import os
import pathlib
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from alma_jax.config import layout, schema
from alma_jax.config.fields import listed
from alma_jax.config.registry import is_own
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from ml_collections import ConfigDict

_PACKAGE = pathlib.Path(__file__).parents[1]
# The folder configs/ of an installed package, or of a clone of the repository.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")
# Top-level modules that are not the user's code, wherever Python is installed.
_NOT_OWN = {*sys.stdlib_module_names, "alma_jax"}


def packaged() -> dict[str, pathlib.Path]:
  """{name: file} of the package's own configs, e.g. "mnist" and "sweeps/mnist", sorted by name."""
  folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
  if folder is None:
    return {}
  files = [*sorted(folder.glob("*.py")), *sorted((folder / "sweeps").glob("*.py"))]
  return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find(path: str | pathlib.Path) -> pathlib.Path | None:
  """The file that a name means.

  Args:
    path: path of a file, or "configs/NAME.py", "NAME.py" or "NAME" for one of the package's own configs. A .py file at
      this path takes precedence.

  Returns:
    The path of an existing file, or None.
  """
  own = packaged().get(pathlib.PurePath(path).as_posix().removeprefix("configs/").removesuffix(".py"))
  if os.path.isfile(path) and (own is None or pathlib.Path(path).suffix == ".py"):  # False for a name that is too long
    return pathlib.Path(path)
  return own


def load_file(path: str, arg: str | None = None) -> layout.Tree:
  """Runs a config file.

  Args:
    path: path of the file, or the name of one of the package's own; see `find`.
    arg: argument of its get_config; None or empty: no argument.

  Returns:
    The nested dict of the ConfigDict that get_config returns.

  Raises:
    BadInput: the file does not exist, has no get_config, fails, or does not return a ConfigDict.
  """
  file = find(path)
  if file is None:
    if os.path.isfile(f"{path}.py"):
      raise BadInput(f"{path!r} is not a file; write --config={path}.py:LEARNER.")
    names = listed(name for name in packaged() if "/" not in name)
    raise BadInput(f"{path!r} is not a file in {pathlib.Path.cwd()}, nor one of the package's configs: {names}; "
                   "write --config=configs/NAME.py:LEARNER.")
  config = run_file(file, "get_config", *filter(None, [arg]))
  if not hasattr(config, "to_dict"):
    raise BadInput(f"get_config of {file} returned {type(config).__name__}; it should return a ConfigDict, such as "
                   "alma_jax.base_config returns.")
  tree: layout.Tree = config.to_dict()
  return tree


def load_config(name: str) -> "ConfigDict":
  """Runs a config file and returns its config, which you can change.

  Args:
    name: as `--config` takes it, e.g. "live:anytime", or "mine.py:sm" for a file of your own.

  Returns:
    ConfigDict with every field, see `base_config`.

  Raises:
    BadInput: see `load_file` and `parse`.
  """
  from alma_jax.config.template import config_dict  # only here: it imports ml_collections

  flat = layout.flatten(layout.to_dict(layout.parse(load_file(*name.partition(":")[::2]))))
  return config_dict(flat)


def run_file(path: str | pathlib.Path, name: str, *args: Any) -> Any:
  """Runs a Python file, and returns what one of its functions returns.

  Args:
    path: path of an existing file, which may import others of its folder.
    name: name of the function, e.g. "get_config".
    args: its arguments.

  Raises:
    BadInput: the file is not Python, has no such function, fails, or ends the program.
  """
  folder = str(pathlib.Path(path).resolve().parent)
  if folder not in sys.path:
    sys.path.append(folder)
  try:
    function = runpy.run_path(str(path)).get(name)
    if function is None:
      raise BadInput(f"{path} has no function {name}; give a file that defines {name}.")
    try:
      inspect.signature(function).bind(*args)
    except TypeError as error:
      how = f"takes no argument, but is given {args[0]!r}; leave it out" if args else (
          f"needs an argument; give it after a colon, as in {path}:ARGUMENT")
      raise BadInput(f"{name} of {path} {how}.") from error
    return function(*args)
  except BadInput:
    raise
  except SyntaxError as error:
    where = f"line {error.lineno}: {error.msg}"
    raise BadInput(f"{path} is not a Python file ({where}); give one that defines {name}.") from error
  except (Exception, SystemExit) as error:  # whatever the file does
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    raise BadInput(f"{path}{where} failed with {type(error).__name__}: {' '.join(str(error).split())}.") from error


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
