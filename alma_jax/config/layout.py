"""Turns a nested dict of fields into a frozen, checked RunConfig, and back. Imports neither jax nor numpy.

Inside this module a config is flat: {"train.epochs": 100}. A name in it, such as `model.name` or `stream.schedule`,
chooses the dataclass that declares the fields beside it. So a config has only the fields that apply.
"""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from alma_jax.config import schema
from alma_jax.config.fields import Declared, declared, listed
from alma_jax.config.registry import Registry, form, meant
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from ml_collections import ConfigDict

Tree = dict[str, Any]
Fields = dict[str, Declared]
# Fields that the command line cannot change, and what to do instead.
FIXED: Mapping[str, str] = {
    "problem": "choose a config file for it, as in --config=configs/lm.py:LEARNER",
    "learner.name": "name the learner after the colon of --config=configs/NAME.py:LEARNER"}


def parse(config: ConfigDict | Mapping[str, Any] | schema.RunConfig) -> schema.RunConfig:
  """Checks a config and freezes it.

  Args:
    config: ConfigDict or nested dict; a missing field gets its default. A RunConfig is returned unchanged.

  Returns:
    schema.ImageConfig, TaskConfig or TextConfig.

  Raises:
    BadInput: a field does not exist, or its value has the wrong type or is not allowed. The sentence names the field,
      the value and what is allowed.
  """
  if isinstance(config, schema.RunConfig):
    return config
  tree = config if isinstance(config, dict) else getattr(config, "to_dict", lambda: None)()
  if tree is None:
    raise BadInput(f"the config {config!r} is of type {type(config).__name__}; it should be a ConfigDict, such as "
                   "alma_jax.base_config('ens') returns.")
  flat = flatten(tree)
  fields = fields_of(flat)
  _check_names(flat, fields)
  parsed: schema.RunConfig = _built(_root(flat), {path: flat.get(path, each.default) for path, each in fields.items()})
  check(parsed)
  return parsed


def check(config: schema.RunConfig) -> None:
  """Raises BadInput if fields do not go together."""
  for section in sections_of(config):
    section.check(config)


def fields_of(flat: Mapping[str, Any]) -> Fields:
  """All fields of a config with these names, {path: Declared}, in the order of their declarations.

  Raises:
    BadInput: a name is unknown, or stands for a class that declares a field of all configs.
  """
  fields: Fields = {}
  for path, each, *_ in _walk(_root(flat), lambda each, path: [_chosen(each, flat, path)]):
    if path in fields:
      raise BadInput(f"{path} is declared twice, by alma_jax and by your class; rename your field.")
    fields[path] = each
  return fields


def defaults(flat: Mapping[str, Any]) -> Tree:
  """The defaults of all fields of a config with these names, {path: default}; the names keep their values."""
  return {path: flat.get(path, each.default) if each.classes is not None or path in FIXED else each.default
          for path, each in fields_of(flat).items()}


def renamed(flat: Mapping[str, Any], path: str, name: Any) -> Tree:
  """A flat config with another name in the field `path`, which brings the fields of its class with their defaults.

  A field that the old class declared in the same way keeps its value, and so does one that was set before its name.

  Raises:
    BadInput: a name is unknown, or the class lacks a name that the config has changed, as in `dataset.change`.
  """
  before, after = fields_of(flat), fields_of(result := {**flat, path: name})
  for lost in sorted(before.keys() - after.keys()):
    if before[lost].classes is not None and flat.get(lost, before[lost].default) != before[lost].default:
      given, usual = flat.get(path, before[path].default), before[lost].default
      raise BadInput(f"{path}={name!r} has no field {lost}, which this config sets to {flat[lost]!r}; give a name of "
                     f"the form of {given!r}, or set {lost}={usual} before it.")

  def keeps(path: str, each: Declared) -> bool:
    other = before.get(path, each)
    return path in result and (
        each.classes is not None or other is each or other._replace(meaning="") == each._replace(meaning=""))

  return {path: result[path] if keeps(path, each) else each.default for path, each in after.items()}


