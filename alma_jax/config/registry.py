"""Learners and networks by name, those of users included. Imports neither jax nor numpy."""
import dataclasses
import hashlib
import inspect
import pathlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from alma_jax.config import schema, sections
from alma_jax.config.fields import check_declarations, listed
from alma_jax.config.learner_options import LEARNERS as _IMAGE_OPTIONS
from alma_jax.config.learner_options import TEXT_LEARNERS as _TEXT_OPTIONS
from alma_jax.config.learner_options import Options
from alma_jax.config.task_options import TASK_LEARNERS as _TASK_OPTIONS
from alma_jax.errors import BadInput

# What users have registered, by name.
LEARNERS: dict[str, Callable[..., Any]] = {}
TEXT_LEARNERS: dict[str, Callable[..., Any]] = {}
MODELS: dict[str, Callable[..., Any]] = {}
# Top-level modules that are no code of the user's, wherever Python is installed.
_NOT_OWN = {*sys.stdlib_module_names, "alma_jax"}


def register_learner(cls: type[Options], make: Callable[..., Any], language: bool = False) -> None:
  """Makes a learner known as `cls.name`, to configs and on the command line.

  Registering the same name again replaces the learner, so that a notebook cell can run twice.

  Args:
    cls: its options, a frozen dataclass that inherits from alma_jax.Options. Each option is declared by
      alma_jax.field, and `name` has a default.
    make: (learners.contract.Context) -> learners.contract.Learner.
    language: whether the learner is for language models instead of images.

  Raises:
    BadInput: `cls` is not such a class, one of its declarations is wrong, or the name belongs to a learner of alma_jax.
  """
  known, own = (_TEXT_OPTIONS, TEXT_LEARNERS) if language else (_IMAGE_OPTIONS, LEARNERS)
  _check_options(cls, schema.LanguageConfig if language else schema.ImageConfig)
  if cls.name in known and cls.name not in own:
    raise BadInput(f"there is a learner {cls.name!r} already; give yours another name.")
  known[cls.name], own[cls.name] = cls, make


def register_model(name: str, make: Callable[..., Any]) -> None:
  """Makes an image network known as `model.name`.

  Args:
    name: name of the network.
    make: (width, num_classes, dtype, axis) -> Flax module. The module is called with
      (x [B, ...] float32, mask_B bool or None, train bool) and returns logits
      [B, K] float32; `axis` is the mesh axis over which batches are sharded, for
      layers.BatchNorm. The module's attribute `convolutional` says whether XLA would run
      it slowly inside a loop on a CPU.

  Raises:
    BadInput: the name belongs to a network of alma_jax.
  """
  if name in (*sections.NETWORKS, schema.Switch.name) and name not in MODELS:
    raise BadInput(f"there is a network {name!r} already; give yours another name.")
  if name not in MODELS:
    sections.NETWORKS.append(name)
  MODELS[name] = make


def learners_of(config: type[schema.RunConfig]) -> Mapping[str, type[Options]]:
  """{name: class of its options} of the learners for configs of this class."""
  return {schema.LanguageConfig: _TEXT_OPTIONS, schema.TaskConfig: _TASK_OPTIONS}.get(config, _IMAGE_OPTIONS)


def options_of(name: object, config: type[schema.RunConfig] = schema.ImageConfig, recipes: Collection[str] = ()
               ) -> type[Options]:
  """The class of a learner's options; messages list the `recipes` too.

  Raises:
    BadInput: there is no learner of that name for configs of this class.
  """
  known = learners_of(config)
  if not isinstance(name, str) or name not in known:
    others = {schema.LanguageConfig: " for language modelling", schema.TaskConfig: " for streams of tasks"}
    task = others.get(config, "") if name in (*_IMAGE_OPTIONS, *_TASK_OPTIONS, *recipes) else ""
    names = [*known, *(recipe for recipe in recipes if not task)]
    raise BadInput(f"there is no learner {name!r}{task}; the learners are {listed(names)}; if it is one of your own, "
                   "run the file that registers it first: import it, or name it by --config.")
  return known[name]


