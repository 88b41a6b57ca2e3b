"""Simple learners of task streams: from scratch, from the task before, from the first body, from the best of all."""
import dataclasses
from typing import Any, ClassVar

from alma_jax.config import task_sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.task_sections import TaskOptions
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.paths import KEEP, NEW, Paths, Proposal
from alma_jax.learners.task_learner import FROM_ROOT
from alma_jax.training import loop


@register
@dataclasses.dataclass(frozen=True)
class IndependentOptions(TaskOptions):
  """One network per task, each from scratch."""
  name: str = "independent"

  def make(self, context: Any) -> Any:
    return Independent(context)


@register
@dataclasses.dataclass(frozen=True)
class FinetuneOptions(TaskOptions):
  """One network per task; it starts from the network of the task before, with a new head."""
  name: str = "finetune"

  def make(self, context: Any) -> Any:
    return Finetune(context)


@register
@dataclasses.dataclass(frozen=True)
class NewHeadOptions(TaskOptions):
  """The body of the first task's network, frozen, with a head per task."""
  name: str = "new_head"

  def make(self, context: Any) -> Any:
    return NewHead(context)


@register
@dataclasses.dataclass(frozen=True)
class OracleOptions(TaskOptions):
  """Trains from scratch and from every stored network, and keeps the best on validation data; the whole cost counts."""
  name: str = "oracle"
  root: str = field("", task_sections.ROOT)

  num_tried: ClassVar[int] = 4

  def make(self, context: Any) -> Any:
    return Oracle(context)


class Independent(Paths):
  """One network per task, from scratch."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    return Proposal([self.scratch()], [], [-1], 0, {})


class Finetune(Paths):
  """From the network of the task before, with a new head."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    last = len(state.spec["tasks"]) - 1
    return Proposal([self.scratch() if last < 0 else self.tuned(state, last)], [], [last], 0, {})


class NewHead(Paths):
  """The frozen body of the first task, with a new head."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    if not state.spec["tasks"]:
      return Proposal([self.scratch()], [], [-1], 0, {})
    body = state.spec["tasks"][0]["path"][:-1]
    return Proposal([[*([KEEP, module] for module in body), [NEW, -1]]], [], [0], 0, {})


class Oracle(Paths):
  """From scratch, from the pretrained root and from every stored network, all of which are trained."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    earlier = range(len(state.spec["tasks"]) - 1, -1, -1)  # of equal candidates the newest wins
    rooted, origin = ([], []) if self.root is None else ([self.rooted()], [FROM_ROOT])
    candidates = [*(self.tuned(state, t) for t in earlier), *rooted, self.scratch()]
    return Proposal(candidates, [], [*earlier, *origin, -1], 0, {})
