"""Pools of tasks, and classification of several tasks by one network with a head for each (docs/task-streams.md)."""
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.types import Array

_LEAST = 256  # examples that a pool has room for
_NEVER = -1e9  # logit of a class that a task does not have


class TaskPool(NamedTuple):
  """Examples of a task on the device; the fields are those of classification.Pool.

  Attributes:
    num_classes: int32 [], number of classes of the task.
    labels: uint32 [], a checksum of the names of the classes, in their order.
  """
  x: Array
  y: Array
  mean: Array
  std: Array
  num_classes: Array
  labels: Array


class JointPool(NamedTuple):
  """Examples of several of T tasks on the device; the fields are those of TaskPool, with a leading axis of tasks.

  Attributes:
    x: uint8 [N, H, W, C].
    y: int32 [N], labels in the classes of their task.
    task: int32 [N], the task of each example.
    mean, std: float32 [T, C].
    num_classes: int32 [T].
    labels: uint32 [T].
  """
  x: Array
  y: Array
  task: Array
  mean: Array
  std: Array
  num_classes: Array
  labels: Array


class JointBatch(NamedTuple):
  """Examples of a JointPool; `task` and `num_classes` are int32 [B]."""
  x: Array
  y: Array
  weight: Array | None
  task: Array
  num_classes: Array


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
    """The examples `index_B` of a JointPool."""
    flat, task_B = pool.x.reshape(pool.x.shape[0], -1), pool.task[index_B]
    return JointBatch(flat[index_B], pool.y[index_B], weight_B, task_B, pool.num_classes[task_B])

  def inputs(self, pool: Any, batch: Any) -> Array:
    """Images, float32 [B, H, W, C], each normalised as those of its task."""
    x = batch.x.reshape(-1, *pool.x.shape[1:])
    mean, std = pool.mean[batch.task][:, None, None], pool.std[batch.task][:, None, None]
    return classification.normalize(x, mean, std)

  def losses(self, logits_BO: Array, batch: Any) -> Array:
    """Cross-entropy of every example in nats without weights, float32 [B]; of the outputs [B, T·K]."""
    return super().losses(self._own(logits_BO, batch), batch)

  def zeros(self, network: Any) -> Any:
    """Sums over no examples."""
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
    """Loss in nats and error rate, means over tasks; see contract.Problem."""
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


def make_pool(x: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray, class_names: Sequence[str],
              mesh: Mesh) -> TaskPool:
  """A TaskPool of which every device of the mesh has a copy.

  Its size is the next power of two, so that tasks of similar sizes share their programs; what follows the examples is
  never read.
  """
  x, y = _padded((x, np.asarray(y, np.int32)))
  arrays: Any = x, y, mean, std, np.int32(len(class_names)), _checksum(class_names)
  return sharding.put(TaskPool(*arrays), mesh)


def make_joint_pool(parts: Sequence[tuple[int, np.ndarray, np.ndarray]], mean: np.ndarray, std: np.ndarray,
                    class_names: Sequence[Sequence[str]], mesh: Mesh) -> JointPool:
  """A JointPool of which every device of the mesh has a copy.

  Its size is the next power of two, so that a stream on which it grows compiles its programs anew only when it doubles.

  Args:
    parts: (task, images, labels) of the tasks whose examples it holds, one after the other.
    mean, std: float32 [T, C].
    class_names: names of the classes of each of the T tasks.
    mesh: devices.
  """
  x, y = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
  task = np.concatenate([np.full(len(labels), t, np.int32) for t, _, labels in parts])
  padded = _padded((x, y.astype(np.int32), task))
  num_classes = np.array([len(names) for names in class_names], np.int32)
  arrays: Any = *padded, mean, std, num_classes, np.array([_checksum(names) for names in class_names])
  return sharding.put(JointPool(*arrays), mesh)


def _padded(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Arrays with room for a power of two of examples."""
  room = max(_LEAST, 1 << (len(arrays[0]) - 1).bit_length())
  return [np.concatenate([a, np.zeros((room - len(a), *a.shape[1:]), a.dtype)]) for a in arrays]


def _checksum(class_names: Sequence[str]) -> np.uint32:
  return np.uint32(zlib.crc32("\n".join(class_names).encode()))
