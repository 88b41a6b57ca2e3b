"""Turns a nested dict of fields into a frozen, checked RunConfig, and back. Imports neither jax nor numpy.

Inside this module a config is flat: {"train.epochs": 100}. A name in it, such as `model.name` or `stream.schedule`,
chooses the dataclass that declares the fields beside it. So a config has only the fields that apply.
"""
from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from alma_jax.config import schema
from alma_jax.config.fields import Choice, Declared, declared, listed
from alma_jax.config.registry import Registry, meant
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
  tree = dict(config) if isinstance(config, dict) else getattr(config, "to_dict", lambda: None)()
  if not isinstance(tree, dict):
    raise BadInput(f"the config {config!r} is of type {type(config).__name__}; it should be a ConfigDict, such as "
                   "alma_jax.base_config('ens') returns.")
  flat = flatten(tree)
  _check_names(flat, fields_of(flat))
  parsed: schema.RunConfig = _built(_root(flat), defaults(flat) | flat)
  for section in sections_of(parsed):
    section.check(parsed)
  return parsed


def fields_of(flat: Mapping[str, Any]) -> Fields:
  """All fields of a config with these names, {path: Declared}, in the order of their declarations.

  Raises:
    BadInput: a name is unknown.
  """
  return _fields(_root(flat), flat, "")


def defaults(flat: Mapping[str, Any]) -> Tree:
  """The defaults of all fields of a config with these names, {path: default}; the names keep their values."""
  return {path: flat.get(path, each.default) if each.names or path in FIXED else each.default
          for path, each in fields_of(flat).items()}


def changed(flat: Mapping[str, Any], changes: Mapping[str, Any],
            read: Callable[[Declared, Any, str], Any] = lambda field, value, path: value) -> Tree:
  """A flat config with some fields changed; their order does not matter.

  A new name brings the fields of its class with their defaults. A field that the old class declared in the same way
  keeps its value.

  Args:
    flat: all fields.
    changes: {path: value}.
    read: (declaration, value, path) -> value to set; not called for names.

  Raises:
    BadInput: a field does not exist, or a name is unknown.
  """
  result, left, fields = dict(flat), dict(changes), fields_of(flat)
  _check_names(flat, fields)
  while (path := next((path for path in left if path in fields and fields[path].names), None)) is not None:
    result[path], before = left.pop(path), fields
    fields = fields_of(result)
    result = {path: result[path] if path in result and (each.names or _alike(each, before.get(path))) else each.default
              for path, each in fields.items()}
  _check_names(result | left, fields)
  return result | {path: read(fields[path], value, path) for path, value in left.items()}


def overridden(tree: Mapping[str, Any], texts: Mapping[str, str | None]) -> Tree:
  """A config with the changes of a command line.

  Args:
    tree: nested dict of all fields.
    texts: {path: text}. None: the field was given without a value, which means True.

  Returns:
    The nested dict of the changed config.

  Raises:
    BadInput: a field does not exist, or the text is not a value of its type.
  """
  for path in texts:
    if path in FIXED:
      raise BadInput(f"--config.{path} cannot be set; {FIXED[path]}.")
  return nested(changed(flatten(tree), texts, _read))


def no_field(path: str, flat: Mapping[str, Any]) -> BadInput:
  """The error for a field that the config `flat` does not have."""
  fields, section = fields_of(flat), path.rpartition(".")[0]
  if any(name.startswith(f"{path}.") for name in fields):
    return BadInput(f"{path!r} is a group of fields, not a field; its fields are {_inside(path, fields)}.")
  owners = [owner for owner, _, fields_there in alternatives(flat) if owner and path in fields_there]
  if owners:
    name = owners[0].partition("=")[0]
    return BadInput(f"{path} is a field of {listed(owners)}, but this config has {name}={defaults(flat)[name]!r}; "
                    f"leave the field out, or change {name}.")
  if not any(name.startswith(f"{section}.") for name in fields):
    section = ""
  where = f" under {section!r}" if section else ""
  close = _meant(path, [name for name in fields if name not in FIXED])
  return BadInput(f"there is no field {path!r}{close}; the fields{where} are {_inside(section, fields)}.")


def alternatives(flat: Mapping[str, Any]) -> Iterator[tuple[str, Any, Fields]]:
  """Yields ("", None, the fields of every config for this problem), and then, for every name that can be chosen,
  ("FIELD=NAME", its class, the fields that exist only with it).
  """
  yield from _alternatives(_root(flat), "", "", None)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
  """{"a": {"b": 1}} -> {"a.b": 1}."""
  flat: Tree = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f"{prefix}{key}.")
    else:
      flat[f"{prefix}{key}"] = value
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


