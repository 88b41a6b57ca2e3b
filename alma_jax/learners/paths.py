"""Learners of task streams: a store of frozen modules, a path through them per task, and a search for the next path.

Of every task the learner tries candidates. A candidate says for each part of the network whether it is new, a copy of
a stored module or of the pretrained root that is trained further, or a stored module that stays as it is (`keep`). Each
is trained once with every pair of learning rate and weight decay, side by side; the best validation accuracy wins, and
its trained parts are stored as new modules. Stored modules never change (docs/task-streams.md).
"""
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.errors import BadInput, Diverged
from alma_jax.learners import neighbors, prediction, stacked
from alma_jax.learners.contract import Context, GrowthReport, LearnerState, Root, StageResult
from alma_jax.learners.task_learner import NOTHING, TaskLearner, best_member, pair_notes
from alma_jax.models import cost, path
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Variables

NEW, ROOT, COPY, KEEP = "new", "root", "copy", "keep"
Choice = list[Any]  # [NEW, -1], [ROOT, -1], [COPY, module] or [KEEP, module] for a part of the network
Candidate = list[Choice]  # a Choice for every part, from the inputs to the head


class Proposal(NamedTuple):
  """What a learner tries for a task.

  Attributes:
    candidates: to be trained, at least one.
    ready: (candidate, error rate on the validation data) of candidates without a part to be trained.
    origin: the earlier task that the candidates come from, -1 for none, FROM_ROOT for the pretrained root, for each
      candidate and then for each of `ready`.
    macs: multiply-adds that the search has taken so far.
    notes: what the search has found, for the line of metrics.jsonl; JSON can hold it.
    flops: floating-point operations of the search, or None for 2 per multiply-add.
  """
  candidates: list[Candidate]
  ready: list[tuple[Candidate, float]]
  origin: list[int]
  macs: int
  notes: dict[str, Any]
  flops: int | None = None


