"""Image classification: batches from a pool on the device, losses, predictions of several networks, errors."""
import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.config.sections import Metric
from alma_jax.data import datasets, memory, normalization
from alma_jax.data.megabatches import Megabatches, permuted
from alma_jax.errors import BadInput
from alma_jax.parallel import sharding
from alma_jax.problems import contract, measures
from alma_jax.types import Array, Key, Variables

PAD = 4  # pixels around an image that is cropped at random
LEAST_SHIFTED = 14  # pixels a side for each pixel by which an image is moved: small images lose too much
BLACK = -1.9  # about the value of a black pixel after normalisation

Arrays = Mapping[str, Any]  # a contribution: arrays [B, K] of jax or of numpy by name


class Pool(NamedTuple):
  """Examples on the device before normalisation. As uint8 they take a quarter of the memory of normalised ones.

  Attributes:
    x: uint8 or float32 [N, ...].
    y: int32 [N], labels.
    mean: float32 [C] or [D], of training examples, in units of x; of several tasks [T, C].
    std: float32 of the same shape, likewise; 0 where they are all equal.
    num_classes: of a task, int32 []; of several tasks [T].
    labels: checksums of the names of the classes of a task, in their order, uint32 []; of several tasks [T].
    task: of several tasks, the task of each example, int32 [N].
  """
  x: Array
  y: Array
  mean: Array
  std: Array
  num_classes: Array | None = None
  labels: Array | None = None
  task: Array | None = None


class Batch(NamedTuple):
  """Examples of a pool, before normalisation.

  Attributes:
    x: uint8 or float32 [B, D]. The examples are flat, because a CPU gathers short rows slowly.
    y: int32 [B], labels.
    weight: float32 [B], factors of the losses; None: 1.
    task, num_classes: int32 [B], of several tasks; see Pool.
  """
  x: Array
  y: Array
  weight: Array | None = None
  task: Array | None = None
  num_classes: Array | None = None


class Sums(NamedTuple):
  """Sums over examples, which are divided once, at the end.

  Attributes:
    loss: float32, cross-entropy in nats.
    wrong: int32, number of examples that are classified wrongly.
  """
  loss: Array
  wrong: Array


