"""A stream of tasks as the source of a run: every task has its own images, classes and head (docs/task-streams.md)."""
import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import stream as streams
from alma_jax.data import task_streams
from alma_jax.errors import BadInput
from alma_jax.parallel import sharding
from alma_jax.tasks import classification
from alma_jax.types import Array

_LEAST = 256  # examples that a pool has room for
_NEVER = -1e9  # logit of a class that a task does not have


class TaskPool(NamedTuple):
  """Examples of a task on the device; the fields are those of classification.Pool.

  Attributes:
    num_classes: int32 [], number of classes of the task. Networks have outputs for the task with most classes.
    labels: uint32 [], a checksum of the names of the classes, in their order.
  """
  x: Array
  y: Array
  mean: Array
  std: Array
  num_classes: Array
  labels: Array


class TaskBatch(NamedTuple):
  """Examples of a TaskPool; the fields are those of classification.Batch."""
  x: Array
  y: Array
  weight: Array | None
  num_classes: Array


@dataclasses.dataclass(frozen=True)
class HeadClassification(classification.Classification):
  """Classification of a task with at most `num_classes` classes; the logits of all others are ignored.

  The programs are compiled once for all tasks, because their shapes do not depend on the number of classes. A class
  that a task does not have gets no gradient.
  """

  def take(self, pool: Any, index_B: Array, weight_B: Array | None = None) -> Any:
    """The examples `index_B` of a TaskPool."""
    return TaskBatch(*super().take(pool, index_B, weight_B), pool.num_classes)

  def losses(self, logits_BK: Array, batch: Any) -> Array:
    """Cross-entropy of every example in nats without weights, float32 [B]."""
    return super().losses(masked(logits_BK, batch.num_classes), batch)

  def sums(self, logits_BK: Array, batch: Any, mask_B: Array) -> classification.Sums:
    """Weighted losses and errors, summed over the examples of `mask_B`."""
    return super().sums(masked(logits_BK, batch.num_classes), batch, mask_B)

  def objective(self, logits_BK: Array, batch: Any, mask_B: Array, sums: classification.Sums, norm: Array) -> Array:
    """Mean loss of an example in nats, against labels that are smoothed over the task's classes."""
    if not self.label_smoothing:
      return sums.loss / norm
    exists_K = jnp.arange(self.num_classes) < batch.num_classes
    log_BK = jnp.where(exists_K[None], jax.nn.log_softmax(masked(logits_BK, batch.num_classes)), 0.0)
    uniform = jnp.sum(jnp.where(mask_B, -log_BK.sum(-1) / batch.num_classes, 0.0))
    return ((1 - self.label_smoothing) * sums.loss + self.label_smoothing * uniform) / norm


def masked(logits_BK: Array, num_classes: Array) -> Array:
  """The logits, with a very low one for the classes from `num_classes` on."""
  exists_K = jnp.arange(logits_BK.shape[-1]) < num_classes
  return jnp.where(exists_K[None], logits_BK, _NEVER)


class Tasks:
  """The tasks of a run; see contract.Source.

  Attributes:
    data: task_streams.TaskStream.
    stream: Order.
    example_shape: shape of an image.
    fingerprint: SHA-256 of what decides the data.
    task: HeadClassification with as many classes as the largest task has.
    chance: None; the tasks differ in it.
    untrained: error rate of guessing on the first task.
    has_test: True.
    files: {}.
  """
  has_test = True

  def __init__(self, config: schema.RunConfig):
    """Makes the stream; the images of a task are made when it arrives.

    Raises:
      BadInput: the stream does not exist, or a task cannot be used.
    """
    section = config.dataset
    assert isinstance(section, schema.TaskImages)
    self.files: dict[str, str] = {}
    self.data = task_streams.make(
        section.name, seed=config.seed, data_dir=section.data_dir, sources=section.sources,
        num_tasks=config.stream.num_megabatches, test_per_class=section.test_per_class)
    self._config = config
    self.stream = Order(self.data.infos)
    self.fingerprint = self.data.fingerprint
    self.task, self.example_shape = of_meta(config, self.meta())
    self.chance: float | None = None
    self.untrained: float | None = 1 - 1 / len(self.data.infos[0].class_names)

  def meta(self) -> dict[str, Any]:
    """What `of_meta` and predictions for other images need; JSON can hold it."""
    return dict(example_shape=list(self.data.image_shape), dtype="uint8", tasks=[
        dict(name=info.name, family=info.family, class_names=list(info.class_names)) for info in self.data.infos])

  def normalization(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """(mean, std) of each channel of the training images of task t, float32 [C]."""
    return self._normalizations(t)

  def examples(self, t: int, mesh: Mesh) -> tuple[TaskPool, np.ndarray, np.ndarray]:
    """(the pool of task t, from 0, its training examples int32 [n], its validation examples int32 [m])."""
    data = self.data.task(t)
    x, y = np.concatenate([data.x_train, data.x_val]), np.concatenate([data.y_train, data.y_val])
    pool = self._pool(t, x, y, mesh)
    num, index = len(data.x_train), np.arange(len(x), dtype=np.int32)
    return pool, index[:num], index[num:]

  def tests(self, t: int, mesh: Mesh) -> tuple[TaskPool, np.ndarray]:
    """(the pool of the test images of task t, their labels int32 [N])."""
    data = self.data.task(t)
    return self._pool(t, data.x_test, data.y_test, mesh), data.y_test

  @functools.cached_property
  def _normalizations(self) -> Any:
    @functools.cache
    def of(t: int) -> tuple[np.ndarray, np.ndarray]:
      x = self.data.task(t).x_train
      flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
      std = flat.std(0)
      return flat.mean(0).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32)
    return of

  def _pool(self, t: int, x: np.ndarray, y: np.ndarray, mesh: Mesh) -> TaskPool:
    return make_pool(x, y, *self.normalization(t), self.data.infos[t].class_names, mesh)