class Paths(TaskLearner):
  """Base class of the learners that store frozen modules; a subclass says what is tried (`propose`).

  `search` in the `spec` of a state are the candidates of the task in progress.
  """
  freezes = True

  def __init__(self, context: Context):
    super().__init__(context)
    self.root = None if context.root is None else self._checked(context.root)

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    """What is tried for the task of `data`."""
    raise NotImplementedError

  # --------------------------------------------------------------------- the contract

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if state.spec["search"] is None:
      found = self.propose(state, data)
      candidates = [*found.candidates, *(candidate for candidate, _ in found.ready)]
      search = dict(candidates=candidates, origin=found.origin, num=len(found.candidates), next=0, best=None,
                    facts=_facts(data.pool))
      progress: dict[str, Any] = dict(
          error=None, member=None, macs=0, flops=0, samples=0, growth=[found.macs, found.flops], notes=found.notes,
          errors=[], ready=[error for _, error in found.ready])
      for i, (_, error) in enumerate(found.ready, len(found.candidates)):
        if progress["error"] is None or error < progress["error"]:
          search["best"], progress["error"] = i, error
      state = state._replace(spec={**state.spec, "search": search}, host={**state.host, "search": progress})
    return state, GrowthReport(*state.host["search"]["growth"])

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    search = state.spec["search"]
    candidate = search["candidates"][search["next"]]
    classes = search["facts"]["classes"]
    network, fresh = self._network(candidate, classes), self.fresh(self.whole(classes), data)
    everywhere = lambda leaf: jnp.broadcast_to(leaf[None], (self._num_pairs, *leaf.shape))
    root = self.root or NOTHING
    old = lambda name, kind, module: path.part(root, name) if kind == ROOT else state.frozen[module]
    found = [path.part(fresh, name) if kind == NEW else jax.tree.map(everywhere, old(name, kind, module))
             for name, (kind, module) in zip(self.parts, candidate)]
    return self.training_with(self.fit_spec(network, self.problem(classes)), network.divided(path.assembled(found)),
                              data, notes={"candidate": search["next"]})

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    search, progress = dict(state.spec["search"]), dict(state.host["search"])
    number = search["next"]
    candidate, classes = search["candidates"][number], search["facts"]["classes"]
    (member, error), live, network = best_member(trained), state.live, self._network(candidate, classes)
    if self._is_better(search, progress["error"], number, error):
      search["best"], progress["error"], progress["member"] = number, error, member
      chosen = network.joined(jax.tree.map(lambda leaf: leaf[member], sharding.fetch(trained.variables)))
      kept = self.kept(candidate)
      live = path.assembled(path.part(chosen, name) for name in self.parts if name not in kept)
    samples = trained.report.samples * self._num_pairs
    progress |= dict(
        macs=progress["macs"] + samples * cost.forward_macs(network, self._shape),
        flops=progress["flops"] + samples * optimizers.flops(self._train, network, self._shape),
        samples=progress["samples"] + samples, errors=[*progress["errors"], error if math.isfinite(error) else None])
    search["next"] = number + 1
    now = state._replace(spec={**state.spec, "search": search}, live=live, host={**state.host, "search": progress})
    complete = search["next"] == search["num"]
    if complete and search["best"] is None:
      raise Diverged(f"all trainings of task {data.stage + 1} diverged; lower train.learning_rate.")
    report = loop.FitReport(trained.report.rounds, progress["samples"], progress["error"], progress["macs"],
                            progress["flops"])
    return StageResult(self._stored(now, data) if complete else now, report, complete)

  def shown_variables(self, state: LearnerState, task: dict[str, Any]) -> Variables:
    return self._assembled(state, task["path"])

  def retraining(self, before: LearnerState, after: LearnerState, data: loop.StageData) -> loop.Training | None:
    search, best = before.spec["search"], after.host["notes"][-1]["best"]
    if best >= search["num"]:
      return None
    return self.training(before._replace(spec={**before.spec, "search": {**search, "next": best}}), data)

  def network_in(self, training: loop.Training, variables: Variables) -> Variables:
    network: path.PathNetwork = training.spec.network
    return network.joined(variables)

  def template(self, spec: dict[str, Any]) -> LearnerState:
    frozen = tuple(self.module_shapes(part, classes) for part, classes, _ in spec["modules"])
    live, search = NOTHING, spec["search"]
    if search is not None and search["best"] is not None:
      live = path.assembled(self.module_shapes(part, search["facts"]["classes"]) for part, (kind, _) in
                            enumerate(search["candidates"][search["best"]]) if kind != KEEP)
    return LearnerState(spec, live, frozen)

  # --------------------------------------------------------------------- tools for subclasses

  def showing(self, state: LearnerState, t: int) -> LearnerState:
    """The state that predicts task t, from 0; it holds the modules of that task alone."""
    task = state.spec["tasks"][t]
    spec = dict(num_frozen=len(task["path"]), modules=[state.spec["modules"][module] for module in task["path"]],
                tasks=[dict(task, path=list(range(len(task["path"]))))], search=None, shown=0)
    return state._replace(spec=spec, frozen=tuple(state.frozen[module] for module in task["path"]), host={"notes": []})

  def variables(self, state: LearnerState, t: int) -> Variables:
    """Variables of the network of task t."""
    return self._assembled(state, state.spec["tasks"][t]["path"])

  def error(self, state: LearnerState, candidate: Candidate, data: loop.StageData) -> float:
    """Error rate on the validation data of a candidate that has nothing to be trained."""
    variables = jax.tree.map(lambda leaf: leaf[None], self._assembled(state, [module for _, module in candidate]))
    labels, num = sharding.fetch((data.val_pool.y, data.val_pool.num_classes))
    network, problem = self.whole(int(num)), self.problem(int(num))
    found = prediction.in_batches(
        functools.partial(stacked.contribute, network, problem, self.mesh, "logits", variables), problem, self.mesh,
        data.val_pool, data.val)
    error = (found["sum"].argmax(-1) != labels[data.val]).mean()
    return float(np.float32(error))  # as the errors of trained candidates, to which it may be equal

  def judged(self, variables: Variables, data: loop.StageData, train: np.ndarray, val: np.ndarray
             ) -> tuple[float, int]:
    """(accuracy of the nearest neighbours among a network's features, multiply-adds that it took).

    One program embeds with all networks: of each head, which the features do not need, it takes one output.

    Args:
      variables: of a network.
      data: of the task.
      train: int32 [n], training examples that are embedded.
      val: int32 [m], validation examples that are embedded.
    """
    head = path.part(variables, self.parts[-1])
    num_classes, width = head.params[self.parts[-1]]["kernel"].shape
    same = path.assembled([variables, jax.tree.map(lambda leaf: leaf[:1], head)])
    accuracy = neighbors.accuracy(self.whole(1), self.problem(1), self.mesh, same, data, train, val,
                                  self.options.neighbors)
    return accuracy, neighbors.macs(self.whole(num_classes), self._shape, len(train), len(val), width)

  def scratch(self) -> Candidate:
    """The candidate of which every part is new."""
    return [[NEW, -1] for _ in self.parts]

  def tuned(self, state: LearnerState, t: int) -> Candidate:
    """The candidate that trains the body of task t further, with a new head."""
    return [*([COPY, module] for module in state.spec["tasks"][t]["path"][:-1]), [NEW, -1]]

  def rooted(self) -> Candidate:
    """The candidate that trains the body of the pretrained root further, with a new head."""
    return [*([ROOT, -1] for _ in self.parts[:-1]), [NEW, -1]]

  # --------------------------------------------------------------------- modules

  def _checked(self, root: Root) -> Variables:
    """The body of the pretrained root."""
    shapes = lambda tree: jax.tree.map(lambda leaf: (*leaf.shape, str(leaf.dtype)), tree)
    body = path.assembled(path.part(root.variables, name) for name in self.parts[:-1])
    expected = path.assembled(self.module_shapes(part, 0) for part in range(len(self.parts) - 1))
    if shapes(body) != shapes(expected):
      model, shape = self.context.config.model, self.context.example_shape
      raise BadInput(f"learner.root={root.path!r} has another network than model.name={model.name!r}, model.width="
                     f"{model.width} for images of shape {shape}; take a run with the same model and shape.")
    return body

  def kept(self, candidate: Candidate) -> tuple[str, ...]:
    """Names of the parts that a candidate keeps as they are."""
    return tuple(name for name, (kind, _) in zip(self.parts, candidate) if kind == KEEP)

  def _network(self, candidate: Candidate, num_classes: int) -> path.PathNetwork:
    return path.PathNetwork(self.whole(num_classes), self.kept(candidate))

  def _is_better(self, search: dict[str, Any], best: float | None, number: int, error: float) -> bool:
    """Whether a candidate wins against the best so far; with equal errors the one with fewer new modules does."""
    if best is None or error < best:
      return math.isfinite(error)
    candidates = search["candidates"]
    return error == best and num_new(candidates[number]) < num_new(candidates[search["best"]])

  def _stored(self, state: LearnerState, data: loop.StageData) -> LearnerState:
    """The state after a task: what its best candidate has trained is stored."""
    search, progress = state.spec["search"], state.host["search"]
    modules, frozen, chosen = list(state.spec["modules"]), list(state.frozen), []
    for part, (kind, module) in enumerate(search["candidates"][search["best"]]):
      if kind != KEEP:
        module = len(modules)
        is_head = part == len(self.parts) - 1
        modules.append([part, search["facts"]["classes"] if is_head else 0, data.stage])
        frozen.append(path.part(state.live, self.parts[part]))
      chosen.append(module)
    task = dict(path=chosen, origin=search["origin"][search["best"]], pair=progress["member"],
                **search["facts"])
    pair = None if progress["member"] is None else self.pairs(data)[progress["member"]]
    errors = [*progress["errors"], *progress["ready"]]
    notes = dict(progress["notes"], errors=errors, best=search["best"], **pair_notes(pair))
    host = {name: value for name, value in state.host.items() if name != "search"}
    spec = dict(num_frozen=len(frozen), modules=modules, tasks=[*state.spec["tasks"], task], search=None, shown=-1)
    host["notes"] = [notes]
    return state._replace(spec=spec, live=NOTHING, frozen=tuple(frozen), host=host)

  def _assembled(self, state: LearnerState, modules: list[int]) -> Variables:
    return path.assembled(state.frozen[number] for number in modules)


def num_new(candidate: Candidate) -> int:
  """The number of modules that a candidate adds to those that are stored."""
  return sum(kind != KEEP for kind, _ in candidate)


def _facts(pool: Any) -> dict[str, Any]:
  """What is remembered of a task, from its pool; JSON can hold it."""
  found = sharding.fetch(pool._replace(x=None, y=None))
  return dict(classes=int(found.num_classes), labels=int(found.labels), mean=found.mean.tolist(),
              std=found.std.tolist())
