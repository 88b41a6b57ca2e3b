"""The sections of the configs of image classification. Imports neither jax nor numpy."""
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from alma_jax.config import stream
from alma_jax.config.fields import choice, field
from alma_jax.config.registry import IMAGES, OPTIMIZERS
from alma_jax.config.sections import AnyTrain, Optimizer, Plan, check_free
from alma_jax.config.stream import memory_part
from alma_jax.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Stream(stream.Stream):
  """A stream of mega-batches of images."""
  val_fraction: float = field(
      0.1, "share of every mega-batch to hold out for selecting the best epoch; at least one example",
      above=0, below=1)
  untrained_error: str = field(
      "chance", "error before the first training: 1 - 1/K for K classes (`chance`), or measured on the untrained "
      "network (`model`)",
      choices=("chance", "model"))


ALLOWED = 200  # steps that `train.most_passes` always leaves to a stage
BEYOND = 50  # of the steps beyond the limit, one in so many is made, so that `train.budget` can always be spent


@dataclasses.dataclass(frozen=True)
class Epochs(AnyTrain):
  """Training by epochs or steps, of images and of tasks."""
  epochs: int = field(100, "epochs of a training, at most", at_least=1)
  steps: int = field(0, "steps of a training, however many examples it has; 0: `train.epochs` decide", at_least=0)
  eval_every: int = field(
      0, "with `train.steps`: steps between two validations; 0: a pass over the new examples. The last step always has "
      "one", at_least=0)
  batch_size: int = field(
      128, "examples of a batch; the last batch of an epoch may be smaller. 0: `train.budget` decides", at_least=0)
  label_smoothing: float = field(
      0.0, "share of the uniform distribution in the training labels (Szegedy et al., 2016); not in reported losses",
      at_least=0, below=1)
  augment: bool = field(False, "flip and crop training images at random, after padding by 4 pixels")
  shift: int = field(
      0, "move training images at random by up to this many pixels, at most a fourteenth of their size, with mirrored "
      "edges; for images only", at_least=0)
  flip: bool = field(False, "flip training images from left to right at random; for images only")

  num_pairs = 1  # number of networks that are trained side by side because there is a pair of fields to choose
  micro_batch, patience, patience_delta, steps_exponent, first_steps, test_augment = 0, 0, 0.0, 0.0, 1.0, False
  most_passes = 0.0

  def plan(self, num: int, share: float = 0.0, grown: float = 1.0) -> Plan:
    if not num:
      return Plan(0, 0, 0, 0, 0)
    factor = grown ** -self.steps_exponent if grown > 1 else self.first_steps
    steps = self.steps and max(1, round(self.steps * factor))
    if steps and self.most_passes:
      limit = max(ALLOWED, round(self.most_passes * num / self.batch_size))
      steps = min(steps, limit + round(max(0, steps - limit) / BEYOND))
    return self.planned(steps, num, share)

  def planned(self, steps: int, num: int, share: float) -> Plan:
    old = memory_part(self.batch_size, share)
    new = self.batch_size - old
    per_pass = -(-num // new)
    steps = steps or self.epochs * per_pass
    per_round = min(self.eval_every or per_pass, steps)
    samples = steps * old + steps // per_pass * num + min(steps % per_pass * new, num)
    return Plan(-(-steps // per_round), per_round, steps, samples, per_pass)

  def check(self, config: Any) -> None:
    """Raises BadInput if validations do not fit into the steps of a training, or nothing decides the batch size."""
    check_free("train.batch_size", self.batch_size, config)
    if self.augment and (self.shift or self.flip):
      raise BadInput("train.augment=True already moves and flips images; set it to False, or set train.shift=0 and "
                     "train.flip=False.")
    if self.eval_every and not self.steps and not self.budget:
      raise BadInput(f"train.eval_every={self.eval_every} is for train.steps above 0; set train.steps, or leave "
                     "train.eval_every=0 to validate after every epoch.")
    if self.most_passes and not self.steps and not self.budget:
      raise BadInput(f"train.most_passes={self.most_passes} is for train.steps above 0; set train.steps, or set "
                     "train.most_passes=0 and limit train.epochs instead.")
    if self.steps and self.eval_every and self.patience and (self.patience + 1) * self.eval_every >= self.steps:
      raise BadInput(f"train.patience={self.patience} can never end a stage of train.steps={self.steps} with "
                     f"train.eval_every={self.eval_every}; set train.patience=0, or lower train.eval_every.")


@dataclasses.dataclass(frozen=True)
class Train(Epochs):
  """Training of image networks."""
  optimizer: Optimizer = choice(
      OPTIMIZERS[IMAGES], "adadelta",
      "the optimiser; its state starts afresh in every stage (except with `learner.keep_optimizer`)")
  learning_rate: float = field(1.0, "learning rate", above=0)
  budget: float = field(  # type: ignore[assignment]  # the base class has none
      0.0, "forward multiply-adds that a mega-batch may cost, on average over the stream; decides whichever of "
      "`model.width`, `train.steps` and `train.batch_size` are 0. 0: off", at_least=0)
  steps_exponent: float = field(
      0.0, "e: a stage has `train.steps` / g**e steps, where g is the number of training examples so far over the "
      "number in the first stage", at_least=0, at_most=1)
  first_steps: float = field(1.0, "steps of the first stage, as a multiple of `train.steps`", above=0)
  most_passes: float = field(
      0.0, f"most steps of a stage, as passes over its new examples; {ALLOWED} steps are always allowed, and one in "
      f"{BEYOND} of the steps beyond the limit is still made. 0: no limit", at_least=0)
  decay: float = field(
      0.0, "the learning rate falls linearly to 0 in this last share of a stage's steps", at_least=0, at_most=1)
  weight_decay: float = field(0.0, "coefficient of the L2 penalty", at_least=0)
  patience: int = field(
      0, "stop a stage after this many validations without an improvement (one an epoch, or every `train.eval_every` "
      "steps); 0: never stop early", at_least=0)
  patience_delta: float = field(0.0, "an improvement raises the validation accuracy by more than this", at_least=0)
  test_augment: bool = field(
      False, "average the logits of an image and of a copy that is shifted, flipped or both, whichever training does "
      "(test-time augmentation); a prediction then costs up to twice as much")

  falling: ClassVar[int] = 0  # steps of a stage, at its end, in which the optimiser's own rate falls to 0

  def factors(self, stage: int, steps: Sequence[int], num: int) -> list[float] | None:
    """Factors of the updates in these steps of a stage of `num` steps, from 0; None: always 1."""
    del stage
    return [min(max((num - step) / (self.decay * num), 0.0), 1.0) for step in steps] if self.decay else None
