"""Streams of tasks, as data: each task has training, validation and test images and classes of its own.

Tasks are made when they are asked for. They depend on the name of the stream, the seed and their number alone.
"""
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from alma_jax import keys
from alma_jax.config.fields import declared
from alma_jax.config.registry import DATA_SETS, TASKS
from alma_jax.data import datasets, image_changes
from alma_jax.data.task_sources import Source, Sources
from alma_jax.data.task_types import Planned, Recipe, TaskData, TaskInfo
from alma_jax.errors import BadInput

__all__ = ["Recipe", "TaskData", "TaskInfo", "TaskStream", "make"]
_VERSION = 1  # of how tasks are drawn; to be raised if a stream changes
_MOST_KEPT = 2  # tasks whose arrays are kept
_PARTS = ("train", "val", "test")


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
    self._tasks, self._kept = tuple(tasks), dict[int, TaskData]()

  def __len__(self) -> int:
    return len(self.infos)

  def is_normalized(self, t: int) -> bool:
    """See Planned, for task t, counted from 0."""
    return self._tasks[t].is_normalized

  def task(self, t: int) -> TaskData:
    """The examples of task t, counted from 0. The arrays cannot be written to: the last two tasks' are kept."""
    if t not in self._kept:
      made = self._tasks[t].make()
      for array in made:
        array.flags.writeable = False
      while len(self._kept) >= _MOST_KEPT:
        del self._kept[next(iter(self._kept))]
      self._kept[t] = made
    return self._kept[t]


def make(name: str, *, seed: int, data_dir: str = "", sources: str = "auto", num_tasks: int = 0,
         test_per_class: int = 0, image_size: int = 0,
         data: Mapping[str, datasets.Dataset] | None = None) -> TaskStream:
  """The stream of a name, as a run has it whose config says the same.

  Args:
    name: `dataset.name` of a config, e.g. "s_minus", or "tasks:PATH.py", a list of one's own (task_file.py).
    seed: decides which examples are drawn, the classes of some tasks, and permutations of pixels.
    data_dir: folder of prepared TFDS data sets; empty: as for datasets.load.
    sources: "real" (SVHN, Fashion-MNIST, DTD and CIFAR-100 of data_dir), "stand_ins" (images made from MNIST and
      CIFAR-10), or "auto" (for each data set the real one if it is prepared).
    num_tasks: how many of the stream's tasks, the first ones; 0: all. Messages call it stream.num_megabatches.
    test_per_class: the largest number of test examples of a class; 0: that of the stream, 1,000.
    image_size: for "tasks:PATH.py", height and width in pixels to which images are resized, in three channels; 0: they
      have one shape already.
    data: data sets by name ("mnist", "cifar10", "digits") to be used instead of loading them.

  Raises:
    BadInput: the stream is unknown, a data set is missing, a class has too few examples, or a list of one's own cannot
      be used.
  """
  cls = DATA_SETS[TASKS].of(name, "name")
  given = dict(data_dir=data_dir, test_per_class=test_per_class, image_size=image_size)
  if image_size and "image_size" not in declared(cls):
    raise BadInput(f"image_size={image_size} is for tasks:PATH.py; the images of {name!r} have one size.")
  section = cls(name, **{field: value for field, value in given.items() if field in declared(cls)})
  stream: TaskStream = section.made(Sources(data_dir, sources, data, image_size), seed, num_tasks)
  return stream


def plan(recipe: Recipe, source: Source, seed: int, family: str = "") -> Planned:
  """The task of a recipe.

  Args:
    recipe: see Recipe.
    source: the source that it names.
    seed: decides which examples are drawn.
    family: see TaskInfo; empty: that of the source.

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
