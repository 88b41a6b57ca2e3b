"""`RunConfig`, all fields of a run: its sections as frozen dataclasses. Imports neither jax nor numpy.

A config is for one problem: images, text, or tasks. Each problem has its own sections (image_sections.py,
text_sections.py, task_sections.py). The fields `dataset.name`, `model.name`, `learner.name`, `stream.schedule` and
`train.optimizer` choose the classes of further fields.
"""
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from alma_jax.config import image_sections, task_sections, text_sections
from alma_jax.config.fields import field, section
from alma_jax.config.registry import DATA_SETS, IMAGES, LEARNERS, NETWORKS, TASKS, TEXT
from alma_jax.config.sections import AnyOptions, AnyStream, Checkpoint, DataSet, Log, Model, StreamLog, TaskLog


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """All fields of a run: an ImageConfig, a TextConfig or a TaskConfig.

  Attributes:
    unit, single: what the stream consists of, in the plural and in the singular.
    metric: the entry of metrics.jsonl that measures each unit.
    results: entries of summary.json besides the costs; the first one scores the run.
    draws_data: whether the fingerprint of the data depends on the seed.
    needs_memory: whether a run may need more memory than there is.
  """
  problem: str = field("", "what is learned; the config file sets it", choices=(IMAGES, TEXT, TASKS))
  seed: int = field(
      0, "seed of all random numbers. On the same machine with the same number of devices, runs with the same seed "
      "are equal to the bit. The test set does not depend on it", at_least=0, below=2**31)
  dataset: DataSet
  stream: AnyStream
  learner: AnyOptions
  model: Model
  train: image_sections.Train | text_sections.Train | task_sections.Train
  checkpoint: Checkpoint = section()
  log: Log = section()
  precision: str = field("float32", "floating-point type of the computation", choices=("float32", "bfloat16"))
  deterministic: bool = field(False, "on a GPU: make repeated runs equal to the bit, which is slower")
  devices: int = field(
      0, "number of devices; 0: all. On a CPU, devices are virtual, and 0 chooses a fast number", at_least=0)

  single: ClassVar[str] = "mega-batch"
  unit: ClassVar[str] = "mega-batches"
  metric: ClassVar[str] = "error"
  results: ClassVar[tuple[str, ...]] = ("cer", "mean_error", "final_error")
  draws_data: ClassVar[bool] = False
  needs_memory: ClassVar[bool] = True

  @property
  def label(self) -> str:
    """The learner's name in reports, titles and the names of run folders."""
    return self.log.label or self.learner.name

  @property
  def is_live(self) -> bool:
    """Whether the mega-batches arrive in a folder while the run goes on."""
    return self.dataset.is_live

  @property
  def is_language(self) -> bool:
    """Whether the problem is language modelling."""
    return self.problem == TEXT


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(RunConfig):
  """A run on images."""
  problem: str = IMAGES
  dataset: DataSet = section(DATA_SETS[IMAGES], "digits")
  stream: image_sections.Stream = section()
  learner: AnyOptions = section(LEARNERS[IMAGES], "ens")
  model: Model = section(NETWORKS[IMAGES], "mlp")
  train: image_sections.Train = section()
  log: StreamLog = section()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(RunConfig):
  """A run on text."""
  problem: str = TEXT
  dataset: text_sections.Text = section(DATA_SETS[TEXT], "tfds:tiny_shakespeare")
  stream: text_sections.Stream = section()
  learner: AnyOptions = section(LEARNERS[TEXT], "ens")
  model: Model = section(NETWORKS[TEXT], "switch")
  train: text_sections.Train = section()
  log: StreamLog = section()

  metric: ClassVar[str] = "perplexity"
  results: ClassVar[tuple[str, ...]] = ("average_perplexity", "final_perplexity")
  draws_data: ClassVar[bool] = True  # the seed orders the documents and trains the tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(RunConfig):
  """A run on a stream of tasks."""
  problem: str = TASKS
  dataset: task_sections.Tasks = section(DATA_SETS[TASKS], "digits")
  stream: task_sections.Stream = section()
  learner: task_sections.TaskOptions = section(LEARNERS[TASKS], "select")
  model: Model = section(NETWORKS[TASKS], "mlp")
  train: task_sections.Train = section()
  log: TaskLog = section()

  single: ClassVar[str] = "task"
  unit: ClassVar[str] = "tasks"
  needs_memory: ClassVar[bool] = False  # the images of one task are small
  results: ClassVar[tuple[str, ...]] = (
      "cumulative_error", "average_accuracy", "forgetting", "last_accuracy", "num_modules", "memory")
  draws_data: ClassVar[bool] = True


CONFIGS: Mapping[str, type[RunConfig]] = {IMAGES: ImageConfig, TEXT: TextConfig, TASKS: TaskConfig}
