"""Declares config fields: type, default, allowed values and meaning, in one place.

A section of a config is a frozen dataclass, and so are the options of a learner, a network, a data set or an optimiser.
Declare their fields with `field`:

    @alma_jax.register
    @dataclasses.dataclass(frozen=True)
    class Fittest(alma_jax.Options):
      name: str = "fittest"
      every: int = alma_jax.field(1, "stages between two selections", at_least=1)

The checks of a config, `alma fields` and docs/fields.md are made from these declarations. A field whose type is a
dataclass is a section, or a choice among several dataclasses; see `section` and `choice`.
"""
import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from alma_jax.errors import BadInput

T = TypeVar("T")
_KEY = "alma_jax"  # of dataclasses.Field.metadata
_TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")
_NAMED_POWERS = range(20, 64)  # exponents; 2**31 is easier to read than 2147483648

# The types that a field can have, as errors describe them.
KINDS: Mapping[Any, str] = {
    int: "a whole number", float: "a finite number", bool: "True or False", str: "a string",
    tuple[int, ...]: "a whole number, or several as in (1,2)", tuple[float, ...]: "a number, or several as in (1,2)",
    tuple[str, ...]: "a name, or several as in (a,b)",
    float | str: "a number or a word"}


class Bounds(NamedTuple):
  """The numbers that a field can have; None: no bound."""
  at_least: float | None = None
  above: float | None = None
  at_most: float | None = None
  below: float | None = None

  def allow(self, number: float) -> bool:
    return ((self.at_least is None or number >= self.at_least) and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most) and (self.below is None or number < self.below))

  def __str__(self) -> str:
    """As in "at least 1"; empty without bounds."""
    at_least, above, at_most, below = map(_number, self)
    if at_least and at_most:
      return f"between {at_least} and {at_most}"
    if above and below:
      return f"strictly between {above} and {below}"
    words = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    return " and ".join(f"{word} {number}" for word, number in words.items() if number)


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
  """A field of a config.

  Attributes:
    kind: its type, one of KINDS.
    default: dataclasses.MISSING if it has no default.
    meaning, bounds, choices: see `field`.
    names: whether the value names a class, and so decides which other fields the config has.
  """
  kind: Any = str
  default: Any = dataclasses.MISSING
  meaning: str = ""
  bounds: Bounds = Bounds()
  choices: Collection[str] | None = None
  names: bool = False

  def accept(self, value: Any, path: str) -> Any:
    """The value, converted to exactly the field's type.

    A numpy scalar becomes a Python number. A whole number becomes a float if the field is a float. A list or a single
    number becomes a tuple if the field is a tuple.

    Args:
      value: any object.
      path: full name of the field for the error, e.g. "train.epochs".

    Raises:
      BadInput: the value has the wrong type, or is not allowed.
    """
    value = _converted(self.kind, value, path)
    parts = value if isinstance(value, tuple) else (value,)
    if self.kind == float | str:
      if not (value in (self.choices or ()) if isinstance(value, str) else self.bounds.allow(value)):
        raise BadInput(f"{path}={value!r} should be {self.allowed()}.")
      return value
    if self.choices is not None and not all(part in self.choices for part in parts):
      raise BadInput(f"{path}={value!r} is not one of {listed(self.choices)}.")
    if not all(self.bounds.allow(part) for part in parts):
      raise BadInput(f"{path}={value} should be {self.bounds}.")
    return value

  def read(self, text: str, path: str) -> Any:
    """The value of a text on the command line; call `accept` to check it.

    Raises:
      BadInput: the text is not a value of the field's type.
    """
    try:
      return _read(self.kind, text)
    except ValueError:
      raise BadInput(f"{path}={text!r} should be {KINDS[self.kind]}.") from None

  def allowed(self) -> str:
    """The allowed values in words; empty if all values of the type are allowed."""
    if self.kind == float | str:
      return f"{self.bounds} or {listed(self.choices or ())}"
    return f"one of {listed(self.choices)}" if self.choices is not None else str(self.bounds)


class Choice(NamedTuple):
  """A field that holds an instance of one of several dataclasses; see `section` and `choice`.

  Attributes:
    classes: {name: dataclass}; None: it is always of the type `kind`.
    default: name of the class in a template.
    meaning: what the name decides; empty for a section.
    kind: the type of the field, which all the dataclasses inherit from.
  """
  classes: Mapping[str, Any] | None
  default: str
  meaning: str
  kind: Any = None

  def places(self, prefix: str, name: str) -> tuple[str, str]:
    """(full name of the field that holds the class's name, what the full names of its fields begin with).

    `prefix` is that of the dataclass in which the field is called `name`.
    """
    return (prefix + name, prefix) if self.meaning else (f"{prefix}{name}.name", f"{prefix}{name}.")

  def named(self) -> Declared:
    """The field that holds the name."""
    if self.meaning:
      return Declared(default=self.default, meaning=self.meaning, choices=self.classes, names=True)
    name = declared(self.kind)["name"]
    assert isinstance(name, Declared)
    return name._replace(default=self.default, names=True)


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
  bounds = Bounds(at_least, above, at_most, below)
  return dataclasses.field(default=default, metadata={
      _KEY: Declared(meaning=meaning, bounds=bounds, choices=choices)})


