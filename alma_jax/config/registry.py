"""Finds learners, networks, data sets, optimisers, metrics and drifts by name, including the user's.

A name stands for a frozen dataclass: it declares the fields that come with the name, and a method makes the learner,
network, data set or optimiser from them; a metric has no fields. `register` adds a class. A class of this package
registers when its module is imported, and a module is imported when a config first names its class. This module imports
neither jax nor numpy.
"""
import difflib
import importlib
import pkgutil
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from alma_jax.config.fields import check_declarations, listed
from alma_jax.errors import BadInput

C = TypeVar("C", bound=type)
IMAGES, TEXT, TASKS = "images", "text", "tasks"  # the problems that a config can be about
_importing = threading.RLock()  # one thread imports at a time; the others wait until all classes are there
YOURS = "if it is your own, import the file that registers it, or give that file to --config"


class Registry(Mapping[str, Any]):
  """{name: dataclass}, sorted by name, with the user's classes last.

  A data set is found by its name alone or with the part after the colon, as in `npz:PATH`.

  Attributes:
    what: what the names stand for, e.g. "learner".
  """

  def __init__(self, what: str, module: str) -> None:
    """`module`: full name of the module or package that registers alma_jax's own classes."""
    self.what, self._module = what, module
    self._classes: dict[str, Any] = {}
    self._is_complete = False

  def __getitem__(self, name: str) -> Any:
    name = name.partition(":")[0]
    if name not in self._classes:
      self._import(name)  # the module of this name, because it is likely and all of them take long
    if name not in self._classes:
      self._import()
    return self._classes[name]

  def __iter__(self) -> Iterator[str]:
    self._import()
    return iter(sorted(self._classes, key=lambda name: (is_own(self._classes[name]), name)))

  def __len__(self) -> int:
    self._import()
    return len(self._classes)

  def of(self, name: object, field: str) -> Any:
    """The class that a field's value names.

    Raises:
      BadInput: the name is unknown, or the part after its colon is missing or unexpected.
    """
    if not isinstance(name, str) or name not in self:
      raise BadInput(f"{field}={name!r} is not one of {listed(self.forms())}{meant(name, self.forms())}; {YOURS}.")
    cls, (_, colon, rest) = self[name], name.partition(":")
    if (":" in form(cls)) != bool(colon) or (colon and not rest):
      raise BadInput(f"{field}={name!r} should be {form(cls)}.")
    return cls

  def forms(self) -> list[str]:
    """The names as users write them, e.g. "npz:PATH"."""
    return [form(cls) for cls in self.values()]

  def add(self, cls: Any) -> None:
    """Adds a class under its `name`. A user's class may replace another of the user's classes.

    Raises:
      BadInput: the name is taken by a class of alma_jax.
    """
    if is_own(cls) and cls.name in self and not is_own(self[cls.name]):
      raise BadInput(f"the {self.what} {cls.name!r} exists already in alma_jax; give yours another name.")
    self._classes[cls.name] = cls

  def _import(self, name: str | None = None) -> None:
    """Imports all modules that register classes, or the one called `name`."""
    with _importing:
      if self._is_complete:
        return
      package = importlib.import_module(self._module)
      for each in pkgutil.iter_modules(getattr(package, "__path__", ())):
        if name in (None, each.name):
          importlib.import_module(f"{self._module}.{each.name}")
      self._is_complete = name is None  # not before: an import may fail, and is tried again


def _registries(what: str, module: str, *problems: str) -> Mapping[str, Registry]:
  return {problem: Registry(what, f"alma_jax.{module}") for problem in problems}


LEARNERS = _registries("learner", "learners", IMAGES, TEXT, TASKS)
NETWORKS = _registries("network", "models", IMAGES, TEXT, TASKS)
DATA_SETS = _registries("data set", "data.sets", IMAGES, TEXT, TASKS)
OPTIMIZERS = _registries("optimiser", "training.optimizers", IMAGES, TEXT, TASKS)
METRICS = _registries("metric", "problems.measures", IMAGES, TEXT, TASKS)
DRIFTS = _registries("drift", "data.drifting", IMAGES)
KINDS = (LEARNERS, NETWORKS, DATA_SETS, OPTIMIZERS, METRICS, DRIFTS)


def register(cls: C) -> C:
  """Class decorator that adds a learner, a network, a data set, an optimiser, a metric or a drift under its `name`.

      @alma_jax.register
      @dataclasses.dataclass(frozen=True)
      class Options(alma_jax.Options):
        name: str = "fittest"

  You can register a name of yours again, for example by running a notebook cell twice; the new class replaces the old.

  Args:
    cls: a frozen dataclass that inherits from alma_jax.Options, TaskOptions, Model, DataSet, Optimizer, Metric or
      Drift. Declare its fields with alma_jax.field, give `name` a default, and say in `problems` what it is for.

  Raises:
    BadInput: the class is not of this form, or alma_jax has a class with this name.
  """
  made: Any = cls  # mypy does not know its attributes
  if not getattr(cls, "registries", None):
    raise BadInput(f"{cls.__name__} should inherit from alma_jax.Options, TaskOptions, Model, DataSet, Optimizer, "
                   "Metric or Drift.")
  if "__dataclass_fields__" not in vars(cls):
    raise BadInput(f"{cls.__name__} is not a dataclass; write @dataclasses.dataclass(frozen=True) between "
                   "@alma_jax.register and the class.")
  check_declarations(cls)
  if not made.name:
    raise BadInput(f"{cls.__name__}.name has no default; write name: str = \"NAME\" in the class.")
  if {*":,"} & {*made.name}:
    raise BadInput(f"{cls.__name__}.name={made.name!r} should have no colon and no comma; form: ClassVar[str] = "
                   "'NAME:PATH' of a data set says what follows its name.")
  made.check_class()
  for problem in made.problems:
    if problem not in made.registries:
      raise BadInput(f"{cls.__name__}.problems={made.problems!r} should be a tuple of one or more of "
                     f"{listed(map(repr, made.registries))}.")
    made.registries[problem].add(cls)
  return cls


def form(cls: Any) -> str:
  """The name of a registered class as users write it, e.g. "npz:PATH"."""
  return cls.form or str(cls.name)


def is_own(cls: type) -> bool:
  """Whether a class is the user's, and not one of this package."""
  return cls.__module__.partition(".")[0] != "alma_jax"


def meant(name: object, names: Collection[str]) -> str:
  """As in " (did you mean 'train.epochs'?)", for a name that is close to one of `names`; else empty."""
  close = difflib.get_close_matches(str(name), names, 1)
  return f" (did you mean {close[0]!r}?)" if close else ""
