"""Streams of tasks, as data: each task has training, validation and test images and classes of its own.

Tasks are made when they are asked for. They depend on the name of the stream, the seed and their number alone.
"""
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.config.registry import DATA_SETS, TASKS
from alma_jax.data import datasets, image_changes
from alma_jax.data.examples import Examples, of_arrays
from alma_jax.data.image_changes import Change
from alma_jax.data.labels import Labels
from alma_jax.data.task_sources import Source
from alma_jax.errors import BadInput

_VERSION = 1  # of how tasks are drawn; to be raised if a stream changes
_MOST_KEPT = 2  # tasks whose arrays are kept
_PARTS = ("train", "val", "test")


class TaskInfo(NamedTuple):
  """What is known of a task before its images are made.

  Attributes:
    name: the number of the task in its stream, from 1, and what it is, e.g. "2 mnist small".
    family: the domain of its images, e.g. "digits"; tasks of one family have one colour in graphs.
    class_names: names of the labels 0, 1, ...
    num_train, num_val, num_test: numbers of examples.
    returns: the number, from 0, of the earlier task that it is again, at its first visit; None for a new task.
  """
  name: str
  family: str
  class_names: tuple[str, ...]
  num_train: int
  num_val: int
  num_test: int
  returns: int | None = None


class TaskData(NamedTuple):
  """The examples of a task: x uint8 [N, H, W, C], y int32 [N], labels from 0."""
  x_train: np.ndarray
  y_train: np.ndarray
  x_val: np.ndarray
  y_val: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a task is drawn from a source.

  Attributes:
    name: see TaskInfo.
    source: name of the source (task_sources.py).
    classes: its classes in the order of the labels of the task.
    train, val: numbers of training and of validation examples of a class, both from the source's training part.
    test: the largest number of test examples of a class; a class that has fewer gives all.
    draw: number of the draw; tasks of different draws have different examples.
    changes: how the images are changed, in this order.
    label_shift: class i has the label i - label_shift, modulo the number of classes.
    shuffled: whether the labels are drawn at random, so that there is nothing to learn.
    returns: see TaskInfo.
  """
  name: str
  source: str
  classes: tuple[int, ...]
  train: int
  val: int
  test: int
  draw: int
  changes: tuple[Change, ...] = ()
  label_shift: int = 0
  shuffled: bool = False
  returns: int | None = None


class Planned(NamedTuple):
  """A task that is made when it is asked for.

  Attributes:
    info: its facts.
    make: () -> TaskData, always the same.
    decides: JSON-able value that changes if the data would.
    is_normalized: whether networks get the images with a mean of 0 and a deviation of 1 in the training images of the
      task, channel by channel. That undoes a coloured background, so that those images are only scaled to [0, 1]
      (Veniat et al., 2021, whose stream S_in does not normalise them either).
  """
  info: TaskInfo
  make: Callable[[], TaskData]
  decides: object
  is_normalized: bool = True


class TaskStream:
  """A sequence of tasks.

  Attributes:
    name: see `make`.
    infos: facts of the tasks, in order.
    image_shape: (H, W, C) of all images.
    fingerprint: SHA-256 of all that decides the data, as hexadecimal digits.
  """

  def __init__(self, name: str, image_shape: tuple[int, ...], tasks: Sequence[Planned]):
    self.name, self.image_shape = name, image_shape
    self.infos = tuple(task.info for task in tasks)
    infos = [info[:-1] for info in self.infos]  # `returns` are among `described`, or of the name
    described = [json.dumps(task.decides, sort_keys=True) for task in tasks]
    self.fingerprint = hashlib.sha256(json.dumps([_VERSION, infos, described]).encode()).hexdigest()
    self._tasks, self._made = tuple(tasks), functools.lru_cache(_MOST_KEPT)(self._make)

  def __len__(self) -> int:
    return len(self.infos)

  def is_normalized(self, t: int) -> bool:
    """See Planned, for task t, counted from 0."""
    return self._tasks[t].is_normalized

  def task(self, t: int) -> TaskData:
    """The examples of task t, counted from 0. The arrays cannot be written to: the last two tasks' are kept."""
    return self._made(t)

  def tested(self, t: int) -> Examples:
    """The test examples of task t."""
    task, info = self.task(t), self.infos[t]
    return of_arrays(info.name, task.x_test, Labels(task.y_test, info.class_names, True))

  def _make(self, t: int) -> TaskData:
    made = self._tasks[t].make()
    for array in made:
      array.flags.writeable = False
    return made


