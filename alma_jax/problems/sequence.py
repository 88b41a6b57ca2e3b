"""A stream of tasks as the source of a run: every task has its own images, classes and head (docs/task-streams.md)."""
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import normalization, task_streams
from alma_jax.errors import BadInput
from alma_jax.problems import classification, heads, measures


class Tasks:
  """The tasks of a run.

  Attributes:
    data: task_streams.TaskStream.
    example_shape: shape of an image.
    fingerprint: SHA-256 of what decides the data.
    problem: Classification with as many classes as the largest task has; of a learner that replays earlier tasks
      JointClassification.
  """
  def __init__(self, config: schema.TaskConfig):
    """Makes the stream; the images of a task are made when it arrives.

    Raises:
      BadInput: the stream does not exist, or a task cannot be used.
    """
    self.data = config.dataset.stream(config)
    self._replays, self._metrics = _replays(config), measures.tried(measures.chosen(config), measures.blank_images(2))
    self._seen: dict[int, task_streams.TaskData] = {}  # tasks that are replayed
    self._normalizations: dict[int, normalization.Normalization] = {}
    self._visits = visits(self.meta()["tasks"])
    self.fingerprint = self.data.fingerprint
    self.problem, self.example_shape = of_meta(config, self.meta())

  @property
  def num_bytes(self) -> tuple[int, int]:
    """See contract.Source. Of the images of the largest task, uint8."""
    num_train, num_val = self.sizes()
    num = int((num_train + num_val).max()) * math.prod(self.example_shape)
    return num, num

  def meta(self) -> dict[str, Any]:
    """What `of_meta`, `visits` and predictions for other images need; JSON can hold it."""
    returns = lambda info: dict(returns=info.returns) if info.returns is not None else {}
    return dict(example_shape=list(self.data.image_shape), dtype="uint8", tasks=[
        dict(name=info.name, family=info.family, class_names=list(info.class_names), **returns(info))
        for info in self.data.infos])

  def sizes(self) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of training and of validation examples of every task, int64 [T] each, as `examples` returns them."""
    sizes = (np.array([getattr(info, name) for info in self.data.infos], np.int64) for name in ("num_train", "num_val"))
    num_train, num_val = (each.cumsum() if self._replays else each for each in sizes)
    return num_train, num_val

  def newest(self, t: int, num: int) -> int:
    """The newest visit of task t among the first `num` tasks, t itself if it has not returned."""
    return max(visit for visit in self._visits[t] if visit < num)

  def visits(self, t: int) -> list[int]:
    """Those of the tasks 0..t that are predicted as task t, which is the newest; the last is t itself."""
    return [visit for visit in self._visits[t] if visit <= t]

  def normalization(self, t: int) -> normalization.Normalization:
    """What is subtracted from task t and what it is divided by, float32 [C] each.

    Mean and standard deviation of each channel of its training images; 0 and 255 if it is not normalised.
    """
    if t not in self._normalizations:
      plain = (np.full(self.data.image_shape[-1], value, np.float32) for value in (0, 255))
      self._normalizations[t] = (normalization.made(self._task(t).x_train) if self.data.is_normalized(t) else
                                 normalization.Normalization(*plain))
    return self._normalizations[t]

  def examples(self, t: int, mesh: Mesh) -> tuple[Any, np.ndarray, np.ndarray]:
    """(the pool of task t, from 0, its training examples int32 [n], its validation examples int32 [m]).

    For a learner that replays earlier tasks the examples are those of the tasks 0..t.
    """
    parts, places, start = [], [], 0
    for i in range(0 if self._replays else t, t + 1):
      data = self._task(i)
      parts.append((i, np.concatenate([data.x_train, data.x_val]), np.concatenate([data.y_train, data.y_val])))
      num = len(data.x_train)
      index = np.arange(start, start + len(parts[-1][1]), dtype=np.int32)
      places.append((index[:num], index[num:]))
      start += len(index)
    train, val = map(np.concatenate, zip(*places))
    return self._pool(parts, mesh), train, val

  def tests(self, t: int, mesh: Mesh, visit: int | None = None) -> tuple[Any, np.ndarray]:
    """(the pool of the test images of task t, as those of its later visit `visit` if given, their labels int32 [N])."""
    data = self.data.task(t)
    return self._pool([(t if visit is None else visit, data.x_test, data.y_test)], mesh), data.y_test

  def score(self, t: int, prediction: measures.Prediction, labels: np.ndarray) -> measures.Entry:
    """Error, loss in nats and the chosen metrics of a prediction for examples of task t."""
    return classification.scored(self._metrics, prediction, labels, self.data.infos[t].class_names)

  def _task(self, t: int) -> task_streams.TaskData:
    """The examples of task t; those that will be replayed are kept."""
    if not self._replays:
      return self.data.task(t)
    if t not in self._seen:
      self._seen[t] = self.data.task(t)
    return self._seen[t]

  def _pool(self, parts: Sequence[tuple[int, np.ndarray, np.ndarray]], mesh: Mesh) -> Any:
    """A pool of these (task, images, labels)."""
    names = [info.class_names for info in self.data.infos]
    if not self._replays:
      (t, x, y), = parts
      return heads.make_pool(x, y, *self.normalization(t), names[t], mesh)
    channels = self.data.image_shape[-1]
    mean, std = np.zeros((len(names), channels), np.float32), np.ones((len(names), channels), np.float32)
    for t, _, _ in parts:
      mean[t], std[t] = self.normalization(t)
    return heads.make_joint_pool(parts, mean, std, names, mesh)


def of_meta(config: schema.TaskConfig, meta: Mapping[str, Any]
            ) -> tuple[classification.Classification, tuple[int, ...]]:
  """(`task` of Tasks, shape of an image) from what `Tasks.meta` returned.

  Raises:
    BadInput: `train.augment` is set and the images are smaller than the crops.
  """
  train = config.train
  most = max(len(task["class_names"]) for task in meta["tasks"])
  shape = tuple(map(int, meta["example_shape"]))
  if len(shape) != 3:
    raise BadInput(f"the examples of a task should be images [H, W, C], but have shape {shape}.")
  if _replays(config):
    return heads.JointClassification(most, train.augment, train.label_smoothing, len(meta["tasks"])), shape
  return classification.Classification(most, train.augment, train.label_smoothing), shape


def visits(tasks: Sequence[Mapping[str, Any]]) -> list[list[int]]:
  """All visits of each task, itself among them, in ascending order; tasks that are the same have one list.

  Args:
    tasks: `tasks` of what `Tasks.meta` returned. `returns` of a task that is an earlier one again is the number of the
      first visit, from 0.
  """
  first = [task.get("returns", t) for t, task in enumerate(tasks)]
  return [[visit for visit, other in enumerate(first) if other == number] for number in first]


def _replays(config: schema.TaskConfig) -> bool:
  options: Any = config.learner  # task_options.TaskOptions
  return bool(options.replays)
