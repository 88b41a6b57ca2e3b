"""The sections of the configs of streams of tasks, whose model is that of images; see sections.py."""
import dataclasses
import itertools
from typing import ClassVar

from alma_jax.config.fields import field
from alma_jax.config.sections import DATA_DIR, AnyStream, Plan, Train


@dataclasses.dataclass(frozen=True)
class TaskImages:
  """A stream of tasks, each of which is a small data set of images."""
  name: str = field(
      "digits", "`digits`, `s_minus`, `s_plus`, `s_in`, `s_out`, `s_pl`, `s_long`, `nevis_mini`, or `tasks:PATH.py`, a "
      "file of your own")
  data_dir: str = field("", DATA_DIR)
  sources: str = field(
      "auto", "where SVHN, Fashion-MNIST, DTD and CIFAR-100 come from: `real` data sets, `stand_ins` that are made "
      "from MNIST and CIFAR-10, or real ones where they are prepared (`auto`)", choices=("auto", "real", "stand_ins"))
  test_per_class: int = field(
      0, "largest number of test images of a class; 0: that of the stream's definition", at_least=0)
  image_size: int = field(
      0, "for `tasks:PATH.py`: width and height in pixels to which images are resized, in three channels, without "
      "keeping their aspect ratio; 0: images are not resized, and must have one shape", at_least=0, before=0)


@dataclasses.dataclass(frozen=True)
class TaskStream(AnyStream):
  """A stream of tasks. The learner trains on each when it arrives."""
  num_megabatches: int = field(0, "number of tasks, the first ones of the stream; 0: all", at_least=0)
  waiting_time: int = field(1, "a task is trained when it arrives", at_least=1, at_most=1)


@dataclasses.dataclass(frozen=True)
class TaskTrain:
  """Training of a task. Of several learning rates and weight decays, it selects the pair that validates best."""
  epochs: int = field(300, "largest number of epochs of a training", at_least=1)
  steps: int = field(
      0, "number of steps of a training, however many examples it has; 0: `train.epochs` decide", at_least=0, before=0)
  eval_every: int = field(
      0, "with `train.steps`: number of steps from one validation to the next; 0: a pass over the examples. One always "
      "follows the last step", at_least=0, before=0)
  batch_size: int = field(256, "number of examples of a batch; the partial last batch of an epoch is used", at_least=1)
  optimizer: str = field("adam", "the optimiser; its state starts afresh in every training",
                         choices=("adadelta", "sgd", "adam"))
  learning_rate: tuple[float, ...] = field((1e-2, 1e-3), "learning rate, or several to choose from", above=0)
  weight_decay: tuple[float, ...] = field(
      (0.0, 1e-4, 1e-5), "coefficient of the L2 penalty, which is added to the gradient, or several to choose from",
      at_least=0)
  patience: int = field(
      30, "number of validations without an improvement of any of the networks that are trained side by side, after "
      "which a training stops; 0: it never stops early", at_least=0)
  num_random: int = field(
      0, "number of pairs of a learning rate and a weight decay that every task draws at random: the rate "
      "log-uniformly between the smallest and the largest `train.learning_rate`, the decay from `train.weight_decay`; "
      "0: all pairs of those listed", at_least=0, before=0)
  label_smoothing: float = field(
      0.0, "share of the uniform distribution in the labels that are trained on; losses are reported without it",
      at_least=0, below=1)
  augment: bool = field(False, "whether training images are flipped and cropped at random, after padding by 4 pixels")

  micro_batch: ClassVar[int] = 0
  patience_delta: ClassVar[float] = 0.0

  @property
  def each(self) -> Train:
    """The training of one network, by the first learning rate and without a penalty."""
    return Train(self.epochs, self.steps, self.eval_every, batch_size=self.batch_size, optimizer=self.optimizer,
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

  def plan(self, num: int, share: float = 0.0) -> Plan:
    """Plan of a training on `num` examples."""
    return self.each.plan(num, share)
