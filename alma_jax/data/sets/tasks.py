"""Streams of tasks: which tasks they consist of, and how many examples each has.

The streams s_... follow those of the CTrL benchmark (Veniat et al., 2021). "Small" is 40 training and 20 validation
examples of a class, "large" is 400 and 200.
"""
import colorsys
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from alma_jax import keys
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.task_sections import Tasks
from alma_jax.data import task_file, task_streams
from alma_jax.data.datasets import Dataset
from alma_jax.data.image_changes import Change
from alma_jax.data.task_sources import Sources
from alma_jax.data.task_streams import Planned, Recipe
from alma_jax.errors import BadInput

_SMALL, _LARGE, _FEW, _MANY = (40, 20), (400, 200), (5, 3), (1000, 500)  # training and validation examples of a class
_MOST_TEST, _MOST_CLASSES = 1000, 10  # test examples of a class; classes of a task
_LONG = ("mnist", "fashion", "svhn", "cifar10", "cifar100")
_SHORT = ("mnist", "dtd", "fashion", "svhn", "cifar10")


class TaskList:
  """A list of recipes to which tasks are added.

  Attributes:
    sources: that the tasks are drawn from.
    seed: of the run.
  """

  def __init__(self, sources: Sources, seed: int):
    self.sources, self.seed, self.recipes = sources, seed, list[Recipe]()

  def add(self, source: str, counts: tuple[int, int], size: str, classes: tuple[int, ...] | None = None,
          changes: tuple[Change, ...] = (), label_shift: int = 0, shuffled: bool = False) -> None:
    """Adds a task of a source. Without `classes` it has all, or as many as a task may have, chosen by the seed."""
    number = len(self.recipes) + 1
    self.recipes.append(Recipe(f"{number} {self.sources[source].name} {size}", source, classes or self._choose(source),
                               *counts, _MOST_TEST, number, changes, label_shift, shuffled))

  def again(self, number: int) -> None:
    """Adds the task of this number (from 1), which is not a return itself, once more, with the same examples."""
    old = self.recipes[number - 1]
    name = f"{len(self.recipes) + 1} {old.name.split(' ', 1)[1]} again"
    self.recipes.append(dataclasses.replace(old, name=name, returns=number - 1))

  def _choose(self, source: str) -> tuple[int, ...]:
    num = len(self.sources[source].class_names)
    if num <= _MOST_CLASSES:
      return tuple(range(num))
    rng = keys.rng(self.seed, keys.TASK_CLASSES, (_SHORT + _LONG).index(source))
    return tuple(sorted(map(int, rng.choice(num, _MOST_CLASSES, replace=False))))


@dataclasses.dataclass(frozen=True)
class Made(Tasks):
  """Base class of the streams of this package."""

  def stream(self, config: Any) -> task_streams.TaskStream:
    return self.made(config.seed, config.stream.num_megabatches)

  def made(self, seed: int, num_tasks: int, given: Mapping[str, Dataset] | None = None) -> task_streams.TaskStream:
    """The stream of a seed; see task_streams.make."""
    sources = Sources(self.data_dir, self.sources, given, self.image_size)
    tasks = self._listed(sources, seed)
    if num_tasks > len(tasks):
      raise BadInput(f"stream.num_megabatches={num_tasks} exceeds the {len(tasks)} tasks of the stream {self.name!r}; "
                     "0 stands for all.")
    return task_streams.TaskStream(self.name, *self._planned(tasks[:num_tasks or len(tasks)], sources, seed))

  def _listed(self, sources: Sources, seed: int) -> list[Any]:
    """All tasks of the stream, for `_planned`."""
    raise NotImplementedError

  def _planned(self, tasks: list[Any], sources: Sources, seed: int) -> tuple[tuple[int, ...], list[Planned]]:
    """(shape of all images, the tasks)."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Named(Made):
  """Base class of the streams with a name of their own; `named` makes them.

  Attributes:
    drawn_from: names of the sources.
    fill: adds the recipes of all tasks to a list.
  """
  sources: str = field(
      "auto", "for SVHN, Fashion-MNIST, DTD and CIFAR-100: `real` data sets, `stand_ins` made from MNIST and CIFAR-10, "
      "or real ones where they are prepared (`auto`)", choices=("auto", "real", "stand_ins"))

  drawn_from: ClassVar[tuple[str, ...]]
  fill: ClassVar[Callable[[TaskList], None]]

  def _listed(self, sources: Sources, seed: int) -> list[Recipe]:
    sources.need(self.drawn_from)
    tasks = TaskList(sources, seed)
    type(self).fill(tasks)
    return tasks.recipes

  def _planned(self, tasks: list[Recipe], sources: Sources, seed: int) -> tuple[tuple[int, ...], list[Planned]]:
    return sources[tasks[0].source].image_shape, [
        task_streams.plan(dataclasses.replace(recipe, test=self.test_per_class or recipe.test),
                          sources[recipe.source], seed) for recipe in tasks]


def named(*drawn_from: str) -> Callable[[Callable[[TaskList], None]], type[Named]]:
  """Makes the stream of a function that adds its tasks, and registers it by the function's name."""
  def made(fill: Callable[[TaskList], None]) -> type[Named]:
    namespace = dict(__doc__=fill.__doc__, __module__=__name__, drawn_from=drawn_from, fill=staticmethod(fill))
    return register(dataclasses.make_dataclass(
        fill.__name__, [("name", str, fill.__name__)], bases=(Named,), frozen=True, namespace=namespace))
  return made


