"""The streams of tasks by name: which tasks they consist of, and how many examples each has.

The first six follow the streams of the CTrL benchmark (Veniat et al., 2021). "Small" is 40 training and 20 validation
examples of a class, "large" is 400 and 200.
"""
import colorsys
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from alma_jax import keys
from alma_jax.data.task_sources import Sources
from alma_jax.data.task_types import Change, Recipe

_SMALL, _LARGE, _FEW = (40, 20), (400, 200), (5, 3)  # training and validation examples of a class
_MANY = (1000, 500)
_MOST_TEST = 1000  # test examples of a class
_LONG = ("mnist", "fashion", "svhn", "cifar10", "cifar100")
_SHORT = ("mnist", "dtd", "fashion", "svhn", "cifar10")


class Listed(NamedTuple):
  """A stream of tasks.

  Attributes:
    text: one line about it.
    num_tasks: its number of tasks.
    sources: names of the sources that it draws from.
    recipes: (Sources, seed) -> list of Recipe.
  """
  text: str
  num_tasks: int
  sources: tuple[str, ...]
  recipes: Callable[[Sources, int], list[Recipe]]


class _List:
  """A list of recipes to which tasks are added."""

  def __init__(self, sources: Sources, seed: int, most_classes: int = 10):
    self.recipes: list[Recipe] = []
    self._sources, self._seed, self._most_classes = sources, seed, most_classes

  def add(self, source: str, counts: tuple[int, int], size: str, classes: tuple[int, ...] | None = None,
          changes: tuple[Change, ...] = (), label_shift: int = 0, shuffled: bool = False) -> None:
    """Adds a task of a source. Without `classes` it has all, or as many as a task may have, chosen by the seed."""
    number = len(self.recipes) + 1
    found = self._sources[source]
    self.recipes.append(Recipe(f"{number} {found.name} {size}", source, classes or self._choose(source), *counts,
                               _MOST_TEST, number, changes, label_shift, shuffled))

  def again(self, number: int) -> None:
    """Adds the task of this number (from 1), which is not a return itself, once more, with the same examples."""
    old = self.recipes[number - 1]
    name = f"{len(self.recipes) + 1} {old.name.split(' ', 1)[1]} again"
    self.recipes.append(dataclasses.replace(old, name=name, returns=number - 1))

  def _choose(self, source: str) -> tuple[int, ...]:
    num = len(self._sources[source].class_names)
    if num <= self._most_classes:
      return tuple(range(num))
    rng = keys.rng(self._seed, keys.TASK_CLASSES, list(_SHORT + _LONG).index(source))
    return tuple(sorted(map(int, rng.choice(num, self._most_classes, replace=False))))


def _short(sources: Sources, seed: int, first: tuple[int, int] | None, last: tuple[int, int] | None,
           between: tuple[str, ...], label_shift: int = 0) -> list[Recipe]:
  """CIFAR-10, small tasks of others between, and CIFAR-10 again."""
  tasks = _List(sources, seed)
  size = {_SMALL: "small", _LARGE: "large"}
  if first:
    tasks.add("cifar10", first, size[first])
  for source in between:
    tasks.add(source, _SMALL, "small")
  if last:
    tasks.add("cifar10", last, size[last] + (", labels shifted" if label_shift else ""), label_shift=label_shift)
  return tasks.recipes


_BETWEEN = ("mnist", "dtd", "fashion", "svhn")


def _s_in(sources: Sources, seed: int) -> list[Recipe]:
  rng = keys.rng(seed, keys.BACKGROUNDS)
  hue = rng.random()
  colours = [colorsys.hsv_to_rgb(h % 1, 1, 0.7) for h in (hue, hue + rng.uniform(1/3, 2/3))]
  tasks = _List(sources, seed)
  tasks.add("mnist", _LARGE, "on a colour large", changes=(("colour", *colours[0]),))
  for source in ("cifar10", "dtd", "fashion", "svhn"):
    tasks.add(source, _SMALL, "small")
  tasks.add("mnist", _FEW, "on another colour", changes=(("colour", *colours[1]),))
  return tasks.recipes


