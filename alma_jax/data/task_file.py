"""Reads a list of tasks of one's own from a Python file.

The file defines get_tasks(seed), which returns a list of dicts. A task has a `name`, unique in the list, and perhaps a
`family`; `returns` names the earlier task that it is again, with the same classes. Its examples are `arrays`, six as in
TaskData, perhaps with `class_names`; or they are drawn from the data set `data`, of which `classes` are used (default:
all), with `train` and `val` examples of each class, at most `test` (default: 1,000), and perhaps `changes`,
`label_shift`, `shuffled` and `draw` (see Recipe).
"""
import dataclasses
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alma_jax import config as configs
from alma_jax.config.fields import Declared
from alma_jax.data import cache, datasets, task_streams
from alma_jax.data.image_changes import resized
from alma_jax.data.task_sources import Sources, check_images
from alma_jax.data.task_streams import Planned, Recipe, TaskData, TaskInfo
from alma_jax.errors import BadInput
from alma_jax.messages import brief

_NUM = Declared(int, bounds=dict(at_least=1, below=2**31))
_SHARED = {name: Declared(str) for name in ("name", "family", "returns")}
_OF_ARRAYS = {"class_names": Declared(tuple[str, ...])}
_OF_DATA = {"data": Declared(str), "train": _NUM, "val": _NUM, "test": _NUM, "classes": Declared(tuple[int, ...]),
            "label_shift": Declared(int, bounds=dict(above=-2**31, below=2**31)), "shuffled": Declared(bool),
            "draw": Declared(int, bounds=dict(at_least=0, below=2**31))}
_REQUIRED = ("data", "train", "val")
_MOST_TEST = 1000  # test examples of a class, unless the task says otherwise

Given = Mapping[str, Any]


def load(path: str, seed: int) -> list[Given]:
  """The dicts of a file, whose keys are checked.

  Raises:
    BadInput: there is no such file, it fails, or it returns no list of such dicts.
  """
  file = pathlib.Path(path).expanduser()
  if not file.is_file():
    raise BadInput(f"there is no file {str(file)!r} to read tasks from; name yours by tasks:PATH.py.")
  made = configs.run_file(file, "get_tasks", seed)
  if not isinstance(made, list | tuple) or not made or not all(isinstance(task, Mapping) for task in made):
    raise BadInput(f"get_tasks of {path} returned {type(made).__name__} {brief(made)}; it should return a list of "
                   "dicts, one for each task.")
  tasks = [_checked_keys(f"task {number} of {path}", task) for number, task in enumerate(made, 1)]
  names = [task["name"] for task in tasks]
  if twins := [name for name in names if names.count(name) > 1]:
    raise BadInput(f"{path} has two tasks with the name {twins[0]!r}; give each a name of its own.")
  return tasks


def plan(tasks: Sequence[Given], sources: Sources, seed: int, test_per_class: int,
         image_size: int) -> tuple[tuple[int, ...], list[Planned]]:
  """(image shape, tasks) of the dicts of `load`; see task_streams.make for the other arguments.

  Raises:
    BadInput: a task cannot be used, or its images have another shape than those of the first.
  """
  planned: list[Planned] = []
  first: tuple[int, ...] | None = None
  for number, task in enumerate(tasks, 1):
    if "arrays" in task:
      shape, made = _of_arrays(task, test_per_class, image_size)
    else:
      shape, made = _of_data(task, number, sources, seed, test_per_class, image_size)
    first = first or shape
    if image_size and shape[-1] not in (1, 3):
      raise BadInput(f"the task {task['name']!r} has images of shape {shape}, which cannot be resized; images have 1 "
                     "or 3 channels.")
    if not image_size and shape != first:
      raise BadInput(f"the task {task['name']!r} has images of shape {shape}, the first task {first}; set "
                     "dataset.image_size=N to resize all to NxN pixels of three channels.")
    planned.append(_returning(task, made, planned))
  assert first is not None  # `load` returns at least one task
  return (image_size, image_size, 3) if image_size else first, planned


def _returning(task: Given, made: Planned, earlier: Sequence[Planned]) -> Planned:
  """A task that knows which of the earlier ones it is again, if its dict says so."""
  if "returns" not in task:
    return made
  names = [each.info.name for each in earlier]
  if task["returns"] not in names:
    raise BadInput(f"the task {task['name']!r} has returns={brief(task['returns'])}, which names no earlier task of "
                   "the list.")
  first = names.index(task["returns"])
  if (before := earlier[first].info.returns) is not None:
    first = before
  if earlier[first].info.class_names != made.info.class_names:
    raise BadInput(f"the task {task['name']!r} returns to {task['returns']!r}, but has the classes "
                   f"{brief(made.info.class_names)} instead of {brief(earlier[first].info.class_names)}; a task that "
                   "returns has the same classes in the same order.")
  return made._replace(info=made.info._replace(returns=first), decides=[made.decides, dict(returns=first)])