@named("digits")
def digits(tasks: TaskList) -> None:
  """8 small tasks of scikit-learn's digits, 8x8 pixels; bundled."""
  low, high, counts = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (60, 20)
  tasks.add("digits", counts, "0 to 4", low)
  tasks.add("digits", counts, "5 to 9", high)
  tasks.add("digits", counts, "0 to 4, pixels permuted", low, (("permute", 1),))
  tasks.add("digits", counts, "5 to 9, rotated", high, (("rotate", 1),))
  tasks.again(1)
  tasks.add("digits", (20, 10), "5 to 9, inverted, few", high, (("invert",),))
  tasks.add("digits", counts, "0 to 4, labels shifted", low, label_shift=1)
  tasks.add("digits", (20, 10), "all, few")


@named(*_SHORT)
def s_minus(tasks: TaskList) -> None:
  """CTrL-like: can it use what it learned first?"""
  tasks.add("cifar10", _LARGE, "large")
  _add_small(tasks)
  tasks.add("cifar10", _SMALL, "small")


@named(*_SHORT)
def s_plus(tasks: TaskList) -> None:
  """CTrL-like: can it improve on a task that it saw with few examples?"""
  tasks.add("cifar10", _SMALL, "small")
  _add_small(tasks)
  tasks.add("cifar10", _LARGE, "large")


@named(*_SHORT)
def s_in(tasks: TaskList) -> None:
  """CTrL-like: the last task has the classes of the first on another colour."""
  rng = keys.rng(tasks.seed, keys.BACKGROUNDS)
  hue = rng.random()
  colours = [colorsys.hsv_to_rgb(h % 1, 1, 0.7) for h in (hue, hue + rng.uniform(1/3, 2/3))]
  tasks.add("mnist", _LARGE, "on a colour large", changes=(("colour", *colours[0]),))
  for source in ("cifar10", "dtd", "fashion", "svhn"):
    tasks.add(source, _SMALL, "small")
  tasks.add("mnist", _FEW, "on another colour", changes=(("colour", *colours[1]),))


@named(*_SHORT)
def s_out(tasks: TaskList) -> None:
  """CTrL-like: the last task has the images of the first with other labels."""
  tasks.add("cifar10", _LARGE, "large")
  _add_small(tasks)
  tasks.add("cifar10", _SMALL, "small, labels shifted", label_shift=1)


@named(*_SHORT)
def s_pl(tasks: TaskList) -> None:
  """CTrL-like: unrelated tasks, a large one last."""
  _add_small(tasks)
  tasks.add("cifar10", _LARGE, "large")


@named(*_LONG)
def s_long(tasks: TaskList) -> None:
  """CTrL-like: 100 tasks of 5 classes, later ones small."""
  rng = keys.rng(tasks.seed, keys.TASK_ORDER)
  for t in range(100):
    source, is_large = _LONG[rng.integers(len(_LONG))], rng.random() < (1/2 if t < 33 else 1/4 if t < 66 else 0)
    images = tasks.sources[source]
    classes = tuple(map(int, rng.permutation(len(images.class_names))[:5]))
    there = min(map(len, images.by_class["train"]))  # CIFAR-100 has 500 of a class
    many = _MANY if there >= sum(_MANY) else (2 * there // 3, there - 2 * there // 3)
    tasks.add(source, many if is_large else _FEW, "large" if is_large else "small", classes)


@named(*_SHORT, "cifar100", "digits32")
def nevis_mini(tasks: TaskList) -> None:
  """24 tasks of 5 families with 50 to 50,000 training images; two tasks return."""
  animals, vehicles = (2, 3, 4, 5, 6, 7), (0, 1, 8, 9)
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


@register
@dataclasses.dataclass(frozen=True)
class Listed(Made):
  """Your own list of tasks."""
  name: str = "tasks"
  image_size: int = field(
      0, "resize images to this width and height in pixels and three channels; 0: keep them, all must have one shape",
      at_least=0)

  form: ClassVar[str] = "tasks:PATH.py"

  def _listed(self, sources: Sources, seed: int) -> list[task_file.Given]:
    return task_file.load(self.path, seed)

  def _planned(self, tasks: list[task_file.Given], sources: Sources, seed: int
               ) -> tuple[tuple[int, ...], list[Planned]]:
    return task_file.plan(tasks, sources, seed, self.test_per_class, self.image_size)


def _add_small(tasks: TaskList) -> None:
  """Small tasks between two of CIFAR-10."""
  for source in ("mnist", "dtd", "fashion", "svhn"):
    tasks.add(source, _SMALL, "small")