def _s_long(sources: Sources, seed: int, num: int = 100) -> list[Recipe]:
  tasks, rng = _List(sources, seed), keys.rng(seed, keys.TASK_ORDER)
  for t in range(num):
    source, is_large = _LONG[rng.integers(len(_LONG))], rng.random() < (1/2 if t < 33 else 1/4 if t < 66 else 0)
    found = sources[source]
    classes = tuple(map(int, rng.permutation(len(found.class_names))[:5]))
    there = min(map(len, found.by_class["train"]))  # CIFAR-100 has 500 of a class
    many = _MANY if there >= sum(_MANY) else (2 * there // 3, there - 2 * there // 3)
    tasks.add(source, many if is_large else _FEW, "large" if is_large else "small", classes)
  return tasks.recipes


def _nevis_mini(sources: Sources, seed: int) -> list[Recipe]:
  tasks, animals, vehicles = _List(sources, seed), (2, 3, 4, 5, 6, 7), (0, 1, 8, 9)
  tasks.add("mnist", (100, 50), "digits")
  tasks.add("cifar10", (1000, 200), "animals", animals)
  tasks.add("dtd", _SMALL, "textures")
  tasks.add("fashion", _LARGE, "all")
  tasks.add("svhn", (1000, 200), "all")
  tasks.add("cifar10", (2000, 400), "vehicles", vehicles)
  tasks.add("digits32", (100, 30), "digits")
  tasks.add("mnist", _FEW, "inverted, few", changes=(("invert",),))
  tasks.add("dtd", (20, 10), "half of the classes, rotated", tasks.recipes[2].classes[:5], (("rotate", 1),))
  tasks.add("cifar100", (300, 100), "five classes", (0, 1, 2, 3, 4))
  tasks.add("mnist", (5000, 400), "many")
  tasks.add("fashion", (10, 5), "half of the classes, few", (0, 2, 4, 6, 8))
  tasks.add("svhn", (500, 100), "two classes", (3, 8))
  tasks.add("cifar10", (4500, 500), "many")
  tasks.add("mnist", (1000, 200), "pixels permuted", changes=(("permute", 1),))
  tasks.again(5)
  tasks.add("cifar10", _SMALL, "grey", changes=(("grey",),))
  tasks.add("dtd", _SMALL, "inverted", changes=(("invert",),))
  tasks.add("mnist", (200, 50), "half of the classes, rotated", (5, 6, 7, 8, 9), (("rotate", 1),))
  tasks.add("cifar10", _LARGE, "labels shuffled", shuffled=True)
  tasks.again(2)
  tasks.add("fashion", (400, 100), "inverted", changes=(("invert",),))
  tasks.add("svhn", _FEW, "few")
  tasks.add("cifar10", _SMALL, "small")
  return tasks.recipes


def _digits(sources: Sources, seed: int) -> list[Recipe]:
  tasks, low, high, counts = _List(sources, seed), (0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (60, 20)
  tasks.add("digits", counts, "0 to 4", low)
  tasks.add("digits", counts, "5 to 9", high)
  tasks.add("digits", counts, "0 to 4, pixels permuted", low, (("permute", 1),))
  tasks.add("digits", counts, "5 to 9, rotated", high, (("rotate", 1),))
  tasks.again(1)
  tasks.add("digits", (20, 10), "5 to 9, inverted, few", high, (("invert",),))
  tasks.add("digits", counts, "0 to 4, labels shifted", low, label_shift=1)
  tasks.add("digits", (20, 10), "all, few")
  return tasks.recipes


STREAMS: Mapping[str, Listed] = {
    "s_minus": Listed("CTrL-like: can it use what it learned first?", 6, _SHORT,
                      lambda sources, seed: _short(sources, seed, _LARGE, _SMALL, _BETWEEN)),
    "s_plus": Listed("CTrL-like: can it improve on a task that it saw with few examples?", 6, _SHORT,
                     lambda sources, seed: _short(sources, seed, _SMALL, _LARGE, _BETWEEN)),
    "s_in": Listed("CTrL-like: the last task has the first one's classes on another colour", 6, _SHORT, _s_in),
    "s_out": Listed("CTrL-like: the last task has the first one's images with other labels", 6, _SHORT,
                    lambda sources, seed: _short(sources, seed, _LARGE, _SMALL, _BETWEEN, label_shift=1)),
    "s_pl": Listed("CTrL-like: unrelated tasks, a large one last", 5, _SHORT,
                   lambda sources, seed: _short(sources, seed, None, _LARGE, _BETWEEN)),
    "s_long": Listed("CTrL-like: 100 tasks of 5 classes, later ones small", 100, _LONG, _s_long),
    "nevis_mini": Listed("24 tasks of 5 families with 50 to 50,000 training images; two tasks return", 24,
                         (*_SHORT, "cifar100", "digits32"), _nevis_mini),
    "digits": Listed("8 small tasks of scikit-learn's digits, 8x8 pixels; bundled", 8, ("digits",), _digits),
}
