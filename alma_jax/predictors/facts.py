"""The entries of predictor.json, which say what a predictor takes and answers. Imports no jax."""
import math
from collections.abc import Callable, Mapping
from typing import Any

from alma_jax.errors import BadInput
from alma_jax.files import parse_json

FORMAT = 1  # of predictors; a change after which this version cannot read older ones raises it
_DTYPES = ("uint8", "float32", "float64", "float16")  # of images
_MOST = 2**40  # numbers of an example


def parse(data: bytes) -> dict[str, Any]:
  """The entries of a predictor.json.

  Raises:
    BadInput: it is none; the message is a clause about what is wrong.
  """
  try:
    facts = parse_json(data)
  except ValueError as error:
    raise BadInput(f"predictor.json is not JSON ({error})") from error
  if not isinstance(facts, dict):
    raise BadInput("predictor.json holds no named entries")
  if facts.get("format") != FORMAT:
    raise BadInput(f"predictor.json is of another version of alma_jax: it has format {facts.get('format')}, and this "
                   f"version reads format {FORMAT}")
  names = facts.get("class_names")
  for key, fits in (_OF_ALL | (_OF_TEXT if takes_text(facts) else _OF_IMAGES)).items():
    if not fits(facts.get(key)):
      raise BadInput(f"predictor.json has {key}={str(facts.get(key))[:60]!r}")
  if names and not (isinstance(names, list) and len(names) == facts.get("classes")
                    and all(isinstance(name, str) for name in names)):
    raise BadInput(f"predictor.json does not name the {facts.get('classes')} classes")
  task = facts.get("task")
  if task and not (isinstance(task, dict) and type(task.get("number")) is int and isinstance(task.get("name"), str)):
    raise BadInput("predictor.json has a task without a number or a name")
  return facts


def takes_text(facts: Mapping[str, Any]) -> bool:
  """Whether a predictor takes windows of tokens, by the entries of its predictor.json; otherwise it takes images."""
  return "vocabulary" in facts


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 < value < 2**31


def _is_shape(value: Any) -> bool:
  return isinstance(value, list) and 0 < len(value) <= 3 and all(map(_is_size, value)) and math.prod(value) < _MOST


_Checks = dict[str, Callable[[Any], bool]]
_OF_ALL: _Checks = {"stage": lambda stage: stage is None or type(stage) is int,
                    "sha256": lambda sums: isinstance(sums, dict)}
_OF_TEXT: _Checks = {"vocabulary": _is_size, "sequence_length": _is_size}
_OF_IMAGES: _Checks = {"example_shape": _is_shape, "dtype": lambda dtype: dtype in _DTYPES, "classes": _is_size,
                       "image_size": lambda size: type(size) is int and size >= 0}
