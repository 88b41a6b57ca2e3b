import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from alma_jax.config import image_sections
from alma_jax.config.fields import Section, choice, field
from alma_jax.config.registry import LEARNERS, OPTIMIZERS, TASKS, Registry
from alma_jax.config.sections import DATA_DIR, AnyOptions, AnyStream, DataSet, Optimizer, Plan
from alma_jax.config.text_sections import check_different
from alma_jax.errors import BadInput

# Meaning of an option that several learners have.
ROOT = ("folder of a finished run with the same `model`, of one network or on a stream of tasks, whose (last) network "
        "is a further candidate of every task; empty: none")


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
  test_per_class: int = field(
      0, "largest number of test images of a class; 0: as the stream defines it", at_least=0)

  problems: ClassVar[tuple[str, ...]] = (TASKS,)
  protocol: ClassVar[Any] = "alma_jax.protocols.tasks:Tasks"
  sources = "auto"  # where the data sets come from that streams of this package are made of

  def check_length(self, num_megabatches: int) -> None:
    """Any number; 0: all tasks."""

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


@dataclasses.dataclass(frozen=True)
class Stream(AnyStream):
  """A stream of tasks. The learner trains on each when it arrives."""
  num_megabatches: int = field(0, "number of tasks, the first ones of the stream; 0: all", at_least=0)


@dataclasses.dataclass(frozen=True)
class Train(Section):
  """Training of a task. Of several learning rates and weight decays, it selects the pair that validates best."""
  epochs: int = field(300, "largest number of epochs of a training", at_least=1)
  steps: int = field(
      0, "number of steps of a training, however many examples it has; 0: `train.epochs` decide", at_least=0)
  eval_every: int = field(
      0, "with `train.steps`: number of steps between two validations; 0: a pass over the examples. The last step is "
      "always followed by one", at_least=0)
  batch_size: int = field(256, "number of examples of a batch; the partial last batch of an epoch is used", at_least=1)
  optimizer: Optimizer = choice(
      OPTIMIZERS[TASKS], "adam", "the optimiser; its state starts afresh in every training")
  learning_rate: tuple[float, ...] = field((1e-2, 1e-3), "learning rate, or several to choose from", above=0)
  weight_decay: tuple[float, ...] = field(
      (0.0, 1e-4, 1e-5), "coefficient of the L2 penalty, which is added to the gradient, or several to choose from",
      at_least=0)
  patience: int = field(
      30, "stop a training after this many validations in which none of the networks that train side by side has "
      "improved; 0: never stop early", at_least=0)
  num_random: int = field(
      0, "number of pairs of a learning rate and a weight decay that every task draws at random: the rate "
      "log-uniformly between the smallest and the largest `train.learning_rate`, the decay from `train.weight_decay`; "
      "0: try all pairs", at_least=0)
  label_smoothing: float = field(
      0.0, "share of the uniform distribution in the training labels; reported losses do not include it",
      at_least=0, below=1)
  augment: bool = field(False, "flip and crop training images at random, after padding by 4 pixels")

  micro_batch: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0

  @property
  def each(self) -> image_sections.Train:
    """The training of one network, by the first learning rate and without a penalty."""
    return image_sections.Train(
        self.epochs, self.steps, self.eval_every, batch_size=self.batch_size, optimizer=self.optimizer,
        learning_rate=self.learning_rate[0], patience=self.patience, label_smoothing=self.label_smoothing,
        augment=self.augment)

  @property
  def num_pairs(self) -> int:
    """Number of networks that are trained side by side."""
    return self.num_random or len(self.pairs)

  @property
  def pairs(self) -> tuple[tuple[float, float], ...]:
    """All (learning rate, weight decay) of those listed."""
    return tuple(itertools.product(self.learning_rate, self.weight_decay))

  def relative_steps(self, shares: Sequence[float]) -> float:
    """Steps of trainings on tasks of these sizes, up to a factor that depends on the data alone."""
    return self.num_pairs * self.each.relative_steps(shares)

  def plan(self, num: int, share: float = 0.0) -> Plan:
    """Plan of a training on `num` examples."""
    return self.each.plan(num, share)

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together."""
    del config
    check_different("train.learning_rate", self.learning_rate)
    check_different("train.weight_decay", self.weight_decay)
    image_sections.check_validations(self)
    if self.num_random and len(self.learning_rate) == 1:
      raise BadInput(f"train.num_random={self.num_random} draws learning rates between the smallest and the largest "
                     f"of train.learning_rate, which lists only {self.learning_rate[0]}; list two.")
