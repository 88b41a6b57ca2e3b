"""Configs as nested dicts {"section": {"field": value}}, the form of ConfigDicts and of config.json."""
import dataclasses
from collections.abc import Mapping
from typing import Any

from alma_jax.config.schema import RunConfig

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
  """Sets the field "a.b" of a nested dict, which is changed."""
  *sections, name = field.split(".")
  for section in sections:
    tree = tree.setdefault(section, {})
  tree[name] = value