def changed(flat: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
  """A flat config with some fields changed; their order does not matter.

  Args:
    flat: all fields.
    changes: {path: value}; names change first, see `renamed`.

  Raises:
    BadInput: a field does not exist, or a name is unknown.
  """
  result, left, fields = dict(flat), dict(changes), fields_of(flat)
  _check_names(flat, fields)
  while names := [path for path in left if path in fields and fields[path].classes is not None]:
    result = renamed(result, names[0], left.pop(names[0]))
    fields = fields_of(result)
  _check_names(result | left, fields)
  return result | left


def overridden(tree: Mapping[str, Any], texts: Mapping[str, str | None]) -> Tree:
  """A config with the changes of a command line.

  Args:
    tree: nested dict of all fields.
    texts: {path: text}. None: the field was given without a value, which means True.

  Returns:
    The nested dict of the changed config; `parse` reads the texts.

  Raises:
    BadInput: a field does not exist, cannot be set, or needs a value.
  """
  for path in texts:
    if path in FIXED:
      raise BadInput(f"--config.{path} cannot be set; {FIXED[path]}.")
  flat = changed(flatten(tree), texts)
  for path in [path for path, text in texts.items() if text is None]:
    if fields_of(flat)[path].kind is not bool:
      raise BadInput(f"--config.{path} has no value; give --config.{path}=VALUE.")
    flat[path] = True
  return nested(flat)


def alternatives(problem: str) -> dict[tuple[str, Any], Fields]:
  """All fields that configs for a problem can have.

  Returns:
    {(owner, its class): fields}; the owner is empty and its class None for the fields of every config, and "FIELD=NAME"
    for the fields that exist only with this name.
  """
  groups: dict[tuple[str, Any], Fields] = {}
  for path, each, *owner in _walk(schema.CONFIGS[problem], lambda each, _: (each.classes or {}).values()):
    groups.setdefault((owner[0], owner[1]), {})[path] = each
  return groups


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
  """{"a": {"b": 1}} -> {"a.b": 1}."""
  flat: Tree = {}
  for key, value in tree.items():
    flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
  return flat


def nested(flat: Mapping[str, Any]) -> Tree:
  """{"a.b": 1} -> {"a": {"b": 1}}."""
  tree: Tree = {}
  for path, value in flat.items():
    *sections, name = path.split(".")
    inside = tree
    for each in sections:
      inside = inside.setdefault(each, {})
    inside[name] = value
  return tree


def to_dict(section: Any, of_config: bool = True) -> Tree:
  """The nested dict of a RunConfig, ready for JSON; `parse` reads it back.

  With `of_config=False` it is the dict of a section, where the fields of a chosen class stand beside its name.
  """
  tree: Tree = {}
  cls: Any = type(section)
  for name, each in declared(cls).items():
    value = getattr(section, name)
    if not each.is_part:
      tree[name] = value
    elif of_config:
      tree[name] = to_dict(value, of_config=False)
    else:
      below = to_dict(value, of_config=False)
      tree |= {name: below.pop("name")} | below
  return tree


def sections_of(section: Any) -> Iterator[Any]:
  """The sections and chosen parts of a config, itself included."""
  yield section
  for each in vars(section).values():
    if dataclasses.is_dataclass(each):
      yield from sections_of(each)


def _root(flat: Mapping[str, Any]) -> type[schema.RunConfig]:
  problem = flat.get("problem", schema.IMAGES)
  if not isinstance(problem, str) or problem not in schema.CONFIGS:
    raise BadInput(f"problem={problem!r} is not one of {listed(schema.CONFIGS)}.")
  return schema.CONFIGS[problem]


def _check_names(flat: Mapping[str, Any], fields: Fields) -> None:
  """Raises BadInput if the config has a field that does not exist; `fields` are those it can have."""
  path = next((path for path in flat if path not in fields), None)
  if path is None:
    return
  group = [name for name in fields if name.startswith(f"{path}.")]
  if group:
    raise BadInput(f"{path!r} is a group of fields, not a field; its fields are {_last(path, group)}.")
  owners = [owner for (owner, _), others in alternatives(_root(flat).problem).items() if owner and path in others]
  if owners:
    name = owners[0].partition("=")[0]
    raise BadInput(f"{path} is a field of {listed(owners)}, but this config has {name}={defaults(flat)[name]!r}; "
                   f"leave the field out, or change {name}.")
  section, _, last = path.rpartition(".")
  free = [name for name in fields if name not in FIXED]
  group = [name for name in free if section and name.startswith(f"{section}.")]
  close = [name for name in free if name.endswith(f".{last}")] or difflib.get_close_matches(path, free, 1, 0.85)
  hint = f" (did you mean {close[0]!r}?)" if close else ""
  where = f"under {section!r} are {_last(section, group)}" if group else f"are {_last('', free)}"
  raise BadInput(f"there is no field {path!r}{hint}; the fields {where}.")


def _last(section: str, paths: list[str]) -> str:
  """The names of the fields and groups below a section; "": of the whole config."""
  start = len(section) + bool(section)
  return listed(dict.fromkeys(path[start:].partition(".")[0] for path in paths if path not in FIXED))


def _places(prefix: str, name: str) -> tuple[str, str]:
  """(path of the name of a part's class, what the paths of its fields begin with).

  The fields of a section are called SECTION.FIELD; those of a class that a field in a section chooses stand beside
  that field. `prefix` is that of the dataclass in which the part is called `name`.
  """
  return (prefix + name, prefix) if prefix else (f"{name}.name", f"{name}.")


def _chosen(each: Declared, flat: Mapping[str, Any], path: str) -> Any:
  """The dataclass of a part of a config; `path` is where its name is."""
  if each.classes is None:
    return each.kind
  value = flat.get(path, each.default)
  if isinstance(each.classes, Registry):
    option = each.classes.of(value, path)
    if not issubclass(option, each.kind):
      raise BadInput(f"{path}={value!r} stands for {option.__name__}, which should inherit from {each.kind.__module__}."
                     f"{each.kind.__name__}.")
    return option
  if not isinstance(value, str) or value not in each.classes:
    raise BadInput(f"{path}={value!r} is not one of {listed(each.classes)}{meant(value, each.classes)}.")
  return each.classes[value]


def _walk(cls: Any, options: Callable[[Declared, str], Iterable[Any]], prefix: str = "", owner: str = "",
          owning: Any = None) -> Iterator[tuple[str, Declared, str, Any]]:
  """Yields (path, declaration, owner, its class) of all fields; see `alternatives` for owners.

  `options` are the classes of a part whose name stands at a path that are to be walked through.
  """
  for name, each in declared(cls).items():
    path, below = _places(prefix, name)
    if not each.is_part:
      if not (owner and name == "name"):  # the field that chooses the class stands for it
        yield prefix + name, each, owner, owning
    elif each.classes is None:
      yield from _walk(each.kind, options, below, owner, owning)
    else:
      yield path, each.named(), owner, owning
      for option in options(each, path):
        yield from _walk(option, options, below, f"{path}={form(option)}", option)


def _built(cls: Any, flat: Mapping[str, Any], prefix: str = "", **values: Any) -> Any:
  """An instance of a dataclass, made from the fields below `prefix`, except `values`."""
  for name, each in declared(cls).items():
    path, below = _places(prefix, name)
    if each.is_part:
      named = {} if each.classes is None else {"name": flat[path]}
      values[name] = _built(_chosen(each, flat, path), flat, below, **named)
    elif name not in values:
      values[name] = each.accept(flat[prefix + name], prefix + name)
  return cls(**values)