def to_dict(config: schema.RunConfig) -> Tree:
  """The nested dict of a RunConfig, ready for JSON; `parse` reads it back."""
  return nested(_flat(config, ""))


def sections_of(section: Any) -> Iterator[Any]:
  """The sections and chosen parts of a config, itself included."""
  yield section
  for name, each in declared(section.__class__).items():
    if isinstance(each, Choice):
      yield from sections_of(getattr(section, name))


def _root(flat: Mapping[str, Any]) -> type[schema.RunConfig]:
  problem = flat.get("problem", schema.IMAGES)
  if not isinstance(problem, str) or problem not in schema.CONFIGS:
    raise BadInput(f"problem={problem!r} is not one of {listed(schema.CONFIGS)}.")
  return schema.CONFIGS[problem]


def _alike(one: Declared, other: Declared | None) -> bool:
  """Whether two classes declare a field in the same way, but for its meaning."""
  return other is not None and one._replace(meaning="") == other._replace(meaning="")


def _check_names(flat: Mapping[str, Any], fields: Fields) -> None:
  for path in flat:
    if path not in fields:
      raise no_field(path, flat)


def _chosen(each: Choice, flat: Mapping[str, Any], path: str) -> Any:
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


def _fields(cls: Any, flat: Mapping[str, Any], prefix: str) -> Fields:
  fields: Fields = {}
  for name, each in declared(cls).items():
    if isinstance(each, Declared):
      fields[prefix + name] = each
      continue
    path, below = each.places(prefix, name)
    inside = _fields(_chosen(each, flat, path), flat, below)
    if each.classes is not None:
      del inside[f"{below}name"]
      fields[path] = each.named()
    if clash := [other for other in inside if other.removeprefix(prefix) in declared(cls)]:
      raise BadInput(f"{path}={flat.get(path)!r} declares {clash[0]}, a field of all configs; rename the class's own.")
    fields |= inside
  return fields


def _built(cls: Any, flat: Mapping[str, Any], prefix: str = "") -> Any:
  """An instance of a dataclass, made from the fields below `prefix`."""
  values: Tree = {}
  for name, each in declared(cls).items():
    if isinstance(each, Declared):
      values[name] = each.accept(flat[prefix + name], prefix + name)
    else:
      path, below = each.places(prefix, name)
      values[name] = _built(_chosen(each, flat, path), {**flat, f"{below}name": flat.get(path)}, below)
  return cls(**values)


def _flat(section: Any, prefix: str) -> Tree:
  """The fields of a section, an inverse of `_built`."""
  flat: Tree = {}
  for name, each in declared(section.__class__).items():
    value = getattr(section, name)
    if isinstance(each, Declared):
      flat[prefix + name] = value
      continue
    path, below = each.places(prefix, name)
    inside = _flat(value, below)
    if each.classes is not None:
      flat[path] = inside.pop(f"{below}name")
    flat |= inside
  return flat


def _alternatives(cls: Any, prefix: str, owner: str, chosen: Any) -> Iterator[tuple[str, Any, Fields]]:
  own: Fields = {}
  inner: list[tuple[str, Any, Fields]] = []
  for name, each in declared(cls).items():
    if isinstance(each, Declared):
      own[prefix + name] = each
      continue
    path, below = each.places(prefix, name)
    if each.classes is None:
      (_, _, fields), *others = _alternatives(each.kind, below, owner, chosen)
      own |= fields
      inner += others
      continue
    own[path] = each.named()
    for value, option in each.classes.items():
      written = option.form or value
      for label, made, fields in _alternatives(option, below, f"{path}={written}", option):
        fields.pop(f"{below}name", None)
        inner.append((label, made, fields))
  yield owner, chosen, own
  yield from inner


def _meant(path: str, fields: Sequence[str]) -> str:
  """As in " (did you mean 'train.epochs'?)", for a path or the last part of one that is close to a field's."""
  last = {field.rpartition(".")[2]: field for field in reversed(fields)}
  close = difflib.get_close_matches(path, fields, 1, 0.85) or [
      last[name] for name in difflib.get_close_matches(path.rpartition(".")[2], last, 1, 0.75)]
  return f" (did you mean {close[0]!r}?)" if close else ""


def _inside(section: str, fields: Fields) -> str:
  """The names of the fields and groups below a section; "": of the whole config."""
  prefix = f"{section}." if section else ""
  return listed(dict.fromkeys(path.removeprefix(prefix).partition(".")[0] for path in fields
                              if path.startswith(prefix) and path not in FIXED))


def _read(field: Declared, text: str | None, path: str) -> Any:
  if text is None and field.kind is not bool:
    raise BadInput(f"--config.{path} has no value; give --config.{path}=VALUE.")
  return field.read("true" if text is None else text, path)
