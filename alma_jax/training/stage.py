"""What learners and the training loop exchange: the data of a stage, the training, and its results."""
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import image_sections, sections, text_sections
from alma_jax.data.memory import StageData
from alma_jax.parallel.sharding import DATA, MEMBER
from alma_jax.problems.contract import Problem
from alma_jax.types import Tree, Variables


class Examples(NamedTuple):
  """Which examples of a stage the members train on, and with which weights. By default all of them, with weight 1.

  Attributes:
    own: M arrays int32 [n], the training examples of each member, repeated ones included. None: every member trains on
      all examples of the stage.
    own_val: M arrays int32, the validation examples of each member. A member without validation examples is selected by
      all those of the stage. With `own_val`, and only then, the members may have different numbers of `own` examples. A
      member without `own` examples keeps its variables.
    probability: float64 [n]. Every epoch draws n examples with these probabilities. None: an epoch is a permutation.
    weight: float32 [n], factors of the examples' losses. None: 1. Those of the memory have 1.
    memory: M arrays int32, indices into the pool: the memory of each member. None: all of the stage's.
  """
  own: Sequence[np.ndarray] | np.ndarray | None = None
  own_val: Sequence[np.ndarray] | np.ndarray | None = None
  probability: np.ndarray | None = None
  weight: np.ndarray | None = None
  memory: Sequence[np.ndarray] | None = None


@dataclasses.dataclass(frozen=True)
class FitSpec:
  """Static facts of a training. They are hashable; the device programs are compiled once for each of them.

  Attributes:
    network: models.Network of each member.
    problem: where inputs and losses come from.
    train: the section `train` of the config.
    num_members: M, the number of stacked members that are trained side by side.
    num_val_batches: validation batches of the largest stage.
    mesh: devices.
    stepwise: whether every training step is a dispatch of its own, see loop.py.
    own_examples: whether each member has training and validation examples of its own (`Examples.own_val`). Then all
      counts have a member axis.
    keep_opt: whether the optimiser state is selected together with the variables.
    average: horizon of the average of the weights, as a share of the stage's steps; 0: there is no average.
    keep_last: whether, if there is an average, the weights of the selected round are kept besides it.
  """
  network: Any
  problem: Problem
  train: image_sections.Train | text_sections.Train
  num_members: int
  num_val_batches: int
  mesh: Mesh
  stepwise: bool
  own_examples: bool = False
  keep_opt: bool = False
  average: float = 0.0
  keep_last: bool = False

  @property
  def padded_batch(self) -> int:
    """Batch size, rounded up to a size that the devices can divide into equal parts."""
    return self.mesh.shape[DATA] * self._parts * self.at_once

  @property
  def at_once(self) -> int:
    """Examples of a micro-batch.

    A device divides its share of the batch into equal parts, as few as `train.micro_batch` allows.
    """
    return round_up(-(-self._share // self._parts), self.problem.group)

  @property
  def val_batch(self) -> int:
    """Size of a validation batch, rounded up to a size that the devices can divide into equal parts."""
    return round_up(self.problem.eval_batch, self.mesh.shape[DATA])

  @property
  def padded_members(self) -> int:
    """Number of members that are trained: M, padded with copies of the last member.

    A copy has the key and the batches of that member; therefore it changes no result. It costs no time, because another
    device trains as many members in any case.
    """
    return round_up(self.num_members, self.mesh.shape[MEMBER])

  @property
  def _share(self) -> int:
    return -(-self.train.batch_size // self.mesh.shape[DATA])

  @property
  def _parts(self) -> int:
    return -(-self._share // (self.train.micro_batch or self._share))


@dataclasses.dataclass(frozen=True)
class Training:
  """What a learner gives to the training loop.

  Attributes:
    spec: FitSpec.
    variables: stacked Variables [M, ...] to start from, on every device.
    data: StageData.
    examples: Examples.
    opt: optimiser state [M, ...] to start from; None: a fresh one.
    rates: float32 [M], factors of the learning rate of each member, and
    decays: float32 [M], coefficients of its L2 penalty, in addition to those of `spec.train`; None: 1 and 0.
    notes: entries that are added to every line of train.jsonl.
    may_diverge: whether the training goes on when its loss is no longer finite.
    steps: training steps; 0: as many as `spec.train` plans. Programs do not depend on it.
  """
  spec: FitSpec
  variables: Variables
  data: StageData
  examples: Examples = dataclasses.field(default_factory=Examples)
  opt: Tree = None
  rates: np.ndarray | None = None
  decays: np.ndarray | None = None
  notes: dict[str, float] = dataclasses.field(default_factory=dict)
  may_diverge: bool = False
  steps: int = 0

  @property
  def train_sizes(self) -> np.ndarray:
    """int64 [M], number of training examples of each member."""
    return self._sizes(self.examples.own, self.data.train)

  @property
  def val_sizes(self) -> np.ndarray:
    """int64 [M], number of validation examples that each member has of its own."""
    return self._sizes(self.examples.own_val, self.data.val)

  @property
  def plan(self) -> sections.Plan:
    """Length of the training, by the largest number of examples of a member."""
    train, num = self.spec.train, int(self.train_sizes.max())
    if self.steps:
      return train.planned(self.steps, num, self.data.share)
    return train.plan(num, self.data.share, self.data.grown)

  def _sizes(self, own: Sequence[np.ndarray] | np.ndarray | None, shared: np.ndarray) -> np.ndarray:
    return np.array([len(shared)] * self.spec.num_members if own is None else [len(mine) for mine in own])


class FitReport(NamedTuple):
  """What a finished training cost and reached.

  Attributes:
    rounds: number of rounds that were run.
    samples: training examples processed by each member. With `own_examples`: by all members together.
    val: the problem's metric of the selected members on their own validation examples.
    macs: multiply-adds of forward passes; None: `samples` times the learner's cost of one.
    flops: floating-point operations of all passes; None: `samples` times the learner's cost of one.
  """
  rounds: int
  samples: int
  val: float
  macs: int | None = None
  flops: int | None = None


class Trained(NamedTuple):
  """The members after a training.

  Attributes:
    variables: the selected Variables [M, ...], on every device; the averaged ones, if weights are averaged.
    opt: the optimiser state [M, ...] that belongs to them; None without FitSpec.keep_opt.
    report: FitReport.
    val: {"loss": float [M], in nats, and the problem's metric: float [M]} of each selected member on the validation
      data that it was selected by.
    last: the last Variables [M, ...] of the same round; None without FitSpec.keep_last.
  """
  variables: Variables
  opt: Tree
  report: FitReport
  val: dict[str, np.ndarray]
  last: Variables | None = None


class RoundReport(NamedTuple):
  """Loss in nats and the problem's metric of a round, under the names train_loss, val_loss, train_METRIC, val_METRIC.

  Attributes:
    joint: {name: number} over the own examples of all members. Some tasks add lists.
    members: {name: float [M] numpy array}; NaN for a member without an example.
  """
  joint: dict[str, Any]
  members: dict[str, np.ndarray]


def round_up(number: int, multiple: int) -> int:
  """The smallest multiple of `multiple` that is at least `number`."""
  return -(-number // multiple) * multiple
