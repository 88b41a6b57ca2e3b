"""Declares config fields: type, default, allowed values and meaning, in one place.

A section of a config is a frozen dataclass, and so are the options of a learner, a network, a data set or an optimiser.
Declare their fields with `field`:

    @alma_jax.register
    @dataclasses.dataclass(frozen=True)
    class Fittest(alma_jax.Options):
      name: str = "fittest"
      every: int = alma_jax.field(1, "stages between two selections", at_least=1)

The checks of a config, `alma fields` and docs/fields.md are made from these declarations. A field whose type is a
dataclass is a section; `choice` declares one that is an instance of one of several dataclasses.
"""
import dataclasses
import functools
import math
import operator
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from alma_jax.errors import BadInput

T = TypeVar("T")
_KEY = "alma_jax"  # of dataclasses.Field.metadata
_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
# The types that a field can have, as errors describe them.
KINDS: Mapping[Any, str] = {
    int: "a whole number", float: "a finite number", bool: "True or False", str: "a string",
    tuple[int, ...]: "a whole number, or several as in (1,2)", tuple[float, ...]: "a number, or several as in (1,2)",
    tuple[str, ...]: "a name, or several as in (a,b)", float | str: "a number or a word"}


class Section:
  """Base class of the parts of a config, frozen dataclasses.

  Attributes:
    registries: {problem: where `register` adds the class}; empty: it is not registered.
    form: how users write its name, if that is more than the name, e.g. "npz:PATH".
    defaults: {field: value}, what it changes in other sections.
  """
  registries: ClassVar[Mapping[str, Any]] = {}
  form: ClassVar[str] = ""
  defaults: ClassVar[Mapping[str, Any]] = {}

  @classmethod
  def check_class(cls) -> None:
    """Raises BadInput if `register` should not add the class."""

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together, or not with the rest of the config."""


class Declared(NamedTuple):
  """A field of a config, or a part that is a dataclass and has fields of its own.

  Attributes:
    kind: its type, one of KINDS; for a part the dataclass, or what those in `classes` have in common.
    default: dataclasses.MISSING if it has no default; for a part of a chosen class, the name of the class.
    meaning, choices: see `field`.
    bounds: {"at_least": number, ...}, see `field`.
    classes: {name: dataclass} if the value names a class, and so decides which other fields the config has.
  """
  kind: Any = str
  default: Any = dataclasses.MISSING
  meaning: str = ""
  bounds: Mapping[str, float] = {}
  choices: Collection[str] | None = None
  classes: Mapping[str, Any] | None = None

  @property
  def is_part(self) -> bool:
    """Whether it has fields of its own."""
    return self.kind not in KINDS and (self.classes is not None or dataclasses.is_dataclass(self.kind))

  def named(self) -> "Declared":
    """For a part of a chosen class: the field that holds the name of the class."""
    named = Declared(meaning=self.meaning, choices=self.classes) if self.meaning else declared(self.kind)["name"]
    return named._replace(default=self.default, classes=self.classes)

  def accept(self, value: Any, path: str) -> Any:
    """The value, converted to exactly the field's type.

    A text is read as on the command line. Numpy's values become Python's. A whole number becomes a float if the
    field is a float. A list or a single number becomes a tuple if the field is a tuple.

    Args:
      value: any object.
      path: full name of the field for the error, e.g. "train.epochs".

    Raises:
      BadInput: the value has the wrong type, or is not allowed.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's
    try:
      value = _converted(self.kind, value)
    except (ValueError, KeyError):
      raise BadInput(f"{path}={value!r} should be {KINDS[self.kind]}.") from None
    for part in value if isinstance(value, tuple) else (value,):
      if not (self.choices is None or part in self.choices if isinstance(part, str) else
              all(_BOUNDS[name](part, bound) for name, bound in self.bounds.items())):
        raise BadInput(f"{path}={value!r} should be {self.allowed()}.")
    return value

  def allowed(self, mark: str = "") -> str:
    """The allowed values in words, with `mark` around each choice; empty if all values of the type are allowed."""
    bounds = " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in self.bounds.items())
    if self.bounds.keys() == {"at_least", "at_most"}:
      bounds = f"between {self.bounds['at_least']} and {self.bounds['at_most']}"
    choices = listed(f"{mark}{choice}{mark}" for choice in self.choices or ())
    return " or ".join(filter(None, (bounds, f"one of {choices}" if "," in choices else choices)))


