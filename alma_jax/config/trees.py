"""Configs as nested dicts {"section": {"field": value}}, the form of ConfigDicts and of config.json."""
import dataclasses
from collections.abc import Mapping
from typing import Any

from alma_jax.config.schema import RunConfig
from alma_jax.errors import BadInput

Tree = dict[str, Any]


def to_dict(config: RunConfig) -> Tree:
  """The nested dict of a RunConfig, which can be stored as JSON; `parse` takes it back."""
  return dataclasses.asdict(config)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Tree:
  """{"a": {"b": 1}} -> {"a.b": 1}."""
  flat: Tree = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f"{prefix}{key}.")
    else:
      flat[prefix + key] = value
  return flat


def set_field(tree: Tree, field: str, value: object) -> None:
  """Sets the field "a.b" of a nested dict, which is changed.

  Raises:
    BadInput: a section is no dict.
  """
  *sections, name = field.split(".")
  for section in sections:
    tree = tree.setdefault(section, {})
    if not isinstance(tree, dict):
      raise BadInput(f"{section}={tree!r} should hold fields, of which {field!r} is one.")
  tree[name] = value
