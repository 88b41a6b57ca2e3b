"""Replay: one network with a head per task, trained on the examples of all tasks so far."""
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from alma_jax.config.registry import register
from alma_jax.config.task_sections import TaskOptions
from alma_jax.errors import Diverged
from alma_jax.learners.contract import Context, GrowthReport, LearnerState, StageResult
from alma_jax.learners.task_learner import NOTHING, TaskLearner, best_member, pair_notes
from alma_jax.models import cost, path
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Variables


@register
@dataclasses.dataclass(frozen=True)
class Options(TaskOptions):
  """One network with a head per task, which each task trains further on the examples of all tasks so far.

  The number of training steps of a task is fixed, however many tasks there were. The examples of a batch are drawn
  evenly over the tasks.
  """
  name: str = "replay"

  defaults: ClassVar[Mapping[str, Any]] = {"train.steps": 500, "train.patience": 0}
  forgets: ClassVar[bool] = True
  replays: ClassVar[bool] = True

  def make(self, context: Any) -> Any:
    return Replay(context)


class Replay(TaskLearner):
  """Every task trains the body and the heads of all tasks so far; the body is continued, the new head is fresh.

  `live` of a state is a network with room for the heads of all tasks of the stream. Those of later tasks are zero and
  not used, so that results do not depend on the number of later tasks, but for rounding. An example needs one head:
  the multiply-adds of the others, which share its matrix product, do not count.
  """
  freezes = False

  def __init__(self, context: Context):
    super().__init__(context)
    self._most, self._num_tasks = context.problem.num_classes, context.problem.num_tasks
    self._joint = self.whole(self._most * self._num_tasks)

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    return state, GrowthReport()

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    task, num_classes = sharding.fetch((data.pool.task, data.pool.num_classes))
    variables = self._begun(state, self.fresh(self.whole(int(num_classes[data.stage])), data), data.stage)
    task = task[data.train]
    probability = 1 / np.bincount(task)[task]  # every task is as likely as any other
    return self.training_with(self.fit_spec(self._joint, self.context.problem), variables, data,
                              examples=loop.Examples(probability=probability / probability.sum()))

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    member, error = best_member(trained)
    if not math.isfinite(error):
      raise Diverged(f"all trainings of task {data.stage + 1} diverged; lower train.learning_rate.")
    live = jax.tree.map(lambda leaf: leaf[member], sharding.fetch(trained.variables))
    t, pool, head = data.stage, sharding.fetch(data.pool._replace(x=None, y=None, task=None)), len(self.parts) - 1
    classes = int(pool.num_classes[t])
    modules = [*(state.spec["modules"] or ([part, 0, t] for part in range(head))), [head, classes, t]]
    task = dict(path=[*range(head), len(modules) - 1], origin=t - 1, pair=member, classes=classes,
                labels=int(pool.labels[t]), mean=pool.mean[t].tolist(), std=pool.std[t].tolist())
    spec = {**state.spec, "modules": modules, "tasks": [*state.spec["tasks"], task]}
    samples = trained.report.samples * self._num_pairs
    mean = lambda count: round(samples * sum(count(self.whole(each["classes"]), self._shape) for each in spec["tasks"])
                               / len(spec["tasks"]))  # every task is as likely as any other
    report = trained.report._replace(samples=samples, val=error, macs=mean(cost.forward_macs),
                                     flops=mean(functools.partial(optimizers.flops, self._train)))
    notes = {"errors": [error], "best": 0, **pair_notes(self.pairs(data)[member])}
    return StageResult(state._replace(spec=spec, live=live, host={**state.host, "notes": [notes]}), report)

  def showing(self, state: LearnerState, t: int) -> LearnerState:
    """The state that predicts task t, from 0; it holds the body and the head of that task alone."""
    task = state.spec["tasks"][t]
    spec = {**state.spec, "modules": [state.spec["modules"][module] for module in task["path"]],
            "tasks": [dict(task, path=[*range(len(task["path"]))])], "shown": 0}
    return state._replace(spec=spec, live=self._with_head(state.live, t, task["classes"]), host={"notes": []})

  def shown_variables(self, state: LearnerState, task: dict[str, Any]) -> Variables:
    if state.spec["shown"] >= 0:
      return state.live
    return self._with_head(state.live, state.spec["tasks"].index(task), task["classes"])

  def retraining(self, before: LearnerState, after: LearnerState, data: loop.StageData) -> loop.Training | None:
    return self.training(before, data)

  def network_in(self, training: loop.Training, variables: Variables) -> Variables:
    num_classes = int(sharding.fetch(training.data.pool.num_classes)[training.data.stage])
    return self._with_head(variables, training.data.stage, num_classes)

  def template(self, spec: dict[str, Any]) -> LearnerState:
    return LearnerState(spec, cost.abstract_variables(self._joint, self._shape) if spec["tasks"] else NOTHING)

  def _begun(self, state: LearnerState, fresh: Variables, t: int) -> Variables:
    """The network of the task before, for every pair, with the head of task t from `fresh`, a network of that task."""
    fresh, start = sharding.fetch(fresh), t * self._most
    if state.spec["tasks"]:
      live = sharding.fetch(state.live)
      old = jax.tree.map(lambda leaf: np.broadcast_to(leaf[None], (self._num_pairs, *leaf.shape)), live)
    else:
      room = lambda leaf: np.zeros((len(leaf), self._num_tasks * self._most, *leaf.shape[2:]), leaf.dtype)
      old = path.assembled([fresh, jax.tree.map(room, path.part(fresh, self.parts[-1]))])
    between = lambda a, b: np.concatenate([a[:, :start], b, a[:, start + b.shape[1]:]], 1)
    joined = jax.tree.map(between, *(path.part(variables, self.parts[-1]) for variables in (old, fresh)))
    return path.assembled([old, joined])

  def _with_head(self, variables: Variables, t: int, num_classes: int) -> Variables:
    """The network of task t, with its head alone."""
    start, head = t * self._most, path.part(variables, self.parts[-1])
    return path.assembled([variables, jax.tree.map(lambda leaf: leaf[start:start + num_classes], head)])
