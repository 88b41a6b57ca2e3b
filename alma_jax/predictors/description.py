"""predictor.json: what a predictor takes and answers, and where it comes from. Checked once, here. Imports no jax."""
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from alma_jax.config.registry import IMAGES, TEXT
from alma_jax.data import normalization
from alma_jax.data.form import Form
from alma_jax.data.labels import Classes
from alma_jax.errors import BadInput
from alma_jax.files import parse_json
from alma_jax.messages import brief

NAME = "predictor.json"
FORMAT = 1  # a change after which this version cannot read older files raises it


class Task(NamedTuple):
  """A task of a stream of tasks; `number` counts from 1."""
  number: int
  name: str


class Description(NamedTuple):
  """What predictor.json says.

  Attributes:
    entries: all entries of the file.
    problem: what the predictor answers, a name of config.registry.
    sha256: {name of a file of the predictor: its SHA-256}.
    stage: of the run, from 0; None: unknown.
    task: the task that the predictor answers for; None: its run has no tasks.
    dataset: name of the data set of its run; empty: unknown.
    form: of the images or windows of tokens that it takes.
    classes: of its answers; their names are empty if they have none.
    constants: by which the program normalises images; None: unknown.
    vocabulary: number of tokens that a language model knows; 0: it takes images.
  """
  entries: Mapping[str, Any]
  problem: str
  sha256: Mapping[str, str]
  stage: int | None
  task: Task | None
  dataset: str
  form: Form
  classes: Classes
  constants: normalization.Normalization | None
  vocabulary: int

  @property
  def shape(self) -> tuple[int, ...]:
    """Of one input."""
    return self.form.shape or ()

  @property
  def dtype(self) -> np.dtype:
    """Of one input."""
    return np.dtype(self.form.dtype)


def parse(data: bytes) -> Description:
  """Reads the contents of a predictor.json.

  Raises:
    BadInput: it is none of this version. The message is a clause about what is wrong.
  """
  try:
    entries: Any = parse_json(data)
  except ValueError as error:
    raise BadInput(f"{NAME} is not JSON ({error})") from error
  found = entries.get("format") if isinstance(entries, dict) else None
  if found != FORMAT:
    raise BadInput(f"{NAME} is of another version of alma_jax: it has format {brief(found)}, and this version reads "
                   f"format {FORMAT}")
  return of(entries)


def of(entries: Mapping[str, Any]) -> Description:
  """Checks the entries of a predictor.json; raises BadInput as `parse` does."""
  def entry(name: str, fits: Callable[[Any], bool], what: str, is_optional: bool = False) -> Any:
    value = entries.get(name)
    if not (is_optional and value is None) and not fits(value):
      raise BadInput(f"{NAME} has {name}={brief(value)}, which should be {what}")
    return value

  is_table = lambda value: isinstance(value, dict)
  task = entry("task", lambda task: is_table(task) and _is_count(task.get("number")) and _are([task.get("name")], str),
               "the number and the name of a task", True)
  source = entry("provenance", is_table, "a table", True) or {}
  of_run = (entry("sha256", is_table, "the SHA-256 of each file"),
            entry("stage", lambda stage: _is_count(stage, 0), "a whole number", True),
            task and Task(task["number"], task["name"]), str(source.get("dataset", "")))
  if "vocabulary" in entries:
    length, num = (entry(name, _is_count, "a whole number above 0") for name in ("sequence_length", "vocabulary"))
    return Description(entries, TEXT, *of_run, Form((length,), np.dtype(np.int32)), Classes("", (), 0), None, num)
  num = entry("classes", _is_count, "a whole number above 0")
  names = entry("class_names", lambda names: _are(names, str) and len(names) == num, f"{num} names", True)
  shape = tuple(entry("example_shape", lambda shape: _are(shape, int) and len(shape) in (1, 3) and min(shape) > 0,
                      "[D] or [H, W, C]"))
  dtype = np.dtype(entry("dtype", lambda dtype: dtype in ("uint8", "float32"), "uint8 or float32"))
  size = entry("image_size", lambda size: _is_count(size, 0), "a number of pixels, or 0")
  constants = entry("normalization", lambda constants: _fit(constants, shape),
                    "a mean and a std for each column, channel or pixel", True)
  return Description(
      entries, IMAGES, *of_run, Form(shape, dtype, size, owner="the predictor takes"),
      Classes("the predictor", tuple(names or ()), num), constants and normalization.of_entries(constants), 0)


def _is_count(value: Any, least: int = 1) -> bool:
  return type(value) is int and value >= least


def _are(values: Any, kind: type) -> bool:
  return isinstance(values, list) and all(type(each) is kind for each in values)


def _fit(constants: Any, shape: tuple[int, ...]) -> bool:
  """Whether these are normalisation constants of examples of this shape."""
  try:
    return {each.shape for each in normalization.of_entries(constants)} <= {shape[-1:], shape}
  except (KeyError, TypeError, ValueError):
    return False
