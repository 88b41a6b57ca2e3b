"""Modular networks with task-driven priors: a new task reuses modules of a similar one (Veniat et al., 2021)."""
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from alma_jax import keys
from alma_jax.config.fields import Section, choice, field
from alma_jax.config.registry import register
from alma_jax.config.task_sections import TaskOptions
from alma_jax.learners import neighbors, path_search
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.paths import KEEP, NEW, Candidate, Choice, Paths, Proposal, num_new
from alma_jax.models import cost, path
from alma_jax.parallel import sharding
from alma_jax.training import loop


@dataclasses.dataclass(frozen=True)
class All(Section):
  """All candidates are trained, and the best is kept."""
  name: str = "all"

  def judge(self, search: Callable[[path_search.Reinforce], path_search.Found]) -> path_search.Found | None:
    """What a search finds out about the candidates; None if there is no search, and all are trained."""
    del search
    return None


@register
@dataclasses.dataclass(frozen=True)
class Options(TaskOptions):
  """Modular networks with task-driven priors (Veniat et al., 2021).

  A network is a path through modules. A new task reuses frozen modules of the most similar earlier task, and trains
  new ones; the division of the path with the best validation accuracy is kept.
  """
  name: str = "mntdp"
  neighbors: int = field(15, "nearest neighbours by which to judge earlier tasks", at_least=1)
  max_train: int = field(1000, "most training images to embed", at_least=1)
  max_val: int = field(1000, "most validation images to embed", at_least=1)
  direction: str = field(
      "fw", "add new modules above the reused ones (`fw`), below them (`bw`), or either (`both`)",
      choices=("fw", "bw", "both"))
  prior: str = field(
      "knn", "reuse the most similar earlier path (`knn`), a `random` one, or each in turn (`all`)", choices=("knn",
      "random", "all"))
  search: All | path_search.Reinforce = choice(
      {cls.name: cls for cls in (All, path_search.Reinforce)}, "all",
      "train `all` candidates and keep the best, or train a sampler of candidates and then the likeliest one "
      "(`reinforce`)")

  num_tried: ClassVar[int] = 6

  def make(self, context: Any) -> Any:
    return MNTDP(context)


class MNTDP(Paths):
  """Tries every division of an earlier path into reused and new modules."""

  def propose(self, state: LearnerState, data: loop.StageData) -> Proposal:
    if not state.spec["tasks"]:
      return Proposal([self.scratch()], [], [-1], 0, {})
    labels, classes = map(int, sharding.fetch((data.pool.labels, data.pool.num_classes)))
    chosen, spent, notes = self._priors(state, data, labels)
    candidates: list[Candidate] = []
    origins: list[int] = []
    ready: list[tuple[Candidate, float]] = []
    ready_origins: list[int] = []
    for t in chosen:
      reused = state.spec["tasks"][t]["path"]
      same_labels = state.spec["tasks"][t]["labels"] == labels
      for candidate in self._divisions(reused, same_labels):
        if candidate not in candidates:
          candidates.append(candidate)
          origins.append(t if any(kind == KEEP for kind, _ in candidate) else -1)
      if same_labels:
        whole = [[KEEP, module] for module in reused]
        if all(whole != other for other, _ in ready):
          ready.append((whole, self.error(state, whole, data)))
          spent += len(data.val) * cost.forward_macs(self.whole(classes), self._shape)
          ready_origins.append(t)
    search = functools.partial(self._searched, state, data, candidates, classes)
    found = self.options.search.judge(search) if len(candidates) > 1 else None
    if found is None:
      return Proposal(candidates, ready, [*origins, *ready_origins], spent, notes)
    best = max(range(len(candidates)), key=lambda i: (found.probabilities[i], -num_new(candidates[i])))
    return Proposal([candidates[best]], ready, [origins[best], *ready_origins], spent + found.macs,
                    notes | {"probabilities": found.probabilities}, 2 * spent + found.flops)

  def _searched(self, state: LearnerState, data: loop.StageData, candidates: list[Candidate], num_classes: int,
                options: path_search.Reinforce) -> path_search.Found:
    whole = self.whole(num_classes, axis=None)
    first = jax.tree.map(lambda leaf: leaf[0], sharding.fetch(self.fresh(self.whole(num_classes), data)))
    variables = sharding.put(first, self.mesh)
    given = [path_search.Candidate(
        path.PathNetwork(whole, self.kept(candidate)), tuple(number for _, number in candidate),
        {name: state.frozen[number] for name, (kind, number) in zip(self.parts, candidate) if kind == KEEP})
             for candidate in candidates]
    return path_search.search(
        given, {name: path.part(variables, name) for name in self.parts}, self.problem(num_classes), self._train, data,
        options)

  def _divisions(self, reused: list[int], same_labels: bool) -> list[Candidate]:
    """Of a path with at least one new module; in each direction those with the fewest new ones first.

    Without `same_labels` the head is always new: that of other classes would answer for them.
    """
    num = len(reused)
    head: Choice = [KEEP, reused[-1]] if same_labels else [NEW, -1]
    found: list[Candidate] = []
    if self.options.direction in ("fw", "both"):
      found += [[*([KEEP, module] for module in reused[:i]), *([NEW, -1] for _ in range(num - i))]
                for i in range(num - 1, -1, -1)]
    if self.options.direction in ("bw", "both"):
      found += [[*([NEW, -1] for _ in range(i)), *([KEEP, module] for module in reused[i:-1]), head]
                for i in range(1, num)] + [[[NEW, -1] for _ in range(num)]]
    return found

  def _priors(self, state: LearnerState, data: loop.StageData, labels: int
              ) -> tuple[list[int], int, dict[str, list[float]]]:
    """(earlier tasks whose paths are reused, multiply-adds of finding them, notes)."""
    num = len(state.spec["tasks"])
    if self.options.prior == "all":
      return list(range(num - 1, -1, -1)), 0, {}
    if self.options.prior == "random":
      return [int(keys.rng(data.seed, keys.EMBED, data.stage, 2).integers(num))], 0, {}
    train, val = neighbors.examples(data, self.options.max_train, self.options.max_val)
    bodies: dict[tuple[int, ...], float] = {}  # tasks with the same body have the same features
    scores, spent = [], 0
    for t, task in enumerate(state.spec["tasks"]):
      body = tuple(task["path"][:-1])
      if body not in bodies:
        bodies[body], macs = self.judged(self.variables(state, t), data, train, val)
        spent += macs
      scores.append(bodies[body])
    same = [task["labels"] == labels for task in state.spec["tasks"]]  # of equal scores one whose head can be reused
    return [max(range(num), key=lambda t: (scores[t], same[t], t))], spent, {"scores": scores}
