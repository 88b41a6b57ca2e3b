"""What a stream of tasks consists of: facts of a task, its arrays, and the recipe by which they are drawn."""
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Change = tuple[str | int | float, ...]  # the name of a function of image_changes.py, and its arguments


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


def number_of(task: Any, names: Sequence[str]) -> int | None:
  """The number, from 0, of the task that a caller means; None: there is no such task.

  Args:
    task: its name, or its number from 1. A text that is the name of a task is that name; any other text of digits is a
      number.
    names: of all tasks, in order.
  """
  if isinstance(task, str) and task in names:
    return names.index(task)
  number = _number(task)
  return number - 1 if number is not None and 0 < number <= len(names) else None


def is_meant(task: Any, number: int, name: str) -> bool:
  """Whether a caller means the task of this number, from 1, and this name; see `number_of`."""
  return task == name or _number(task) == number


def _number(task: Any) -> int | None:
  if isinstance(task, str):
    return int(task) if task.isdecimal() else None
  return int(task) if isinstance(task, int | np.integer) and not isinstance(task, bool) else None
