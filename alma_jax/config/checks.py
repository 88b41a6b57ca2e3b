"""ConfigDict -> RunConfig; every check of a config that needs no data.

What one field can be is part of its declaration (fields.py). Rules about several fields are in rules.py.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from alma_jax.config import registry, rules, schema
from alma_jax.config.fields import Declared, declared, listed
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from ml_collections import ConfigDict


def parse(config: ConfigDict | Mapping[str, Any] | schema.RunConfig) -> schema.RunConfig:
  """Checks a config and freezes it.

  Args:
    config: ConfigDict or nested dict with every field; a RunConfig is returned as it is.

  Returns:
    schema.ImageConfig, TaskConfig or LanguageConfig.

  Raises:
    BadInput: a field is unknown, missing, of the wrong type or not allowed. The sentence names the field, the value
      and what is allowed.
  """
  if isinstance(config, schema.RunConfig):
    return config
  tree = dict(config) if isinstance(config, dict) else getattr(config, "to_dict", lambda: None)()
  if not isinstance(tree, dict):
    raise BadInput(f"the config {config!r} is of type {type(config).__name__}; it should be a ConfigDict, as "
                   "alma_jax.base_config('ens') returns.")
  config_class, options = registry.classes_of(tree)
  parsed = config_class(**_values(config_class, options, tree))
  rules.check(parsed)
  return parsed


def no_field(field: str, known: Iterable[str], learner: object) -> str:
  """The sentence about a field that does not exist.

  Args:
    field: full name, e.g. "train.epoch".
    known: full names of the fields of the config.
    learner: name of the config's learner.
  """
  names = [*known]
  section = field.rpartition(".")[0]
  while section and not any(name.startswith(f"{section}.") for name in names):
    section = section.rpartition(".")[0]
  if any(name.startswith(f"{field}.") for name in names):
    section = field
    problem = f"{field!r} is a group of fields, not a field"
  else:
    problem = f"the {_owner(section, learner)} has no field {field!r}"
  prefix = f"{section}." if section else ""
  inside = dict.fromkeys(name.removeprefix(prefix).partition(".")[0] for name in names
                         if name.startswith(prefix) and name != "learner.name")
  return f"{problem}; its fields{f' under {section!r}' if section else ''} are {listed(inside)}."


def _values(config: type[schema.RunConfig], options: type[schema.Options], tree: Mapping[str, Any]) -> dict[str, Any]:
  """{name: value or section} of a config of these classes."""
  sections = schema.sections(config, options)
  fields = schema.declared_fields(config, options)
  learner = tree["learner"]["name"]
  _check_names({*declared(config), *sections}, tree, "", fields, learner)
  values = _accepted(declared(config), tree, "")
  for section, cls in sections.items():
    inside, prefix = tree[section], f"{section}."
    if not isinstance(inside, dict):
      raise BadInput(f"{section}={inside!r} should hold the fields {listed(declared(cls))}.")
    _check_names(declared(cls), inside, prefix, fields, learner)
    values[section] = cls(**_accepted(declared(cls), inside, prefix))
  return values


def _check_names(names: Iterable[str], tree: Mapping[str, Any], prefix: str, fields: Iterable[str],
                 learner: object) -> None:
  for name in tree:
    if name not in names:
      raise BadInput(no_field(f"{prefix}{name}", fields, learner))
  for name in names:
    if name not in tree:
      raise BadInput(f"the {_owner(prefix.rstrip('.'), learner)} lacks the field {prefix + name!r}.")


def _accepted(names: Mapping[str, Declared], tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
  return {name: each.accept(tree[name], f"{prefix}{name}") for name, each in names.items()}


def _owner(section: str, learner: object) -> str:
  return f"learner {learner!r}" if section == "learner" else "config"
