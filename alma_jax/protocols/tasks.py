"""A stream of tasks, each with images, classes and a head of its own (docs/task-streams.md)."""
import csv
import functools
import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from alma_jax.config.fields import listed
from alma_jax.data import task_names
from alma_jax.errors import BadInput
from alma_jax.learners import prediction
from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.learners.task_learner import FROM_ROOT
from alma_jax.messages import spark
from alma_jax.problems import sequence
from alma_jax.protocols.contract import (
  Arrival,
  Facts,
  Prepared,
  Protocol,
  Shown,
  Sizes,
  State,
  Told,
  TrainedStage,
)
from alma_jax.store import metrics, run_files
from alma_jax.store.metrics import ACCURACIES, Entry
from alma_jax.training.loop import StageData

ACCURACY, GRAPH = "accuracy.csv", "graph.json"
LCA = "lca"


class Tasks(Protocol):
  """One task after the other. The learner is trained on every one, and tested on all so far.

  Attributes:
    source: problems.sequence.Tasks.
  """
  unit: ClassVar[str] = "tasks"
  labels: ClassVar[tuple[str, str]] = "task", " on it, when it was learned"

  def __init__(self, config: Any, data: Any = None, run: Any = None):
    del data, run
    self.config, self.source = config, sequence.Tasks(config)
    self.fingerprint = self.source.fingerprint

  # ------------------------------------------------------------------------ what a learner and a run are made from

  @classmethod
  def of_meta(cls, config: Any, meta: Entry) -> Facts:
    return Facts(*sequence.of_meta(config, meta))

  @classmethod
  def classes(cls, meta: Entry) -> list[list[str]]:
    """Likewise of each task."""
    return [list(task["class_names"]) for task in meta["tasks"]]

  def facts(self, ends: Sequence[int]) -> Facts:
    num_train, num_val = self.source.sizes()
    return Facts(self.source.problem, self.source.example_shape, int(num_val.max()), int(num_train[0]))

  def meta(self, ends: Sequence[int]) -> Entry:
    return self.source.meta()

  @property
  def num_bytes(self) -> tuple[int, int]:
    return self.source.num_bytes

  def sizes(self) -> Sizes:
    num_train, _ = self.source.sizes()
    return Sizes(num_train, np.zeros(len(num_train)), np.ones(len(num_train)))

  # ------------------------------------------------------------------------ the life of a stream

  def arrivals(self, lines: list[Entry]) -> Generator[int | None, None, None]:
    while len(lines) < len(self.source.data.infos):
      yield len(lines) + 1

  def decide(self, t: int, learner: Learner, state: State) -> Arrival:
    """A task that has just arrived has no head, and is not predicted."""
    untrained = {} if t > 1 else {metrics.UNTRAINED: 1 - 1 / len(self.source.data.infos[0].class_names)}
    return Arrival(t, True, {"prequential_error": None} | untrained)

  def stage(self, ends: Sequence[int], learner: Learner, meta: Entry) -> Prepared:
    number = len(ends) - 1
    pool, train, val = self.source.examples(number, learner.mesh)
    return Prepared(StageData(number, self.config.seed, pool, pool, train, val, len(train)))

  def test(self, learner: Any, state: State, trained: TrainedStage) -> Entry:
    """Error, loss in nats and the chosen metrics on the newest task, R[t, 1..t], and the learner's notes of the task.

    R[t, i] is the test accuracy on task i after task t. Where a new task changes no earlier prediction, the earlier
    accuracies are measured only once, and again after the last task. If the new task is an earlier one again, it
    changes the prediction for that one.
    """
    spec, lines = state.learner.spec, state.lines
    newest, last = len(spec["tasks"]) - 1, len(self.source.data.infos) - 1
    measured = self._measured(learner, state.learner, newest)
    if newest == last or learner.options.forgets:
      earlier = [1 - self._measured(learner, state.learner, t)["error"] for t in range(newest)]
    else:
      earlier = list(lines[-1][ACCURACIES]) if lines else []
      for t in self.source.visits(newest)[:-1]:
        earlier[t] = 1 - self._measured(learner, state.learner, t)["error"]
    new = sum(1 for _, _, t in spec["modules"] if t == newest)
    entry = measured | {"task": self.source.data.infos[newest].name, ACCURACIES: [*earlier, 1 - measured["error"]],
                        "num_modules": len(spec["modules"]), "new_modules": new, **state.learner.host["notes"][-1]}
    if self.config.log.lca:
      entry[LCA] = self._lca(learner, trained, state.learner)
    return entry

  def _lca(self, learner: Any, trained: TrainedStage, after: LearnerState) -> float:
    """LCA@b of the newest task (Veniat et al., 2021): mean test accuracy after 0, 1, ..., b steps of the training."""
    t, accuracies = len(after.spec["tasks"]) - 1, []
    pool, labels = self.source.tests(t, learner.mesh)
    for variables in learner.beginnings(trained.before, after, trained.data, self.config.log.lca):
      logits = functools.partial(learner.logits, variables, after.spec["tasks"][t]["classes"])
      joined = prediction.in_batches(logits, self.source.problem, learner.mesh, pool, _first(len(labels)))
      accuracies.append(float((learner.resolve(after, joined)[0] == labels).mean()))
    return float(np.mean(accuracies))

  def _measured(self, learner: Any, state: LearnerState, t: int) -> Entry:
    """The metrics on task t."""
    visit = self.source.newest(t, len(state.spec["tasks"]))
    pool, labels = self.source.tests(t, learner.mesh, visit)
    shown = learner.showing(state, visit)
    joined = prediction.contributions(learner, self.source.problem, shown, 0, pool, _first(len(labels)))
    return self.source.score(t, learner.resolve(shown, joined), labels)

  # ------------------------------------------------------------------------ what a run shows

  def summary(self, lines: list[Entry], initial_params: int) -> Entry:
    return super().summary(lines, initial_params) | summarize(lines)

  @classmethod
  def told(cls, config: Any, summary: Entry, lines: list[Entry]) -> Told:
    final = lines[-1][ACCURACIES]
    return Told("accuracy", f"{final[0]:.2f} {spark(final, 1.0)} {final[-1]:.2f}     the {len(lines)} tasks at the end",
                "average accuracy", f"{summary['average_accuracy']:.4f}",
                f"average accuracy, higher is better; forgetting {summary['forgetting']:.4f}, {summary['num_modules']} "
                "modules")

  def reports(self, learner: Any, spec: Entry, lines: list[Entry]) -> dict[str, bytes]:
    """Contents of accuracy.csv, a row per task t with R[t, i], and of graph.json, what was made from what."""
    names = [info.name for info in self.source.data.infos]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["t", "task", *names])
    for t, line in enumerate(lines):
      row = [f"{accuracy:.6g}" for accuracy in line[ACCURACIES]]
      table.writerow([t + 1, names[t], *row, *[""] * (len(names) - len(row))])
    modules = [dict(part=learner.parts[part], task=t) for part, _, t in spec["modules"]]
    tasks = [dict(name=info["name"], family=info["family"], origin=None if task["origin"] < 0 else task["origin"],
                  path=task["path"], **({"root": True} if task["origin"] == FROM_ROOT else {}),
                  **({"returns": info["returns"]} if "returns" in info else {}))
             for info, task in zip(self.source.meta()["tasks"], spec["tasks"])]
    return {ACCURACY: text.getvalue().encode(),
            GRAPH: run_files.json_bytes(dict(parts=list(learner.parts), modules=modules, tasks=tasks))}

  def shown(self, learner: Any, state: State, since: int = 0) -> Iterator[Shown]:
    visits = sequence.visits(state.meta["tasks"][:state.stage])
    for t in range(state.stage):
      if learner.options.forgets or visits[t][-1] >= since:
        yield self.view(learner, state, t + 1)

  @classmethod
  def view(cls, learner: Any, state: State, task: int | str | None = None, lost: Mapping[int, str] = {},
           named: str = "the run") -> Shown:
    """The predictor of a task: its name, or its number, from 1. A text that is a name is that name."""
    spec, tasks = state.learner.spec, state.meta["tasks"]
    learned = spec["tasks"]
    names = [entry["name"] for entry in tasks[:len(learned)]]
    t = task_names.number_of(task, names)
    if t is None:
      given = "no task is given of" if task is None else f"task={task!r} is none of"
      raise BadInput(f"{given} the {len(names)} tasks that {named} has learned; give a number from 1 to "
                     f"{len(names)}, or one of {listed(map(repr, names))}.")
    visits = sequence.visits(tasks[:len(learned)])
    paths = [learned[of_task[-1]]["path"] for of_task in visits]
    if lost.keys() & set(paths[t]):
      silent = [i for i, path in enumerate(paths) if lost.keys() & set(path)]
      cause = next(lost[module] for module in paths[t] if module in lost)
      listing = ", ".join(f"{i + 1} ({names[i]!r})" for i in silent)
      raise BadInput(f"{'task' if len(silent) == 1 else 'tasks'} {listing} of {named} cannot answer, because "
                     f"modules are lost, while the other {len(names) - len(silent)} can: {cause}")
    visit, newest = visits[t][-1], len(learned) - 1
    shown, entry = learner.showing(state.learner, visit), tasks[t]
    meta = state.meta | dict(
        mean=learned[visit]["mean"], std=learned[visit]["std"], num_classes=learned[visit]["classes"],
        class_names=entry["class_names"], task=dict(number=t + 1, name=entry["name"], of=len(tasks)))
    forgets, num_params = learner.options.forgets, learner.cost(shown).num_params
    # A predictor that is newer than the line of its task: nothing but its error is known.
    line = (state.lines[-1] | dict(loss=None, val_error=None) if forgets and visit < newest else state.lines[visit])
    line = line | dict(error=1 - state.lines[-1][ACCURACIES][t], num_params=num_params)
    return Shown(f"task-{t + 1:04d}", newest if forgets else visit, shown, meta, line)


def _first(num: int) -> np.ndarray:
  return np.arange(num, dtype=np.int32)


def summarize(lines: list[Entry]) -> Entry:
  """The metrics of a stream of tasks (docs/task-streams.md), by the names of summary.json.

  Returns:
    Dict of average_accuracy = mean_i R[T, i], forgetting = mean_i (R[T, i] - R[i, i]), cumulative_error =
    mean_i (1 - R[i, i]), last_accuracy = R[T, T], num_modules, memory, the parameters and the statistics of batch
    normalisation of all stored modules, and lca, the mean LCA of the tasks, if it was measured for all of them.
  """
  final = np.array(lines[-1][ACCURACIES])
  own = np.array([line[ACCURACIES][-1] for line in lines])
  return dict(average_accuracy=float(final.mean()), forgetting=float((final - own).mean()),
              cumulative_error=float((1 - own).mean()), last_accuracy=float(own[-1]),
              num_modules=lines[-1]["num_modules"], memory=lines[-1]["num_params"],
              **({LCA: float(np.mean([line[LCA] for line in lines]))} if all(LCA in line for line in lines) else {}))
