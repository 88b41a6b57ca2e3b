"""What the learners of streams of tasks have in common (docs/task-streams.md)."""
import math
from typing import Any

import jax
import numpy as np

from alma_jax import keys, models
from alma_jax.config import schema
from alma_jax.learners import stacked
from alma_jax.learners.contract import Context, Contribution, LearnerState
from alma_jax.models import cost, path
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Cost, Tree, Variables

NOTHING = Variables({}, {})


class TaskLearner:
  """Base class of the learners of streams of tasks; see contract.Learner for the methods of a subclass.

  `spec` of a state has `modules`, a list of [part, number of classes (of a head, else 0), task that trained it] of the
  stored blocks; `tasks`, a list of {path, origin, classes, labels, mean, std} in which a path is a module for each part
  and the rest is that of the task's pool; `search`, which is None between two tasks; and `shown`, the task that is
  predicted. `host` has `notes`, entries of the lines of metrics.jsonl.

  A training is done once with every pair of learning rate and weight decay, side by side; the pair with the lowest
  validation error is kept.

  Attributes:
    parts: the names of the network's parts.
  """

  def __init__(self, context: Context):
    self.context, self._task = context, context.task
    self.options: Any = context.config.learner  # an instance of the learner's own subclass of TaskOptions
    train = context.config.train
    assert isinstance(train, schema.TaskTrain)
    self._options, self._train, self._num_pairs = train, train.each, train.num_pairs
    self._whole = self.whole(self._task.num_outputs)
    self.parts = path.parts(self._whole)
    self._stepwise = models.loops_are_slow(self._whole)
    self.mesh = sharding.make_mesh(self._num_pairs, context.config.devices, spread=not self._stepwise)
    self._val_rows = -(-context.max_val // self._task.eval_batch)
    self._shape = (1, *context.example_shape)

  def init(self) -> LearnerState:
    spec = {"num_frozen": 0, "modules": [], "tasks": [], "search": None, "shown": -1}
    return LearnerState(spec, NOTHING, host={"notes": []})

  def num_blocks(self, state: LearnerState) -> int:
    return 1

  def shown_variables(self, state: LearnerState, task: dict[str, Any]) -> Variables:
    """Variables of the network, with `task_outputs` classes, that predicts a task of `spec`."""
    raise NotImplementedError

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """Logits [B, K] of the task that `showing` has chosen, K its number of classes."""
    shown = state.spec["tasks"][state.spec["shown"]]
    variables = jax.tree.map(lambda leaf: leaf[None], self.shown_variables(state, shown))
    found = stacked.contribute(self._whole, self._task, self.mesh, "logits", variables, inputs)
    return {"sum": found["sum"][:, :shown["classes"]]}

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    return self._task.resolve(joined, 1, "logits")

  def cost(self, state: LearnerState) -> Cost:
    """Of everything stored; multiply-adds of a prediction are those of one path."""
    macs = cost.forward_macs(self._whole, self._shape)
    flops = cost.training_flops(self._whole, self._shape)
    stored = (self.module_shapes(part, classes) for part, classes, _ in state.spec["modules"])
    return Cost(sum(map(cost.count_params, stored)), macs, flops, macs)

  def describe(self, state: LearnerState) -> str:
    lines = [f"{len(state.spec['modules'])} modules of {len(self.parts) * len(state.spec['tasks'])} in "
             f"{len(state.spec['tasks'])} tasks"]
    for t, task in enumerate(state.spec["tasks"]):
      origin = f", from task {task['origin'] + 1}" if task["origin"] >= 0 else ""
      lines.append(f"task {t + 1}: modules {' '.join(map(str, task['path']))}{origin}")
    return "\n".join(lines)

  def showing(self, state: LearnerState, t: int) -> LearnerState:
    """The state that predicts task t, from 0."""
    return state._replace(spec={**state.spec, "shown": t})

  def whole(self, num_classes: int, axis: str | None = sharding.DATA) -> models.ImageNetwork:
    """The network with a head of this size; `axis` is the mesh axis that batches are sharded over."""
    config = self.context.config
    found = models.build(config.model, num_classes, self.context.example_shape, config.precision, axis)
    assert isinstance(found, models.ImageNetwork)
    return found

  def module_shapes(self, part: int, num_classes: int) -> Variables:
    """Shapes of a module; `num_classes` counts for a head."""
    is_head = part == len(self.parts) - 1
    network = self.whole(num_classes) if is_head else self._whole
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

  def fit_spec(self, network: Any) -> loop.FitSpec:
    """Of a training with every pair."""
    return loop.FitSpec(network, self._task, self._train, self._num_pairs, self._val_rows, self.mesh, self._stepwise)


def best_member(trained: loop.Trained) -> tuple[int, float]:
  """(the member with the lowest validation error, this error); one whose loss is not finite comes last."""
  errors = sharding.agree_on(np.asarray(trained.val["error"], np.float32))
  losses = sharding.agree_on(np.asarray(trained.val["loss"], np.float32))
  member = min(range(len(errors)), key=lambda m: (not math.isfinite(losses[m]), errors[m], m))
  return member, float(errors[member])


def chosen(pair: np.ndarray | None) -> dict[str, float | None]:
  """What metrics.jsonl says of the (learning rate, weight decay) of a kept network; None: it was not trained."""
  rate, decay = (None, None) if pair is None else (float(f"{value:.6g}") for value in pair)
  return {"learning_rate": rate, "weight_decay": decay}