def field(default: T, meaning: str, *, at_least: float | None = None, above: float | None = None,
          at_most: float | None = None, below: float | None = None, choices: Collection[str] | None = None) -> T:
  """Declares a field of a config. Use it as a default in a dataclass.

  To change only the default in a subclass, write it plainly, as in `num_members: int = 3`. The subclass inherits the
  rest of the declaration.

  Args:
    default: value in a template (see presets.py).
    meaning: what the field decides, for `alma fields` and docs/fields.md.
    at_least: the smallest allowed number. In a tuple, bounds apply to every number.
    above: numbers must be larger than this.
    at_most: the largest allowed number.
    below: numbers must be smaller than this.
    choices: the allowed strings. A field of type float | str has bounds for the number and choices for the string.

  Returns:
    A dataclasses.Field, typed as the default.
  """
  given = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
  bounds = {name: bound for name, bound in given.items() if bound is not None}
  return dataclasses.field(default=default, metadata={
      _KEY: Declared(meaning=meaning, bounds=bounds, choices=choices)})


def choice(classes: Mapping[str, Any], default: str, meaning: str = "") -> Any:
  """Declares a field that chooses a dataclass: a section, or in a section a field with further fields beside it.

  Args:
    classes: {name: dataclass with a field `name`}. A registry imports them when one is chosen.
    default: the name in a template.
    meaning: what the name decides, for `alma fields` and docs/fields.md; empty: as its field `name` says.
  """
  return dataclasses.field(default_factory=lambda: classes[default](), metadata={
      _KEY: Declared(default=default, meaning=meaning, classes=classes)})


@functools.cache
def declared(cls: Any) -> Mapping[str, Declared]:
  """{name: Declared} of the fields of a dataclass.

  A subclass that sets only a default inherits the declaration of the nearest base class.
  """
  hints, fields = typing.get_type_hints(cls), {}
  for each in dataclasses.fields(cls):
    inherited = (vars(base).get("__dataclass_fields__", {}).get(each.name) for base in cls.__mro__)
    made = next((other.metadata[_KEY] for other in inherited if other and _KEY in other.metadata), Declared())
    default = made.default if each.default is dataclasses.MISSING else each.default
    fields[each.name] = made._replace(kind=hints[each.name], default=default)
  return fields


def check_declarations(cls: type) -> None:
  """Checks the declarations of a class of options.

  Raises:
    BadInput: a field has no default, its default is not allowed, or its type is not in KINDS.
  """
  for name, each in declared(cls).items():
    path = f"{cls.__name__}.{name}"
    if each.is_part:
      continue
    if each.kind not in KINDS:
      raise BadInput(f"{path} is of type {kind_name(each.kind)}; declare one of {listed(map(kind_name, KINDS))}.")
    if each.default is dataclasses.MISSING:
      raise BadInput(f"{path} has no default; declare it as alma_jax.field(DEFAULT, MEANING).")
    each.accept(each.default, path)


def listed(names: Iterable[object]) -> str:
  """As in "a, b, c"."""
  return ", ".join(map(str, names))


def kind_name(kind: Any) -> str:
  """As in "int" or "tuple[int, ...]"."""
  return kind.__name__ if type(kind) is type else str(kind)


def text_of(value: Any) -> str:
  """A value as you write it on the command line; `Declared.accept` reads it back."""
  if isinstance(value, tuple):
    return text_of(value[0]) if len(value) == 1 else f"({','.join(map(text_of, value))})"
  return str(value).lower() if isinstance(value, bool) else str(value)


def _converted(kind: Any, value: Any) -> Any:
  """Raises ValueError or KeyError if this cannot be a value of the type."""
  if typing.get_origin(kind) is tuple:
    if isinstance(value, str):
      value = [part.strip(" '\"") for part in value.strip("()[] ").split(",") if part.strip()]
    return tuple(_converted(typing.get_args(kind)[0], part)
                 for part in (value if isinstance(value, (list, tuple)) else [value]))
  if kind == float | str:
    return value if isinstance(value, str) and value[:1].isalpha() else _converted(float, value)
  value = value.tolist() if hasattr(value, "tolist") else value  # of a list of numpy's
  if isinstance(value, str) and kind is not str:
    value = _BOOLS[value.lower()] if kind is bool else kind(value)
  if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
    value = float(value)
  if type(value) is not kind or (kind is float and not math.isfinite(value)):
    raise ValueError(value)
  return value