def section(classes: Mapping[str, Any] | None = None, default: str = "") -> Any:
  """Declares a section, whose fields are called `SECTION.FIELD`.

  Args:
    classes: {name: dataclass}, from which the field `SECTION.name` chooses. None: the class is the field's type.
    default: the name in a template.
  """
  return dataclasses.field(metadata={_KEY: Choice(classes, default, "")})


def choice(classes: Mapping[str, Any], default: str, meaning: str) -> Any:
  """Declares a field that chooses a dataclass. The fields of the dataclass stand beside it in the same section.

  Args:
    classes: {name: dataclass with a field `name`}. The value of the field is the name.
    default: the name in a template.
    meaning: what the name decides, for `alma fields` and docs/fields.md.
  """
  metadata = {_KEY: Choice(classes, default, meaning)}
  if isinstance(classes, dict):
    return dataclasses.field(default=classes[default](), metadata=metadata)
  return dataclasses.field(default_factory=lambda: classes[default](), metadata=metadata)  # a registry imports it then


@functools.cache
def declared(cls: Any) -> Mapping[str, Declared | Choice]:
  """{name: declaration} of the fields of a dataclass."""
  hints, fields = typing.get_type_hints(cls), {}
  for each in dataclasses.fields(cls):
    made = _declaration(cls, each.name)
    own = {"kind": hints[each.name]} | ({} if isinstance(made, Choice) else {"default": each.default})
    fields[each.name] = made._replace(**own)
  return fields


def check_declarations(cls: type) -> None:
  """Checks the declarations of a class of options.

  Raises:
    BadInput: a field has no default, its default is not allowed, its type is not in KINDS, or it has bounds that its
      type cannot have.
  """
  for name, each in declared(cls).items():
    path = f"{cls.__name__}.{name}"
    if isinstance(each, Choice):
      continue
    if each.kind not in KINDS:
      raise BadInput(f"{path} is of type {kind_name(each.kind)}; declare one of {listed(map(kind_name, KINDS))}.")
    if each.default is dataclasses.MISSING:
      raise BadInput(f"{path} has no default; declare it as alma_jax.field(DEFAULT, MEANING).")
    if each.kind in (str, bool) and each.bounds != Bounds():
      raise BadInput(f"{path} is of type {kind_name(each.kind)}, which has no bounds; leave them out.")
    each.accept(each.default, path)


def listed(names: Iterable[object]) -> str:
  """As in "a, b, c"."""
  return ", ".join(map(str, names))


def kind_name(kind: Any) -> str:
  """As in "int" or "tuple[int, ...]"."""
  return kind.__name__ if type(kind) is type else str(kind)


def text_of(value: Any) -> str:
  """A value as you write it on the command line; `Declared.read` reads it back."""
  if isinstance(value, tuple):
    return text_of(value[0]) if len(value) == 1 else f"({','.join(map(text_of, value))})"
  return str(value).lower() if isinstance(value, bool) else str(value)


def _declaration(cls: type, name: str) -> Declared | Choice:
  """The declaration of a field by the class, or by the nearest base class that declares it."""
  inherited = (vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__)
  return next((each.metadata[_KEY] for each in inherited if each is not None and _KEY in each.metadata), Declared())


def _converted(kind: Any, value: Any, path: str) -> Any:
  if typing.get_origin(kind) is tuple:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(_converted(typing.get_args(kind)[0], part, path) for part in values)
  if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
    value = value.item()
  if kind == float | str and not isinstance(value, str):
    kind = float
  if kind is float and type(value) is int and abs(value) <= sys.float_info.max:
    value = float(value)
  if not (type(value) is kind or (kind == float | str and isinstance(value, str))) or (
      kind is float and not math.isfinite(value)):
    raise BadInput(f"{path}={value!r} should be {KINDS[kind]}.")
  return value


def _read(kind: Any, text: str) -> Any:
  """Raises ValueError if the text cannot be a value of this type."""
  if typing.get_origin(kind) is tuple:
    parts = text.strip("()[] ").split(",")
    return tuple(_read(typing.get_args(kind)[0], part.strip(" '\"")) for part in parts if part.strip())
  if kind is bool:
    if text.lower() not in _TRUE + _FALSE:
      raise ValueError(text)
    return text.lower() in _TRUE
  if kind == float | str:
    try:
      return float(text)
    except ValueError:
      return text
  return kind(text)


def _number(bound: float | None) -> str:
  if bound is None:
    return ""
  return next((f"2**{power}" for power in _NAMED_POWERS if bound == 2**power), str(bound))