def own_learners(config: schema.RunConfig) -> dict[str, Callable[..., Any]]:
  """The learners that users have registered for configs of this kind, {name: factory}."""
  return TEXT_LEARNERS if config.is_language else LEARNERS


def code_of(config: schema.RunConfig) -> dict[str, str]:
  """{name: SHA-256 of the file that defines it} of the learner and the network of a config that users have registered.

  Files that these import from the same folder are listed under their paths. Definitions in a notebook have no file and
  are left out.
  """
  used = (config.learner.name, own_learners(config)), (config.model.name, MODELS)
  made = {name: known[name] for name, known in used if name in known}
  found = {name: file.resolve() for name, each in made.items() if (file := _file_of(each)) is not None}
  for name, file in list(found.items()):
    imported = _imported([each.__globals__ for each in functions_of(made[name])], file.parent)
    found |= {path: each for path, each in imported.items() if each not in found.values()}
  return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in found.items()}


def classes_of(tree: Mapping[str, Any]) -> tuple[type[schema.RunConfig], type[Options]]:
  """The classes that a config with these fields is checked against.

  Args:
    tree: nested dict of a config, whose sections may be incomplete.

  Returns:
    schema.ImageConfig, TaskConfig or LanguageConfig, and the class of the learner's options.

  Raises:
    BadInput: there is no such learner, or the model and the data are for different tasks.
  """
  model, learner = (tree[name] if isinstance(tree.get(name), dict) else {} for name in ("model", "learner"))
  config = schema.config_of(tree)
  if (model.get("name") == schema.Switch.name) != (config is schema.LanguageConfig):
    raise BadInput(f"model.name={model.get('name')!r} does not go with this config: 'switch' is for configs/lm.py, "
                   f"{listed(map(repr, sections.NETWORKS))} are for the others.")
  return config, options_of(learner.get("name"), config)


def _file_of(made: Callable[..., Any]) -> pathlib.Path | None:
  """The file that defines a function or a class; None if there is none."""
  files = (pathlib.Path(each.__code__.co_filename) for each in functions_of(made))
  return next((file for file in files if file.is_file()), None)


def _imported(todo: list[dict[str, Any]], folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """{path relative to `folder`: file} of the user's modules below it that the modules with these globals import."""
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


def functions_of(made: Callable[..., Any]) -> list[Any]:
  """The function, or the methods of the class, without those that another module defines."""
  # Flax wraps the methods of its modules. A class that runpy has loaded has no module in which it could be looked up.
  functions = [inspect.unwrap(each) for each in (made, *getattr(made, "__dict__", {}).values()) if callable(each)]
  return [each for each in functions if hasattr(each, "__code__") and each.__module__ == made.__module__]


def _check_options(cls: type[Options], config: type[schema.RunConfig]) -> None:
  if not (isinstance(cls, type) and issubclass(cls, Options) and cls is not Options):
    raise BadInput(f"{getattr(cls, '__name__', cls)} should be a frozen dataclass that inherits from alma_jax.Options "
                   "and has a field `name`.")
  if "__dataclass_fields__" not in vars(cls) or not dataclasses.is_dataclass(cls):
    raise BadInput(f"{cls.__name__} is not a dataclass; write @dataclasses.dataclass(frozen=True) above the class.")
  check_declarations(cls)
  if not cls.name:
    raise BadInput(f"{cls.__name__}.name has no default; write name: str = NAME in the class.")
  known = schema.declared_fields(config, cls)
  for path, value in cls.defaults.items():
    if path not in known:
      raise BadInput(f"{cls.__name__}.defaults has the field {path!r}, which configs do not have; they have "
                     f"{listed(known)}.")
    known[path].accept(value, f"{cls.__name__}.defaults: {path}")
