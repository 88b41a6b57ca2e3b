"""Streams of tasks."""
import dataclasses
import re
from typing import Any, ClassVar

from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.task_sections import Tasks
from alma_jax.errors import BadInput

_FIELDS = {"num_tasks": "stream.num_megabatches", "image_size": "dataset.image_size", "sources": "dataset.sources"}
_ARGUMENT = re.compile(rf"(?<![\w.])({'|'.join(_FIELDS)})=")  # of task_streams.make, in its messages


@dataclasses.dataclass(frozen=True)
class Made(Tasks):
  """Base class of the streams that task_streams.make makes."""

  def stream(self, config: Any) -> Any:
    from alma_jax.data import task_streams

    try:
      return task_streams.make(
          self.name, seed=config.seed, data_dir=self.data_dir, sources=self.sources,
          num_tasks=config.stream.num_megabatches, test_per_class=self.test_per_class, image_size=self.image_size)
    except BadInput as error:  # its arguments are called by the fields of the config
      raise BadInput(_ARGUMENT.sub(lambda found: _FIELDS[found[1]] + "=", str(error))) from error


@dataclasses.dataclass(frozen=True)
class Named(Made):
  """Base class of the streams of this package."""
  sources: str = field(
      "auto", "where SVHN, Fashion-MNIST, DTD and CIFAR-100 come from: `real` data sets, `stand_ins` that are made "
      "from MNIST and CIFAR-10, or real ones where they are prepared (`auto`)", choices=("auto", "real", "stand_ins"))


@register
@dataclasses.dataclass(frozen=True)
class Digits(Named):
  """8 small tasks of scikit-learn's digits, 8x8 pixels; bundled."""
  name: str = "digits"


@register
@dataclasses.dataclass(frozen=True)
class SMinus(Named):
  """CTrL-like: can it use what it learned first?"""
  name: str = "s_minus"


@register
@dataclasses.dataclass(frozen=True)
class SPlus(Named):
  """CTrL-like: can it improve on a task that it saw with few examples?"""
  name: str = "s_plus"


@register
@dataclasses.dataclass(frozen=True)
class SIn(Named):
  """CTrL-like: the last task has the classes of the first on another colour."""
  name: str = "s_in"


@register
@dataclasses.dataclass(frozen=True)
class SOut(Named):
  """CTrL-like: the last task has the images of the first with other labels."""
  name: str = "s_out"


@register
@dataclasses.dataclass(frozen=True)
class SPl(Named):
  """CTrL-like: unrelated tasks, a large one last."""
  name: str = "s_pl"


@register
@dataclasses.dataclass(frozen=True)
class SLong(Named):
  """CTrL-like: 100 tasks of 5 classes, later ones small."""
  name: str = "s_long"


@register
@dataclasses.dataclass(frozen=True)
class NevisMini(Named):
  """24 tasks of 5 families with 50 to 50,000 training images; two tasks return."""
  name: str = "nevis_mini"


@register
@dataclasses.dataclass(frozen=True)
class Listed(Made):
  """Your own list of tasks."""
  name: str = "tasks"
  image_size: int = field(
      0, "width and height in pixels to which images are resized, in three channels, without keeping their aspect "
      "ratio; 0: images are not resized, and must have one shape", at_least=0)

  form: ClassVar[str] = "tasks:PATH.py"
