"""`RunConfig`, all fields of a run: its sections as frozen dataclasses. Imports neither jax nor numpy.

A config is for one problem: images, text, or tasks. Each problem has its own sections (image_sections.py,
text_sections.py, task_sections.py). The fields `dataset.name`, `model.name`, `learner.name`, `stream.schedule` and
`train.optimizer` choose the classes of further fields.
"""
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from alma_jax.config import image_sections, task_sections, text_sections
from alma_jax.config.fields import Section, choice, field
from alma_jax.config.registry import DATA_SETS, IMAGES, LEARNERS, NETWORKS, TASKS, TEXT
from alma_jax.config.sections import AnyOptions, Checkpoint, DataSet, ImageLog, Log, Model, StreamLog, TaskLog
from alma_jax.config.stream import AnyStream
from alma_jax.errors import BadInput


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Section):
  """All fields of a run: an ImageConfig, a TextConfig or a TaskConfig.

  Attributes:
    unit, single: what the stream consists of, in the plural and in the singular.
    metric: the entry of metrics.jsonl that measures each unit.
    results: entries of summary.json besides the costs; the first one scores the run.
    draws_data: whether the fingerprint of the data depends on the seed.
  """
  problem: str = field("", "what is learned; the config file sets it", choices=(IMAGES, TEXT, TASKS))
  seed: int = field(0, "seed of all random numbers but those of the test set", at_least=0, below=2**31)
  dataset: DataSet
  stream: AnyStream
  learner: AnyOptions
  model: Model
  train: image_sections.Train | text_sections.Train | task_sections.Train
  checkpoint: Checkpoint
  log: Log
  precision: str = field("float32", "floating-point type of the computation", choices=("float32", "bfloat16"))
  deterministic: bool = field(False, "on a GPU: make repeated runs equal to the bit, which is slower")
  devices: int = field(
      0, "number of devices; 0: all. On a CPU, devices are virtual, and 0 chooses a fast number", at_least=0)

  single: ClassVar[str] = "mega-batch"
  unit: ClassVar[str] = "mega-batches"
  metric: ClassVar[str] = "error"
  results: ClassVar[tuple[str, ...]] = ("cer", "mean_error", "final_error")
  draws_data: ClassVar[bool] = False

  @property
  def label(self) -> str:
    """The learner's name in reports, titles and the names of run folders."""
    return self.log.label or self.learner.name

  def with_arrays(self) -> "RunConfig":
    """This config, for arrays that a program passes in place of `dataset.name`.

    Raises:
      BadInput: its data cannot be arrays.
    """
    if "data" not in DATA_SETS[self.problem]:
      raise BadInput(f"arrays are for image classification, not for problem={self.problem}; name its data by "
                     "dataset.name.")
    return dataclasses.replace(self, dataset=DATA_SETS[self.problem]["data"]())

  @property
  def num_members(self) -> int:
    """Number of networks that train side by side."""
    return self.learner.num_trained

  @property
  def candidates(self) -> "Sequence[RunConfig]":
    """The configs that every stage trains; it keeps the one that validates best. Only this one, without a choice."""
    return (self,)

  @property
  def num_candidates(self) -> int:
    """Number of trainings of a stage; a guess if the learner decides in the stage."""
    return self.learner.num_tried

  @property
  def num_trainings(self) -> int:
    """Number of trainings of a stage by `train.steps` or `train.epochs`, for predictions."""
    return self.num_candidates * (self.model.num_experts if self.learner.splits_data and self.train.steps else 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(RunConfig):
  """A run on images."""
  problem: str = IMAGES
  dataset: DataSet = choice(DATA_SETS[IMAGES], "digits")
  stream: image_sections.Stream
  learner: AnyOptions = choice(LEARNERS[IMAGES], "ens")
  model: Model = choice(NETWORKS[IMAGES], "mlp")
  train: image_sections.Train
  log: ImageLog


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(RunConfig):
  """A run on text."""
  problem: str = TEXT
  dataset: text_sections.Text = choice(DATA_SETS[TEXT], "tfds:tiny_shakespeare")
  stream: text_sections.Stream
  learner: AnyOptions = choice(LEARNERS[TEXT], "ens")
  model: Model = choice(NETWORKS[TEXT], "switch")
  train: text_sections.Train
  log: StreamLog

  metric: ClassVar[str] = "perplexity"
  results: ClassVar[tuple[str, ...]] = ("average_perplexity", "final_perplexity")
  draws_data: ClassVar[bool] = True  # the seed orders the documents and trains the tokenizer

  @property
  def candidates(self) -> Sequence[RunConfig]:
    """A config for each pair of a learning rate and a dropout that this one lists."""
    model: Any = self.model
    return [dataclasses.replace(self, train=dataclasses.replace(self.train, learning_rate=(rate,)),
                                model=dataclasses.replace(model, dropout=(dropout,)))
            for rate, dropout in itertools.product(self.train.learning_rate, model.dropout)]

  @property
  def num_candidates(self) -> int:
    return len(self.candidates)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(RunConfig):
  """A run on a stream of tasks."""
  problem: str = TASKS
  dataset: task_sections.Tasks = choice(DATA_SETS[TASKS], "digits")
  stream: task_sections.Stream
  learner: task_sections.TaskOptions = choice(LEARNERS[TASKS], "select")
  model: Model = choice(NETWORKS[TASKS], "mlp")
  train: task_sections.Train
  log: TaskLog

  single: ClassVar[str] = "task"
  unit: ClassVar[str] = "tasks"
  results: ClassVar[tuple[str, ...]] = (
      "cumulative_error", "average_accuracy", "forgetting", "last_accuracy", "num_modules", "memory")
  draws_data: ClassVar[bool] = True

  @property
  def num_members(self) -> int:
    return self.train.num_pairs


CONFIGS: Mapping[str, type[RunConfig]] = {IMAGES: ImageConfig, TEXT: TextConfig, TASKS: TaskConfig}