def make(name: str, seed: int, *, num_tasks: int = 0, given: Mapping[str, datasets.Dataset] | None = None,
         **fields: Any) -> TaskStream:
  """The stream of a name, as a run has it whose config says the same.

  Args:
    name: `dataset.name` of a config, e.g. "s_minus", or "tasks:PATH.py", your own list (task_file.py).
    seed: decides which examples are drawn, the classes of some tasks, and permutations of pixels.
    num_tasks: how many of the stream's tasks, the first ones; 0: all. Messages call it stream.num_megabatches.
    given: data sets by name ("mnist", "cifar10", "digits") to be used instead of loading them.
    **fields: other fields of the section `dataset`, e.g. data_dir and sources.

  Raises:
    BadInput: the stream is unknown, a data set is missing, a class has too few examples, or a list of one's own cannot
      be used.
  """
  stream: TaskStream = DATA_SETS[TASKS].of(name, "name")(name=name, **fields).made(seed, num_tasks, given)
  return stream


def plan(recipe: Recipe, source: Source, seed: int, family: str = "") -> Planned:
  """The task of a recipe.

  Args:
    recipe: see Recipe.
    source: the source that it names.
    seed: decides which examples are drawn.
    family: see TaskInfo; empty: the source's family.

  Raises:
    BadInput: a class is unknown or has too few examples, or the images cannot be changed so.
  """
  what = f"the task {recipe.name!r}"
  _check_classes(what, recipe, source)
  image_changes.check(what, recipe.changes, source.image_shape)
  num_test = [min(recipe.test, len(source.by_class["test"][label])) for label in recipe.classes]
  num = len(recipe.classes)
  names = [source.class_names[recipe.classes[(i + recipe.label_shift) % num]] for i in range(num)]
  info = TaskInfo(recipe.name, family or source.family, tuple(names), num * recipe.train, num * recipe.val,
                  sum(num_test), recipe.returns)
  drawn = {field: value for field, value in dataclasses.asdict(recipe).items() if field != "returns"}
  is_normalized = all(change[0] != "colour" for change in recipe.changes)
  decides = [drawn | dict(name=""), seed, source.fingerprint, *([] if is_normalized else ["scaled to [0, 1]"])]
  return Planned(info, lambda: _draw(recipe, source, seed), decides, is_normalized)


def _draw(recipe: Recipe, source: Source, seed: int) -> TaskData:
  """The examples of a task. Those of one recipe, source and seed are always the same, in the same order."""
  rng = keys.rng(seed, keys.TASK_EXAMPLES, recipe.draw)
  places: dict[str, list[np.ndarray]] = {part: [] for part in _PARTS}
  for label in recipe.classes:
    known, unseen = (rng.permutation(source.by_class[split][label]) for split in ("train", "test"))
    places["train"].append(known[:recipe.train])
    places["val"].append(known[recipe.train:recipe.train + recipe.val])
    places["test"].append(unseen[:recipe.test])
  arrays = []
  for part in _PARTS:
    labels = np.repeat(np.arange(len(recipe.classes)), [len(of_class) for of_class in places[part]])
    order = rng.permutation(len(labels))
    x = source.images("test" if part == "test" else "train", np.concatenate(places[part])[order])
    y = (labels[order] - recipe.label_shift) % len(recipe.classes)
    if recipe.shuffled:
      y = rng.permutation(y)
    arrays += [image_changes.apply(x, recipe.changes, seed), y.astype(np.int32)]
  return TaskData(*arrays)


def _check_classes(what: str, recipe: Recipe, source: Source) -> None:
  num = len(source.class_names)
  unknown = [label for label in recipe.classes if not 0 <= label < num]
  if unknown:
    raise BadInput(f"{what} asks for class {unknown[0]} of {source.name}, whose classes are 0 to {num - 1}.")
  if len(set(recipe.classes)) != len(recipe.classes):
    raise BadInput(f"{what} names a class of {source.name} twice; name each once.")
  if len(recipe.classes) < 2:
    raise BadInput(f"{what} has {len(recipe.classes)} class{'es' * (not recipe.classes)}; a task has at least two.")
  for split, needed in ("train", recipe.train + recipe.val), ("test", 1):
    for label in recipe.classes:
      there = len(source.by_class[split][label])
      if there < needed:
        raise BadInput(f"{what} needs {needed} {split} examples of class {label} of {source.name}, which has {there}; "
                       "ask for fewer, or use another data set.")