@dataclasses.dataclass(frozen=True)
class Classification(contract.Problem):
  """The problem of classifying images.

  Attributes:
    num_classes: K.
    augment: whether training images are flipped and cropped at random, with black edges.
    shift: pixels by which they are moved at most, with mirrored edges.
    flip: whether they are flipped at random.
    label_smoothing: share of the uniform distribution in the labels that are trained on.
    test_augment: whether predictions average the logits of two views of an image.
  """
  num_classes: int
  augment: bool
  label_smoothing: float = 0.0
  shift: int = 0
  flip: bool = False
  test_augment: bool = False

  metric, decimals, max_steps = "error", 3, 256

  @property
  def num_outputs(self) -> int:
    """K, the number of logits."""
    return self.num_classes

  @property
  def chance(self) -> float:
    """1 - 1/K."""
    return 1 - 1 / self.num_classes

  def interface(self, meta: Mapping[str, Any], votes: bool) -> contract.Interface:
    """Raw images -> classes and probabilities."""
    mean, std = (np.asarray(meta[key], np.float32) for key in ("mean", "std"))
    shape, dtype = tuple(meta["example_shape"]), np.dtype(meta["dtype"])
    task = {"task": meta["task"]} if "task" in meta else {}
    facts = dict(
        input=f"x {dtype.name} [batch, {', '.join(map(str, shape))}], raw as in the "
              f"{'stream' if task else 'data set'}",
        output=f"predict: class probabilities float32 [batch, classes]{', the mean over the members' * votes}; "
               f"classify: predicted classes int32 [batch]{', by the votes' * votes}",
        classes=meta["num_classes"], class_names=meta.get("class_names"), example_shape=list(shape), dtype=dtype.name,
        image_size=meta["image_size"],
        normalization=dict(mean=mean.tolist(), std=std.tolist(),
                           meaning="(x - mean) / std, done inside; a std of 0 counts as 1"), **task)
    return contract.Interface(
        facts, jax.ShapeDtypeStruct(shape, dtype), lambda x: normalize(x, mean, std),  # type: ignore[arg-type]
        lambda prediction: (prediction[0].astype(jnp.int32), prediction[1]))

  def take(self, pool: Pool, index_B: Array, weight_B: Array | None = None) -> Batch:
    """The examples `index_B` of the pool."""
    flat = pool.x.reshape(pool.x.shape[0], -1)
    return Batch(flat[index_B], pool.y[index_B], weight_B)

  def inputs(self, pool: Pool, batch: Batch) -> Array:
    """Normalised images, float32 [B, ...]."""
    x = batch.x.reshape(-1, *pool.x.shape[1:])
    return normalize(x, pool.mean, pool.std)

  def train_inputs(self, pool: Pool, batch: Batch, key: Key, offset: Array, total: int) -> Array:
    """Normalised and augmented images, float32 [B, ...]."""
    x = self.inputs(pool, batch)
    if self.augment:
      return flip_and_crop(key, x, offset, total, PAD, flips=True, mode="constant", constant_values=BLACK)
    shift = self._most_moved(x.shape[1:3])
    return flip_and_crop(key, x, offset, total, shift, self.flip, mode="reflect") if shift or self.flip else x

  def _most_moved(self, sides: Sequence[int]) -> int:
    """The largest shift of a training image, in pixels; `sides`: height and width."""
    return PAD if self.augment else min(self.shift, min(sides, default=0) // LEAST_SHIFTED)

  def warn_of_shift(self, shape: Sequence[int]) -> None:
    """Warns if `train.shift` has no effect, because images of this shape are too small."""
    if self.shift and not self._most_moved(shape[:2]):
      warnings.warn(f"train.shift={self.shift} has no effect on images of {shape[0]}x{shape[1]} pixels: to be moved by "
                    f"a pixel, an image needs at least {LEAST_SHIFTED} a side; set train.shift=0", stacklevel=2)

  def num_views(self, shape: Sequence[int]) -> int:
    """How many views of an image of this shape a prediction averages, 1 or 2; see `contribution`."""
    return 2 if self.test_augment and (self.augment or self.flip or self._most_moved(shape[:2])) else 1

  def zeros(self, network: Any) -> Sums:
    del network
    return Sums(jnp.float32(0), jnp.int32(0))

  def objective(self, logits_BK: Array, batch: Batch, mask_B: Array, sums: Sums, norm: Array) -> Array:
    """Mean loss of an example in nats, against labels that are smoothed."""
    if not self.label_smoothing:
      return sums.loss / norm
    uniform_B = -jax.nn.log_softmax(logits_BK).mean(-1)  # cross-entropy against the uniform distribution
    uniform_B = uniform_B if batch.weight is None else uniform_B * batch.weight
    uniform = jnp.sum(jnp.where(mask_B, uniform_B, 0.0))
    return ((1 - self.label_smoothing) * sums.loss + self.label_smoothing * uniform) / norm

  def better(self, sums: Sums, best: Sums, val: Any) -> Array:
    """Whether fewer validation examples are wrong than at the best round, by more than δ (docs/algorithms.md §1)."""
    return sums.wrong < best.wrong - val.min_gain

  def report(self, sums: Sums, own_M: np.ndarray, num_M: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Loss in nats and error rate."""
    joint: dict[str, Any] = {}
    members: dict[str, np.ndarray] = {}
    for name, sum_M in (("loss", sums.loss), ("error", sums.wrong)):
      joint[name] = float(sum_M[own_M > 0].sum(dtype=np.float64) / own_M.sum())
      members[name] = np.where(num_M > 0, sum_M / np.maximum(num_M, 1), np.nan)
    return joint, members

  def losses(self, logits_BK: Array, batch: Batch) -> Array:
    """Cross-entropy of every example in nats without weights, float32 [B]."""
    return -(jax.nn.one_hot(batch.y, self.num_classes) * jax.nn.log_softmax(logits_BK)).sum(-1)

  def sums(self, logits_BK: Array, batch: Batch, mask_B: Array) -> Sums:
    """Weighted losses and errors, summed over the examples of `mask_B`."""
    wrong = jnp.argmax(logits_BK, -1) != batch.y
    loss_B = self.losses(logits_BK, batch)
    loss_B = loss_B if batch.weight is None else loss_B * batch.weight
    return Sums(jnp.sum(jnp.where(mask_B, loss_B, 0.0)),
                jnp.sum(wrong & mask_B, dtype=jnp.int32))

  def contribution(self, network: Any, member: Variables, x: Array, combine: str) -> dict[str, Array]:
    """See the function `contribution`; x are normalised images, float32 [B, ...].

    With `test_augment` it averages the logits of two views: the image, and a copy shifted up and left by half the
    largest shift in training, rounded up, and flipped if training flips images. If training does neither, there is one.
    """
    logits = lambda x: network.apply(member, x, jnp.ones(x.shape[0], bool), train=False)[0]
    if self.num_views(x.shape[1:]) == 1:
      return contribution(logits(x), combine)
    height, width = x.shape[1:3]
    far = -(-self._most_moved((height, width)) // 2)
    other = jnp.pad(x, ((0, 0), (0, far), (0, far), (0, 0)), mode="reflect")[:, far:far + height, far:far + width]
    if self.augment or self.flip:
      other = other[:, :, ::-1]
    return contribution((logits(x) + logits(other)) / 2, combine)

  def merge(self, stacked: Arrays) -> dict[str, Array]:
    """The joint contribution of stacked members: arrays [M, B, K] -> [B, K]."""
    return {key: part.max(0) if key == "top" else part.sum(0) for key, part in stacked.items()}

  def join(self, first: Arrays | None, second: Arrays) -> dict[str, Any]:
    """The joint contribution of two. A name that only one of them has is kept as it is. None stands for no networks."""
    joined = dict(first or {})
    for key, value in second.items():
      if key not in joined:
        joined[key] = value
      else:
        joined[key] = _numpy(value).maximum(joined[key], value) if key == "top" else joined[key] + value
    return joined

  def resolve(self, joined: Arrays, count: float, combine: str) -> tuple[Any, Any]:
    """The joint prediction of several networks; traceable.

    Args:
      joined: their joint contribution, arrays [B, K] of jax or of numpy.
      count: number of networks, or the sum of their weights.
      combine: as in `contribution`.

    Returns:
      (predicted classes int [B], probabilities float32 [B, K]). With "vote" it is the class with most votes. Of several
      such classes it is the one that has the largest probability of any single member (as in the authors' code, which
      adds 0.1 to its votes). The probabilities are then the mean of the members' probabilities.
    """
    xp = _numpy(joined["sum"])
    if combine == "logits":
      logits = joined["sum"] / np.float32(count)
      exp = xp.exp(logits - logits.max(-1, keepdims=True))
      return logits.argmax(-1), exp / exp.sum(-1, keepdims=True)
    if combine == "probabilities":
      probabilities = joined["sum"] / np.float32(count)
      return probabilities.argmax(-1), probabilities
    top = joined["top"].argmax(-1)[:, None] == xp.arange(joined["top"].shape[-1])[None]
    votes = joined["sum"] + xp.where(top, np.float32(0.1), np.float32(0))
    return votes.argmax(-1), joined["probabilities"] / np.float32(count)


class Images(contract.Source):
  """The images of a run.

  Attributes:
    dataset: datasets.Dataset.
    constants: Normalization of the first stage.
    untrained: error rate before the first update (docs/algorithms.md §1): 1 - 1/K, as for guessing, or None if the
      untrained network has to be tested.
  """
  constants: normalization.Normalization

  def __init__(self, config: schema.ImageConfig, data: Sequence[Any] | datasets.Dataset | None = None):
    """Loads the data and cuts the stream.

    Args:
      config: names the data set in `dataset`.
      data: (x_train, y_train, x_test, y_test), or a Dataset, to be used in place of the data set.

    Raises:
      BadInput: the data do not exist, or do not fit the config.
    """
    d = self.dataset = self._loaded(config, data)
    self._metrics = measures.tried(measures.chosen(config), measures.blank_images(d.num_classes))
    self.megabatches = self._cut(config)
    self.memory = memory.make(config.stream, self.megabatches, config.seed)
    self.constants = (normalization.made(d.x_train[self.megabatches.part(1)[0]]) if d.normalization is None else
                      normalization.Normalization(*d.normalization))
    self.fingerprint = d.fingerprint
    self.problem, self.example_shape = self.of_meta(config, self.meta())
    self.problem.warn_of_shift(self.example_shape)
    self.untrained = self.problem.chance if config.stream.untrained_error == "chance" else None

  def _loaded(self, config: schema.ImageConfig, data: Sequence[Any] | datasets.Dataset | None) -> datasets.Dataset:
    if isinstance(data, datasets.Dataset):
      return data
    if data is None:
      dataset: datasets.Dataset = config.dataset.load()
    elif len(data) != len(datasets.ARRAYS):
      raise BadInput(f"data holds {len(data)} arrays, but should hold {len(datasets.ARRAYS)}; "
                     f"pass ({', '.join(datasets.ARRAYS)}).")
    else:
      dataset = datasets.from_arrays("data", dict(zip(datasets.ARRAYS, data)))
    datasets.warn_of_overlap(dataset)
    return dataset

  def _cut(self, config: schema.ImageConfig) -> Megabatches:
    stream = config.stream
    return permuted(len(self.dataset.x_train), stream.num_megabatches, stream.val_fraction, config.seed)

  @property
  def num_bytes(self) -> tuple[int, int]:
    """Pages of mapped files need not stay in the host's memory."""
    d = self.dataset
    arrays = [d.x_train, d.y_train, d.x_test, d.y_test]
    return sum(array.nbytes for array in arrays if not _is_mapped(array)), sum(array.nbytes for array in arrays)

  @property
  def num_test(self) -> int:  # type: ignore[override]  # it depends on the data
    return len(self.dataset.x_test)

  @staticmethod
  def of_meta(config: Any, meta: Mapping[str, Any]) -> tuple[Classification, tuple[int, ...]]:
    """(Classification, shape of an image) from what `meta` returned."""
    train, shape = config.train, tuple(map(int, meta["example_shape"]))
    for name, off in (("augment", False), ("shift", 0), ("flip", False)):
      if getattr(train, name) and len(shape) != 3:
        raise BadInput(f"train.{name}={getattr(train, name)} changes images, but this data set's examples have shape "
                       f"{shape}; set train.{name}={off}.")
    return Classification(meta["num_classes"], **of_train(train)), shape

  def meta(self, ends: Sequence[int] = ()) -> dict[str, Any]:
    """What `of_meta` and predictions for other images need besides the constants."""
    d = self.dataset
    return dict(num_classes=d.num_classes, example_shape=list(d.x_train.shape[1:]), dtype=str(d.x_train.dtype),
                class_names=d.class_names and list(d.class_names))

  def followed(self, known: normalization.Normalization, ends: Sequence[int]
               ) -> tuple[normalization.Normalization, list[normalization.Place]]:
    """(the constants of the last of the stages that end at `ends`, the columns or channels that get new ones)."""
    if self.dataset.normalization is not None:
      return known, []
    new = np.concatenate([self.megabatches.part(t)[0] for t in memory.span(ends)])
    return normalization.followed(known, self._images(new))

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with its pools: both are the whole training set."""
    return data._replace(pool=self._pool(mesh), val_pool=self._pool(mesh))

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[Pool, np.ndarray]:
    """(the pool of the whole training set, the examples)."""
    return self._pool(mesh), examples

  def arrays(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of mega-batch t, raw, and their labels."""
    return self._images(self.tested(t)), self._labels(self.tested(t))[0]

  def test_arrays(self, t: int) -> tuple[np.ndarray, np.ndarray]:
    """The test examples after mega-batch t, raw, and their labels."""
    return self.dataset.x_test, self.dataset.y_test

  def test_pool(self, mesh: Mesh, t: int = 1) -> Pool:
    """The pool of test examples."""
    return make_pool(*self.test_arrays(t), *self.constants, mesh)

  def score(self, prediction: measures.Prediction, t: int = 1) -> measures.Entry:
    """Error, loss in nats and the chosen metrics of a prediction (classes, probabilities) for the test examples."""
    return scored(self._metrics, prediction, self.test_arrays(t)[1], self.dataset.class_names)

  def tested(self, t: int) -> np.ndarray:
    """All examples of mega-batch t, those for validation included."""
    return np.concatenate(self.megabatches.part(t))

  def score_training(self, prediction: measures.Prediction, which: np.ndarray) -> measures.Entry:
    """The prequential error and chosen metrics of a prediction for the training examples `which`."""
    y, names = self._labels(which)
    return measures.prequential(measures.of_images(self._metrics, prediction, y, names)
                                | dict(error=error_and_loss(*prediction, y)[0]))

  def _labels(self, which: np.ndarray) -> tuple[np.ndarray, Sequence[str] | None]:
    """(the labels of the training examples `which`, names of all classes that they may have)."""
    return self.dataset.y_train[which], self.dataset.class_names

  def _images(self, which: np.ndarray) -> np.ndarray:
    """The training examples `which`, raw."""
    return self.dataset.x_train[which]

  @functools.cached_property
  def _pool(self) -> Callable[[Mesh], Pool]:
    """Mesh -> the pool of the whole training set, which is put on the devices once."""
    return functools.cache(lambda mesh: make_pool(self.dataset.x_train, self.dataset.y_train, *self.constants, mesh))


def _is_mapped(array: Any) -> bool:
  """Whether an array is mapped from a file."""
  while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
    array = array.base
  return isinstance(array, np.memmap)


def padded(arrays: Sequence[np.ndarray], least: int = 1) -> list[np.ndarray]:
  """Arrays [N, ...] with zeros at the end, so that they have room for a power of two of examples, at least `least`.

  So programs are compiled for few sizes; nothing reads what follows the examples.
  """
  room = max(least, 1 << (len(arrays[0]) - 1).bit_length())
  return [np.concatenate([a, np.zeros((room - len(a), *a.shape[1:]), a.dtype)]) for a in arrays]


def make_pool(x: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray, mesh: Mesh) -> Pool:
  """A Pool of which every device of the mesh has a copy; see Pool for the arrays."""
  arrays: Any = x, np.asarray(y, np.int32), mean, std
  return sharding.put(Pool(*arrays), mesh)


def renormalized(pool: Pool, constants: normalization.Normalization, mesh: Mesh) -> Pool:
  """A pool with other constants."""
  return pool._replace(**sharding.put(constants, mesh)._asdict())


def normalize(x: Array, mean: Array, std: Array) -> Array:
  """(x - mean) / std in float32 along the last axis of x [B, ..., C]; mean and std are [C], or broadcast against x.

  A std of 0 means that the column was constant; it is divided by 1. The networks have learned nothing from it, so
  values far from the constant are replaced by it until the column gets new constants.
  """
  mean, std = (v.reshape((1,) * (x.ndim - v.ndim) + v.shape) for v in (mean, std))
  scale = jnp.where(std == 0, 1, std)
  z = x.astype(jnp.float32) * (1 / scale) - mean / scale
  return jnp.where((std == 0) & (jnp.abs(z) > normalization.RATIO), 0, z)


def of_train(train: Any) -> dict[str, Any]:
  """The fields of the section `train` that a Classification has."""
  return {name: getattr(train, name) for name in ("augment", "label_smoothing", "shift", "flip", "test_augment")}


def flip_and_crop(key: Key, x_BHWC: Array, offset: int | Array, total: int, margin: int, flips: bool, **padding: Any
                  ) -> Array:
  """Pads every image, crops it at random to its old size, and with `flips` flips it with probability 1/2.

  Args:
    key: PRNG key of this batch.
    x_BHWC: normalised images, this device's part of the batch.
    offset: position of the first of these images in the whole batch.
    total: size of the whole batch. Random numbers are drawn for the whole batch, so that the augmentation of an image
      does not depend on the number of devices.
    margin: pixels of the padding on each side.
    flips: whether to flip.
    **padding: arguments of jnp.pad.

  Returns:
    Augmented images, same shape and dtype (docs/algorithms.md §0).
  """
  num, height, width, _ = x_BHWC.shape
  crop_key, flip_key = jax.random.split(key)
  corner_B2 = jax.random.randint(crop_key, (total, 2), 0, 2 * margin + 1)
  flip_B = jax.random.bernoulli(flip_key, 0.5 if flips else 0.0, (total,))
  corner_B2, flip_B = (jax.lax.dynamic_slice_in_dim(a, offset, num) for a in (corner_B2, flip_B))
  padded_BHWC = jnp.pad(x_BHWC, ((0, 0), (margin, margin), (margin, margin), (0, 0)), **padding)
  row_BH = corner_B2[:, :1] + jnp.arange(height)[None]
  step_1W = jnp.arange(width)[None]
  column_BW = corner_B2[:, 1:] + jnp.where(flip_B[:, None], width - 1 - step_1W, step_1W)
  return padded_BHWC[jnp.arange(num)[:, None, None], row_BH[:, :, None], column_BW[:, None, :]]


def contribution(logits_BK: Array, combine: str) -> dict[str, Array]:
  """One network's part of a joint prediction.

  Args:
    logits_BK: float32.
    combine: "probabilities", "logits" or "vote".

  Returns:
    Dict of float32 arrays [B, K], which are added over members and stages, except `top`, of which the maximum is
    taken. `sum` is the sum of what is averaged. For votes there are also the sum of the
    `probabilities`, and `top`, the largest probability of any member.
  """
  if combine == "logits":
    return {"sum": logits_BK}
  probabilities = jax.nn.softmax(logits_BK)
  if combine == "probabilities":
    return {"sum": probabilities}
  votes = jax.nn.one_hot(jnp.argmax(logits_BK, -1), logits_BK.shape[-1])
  return {"sum": votes, "probabilities": probabilities, "top": probabilities}


def _numpy(array: Any) -> Any:
  """The module numpy for an array of numpy, jax.numpy for an array of jax."""
  return np if isinstance(array, np.ndarray) else jnp


def scored(metrics: Sequence[Metric], prediction: measures.Prediction, y: np.ndarray,
           names: Sequence[str] | None = None) -> measures.Entry:
  """Error, loss in nats and further metrics of a prediction (classes, probabilities) for examples with labels y."""
  error, loss = error_and_loss(*prediction, y)
  return measures.of_images(metrics, prediction, y, names) | dict(error=error, loss=loss)


def error_and_loss(predicted_B: np.ndarray, probabilities_BK: np.ndarray, y_B: np.ndarray) -> tuple[float, float]:
  """(error rate, mean cross-entropy in nats) of predicted classes and probabilities; y_B are the labels.

  A class that the networks do not know yet has probability 0.
  """
  known_B = (y_B >= 0) & (y_B < probabilities_BK.shape[-1])
  right = probabilities_BK[np.arange(len(y_B)), np.where(known_B, y_B, 0)].astype(np.float64)
  right = np.where(known_B, right, 0.0)
  loss = -np.log(np.maximum(right, np.finfo(np.float32).tiny)).mean()
  return float((predicted_B != y_B).mean()), float(loss)
