import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from alma_jax.config import image_sections
from alma_jax.config.fields import choice, field
from alma_jax.config.registry import LEARNERS, OPTIMIZERS, TASKS, Registry
from alma_jax.config.sections import DATA_DIR, AnyOptions, DataSet, Optimizer
from alma_jax.config.stream import AnyStream
from alma_jax.config.text_sections import check_different
from alma_jax.errors import BadInput

# Meaning of an option that several learners have.
ROOT = ("folder of a finished run with the same `model`, of one network or on tasks; its (last) network is a further "
        "candidate of every task")


@dataclasses.dataclass(frozen=True)
class TaskOptions(AnyOptions):
  """Base class of the options of learners of streams of tasks.

  Attributes:
    forgets: whether a new task changes the predictions for earlier ones.
    replays: whether a task comes with the training and validation examples of all tasks before.
  """
  registries: ClassVar[Mapping[str, Registry]] = {TASKS: LEARNERS[TASKS]}
  problems: ClassVar[tuple[str, ...]] = (TASKS,)
  forgets: ClassVar[bool] = False
  replays: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class Tasks(DataSet):
  """Base class of the fields of a stream of tasks, each of which is a small data set of images."""
  data_dir: str = field("", DATA_DIR)
  test_per_class: int = field(0, "most test images of a class; 0: as the stream defines it", at_least=0)

  problems: ClassVar[tuple[str, ...]] = (TASKS,)
  protocol: ClassVar[Any] = "alma_jax.protocols.tasks:Tasks"
  sources = "auto"  # where the data sets come from that streams of this package are made of

  def stream(self, config: Any) -> Any:
    """The tasks of a run, a data.task_streams.TaskStream. `config`: RunConfig.

    Raises:
      BadInput: the stream does not exist, or a task cannot be used.
    """
    raise NotImplementedError

  def arrived(self, config: Any, form: Any, entries: Any) -> Iterator[Any]:
    del form, entries
    tasks = self.stream(config)
    for task in map(tasks.task, range(len(tasks.infos))):
      yield from task.x_train
      yield from task.x_val

  def tested(self, config: Any, task: int | None) -> tuple[Any, str | None]:
    assert task is not None
    tasks = self.stream(config)
    return tasks.tested(task - 1), tasks.fingerprint


@dataclasses.dataclass(frozen=True)
class Stream(AnyStream):
  """A stream of tasks. The learner trains on each when it arrives."""
  num_megabatches: int = field(0, "use the first n tasks of the stream; 0: all", at_least=0)


@dataclasses.dataclass(frozen=True)
class Train(image_sections.Epochs):
  """Training of a task. Of several learning rates and weight decays, it selects the pair that validates best."""
  epochs: int = 300
  batch_size: int = 256
  optimizer: Optimizer = choice(
      OPTIMIZERS[TASKS], "adam", "the optimiser; its state starts afresh in every training")
  learning_rate: tuple[float, ...] = field((1e-2, 1e-3), "learning rate, or several to choose from", above=0)
  weight_decay: tuple[float, ...] = field(
      (0.0, 1e-4, 1e-5), "coefficient of the L2 penalty, or several to choose from", at_least=0)
  patience: int = field(
      30, "stop a training after this many validations in which no network improves; 0: never stop early", at_least=0)
  num_random: int = field(
      0, "every task draws this many pairs: a rate log-uniformly between the smallest and the largest "
      "`train.learning_rate`, a decay from `train.weight_decay`; 0: try all pairs", at_least=0)

  @property
  def each(self) -> image_sections.Train:
    """The training of one network, by the first learning rate and without a penalty."""
    shared = {name: getattr(self, name) for name in image_sections.Epochs.__dataclass_fields__}
    return image_sections.Train(
        **shared, optimizer=self.optimizer, learning_rate=self.learning_rate[0], patience=self.patience)

  @property
  def num_pairs(self) -> int:  # type: ignore[override]  # it depends on fields
    """Number of networks that are trained side by side."""
    return self.num_random or len(self.pairs)

  @property
  def pairs(self) -> tuple[tuple[float, float], ...]:
    """All (learning rate, weight decay) of those listed."""
    return tuple(itertools.product(self.learning_rate, self.weight_decay))

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together."""
    super().check(config)
    check_different("train.learning_rate", self.learning_rate)
    check_different("train.weight_decay", self.weight_decay)
    if self.num_random and len(self.learning_rate) == 1:
      raise BadInput(f"train.num_random={self.num_random} draws learning rates between the smallest and the largest "
                     f"of train.learning_rate, which lists only {self.learning_rate[0]}; list two.")
