"""The task of a stream that a caller means, by its name or its number. Imports no jax."""
from collections.abc import Sequence
from typing import Any

import numpy as np


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