@dataclasses.dataclass(frozen=True)
class Order:
  """The order of the tasks, with what runs ask of data.stream.Stream; a mega-batch is a task.

  Attributes:
    infos: task_streams.TaskInfo of every task.
  """
  infos: Sequence[task_streams.TaskInfo]

  @property
  def num_megabatches(self) -> int:
    """Number of tasks."""
    return len(self.infos)

  @property
  def ends(self) -> tuple[int, ...]:
    """The learner is trained on every task, counted from 1."""
    return tuple(range(1, len(self.infos) + 1))

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """`ends`."""
    return self.ends

  @property
  def is_adaptive(self) -> bool:
    """See Stream."""
    return False

  @property
  def trains_late(self) -> bool:
    """See Stream."""
    return False

  def wait(self, t: int, tick: Callable[[], None] = lambda: None) -> bool:
    """Whether there is a task t, from 1."""
    del tick
    return t <= len(self.infos)

  def is_last(self, t: int) -> bool:
    """Whether the stream ends with task t, from 1."""
    return t == len(self.infos)

  def trains_after(self, t: int) -> bool:
    """Every task is trained on."""
    del t
    return True

  def next_training(self, t: int) -> int | None:
    """See Stream."""
    return t if t <= len(self.infos) else None

  def sizes(self, ends: Sequence[int]) -> streams.Sizes:
    """Sizes of the tasks `ends`, counted from 1."""
    train, val = (np.array([getattr(self.infos[end - 1], name) for end in ends], np.int64)
                  for name in ("num_train", "num_val"))
    return streams.Sizes(train, val, np.zeros(len(train)))

  @property
  def most_val(self) -> int:
    """The largest number of validation examples of a task."""
    return max(info.num_val for info in self.infos)


def of_meta(config: schema.RunConfig, meta: Mapping[str, Any]) -> tuple[HeadClassification, tuple[int, ...]]:
  """(HeadClassification, shape of an image) from what `Tasks.meta` returned.

  Raises:
    BadInput: `train.augment` is set and the images are smaller than the crops.
  """
  train = config.train
  assert isinstance(train, schema.TaskTrain)
  most = max(len(task["class_names"]) for task in meta["tasks"])
  shape = tuple(map(int, meta["example_shape"]))
  if len(shape) != 3:
    raise BadInput(f"the examples of a task should be images [H, W, C], but have shape {shape}.")
  return HeadClassification(most, train.augment, train.label_smoothing), shape


def make_pool(x: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray, class_names: Sequence[str],
              mesh: Mesh) -> TaskPool:
  """A TaskPool of which every device of the mesh has a copy.

  Its size is the next power of two, so that tasks of similar sizes share their programs; what follows the examples is
  never read.
  """
  room = max(_LEAST, 1 << (len(x) - 1).bit_length())
  pad = lambda a: np.concatenate([a, np.zeros((room - len(a), *a.shape[1:]), a.dtype)])
  labels = np.uint32(zlib.crc32("\n".join(class_names).encode()))
  arrays: Any = pad(x), pad(np.asarray(y, np.int32)), mean, std, np.int32(len(class_names)), labels
  return sharding.put(TaskPool(*arrays), mesh)
