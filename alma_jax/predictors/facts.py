"""The entries of predictor.json, which say what a predictor takes and answers. Imports no jax."""
import math
from collections.abc import Callable
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.files import parse_json

_DTYPES = ("uint8", "float32", "float64", "float16")  # of images
_MOST = 2**40  # numbers of an example


def parse(data: bytes) -> dict[str, Any]:
  """The entries of a predictor.json.

  Raises:
    BadInput: it is none; the message is a clause about what is wrong.
  """
  try:
    found = parse_json(data)
  except ValueError as error:
    raise BadInput(f"predictor.json is not JSON ({error})") from error
  if not isinstance(found, dict):
    raise BadInput("predictor.json holds no named entries")
  names = found.get("class_names")
  for key, fits in (_OF_TEXT if "vocabulary" in found else _OF_IMAGES).items():
    if not fits(found.get(key)):
      raise BadInput(f"predictor.json has {key}={str(found.get(key))[:60]!r}")
  if type(found.get("image_size", 0)) is not int or found.get("image_size", 0) < 0:
    raise BadInput(f"predictor.json has image_size={str(found['image_size'])[:60]!r}")
  if names and not (isinstance(names, list) and len(names) == found.get("classes")
                    and all(isinstance(name, str) for name in names)):
    raise BadInput(f"predictor.json does not name the {found.get('classes')} classes")
  task = found.get("task")
  if task and not (isinstance(task, dict) and type(task.get("number")) is int and isinstance(task.get("name"), str)):
    raise BadInput("predictor.json has a task without a number or a name")
  if not (found.get("stage") is None or type(found["stage"]) is int):
    raise BadInput(f"predictor.json has stage={str(found['stage'])[:60]!r}")
  return found


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 < value < 2**31


def _is_shape(value: Any) -> bool:
  return isinstance(value, list) and 0 < len(value) <= 3 and all(map(_is_size, value)) and math.prod(value) < _MOST


_Checks = dict[str, Callable[[Any], bool]]
_OF_TEXT: _Checks = {"vocabulary": _is_size, "sequence_length": _is_size}
_OF_IMAGES: _Checks = {"example_shape": _is_shape, "dtype": lambda dtype: dtype in _DTYPES, "classes": _is_size}
