"""Draws the examples of a task from a source, as its recipe says."""
import dataclasses

import numpy as np

from alma_jax import keys
from alma_jax.data import image_changes
from alma_jax.data.task_sources import Source
from alma_jax.data.task_types import Planned, Recipe, TaskData, TaskInfo
from alma_jax.errors import BadInput

_PARTS = ("train", "val", "test")


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
  return Planned(info, lambda: draw(recipe, source, seed), decides, is_normalized)


def draw(recipe: Recipe, source: Source, seed: int) -> TaskData:
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
  known = len(source.class_names)
  unknown = [label for label in recipe.classes if not 0 <= label < known]
  if unknown:
    raise BadInput(f"{what} asks for class {unknown[0]} of {source.name}, whose classes are 0 to {known - 1}.")
  if len(set(recipe.classes)) != len(recipe.classes):
    raise BadInput(f"{what} names a class of {source.name} twice; name each once.")
  if len(recipe.classes) < 2:
    raise BadInput(f"{what} has {len(recipe.classes)} class{'es' * (not recipe.classes)}; a task has at least two.")
  if min(recipe.train, recipe.val, recipe.test) < 1:
    raise BadInput(f"{what} asks for {recipe.train} training, {recipe.val} validation and {recipe.test} test examples "
                   "of a class; each should be at least 1.")
  for split, needed in ("train", recipe.train + recipe.val), ("test", 1):
    for label in recipe.classes:
      there = len(source.by_class[split][label])
      if there < needed:
        raise BadInput(f"{what} needs {needed} {split} examples of class {label} of {source.name}, which has {there}; "
                       "ask for fewer, or use another data set.")
