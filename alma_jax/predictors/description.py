"""predictor.json: what a predictor takes and answers, and where it comes from. Checked once, here. Imports no jax."""
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """What predictor.json says; either Images or Texts.

  Attributes:
    problem: what the predictor answers, a name of config.registry.
    entries: all entries of the file.
    sha256: {name of a file of the predictor: its SHA-256}.
    stage: of the run, from 0; None: unknown.
    task: the task that the predictor answers for; None: its run has no tasks.
    dataset: name of the data set of its run; empty: unknown.
    shape, dtype: of one input.
    form: of the images that it takes; None: it takes texts.
    outputs: numbers that an input leads to for each of its own, by which batches are bounded.
  """
  problem: ClassVar[str]
  entries: Mapping[str, Any]
  sha256: Mapping[str, str]
  stage: int | None
  task: Task | None
  dataset: str
  shape: tuple[int, ...]
  dtype: np.dtype
  form: Form | None = None
  outputs: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Description):
  """Of a predictor that classifies images.

  Attributes:
    classes: its answers; their names are empty if they have none.
    constants: by which the program normalises; None: unknown.
  """
  problem: ClassVar[str] = IMAGES
  form: Form
  classes: Classes
  constants: normalization.Normalization | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts(Description):
  """Of a language model: `shape` is (L,), and `outputs` the size of its vocabulary."""
  problem: ClassVar[str] = TEXT


def parse(data: bytes) -> Images | Texts:
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


def of(entries: Mapping[str, Any]) -> Images | Texts:
  """Checks the entries of a predictor.json; raises BadInput as `parse` does."""
  def entry(name: str, fits: Callable[[Any], bool], what: str, is_optional: bool = False) -> Any:
    value = entries.get(name)
    if not (is_optional and value is None) and not fits(value):
      raise BadInput(f"{NAME} has {name}={brief(value)}, which should be {what}")
    return value

  task = entry("task", _is_task, "the number and the name of a task", True)
  source = entry("provenance", lambda value: isinstance(value, dict), "an object", True) or {}
  common: dict[str, Any] = dict(
      entries=entries, dataset=str(source.get("dataset", "")), task=task and Task(task["number"], task["name"]),
      sha256=entry("sha256", lambda value: isinstance(value, dict), "the SHA-256 of each file"),
      stage=entry("stage", lambda value: _is_count(value, 0), "a whole number", True))
  if "vocabulary" in entries:
    length, num = (entry(name, _is_count, "a whole number above 0") for name in ("sequence_length", "vocabulary"))
    return Texts(**common, shape=(length,), dtype=np.dtype(np.int32), outputs=num)
  num = entry("classes", _is_count, "a whole number above 0")
  names = entry("class_names", lambda value: _is_list(value, _is_text) and len(value) == num, f"{num} names", True)
  shape = tuple(entry("example_shape", lambda value: _is_list(value, _is_count) and len(value) in (1, 3),
                      "[D] or [H, W, C]"))
  dtype = np.dtype(entry("dtype", ("uint8", "float32").__contains__, "uint8 or float32"))
  size = entry("image_size", lambda value: _is_count(value, 0), "a number of pixels, or 0")
  constants = entry("normalization", lambda value: _are_constants(value, shape),
                    "a mean and a std for each column, channel or pixel", True)
  return Images(**common, shape=shape, dtype=dtype, form=Form(shape, dtype, size, owner="the predictor takes"),
                classes=Classes("the predictor", tuple(names or ()), num),
                constants=constants and normalization.of_entries(constants))


def _is_count(value: Any, least: int = 1) -> bool:
  return type(value) is int and value >= least


def _is_text(value: Any) -> bool:
  return isinstance(value, str)


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
  return isinstance(value, list) and all(map(fits, value))


def _is_task(value: Any) -> bool:
  return isinstance(value, dict) and _is_count(value.get("number")) and _is_text(value.get("name"))


def _are_constants(value: Any, shape: tuple[int, ...]) -> bool:
  """Whether these are normalisation constants of examples of this shape."""
  try:
    return {each.shape for each in normalization.of_entries(value)} <= {shape[-1:], shape}
  except (KeyError, TypeError, ValueError):
    return False