def _checked_keys(what: str, task: Given) -> Given:
  """The dict with its values converted to the types that are declared above."""
  if "arrays" in task and "data" in task:
    raise BadInput(f"{what} has both arrays and data; give one of them, because its examples come from one place.")
  known = _SHARED | (_OF_ARRAYS if "arrays" in task else _OF_DATA)
  possible = [*known, "arrays" if "arrays" in task else "changes"]
  if unknown := [key for key in task if key not in possible]:
    raise BadInput(f"{what} has the unknown key {brief(unknown[0])}; possible are {', '.join(possible)}, or arrays "
                   "with class_names.")
  if "name" not in task:
    raise BadInput(f"{what} lacks a name; give every task one of its own, as in name='letters'.")
  if missing := [key for key in _REQUIRED if key not in task and "arrays" not in task]:
    raise BadInput(f"{what} lacks {', '.join(missing)}; give it arrays, or data with the numbers of examples of a "
                   "class, train and val.")
  accepted = {key: known[key].accept(list(value) if isinstance(value, range) else value, f"{what}: {key}")
              for key, value in task.items() if key in known}
  changes = task.get("changes", ())
  if not isinstance(changes, list | tuple) or (changes and isinstance(changes[0], str)):
    raise BadInput(f"{what} has changes={brief(changes)}; it should be a list of changes, as in [('rotate', 1)].")
  return {**task, **accepted}


def _of_data(task: Given, number: int, sources: Sources, seed: int, test_per_class: int,
             image_size: int) -> tuple[tuple[int, ...], Planned]:
  """(shape of the images before they are resized, task) of a task that is drawn from a data set."""
  stored = sources[task["data"]]
  source = dataclasses.replace(
      stored, image_shape=(image_size, image_size, 3), fingerprint=f"{stored.fingerprint} {image_size}",
      images=lambda split, index: resized(stored.images(split, index), image_size)) if image_size else stored
  recipe = Recipe(
      task["name"], task["data"], task.get("classes", tuple(range(len(source.class_names)))), task["train"],
      task["val"], test_per_class or task.get("test", _MOST_TEST), task.get("draw", number),
      tuple(tuple(change) if isinstance(change, list) else change for change in task.get("changes", ())),
      task.get("label_shift", 0), task.get("shuffled", False))
  return stored.image_shape, task_streams.plan(recipe, source, seed, task.get("family", ""))


def _of_arrays(task: Given, test_per_class: int, image_size: int) -> tuple[tuple[int, ...], Planned]:
  """(shape of the images before they are resized, task) of a task whose arrays are given."""
  what = f"the task {task['name']!r}"
  given, num_classes = _checked(what, task["arrays"])
  names = task.get("class_names", tuple(map(str, range(num_classes))))
  if len(names) != num_classes:
    raise BadInput(f"{what} has {len(names)} class_names, but labels from 0 to {num_classes - 1}; give one name for "
                   "each class.")
  if test_per_class:
    kept = np.sort(np.concatenate([np.flatnonzero(given.y_test == label)[:test_per_class]
                                   for label in range(num_classes)]))
    given = given._replace(x_test=given.x_test[kept], y_test=given.y_test[kept])
  decides = ["arrays", cache.hash_arrays(given._asdict()), image_size]

  def make() -> TaskData:
    return TaskData(*(resized(array, image_size) if image_size and array.ndim == 4 else array.copy()
                      for array in given))

  info = TaskInfo(task["name"], task.get("family", "own"), names, *map(len, (given.y_train, given.y_val, given.y_test)))
  return given.x_train.shape[1:], Planned(info, make, decides)


def _checked(what: str, arrays: Any) -> tuple[TaskData, int]:
  """(the arrays, with images [N, H, W, C]; number of classes)."""
  if not isinstance(arrays, tuple | list) or len(arrays) != len(TaskData._fields):
    raise BadInput(f"{what} has arrays of type {type(arrays).__name__}; give six, {', '.join(TaskData._fields)}.")
  given = TaskData(*arrays)
  with warnings.catch_warnings(action="ignore", category=UserWarning):  # about classes without examples, an error here
    tested = datasets.from_arrays(what, given._asdict())
    chosen = datasets.from_arrays(what, given._asdict(), held_out="val")
  check_images(what, tested.x_train.shape, np.asarray(given.x_train).dtype)
  if tested.class_names is not None:
    raise BadInput(f"{what} has labels that are names; give numbers that count its class_names from 0.")
  datasets.warn_of_overlap(tested)
  num_classes = max(tested.num_classes, chosen.num_classes)
  empty = sorted(set(range(num_classes)) - set(tested.y_train.tolist()))
  if empty:
    raise BadInput(f"{what} has no training example of class {empty[0]}, but labels up to {num_classes - 1}; labels "
                   "count the classes of the task from 0.")
  return given._replace(**{name: getattr(tested, name) for name in datasets.ARRAYS}, x_val=chosen.x_test,
                        y_val=chosen.y_test), num_classes
