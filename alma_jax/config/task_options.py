"""The options of the learners of task streams: the fields under `learner.`, declared once each (docs/task-streams.md).

Imports neither jax nor numpy.
"""
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from alma_jax.config.fields import field
from alma_jax.config.learner_options import Options

_ROOT = ("folder of a finished run with the same `model`, of one network or on a stream of tasks, whose (last) network "
         "is a further candidate of every task; empty: none")


@dataclasses.dataclass(frozen=True)
class TaskOptions(Options):
  """Base class of the options of learners of task streams.

  Attributes:
    forgets: whether a new task changes the predictions for earlier ones.
    replays: whether a task comes with the training and validation examples of all tasks before.
    num_tried: number of candidates of a task that are trained, as a guess for bars of progress.
  """
  stops_early: ClassVar[bool] = False
  forgets: ClassVar[bool] = False
  replays: ClassVar[bool] = False
  num_tried: ClassVar[int] = 1


@dataclasses.dataclass(frozen=True)
class Independent(TaskOptions):
  """One network per task, each from scratch."""
  name: str = "independent"


@dataclasses.dataclass(frozen=True)
class Finetune(TaskOptions):
  """One network per task; it starts from the network of the task before, with a new head."""
  name: str = "finetune"


@dataclasses.dataclass(frozen=True)
class NewHead(TaskOptions):
  """The body of the first task's network, frozen, with a head per task."""
  name: str = "new_head"


@dataclasses.dataclass(frozen=True)
class Replay(TaskOptions):
  """One network with a head per task, which each task trains further on the examples of all tasks so far.

  The number of training steps of a task is fixed, however many tasks there were. The examples of a batch are drawn
  evenly over the tasks.
  """
  name: str = "replay"

  defaults: ClassVar[Mapping[str, Any]] = {"train.steps": 500, "train.patience": 0}
  forgets: ClassVar[bool] = True
  replays: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Oracle(TaskOptions):
  """Trains from scratch and from every stored network, and keeps the best on validation data; the whole cost counts."""
  name: str = "oracle"
  root: str = field("", _ROOT, before="")

  num_tried: ClassVar[int] = 4


@dataclasses.dataclass(frozen=True)
class Select(TaskOptions):
  """Selective fine-tuning: starts from the stored network whose features classify the new task best.

  The features are judged by the validation accuracy of the nearest neighbours. A fresh network competes with its
  features of random weights.
  """
  name: str = "select"
  neighbors: int = field(5, "number of nearest neighbours by which features are judged", at_least=1)
  max_train: int = field(10_000, "largest number of training images that are embedded", at_least=1)
  max_val: int = field(5_000, "largest number of validation images that are embedded", at_least=1)
  root: str = field("", _ROOT, before="")


@dataclasses.dataclass(frozen=True)
class MNTDP(TaskOptions):
  """Modular networks with task-driven priors (Veniat et al., 2021).

  A network is a path through modules. A new task reuses modules of the most similar earlier task, which are frozen,
  and trains new ones; of all ways to divide the path the one with the best validation accuracy is kept.
  """
  name: str = "mntdp"
  neighbors: int = field(15, "number of nearest neighbours by which earlier tasks are judged", at_least=1)
  max_train: int = field(1000, "largest number of training images that are embedded", at_least=1)
  max_val: int = field(1000, "largest number of validation images that are embedded", at_least=1)
  direction: str = field(
      "fw", "which modules are new: those above the reused ones (`fw`), those below them (`bw`), or either (`both`)",
      choices=("fw", "bw", "both"))
  prior: str = field(
      "knn", "which earlier path is reused: the most similar one (`knn`), a random one (`random`), or each in turn "
      "(`all`)", choices=("knn", "random", "all"))
  search: str = field(
      "all", "how a path is found: `all` candidates are trained, and the best is kept; or `reinforce` trains a sampler "
      "of candidates, and the likeliest one is trained", choices=("all", "reinforce"), before="all")
  search_steps: int = field(300, "with `reinforce`: number of training steps of the sampler", at_least=1, before=300)
  price: float = field(
      0.01, "with `reinforce`: price of a new module, in nats of the loss", at_least=0, before=0.01)
  entropy: float = field(
      0.01, "with `reinforce`: factor of the sampler's entropy, which is added to its reward", at_least=0, before=0.01)

  num_tried: ClassVar[int] = 6


TASK_LEARNERS: dict[str, type[Options]] = {
    cls.name: cls for cls in (Independent, Finetune, NewHead, Replay, Oracle, Select, MNTDP)}
