"""Runs config files: Python files with a function get_config. The package's own are found from any folder."""
import os
import pathlib
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from alma_jax.config.fields import listed
from alma_jax.config.layout import Tree
from alma_jax.errors import BadInput

T = TypeVar("T")
_USAGE = "write --config=configs/NAME.py:LEARNER"
_PACKAGE = pathlib.Path(__file__).parents[1]
# The folder configs/ of an installed package, or of a clone of the repository.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


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


def load_file(path: str, arg: str | None = None) -> Tree:
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
                   f"{_USAGE}.")
  folder = str(file.resolve().parent)
  if folder not in sys.path:
    sys.path.append(folder)  # the file may import others of its folder

  def made(names: dict[str, Any]) -> Any:
    get_config = names.get("get_config")
    if get_config is None:
      raise BadInput(f"{file} has no function get_config; a config file defines get_config(learner).")
    try:
      return get_config(arg) if arg else get_config()
    except TypeError as error:
      if "get_config()" not in str(error):
        raise
      how = f"{file}, without :{arg}" if arg else f"{file}:LEARNER"
      raise BadInput(f"{file}: {error}; write --config={how}.") from error

  config = run_file(str(file), made, f"; {_USAGE}")
  if not hasattr(config, "to_dict"):
    raise BadInput(f"get_config of {file} returned {type(config).__name__}; it should return a ConfigDict, such as "
                   "alma_jax.base_config returns.")
  tree: Tree = config.to_dict()
  return tree


def run_file(path: str, use: Callable[[dict[str, Any]], T], advice: str = "") -> T:
  """Runs a Python file and returns use({name: value} of its globals).

  Args:
    path: path of an existing file.
    use: called with the file's globals; it may call the file's functions.
    advice: end of the error if this is not a Python file.

  Raises:
    BadInput: the file is not Python, fails, or ends the program.
  """
  try:
    return use(runpy.run_path(path))
  except BadInput:
    raise
  except SyntaxError as error:
    raise BadInput(f"{path} is not a Python file (line {error.lineno}: {error.msg}){advice}.") from error
  except (Exception, SystemExit) as error:  # whatever the file does
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    where = f" (line {lines[-1]})" if lines else ""
    raise BadInput(f"{path}{where} failed with {type(error).__name__}: {' '.join(str(error).split())}.") from error
