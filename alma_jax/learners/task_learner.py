"""What the learners of streams of tasks have in common (docs/task-streams.md)."""
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from alma_jax import keys, models
from alma_jax.learners import stacked
from alma_jax.learners.contract import Context, Contribution, Learner, LearnerState
from alma_jax.models import cost, path
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Cost, Tree, Variables

NOTHING = Variables({}, {})
FROM_ROOT = -2  # origin of a task whose network comes from the pretrained root


class TaskLearner(Learner):
  """Base class of the learners of streams of tasks; see contract.Learner for the methods of a subclass.

  `spec` of a state has

  - `modules`: [part, number of classes (of a head, else 0), task that trained it] of every stored block;
  - `tasks`: {path, origin, pair, classes, labels, mean, std} of every task: its module of each part, the earlier task
    that its network comes from, the number of the learning rate and weight decay that were kept, and facts of its pool;
  - `search`, which is None between two tasks, and `shown`, the task that is predicted.

  `host` has `notes`, a list of one dict: entries for the newest task's line of metrics.jsonl.

  A training is done once with every pair of learning rate and weight decay, side by side; the pair with the lowest
  validation error is kept.

  Attributes:
    parts: the names of the network's parts.
  """
  shapes_recur = True

  def __init__(self, context: Context):
    self.context = context
    self.options: Any = context.config.learner  # an instance of the learner's own subclass of TaskOptions
    train: Any = context.config.train
    self._options, self._train, self._num_pairs = train, train.each, train.num_pairs
    any_head = self.whole(1)
    self.parts = path.parts(any_head)
    self._stepwise = models.loops_are_slow(any_head)
    self.mesh = sharding.make_mesh(self._num_pairs, context.config.devices, spread=not self._stepwise)
    self._val_rows = -(-context.max_val // context.problem.eval_batch)
    self._shape = (1, *context.example_shape)

  def init(self) -> LearnerState:
    spec = {"num_frozen": 0, "modules": [], "tasks": [], "search": None, "shown": -1}
    return LearnerState(spec, NOTHING, host={"notes": []})

  def num_blocks(self, state: LearnerState) -> int:
    return 1

  # --------------------------------------------------------------------- what a subclass implements

  def shown_variables(self, state: LearnerState, task: dict[str, Any]) -> Variables:
    """Variables of the network that predicts a task of `spec`, whose head has an output for each of its classes."""
    raise NotImplementedError

  def retraining(self, before: LearnerState, after: LearnerState, data: loop.StageData) -> loop.Training | None:
    """The training again that has led to the newest task's network; None if it was not trained.

    Args:
      before: the state of that training, or of another one of the same task.
      after: the state after the task.
      data: of the task.
    """
    raise NotImplementedError

  def network_in(self, training: loop.Training, variables: Variables) -> Variables:
    """Variables as `shown_variables` returns them, from those of a network in training."""
    raise NotImplementedError

  # --------------------------------------------------------------------- the contract

  def largest_training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    """Of a new network with every pair."""
    del state
    problem = self.context.problem
    network = self.whole(problem.num_outputs)
    stack = lambda leaf: jax.ShapeDtypeStruct((self._num_pairs, *leaf.shape), leaf.dtype)
    return loop.Training(self.fit_spec(network, problem),
                         jax.tree.map(stack, cost.abstract_variables(network, self._shape)), data)

  def only_network(self, state: LearnerState) -> Variables:
    """The network of the last task."""
    return sharding.fetch(self.shown_variables(state, state.spec["tasks"][-1]))

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """Logits [B, K] of the task that `showing` has chosen, K its number of classes."""
    shown = state.spec["tasks"][state.spec["shown"]]
    return self.logits(self.shown_variables(state, shown), shown["classes"], inputs)

  def logits(self, variables: Variables, num_classes: int, inputs: Tree) -> Contribution:
    """Logits [B, num_classes] of a network."""
    one = jax.tree.map(lambda leaf: leaf[None], variables)
    return stacked.contribute(self.whole(num_classes), self.problem(num_classes), self.mesh, "logits", one, inputs)

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    return self.context.problem.resolve(joined, 1, "logits")

  def cost(self, state: LearnerState) -> Cost:
    """Of everything stored; multiply-adds are those of the path of the shown task, or of the newest."""
    tasks = state.spec["tasks"]
    network = self.whole(tasks[state.spec["shown"]]["classes"] if tasks else self.context.problem.num_outputs)
    macs = cost.forward_macs(network, self._shape)
    flops = optimizers.flops(self._train, network, self._shape)
    stored = (self.module_shapes(part, classes) for part, classes, _ in state.spec["modules"])
    return Cost(sum(map(cost.count_params, stored)), macs, flops, macs)

  def describe(self, state: LearnerState) -> str:
    if state.spec["shown"] >= 0:
      return f"a path of {len(self.parts)} modules"
    lines = [f"{len(state.spec['modules'])} modules of {len(self.parts) * len(state.spec['tasks'])} in "
             f"{len(state.spec['tasks'])} tasks"]
    for t, task in enumerate(state.spec["tasks"]):
      known = {-1: "", FROM_ROOT: ", from the root"}
      origin = known.get(task["origin"], f", from task {task['origin'] + 1}")
      lines.append(f"task {t + 1}: modules {' '.join(map(str, task['path']))}{origin}")
    return "\n".join(lines)

  def beginnings(self, before: LearnerState, after: LearnerState, data: loop.StageData, steps: int
                 ) -> Iterator[Variables]:
    """The newest task's network after 0, 1, ..., `steps` steps of its training; the arguments are of `retraining`.

    If it was not trained, it is the same at every step.
    """
    training, task = self.retraining(before, after, data), after.spec["tasks"][-1]
    if training is None:
      yield from itertools.repeat(self.shown_variables(after, task), steps + 1)
      return
    fit = loop.begin(training)
    for step in range(steps + 1):
      if step and fit.cursor < loop.num_steps(fit):
        fit, _ = loop.advance(fit, 1)
      now = sharding.fetch(fit.state.members.now)
      yield self.network_in(training, jax.tree.map(lambda leaf: leaf[task["pair"]], now))

  def showing(self, state: LearnerState, t: int) -> LearnerState:
    """The state that predicts task t, from 0."""
    return state._replace(spec={**state.spec, "shown": t})

  def problem(self, num_classes: int) -> Any:
    """The task of classifying the images of one task, with this number of classes."""
    return dataclasses.replace(self.context.problem, num_classes=num_classes)

  def whole(self, num_classes: int, axis: str | None = sharding.DATA) -> models.ImageNetwork:
    """The network with a head of this size; `axis` is the mesh axis that batches are sharded over."""
    config = self.context.config
    found = models.build(config.model, num_classes, self.context.example_shape, config.precision, axis)
    assert isinstance(found, models.ImageNetwork)
    return found

  def module_shapes(self, part: int, num_classes: int) -> Variables:
    """Shapes of a module; `num_classes` counts for a head."""
    network = self.whole(num_classes if part == len(self.parts) - 1 else 1)
    return path.part(cost.abstract_variables(network, self._shape), self.parts[part])

  def fresh(self, network: models.ImageNetwork, data: loop.StageData) -> Variables:
    """New variables of a network for every pair, [M, ...]."""
    raw = keys.member_keys(data.seed, data.stage, keys.INIT, self._num_pairs)
    return stacked.initialized(network, raw, self.context.example)

  def training_with(self, spec: loop.FitSpec, variables: Variables, data: loop.StageData, **options: Any
                    ) -> loop.Training:
    """The training of a network with every pair."""
    rates, decays = self.pairs(data).T
    placed = sharding.put(sharding.fetch(variables), self.mesh)
    return loop.Training(spec, placed, data, rates=rates / np.float32(self._train.learning_rate), decays=decays,
                         may_diverge=True, **options)

  def pairs(self, data: loop.StageData) -> np.ndarray:
    """(learning rate, weight decay) of the networks that are trained side by side, float32 [M, 2]."""
    train = self._options
    if not train.num_random:
      return np.array(train.pairs, np.float32)
    rng, (low, high) = keys.rng(data.seed, keys.PAIRS, data.stage), np.log([min(train.learning_rate),
                                                                          max(train.learning_rate)])
    rates = np.exp(rng.uniform(low, high, train.num_random))
    return np.stack([rates, rng.choice(train.weight_decay, train.num_random)], 1).astype(np.float32)

  def fit_spec(self, network: Any, problem: Any) -> loop.FitSpec:
    """Of a training with every pair; `problem` is contract.Problem."""
    return loop.FitSpec(network, problem, self._train, self._num_pairs, self._val_rows, self.mesh, self._stepwise)


def best_member(trained: loop.Trained) -> tuple[int, float]:
  """(the member with the lowest validation error, this error); if the losses of all have diverged, it is infinite."""
  errors = sharding.agree(np.asarray(trained.val["error"], np.float32))
  losses = sharding.agree(np.asarray(trained.val["loss"], np.float32))
  member = min(range(len(errors)), key=lambda m: (not math.isfinite(losses[m]), errors[m], m))
  return member, float(errors[member]) if math.isfinite(losses[member]) else math.inf


def pair_notes(pair: np.ndarray | None) -> dict[str, float | None]:
  """What metrics.jsonl says of the (learning rate, weight decay) of a kept network; None: it was not trained."""
  rate, decay = (None, None) if pair is None else (float(f"{value:.6g}") for value in pair)
  return {"learning_rate": rate, "weight_decay": decay}
