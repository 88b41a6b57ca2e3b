"""Streams of tasks, as data: each task has training, validation and test images and classes of its own.

Tasks are made when they are asked for. They depend on the name of the stream, the seed and their number alone.
"""
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from alma_jax.data import datasets, task_draws, task_file
from alma_jax.data.task_lists import STREAMS
from alma_jax.data.task_sources import Sources
from alma_jax.data.task_types import Planned, Recipe, TaskData, TaskInfo
from alma_jax.errors import BadInput

__all__ = ["STREAMS", "Recipe", "TaskData", "TaskInfo", "TaskStream", "make"]
_VERSION = 1  # of how tasks are drawn; to be raised if a stream changes
_T = TypeVar("_T")
_MOST_KEPT = 2  # tasks whose arrays are kept


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
  """The stream of a name.

  Args:
    name: one of STREAMS, or "tasks:PATH.py", a list of one's own (task_file.py).
    seed: decides which examples are drawn, the classes of some tasks, and permutations of pixels.
    data_dir: folder of prepared TFDS data sets; empty: as for datasets.load.
    sources: "real" (SVHN, Fashion-MNIST, DTD and CIFAR-100 of data_dir), "stand_ins" (images made from MNIST and
      CIFAR-10), or "auto" (for each data set the real one if it is prepared).
    num_tasks: how many of the stream's tasks, the first ones; 0: all.
    test_per_class: the largest number of test examples of a class; 0: that of the stream, 1,000.
    image_size: for "tasks:PATH.py", height and width in pixels to which images are resized, in three channels; 0: they
      have one shape already.
    data: data sets by name ("mnist", "cifar10", "digits") to be used instead of loading them.

  Raises:
    BadInput: the stream is unknown, a data set is missing, a class has too few examples, or a list of one's own cannot
      be used.
  """
  numbers = dict(seed=seed, num_tasks=num_tasks, test_per_class=test_per_class, image_size=image_size)
  for field, number in numbers.items():
    if number < 0:
      raise BadInput(f"{field}={number} should be at least 0.")
  found, (kind, _, path) = Sources(data_dir, sources, data, image_size), name.partition(":")
  if kind == "tasks" and path:
    own = _first(name, task_file.load(path, seed), num_tasks)
    return TaskStream(name, *task_file.plan(own, found, seed, test_per_class, image_size))
  if name not in STREAMS:
    raise BadInput(f"there is no stream of tasks {name!r}; there are {', '.join(STREAMS)} and tasks:PATH.py.")
  if image_size:
    raise BadInput(f"image_size={image_size} is for tasks:PATH.py; the images of {name!r} have one size.")
  listed = STREAMS[name]
  found.need(listed.sources)
  recipes = _first(name, listed.recipes(found, seed), num_tasks)
  if test_per_class:
    recipes = [dataclasses.replace(recipe, test=test_per_class) for recipe in recipes]
  tasks = [task_draws.plan(recipe, found[recipe.source], seed) for recipe in recipes]
  return TaskStream(name, found[recipes[0].source].image_shape, tasks)


def _first(name: str, tasks: list[_T], num: int) -> list[_T]:
  if num > len(tasks):
    raise BadInput(f"num_tasks={num} exceeds the {len(tasks)} tasks of the stream {name!r}; 0 stands for all.")
  return tasks[:num or len(tasks)]
