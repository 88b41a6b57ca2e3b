"""What labels that are numbers mean where classes have names. Imports nothing slow."""
from collections.abc import Sequence
from typing import Any

from alma_jax.files import parse_json


def are_names(names: Sequence[str]) -> bool:
  """Whether a number among the labels is the name of a class; else it is the place of the class in `names`, from 0.

  It is one if a class is called by a number that is not its place. A live stream without classes.txt numbers classes as
  they come: if its first labels are 5 and 3, these are the names of the classes 0 and 1.
  """
  return any(name.isdecimal() and name != str(place) for place, name in enumerate(names))


def class_names(schema: Any, label: str) -> tuple[str, ...] | None:
  """Names of the classes that a Hugging Face data set stores with its schema; None: it stores none."""
  stored = (schema.metadata or {}).get(b"huggingface")
  try:
    names = parse_json(stored)["info"]["features"][label]["names"] if stored else None
  except (ValueError, LookupError, TypeError):
    return None
  return tuple(map(str, names)) if isinstance(names, list) else None
