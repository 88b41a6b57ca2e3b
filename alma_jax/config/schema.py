"""`RunConfig`, all fields of a run: its sections as frozen dataclasses, and what every run has.

Image classification, language modelling and streams of tasks have their own sections for the data, the stream, the
model and the training (sections.py, text_sections.py, task_sections.py). Every field is declared once, by
`fields.field`. Imports neither jax nor numpy.
"""
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from alma_jax.config.fields import Declared, declared, field
from alma_jax.config.learner_options import Options
from alma_jax.config.sections import LIVE, AnyStream, Dataset, Model, Stream, Train
from alma_jax.config.task_sections import TaskImages, TaskStream, TaskTrain
from alma_jax.config.text_sections import Switch, Text, TextStream, TextTrain


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Saving."""
  seconds: float = field(30.0, "longest time between two checkpoints", at_least=0)
  keep: int = field(2, "number of newest checkpoints that are kept", at_least=1)
  keep_every: int = field(
      0, "number of stages from one checkpoint that is kept permanently to the next; 0: none", at_least=0)


@dataclasses.dataclass(frozen=True)
class Log:
  """What a run reports besides its files of metrics."""
  progress: bool = field(True, "whether a bar shows the progress, on a terminal")
  tensorboard: bool = field(True, "whether TensorBoard files are written")
  wandb: str = field(
      "", "project at Weights & Biases that gets the same values (needs `pip install wandb`); empty: none")
  predictor: bool = field(
      False, "whether the folder `predictor` of the run folder is replaced after every stage, for `alma predict` and "
      "`alma serve`; without it these commands read the last checkpoint when they start")
  drift: float = field(
      0.0, "confidence δ of ADWIN, about the probability of a false alarm, which watches the prequential error "
      "or perplexity for rises; 0: nothing watches it", at_least=0, below=1)
  lca: int = field(
      0, "on a stream of tasks: number of steps b of LCA@b, the mean test accuracy on a task after 0, 1, ..., b steps "
      "of the training that is kept; 0: not measured", at_least=0)
  label: str = field("", "name of the learner in reports; empty: `learner.name`")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """All fields of a run: an `ImageConfig` or a `LanguageConfig`."""
  seed: int = field(
      0, "seed of all random numbers; runs with the same seed are equal to the bit on the same machine and number of "
      "devices. The test set does not depend on it", at_least=0, below=2**31)
  dataset: Dataset | TaskImages | Text
  stream: AnyStream
  learner: Options
  model: Model | Switch
  train: Train | TaskTrain | TextTrain
  checkpoint: Checkpoint
  log: Log
  precision: str = field("float32", "type of the numbers in computations", choices=("float32", "bfloat16"))
  deterministic: bool = field(False, "on a GPU: whether repeated runs are equal to the bit, which is slower")
  devices: int = field(
      0, "number of devices; 0: all. On a CPU the devices are virtual; 0: a fast number of them", at_least=0)

  @property
  def label(self) -> str:
    """The learner's name in reports, titles and the names of run folders."""
    return self.log.label or self.learner.name

  @property
  def is_live(self) -> bool:
    """Whether the mega-batches arrive in a folder while the run goes on."""
    return self.dataset.name.startswith(LIVE)

  @property
  def is_language(self) -> bool:
    """Whether the task is language modelling."""
    return isinstance(self, LanguageConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(RunConfig):
  """A run on images."""
  dataset: Dataset
  stream: Stream
  model: Model
  train: Train


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(RunConfig):
  """A run on text."""
  dataset: Text
  stream: TextStream
  model: Switch
  train: TextTrain


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(RunConfig):
  """A run on a stream of tasks."""
  dataset: TaskImages
  stream: TaskStream
  model: Model
  train: TaskTrain


IMAGES: Mapping[str, type] = dict(dataset=Dataset, stream=Stream, model=Model, train=Train)
LANGUAGE: Mapping[str, type] = dict(dataset=Text, stream=TextStream, model=Switch, train=TextTrain)
TASKS: Mapping[str, type] = dict(dataset=TaskImages, stream=TaskStream, model=Model, train=TaskTrain)


def config_of(sections: Mapping[str, Any]) -> type[RunConfig]:
  """The class of configs with these sections, which may be incomplete: each kind has its own fields of the data."""
  dataset = sections.get("dataset")
  names = dataset if isinstance(dataset, Mapping) else {}
  return LanguageConfig if "sequence_length" in names else TaskConfig if "test_per_class" in names else ImageConfig


def sections(config: type[RunConfig], options: type[Options]) -> dict[str, type]:
  """{section: dataclass} of a kind of config and the options of its learner."""
  hints = typing.get_type_hints(config)
  found = {name: hint for name, hint in hints.items() if isinstance(hint, type) and dataclasses.is_dataclass(hint)}
  return found | {"learner": options}


def declared_fields(config: type[RunConfig], options: type[Options]) -> dict[str, Declared]:
  """{full name: Declared} of all fields of a config, in their order."""
  found: dict[str, Declared] = {}
  inner = sections(config, options)
  for section in dataclasses.fields(config):
    if section.name in inner:
      found |= {f"{section.name}.{name}": each for name, each in declared(inner[section.name]).items()}
    else:
      found[section.name] = declared(config)[section.name]
  return found


def defaults(config: type[RunConfig], options: type[Options]) -> dict[str, Any]:
  """Nested dict of the declared defaults of all fields."""
  inner = sections(config, options)
  return {each.name: dataclasses.asdict(inner[each.name]()) if each.name in inner else each.default
          for each in dataclasses.fields(config)}
