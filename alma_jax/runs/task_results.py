"""The results of a stream of tasks: accuracies on all tasks so far, metrics, accuracy.csv and graph.json."""
import csv
import functools
import io
import pathlib
from typing import Any

import numpy as np

from alma_jax.files import write_bytes
from alma_jax.learners import contract, prediction
from alma_jax.learners.task_learner import FROM_ROOT, TaskLearner
from alma_jax.problems import sequence
from alma_jax.problems.sequence import Tasks
from alma_jax.store import run_files
from alma_jax.store.metrics import ACCURACIES, Entry
from alma_jax.training import loop

ACCURACY, GRAPH = "accuracy.csv", "graph.json"
LCA = "lca"


class TaskExaminer:
  """Measures R[t, i], the test accuracy on task i after task t (docs/task-streams.md).

  Attributes:
    cached, num_cached: None and 0; nothing is kept in checkpoints.
  """

  def __init__(self, learner: TaskLearner, source: Tasks):
    self._learner, self._source = learner, source
    self.cached: contract.Contribution | None = None
    self.num_cached = 0

  def examine(self, state: contract.LearnerState, lines: list[Entry]) -> tuple[float, float, Entry]:
    """(error rate on the newest task, its loss in nats, further entries of its line of metrics.jsonl).

    Where a new task changes no earlier prediction, the earlier accuracies are measured only once, and again after the
    last task. If the new task is an earlier one again, it changes the prediction for that one.

    Args:
      state: of the learner, after a task.
      lines: of the tasks before.
    """
    newest, last = len(state.spec["tasks"]) - 1, self._source.stream.num_megabatches - 1
    measured = self._measured(state, newest)
    value, loss = measured.pop("error"), measured.pop("loss")
    if newest == last or self._learner.options.forgets:
      earlier = [1 - self._measured(state, t)["error"] for t in range(newest)]
    else:
      earlier = list(lines[-1][ACCURACIES]) if lines else []
      for t in self._source.visits(newest)[:-1]:
        earlier[t] = 1 - self._measured(state, t)["error"]
    new = sum(1 for _, _, t in state.spec["modules"] if t == newest)
    info = self._source.data.infos[newest]
    return value, loss, measured | {"task": info.name, ACCURACIES: [*earlier, 1 - value],
                         "num_modules": len(state.spec["modules"]), "new_modules": new, **state.host["notes"][-1]}

  def lca(self, before: contract.LearnerState, after: contract.LearnerState, data: loop.StageData, steps: int) -> float:
    """LCA@b of the newest task (Veniat et al., 2021): mean test accuracy after 0, 1, ..., b steps of the training.

    Args:
      before: state of one of the task's trainings.
      after: state after the task.
      data: of the task.
      steps: b.
    """
    t, learner, found = len(after.spec["tasks"]) - 1, self._learner, []
    pool, labels = self._source.tests(t, learner.mesh)
    for variables in learner.beginnings(before, after, data, steps):
      logits = functools.partial(learner.logits, variables, after.spec["tasks"][t]["classes"])
      joined = prediction.in_batches(logits, self._source.problem, learner.mesh, pool, _first(len(labels)))
      found.append(float((learner.resolve(after, joined)[0] == labels).mean()))
    return float(np.mean(found))

  def write(self, folder: pathlib.Path, state: contract.LearnerState, lines: list[Entry]) -> None:
    """See the function `write`."""
    write(folder, self._source, self._learner, state.spec, lines)

  def _measured(self, state: contract.LearnerState, t: int) -> Entry:
    visit = self._source.newest(t, len(state.spec["tasks"]))
    pool, labels = self._source.tests(t, self._learner.mesh, visit)
    predicted = predict(self._learner, self._source.problem, self._learner.showing(state, visit), pool, len(labels))
    return self._source.score(t, predicted, labels)


def predict(learner: TaskLearner, problem: Any, state: contract.LearnerState, pool: Any, num: int
            ) -> tuple[np.ndarray, np.ndarray]:
  """(classes int [num], probabilities float32 [num, K]) of the first `num` examples of a pool."""
  found: tuple[np.ndarray, np.ndarray] = learner.resolve(
      state, prediction.contributions(learner, problem, state, 0, pool, _first(num)))
  return found


def shown(learner: TaskLearner, state: contract.LearnerState, data: dict[str, Any], t: int
          ) -> tuple[contract.LearnerState, dict[str, Any]]:
  """(the state that predicts task t, from 0, what it needs to know of the task's images); `data` is `Tasks.meta`."""
  visit = sequence.visits(data["tasks"][:len(state.spec["tasks"])])[t][-1]
  known, entry = state.spec["tasks"][visit], data["tasks"][t]
  return learner.showing(state, visit), data | dict(
      mean=known["mean"], std=known["std"], num_classes=known["classes"], class_names=entry["class_names"],
      task=dict(number=t + 1, name=entry["name"], of=len(data["tasks"])))


def matrix(lines: list[Entry]) -> np.ndarray:
  """R[t, i], the test accuracy on task i after task t: float64 [T, T], rows and columns from 0, NaN for i > t."""
  found = np.full((len(lines), len(lines)), np.nan)
  for t, line in enumerate(lines):
    found[t, :t + 1] = line[ACCURACIES]
  return found


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


def write(folder: pathlib.Path, source: Tasks, learner: TaskLearner, spec: dict[str, Any], lines: list[Entry]) -> None:
  """Writes accuracy.csv and graph.json; the arguments are those of `files`."""
  for name, data in files(source, learner, spec, lines).items():
    write_bytes(folder / name, data)


def files(source: Tasks, learner: TaskLearner, spec: dict[str, Any], lines: list[Entry]) -> dict[str, bytes]:
  """Contents of accuracy.csv, a row per task t with R[t, i], and of graph.json, what was made from what.

  Args:
    source: of the run.
    learner: of the run.
    spec: that of the learner's state after the last of `lines`.
    lines: of the tasks so far.
  """
  names = [info.name for info in source.data.infos]
  text = io.StringIO()
  table = csv.writer(text, lineterminator="\n")
  table.writerow(["t", "task", *names])
  for t, line in enumerate(lines):
    found = [f"{accuracy:.6g}" for accuracy in line[ACCURACIES]]
    table.writerow([t + 1, names[t], *found, *[""] * (len(names) - len(found))])
  modules = [dict(part=learner.parts[part], task=t) for part, _, t in spec["modules"]]
  tasks = [dict(name=info["name"], family=info["family"], origin=None if task["origin"] < 0 else task["origin"],
                path=task["path"], **({"root": True} if task["origin"] == FROM_ROOT else {}),
                **({"returns": info["returns"]} if "returns" in info else {}))
           for info, task in zip(source.meta()["tasks"], spec["tasks"])]
  return {ACCURACY: text.getvalue().encode(),
          GRAPH: run_files.json_bytes(dict(parts=list(learner.parts), modules=modules, tasks=tasks))}
