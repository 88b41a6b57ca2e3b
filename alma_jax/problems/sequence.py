"""A stream of tasks as the source of a run: every task has its own images, classes and head (docs/task-streams.md)."""
import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import normalization
from alma_jax.parallel import sharding
from alma_jax.problems import classification, measures
from alma_jax.types import Array

_LEAST = 256  # examples that a pool has room for
_NEVER = -1e9  # logit of a class that a task does not have


class TaskSums(NamedTuple):
  """Sums over the examples of each of T tasks.

  Attributes:
    loss: float32 [T], cross-entropy in nats.
    wrong: int32 [T], number of examples that are classified wrongly.
    num: int32 [T], number of examples.
  """
  loss: Array
  wrong: Array
  num: Array


@dataclasses.dataclass(frozen=True)
class JointClassification(classification.Classification):
  """Classification of the examples of several tasks by one network with a head for each of them.

  The network has T·K outputs, those of task t from t·K on, K being `num_classes`, the largest number of classes of a
  task. An example is judged by the head of its task; the outputs of classes that the task does not have are ignored and
  get no gradient. Errors and losses are means over tasks of the means over their examples.

  Attributes:
    num_tasks: T.
  """
  num_tasks: int = 1

  def take(self, pool: Any, index_B: Array, weight_B: Array | None = None) -> Any:
    task_B = pool.task[index_B]
    return super().take(pool, index_B, weight_B)._replace(task=task_B, num_classes=pool.num_classes[task_B])

  def inputs(self, pool: Any, batch: Any) -> Array:
    """Images, float32 [B, H, W, C], each normalised by its task's constants."""
    x = batch.x.reshape(-1, *pool.x.shape[1:])
    mean, std = pool.mean[batch.task][:, None, None], pool.std[batch.task][:, None, None]
    return classification.normalize(x, mean, std)

  def losses(self, logits_BO: Array, batch: Any) -> Array:
    """Cross-entropy of every example in nats without weights, float32 [B]; of the outputs [B, T·K]."""
    return super().losses(self._own(logits_BO, batch), batch)

  def zeros(self, network: Any) -> Any:
    del network
    none = jnp.zeros(self.num_tasks, jnp.int32)
    return TaskSums(jnp.zeros(self.num_tasks), none, none)

  def sums(self, logits_BO: Array, batch: Any, mask_B: Array) -> Any:
    """Losses and errors of each task, summed over the examples of `mask_B`; of the outputs [B, T·K]."""
    logits_BK = self._own(logits_BO, batch)
    loss_B = self.losses(logits_BO, batch)
    mine_BT = (batch.task[:, None] == jnp.arange(self.num_tasks)[None]) & mask_B[:, None]
    wrong_BT = mine_BT & (jnp.argmax(logits_BK, -1) != batch.y)[:, None]
    return TaskSums(jnp.where(mine_BT, loss_B[:, None], 0.0).sum(0), wrong_BT.sum(0, dtype=jnp.int32),
                    mine_BT.sum(0, dtype=jnp.int32))

  def objective(self, logits_BO: Array, batch: Any, mask_B: Array, sums: Any, norm: Array) -> Array:
    """Mean loss of an example in nats, against labels that are smoothed over the classes of its task."""
    if not self.label_smoothing:
      return sums.loss.sum() / norm
    log_BK = jnp.where(self._exists(batch), jax.nn.log_softmax(self._own(logits_BO, batch)), 0.0)
    uniform = jnp.sum(jnp.where(mask_B, -log_BK.sum(-1) / batch.num_classes, 0.0))
    return ((1 - self.label_smoothing) * sums.loss.sum() + self.label_smoothing * uniform) / norm

  def better(self, sums: Any, best: Any, val: Any) -> Array:
    """Whether the error rate, a mean over tasks, is below that of the best round."""
    del val
    return _mean(sums.wrong, sums.num) < _mean(best.wrong, best.num)

  def report(self, sums: Any, own_M: np.ndarray, num_M: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Loss in nats and error rate, means over tasks."""
    members = {name: np.where(num_M > 0, np.asarray(_mean(part.astype(np.float64), sums.num)), np.nan)
               for name, part in (("loss", sums.loss), ("error", sums.wrong))}
    return {name: float(found[own_M > 0].mean()) for name, found in members.items()}, members

  def _own(self, logits_BO: Array, batch: Any) -> Array:
    """The logits [B, K] of the head of each example's task, with very low ones for classes that the task lacks."""
    logits_BTK = logits_BO.reshape(-1, self.num_tasks, self.num_classes)
    own_BK = jnp.take_along_axis(logits_BTK, batch.task[:, None, None], axis=1)[:, 0]
    return jnp.where(self._exists(batch), own_BK, _NEVER)

  def _exists(self, batch: Any) -> Array:
    """bool [B, K], which classes the task of each example has."""
    exists_BK: Array = jnp.arange(self.num_classes)[None] < batch.num_classes[:, None]
    return exists_BK


def _mean(total: Any, num: Any) -> Any:
  """Means over the tasks that have examples of their means over examples, [M] of sums [M, T]."""
  xp: Any = np if isinstance(num, np.ndarray) else jnp
  return (total / xp.maximum(num, 1)).sum(-1) / xp.maximum((num > 0).sum(-1), 1)


class Tasks:
  """The tasks of a run.

  Attributes:
    data: task_streams.TaskStream.
    normalization: t -> what is subtracted from task t and what it is divided by.
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
    self._task = functools.cache(self.data.task) if self._replays else self.data.task
    self.normalization = functools.cache(self._normalization)
    self._visits = visits(self.meta()["tasks"])
    self.fingerprint = self.data.fingerprint
    self.problem, self.example_shape = of_meta(config, self.meta())

  @property
  def num_bytes(self) -> tuple[int, int]:
    """See contract.Source; of the images of the largest task, uint8."""
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

  def _normalization(self, t: int) -> normalization.Normalization:
    """Mean and standard deviation of each channel of the training images; 0 and 255 if they are not normalised."""
    if self.data.is_normalized(t):
      return normalization.made(self._task(t).x_train)
    return normalization.Normalization(*(np.full(self.data.image_shape[-1], value, np.float32) for value in (0, 255)))

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

  def _pool(self, parts: Sequence[tuple[int, np.ndarray, np.ndarray]], mesh: Mesh) -> classification.Pool:
    """A pool of these (task, images, labels), with room for more: tasks of similar sizes share their programs."""
    x, y = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    task = np.concatenate([np.full(len(y), t, np.int32) for t, _, y in parts])
    x, y, task = classification.padded((x, y.astype(np.int32), task), _LEAST)
    names = [info.class_names for info in self.data.infos]
    sizes = np.array([len(each) for each in names], np.int32)
    labels = np.array([zlib.crc32("\n".join(each).encode()) for each in names], np.uint32)
    t, shape = parts[0][0], (len(names), self.data.image_shape[-1])
    arrays: Any = x, y, *self.normalization(t), sizes[t], labels[t]
    if self._replays:
      mean, std = np.zeros(shape, np.float32), np.ones(shape, np.float32)
      for t, _, _ in parts:
        mean[t], std[t] = self.normalization(t)
      arrays = x, y, mean, std, sizes, labels, task
    return sharding.put(classification.Pool(*arrays), mesh)


def of_meta(config: schema.TaskConfig, meta: Mapping[str, Any]
            ) -> tuple[classification.Classification, tuple[int, ...]]:
  """(`problem` of Tasks, shape of an image) from what `Tasks.meta` returned."""
  train, shape = config.train, tuple(map(int, meta["example_shape"]))
  most = max(len(task["class_names"]) for task in meta["tasks"])
  if _replays(config):
    return JointClassification(most, num_tasks=len(meta["tasks"]), **classification.of_train(train)), shape
  return classification.Classification(most, **classification.of_train(train)), shape


def visits(tasks: Sequence[Mapping[str, Any]]) -> list[list[int]]:
  """All visits of each task, itself among them, in ascending order; tasks that are the same have one list.

  Args:
    tasks: `tasks` of what `Tasks.meta` returned. `returns` of a task that is an earlier one again is the number of the
      first visit, from 0.
  """
  first = [task.get("returns", t) for t, task in enumerate(tasks)]
  return [[visit for visit, other in enumerate(first) if other == number] for number in first]


def _replays(config: schema.TaskConfig) -> bool:
  options: Any = config.learner  # task_sections.TaskOptions
  return bool(options.replays)
