"""Fields that the command line changes: --config.a.b=TEXT."""
from collections.abc import Mapping
from typing import Any

from alma_jax.config import registry, schema
from alma_jax.config.checks import no_field
from alma_jax.config.fields import Declared
from alma_jax.config.trees import Tree, set_field
from alma_jax.errors import BadInput


def overridden(tree: Tree, overrides: Mapping[str, str | None]) -> Tree:
  """A config with some fields changed, as on the command line.

  Args:
    tree: nested dict of all fields; it is changed.
    overrides: {"a.b": text}. None stands for a field that was named without a value, which means True.

  Raises:
    BadInput: there is no such field, or the text cannot be its value.
  """
  for field, text in overrides.items():
    if text is None:
      if _declared(field, tree).kind is not bool:
        raise BadInput(f"--config.{field} has no value; give --config.{field}=VALUE.")
      text = "true"
    set_field(tree, field, read_value(field, text, tree))
  return tree


def read_value(field: str, text: str, tree: Mapping[str, Any]) -> Any:
  """The value that a text on the command line gives to the field "a.b" of a config like `tree`.

  Raises:
    BadInput: there is no such field, or the text cannot be its value.
  """
  return _declared(field, tree).read(text, field)


def check_field(field: str, text: str | None, tree: Mapping[str, Any]) -> None:
  """Raises BadInput unless configs like `tree` have the field "a.b", and `text` (if any) can be its value."""
  known = _declared(field, tree)
  if text is not None:
    known.read(text, field)


def _declared(field: str, tree: Mapping[str, Any]) -> Declared:
  known = schema.declared_fields(*registry.classes_of(tree))
  if field == "learner.name":
    raise BadInput("--config.learner.name cannot be set; the learner stands behind the colon of "
                   "--config=configs/NAME.py:LEARNER.")
  if field not in known:
    raise BadInput(no_field(field, known, tree["learner"]["name"]))
  return known[field]
