"""Image classification: batches from a pool on the device, losses, scores."""
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import sharding
from alma_jax.data import augment, datasets
from alma_jax.data import stream as streams
from alma_jax.errors import BadInput
from alma_jax.types import Array


class Pool(NamedTuple):
  """A data set on the device, raw: 4 times smaller than normalised floats.

  Attributes:
    x: uint8 or float32 [N, ...].
    y: int32 [N].
    mean, std: float32 [C] or [D], in units of x.
  """
  x: Array
  y: Array
  mean: Array
  std: Array


class Batch(NamedTuple):
  """Examples taken from a pool, still raw."""
  x: Array  # uint8 or float32 [B, D], flat: a CPU gathers short rows slowly
  y: Array  # int32 [B]
  weight: Array | None = None  # float32 [B], factors of the losses


class Sums(NamedTuple):
  """Sums over examples; divided by a count once, at the end."""
  loss: Array  # float32, cross-entropy in nats
  wrong: Array  # int32


@dataclasses.dataclass(frozen=True)
class Classification:
  """Static facts of the task; what a task is stands in tasks/__init__.py.

  Attributes:
    num_classes: K.
    augment: random flip and crop of training images.
  """
  num_classes: int
  augment: bool

  metric: ClassVar[str] = "error"
  selects: ClassVar[bool] = True
  in_epochs: ClassVar[bool] = True
  max_rows: ClassVar[int] = 256
  eval_batch: ClassVar[int] = 512
  group: ClassVar[int] = 1

  @property
  def num_outputs(self):
    """Of the network."""
    return self.num_classes

  def size(self, pool):
    """Examples in a pool."""
    return pool.x.shape[0]

  def load(self, pool, index):
    """The whole training set is on the device already."""
    return pool, index

  def take(self, pool, index_B, weight_B=None):
    """The examples of the pool at `index_B`."""
    flat = pool.x.reshape(pool.x.shape[0], -1)
    return Batch(flat[index_B], pool.y[index_B], weight_B)

  def inputs(self, pool, batch):
    """Normalised float32 examples."""
    x = batch.x.reshape(-1, *pool.x.shape[1:])
    return normalize(x, pool.mean, pool.std)

  def train_inputs(self, pool, batch, key, offset, total):
    """The same, augmented; see `augment.flip_and_crop` for offset and total."""
    x = self.inputs(pool, batch)
    return augment.flip_and_crop(key, x, offset, total) if self.augment else x

  def zeros(self, network):
    """Sums of nothing."""
    del network
    return Sums(jnp.float32(0), jnp.int32(0))

  def norm(self, batch, mask_B, count):
    """What the summed loss is divided by: the examples of the batch on all devices."""
    del batch, mask_B
    return count

  def objective(self, logits_BK, sums, norm):
    """What is minimised, summed over parts of a batch."""
    del logits_BK
    return sums.loss / norm

  def better(self, sums, best, val):
    """Whether validation sums beat the best so far by δ (§1)."""
    return sums.wrong < best.wrong - val.min_gain

  def report(self, sums, own_M, num_M):
    """({name: number}, {name: [M]}) of loss in nats and error.

    Args:
      sums: Sums of numpy arrays [M].
      own_M: examples that members have of their own; the joint numbers are over these.
      num_M: examples that were summed over; without any a member's are NaN.
    """
    joint, members = {}, {}
    for name, sum_M in (("loss", sums.loss), ("error", sums.wrong)):
      joint[name] = float(sum_M[own_M > 0].sum(dtype=np.float64) / own_M.sum())
      members[name] = np.where(num_M > 0, sum_M / np.maximum(num_M, 1), np.nan)
    return joint, members

  def losses(self, logits_BK, batch):
    """Cross-entropy of every example in nats, unweighted [B]."""
    return -(jax.nn.one_hot(batch.y, self.num_classes) * jax.nn.log_softmax(logits_BK)).sum(-1)

  def sums(self, logits_BK, batch, mask_B):
    """Loss and errors of a batch, summed over the examples of `mask_B`."""
    wrong = jnp.argmax(logits_BK, -1) != batch.y
    loss_B = self.losses(logits_BK, batch)
    loss_B = loss_B if batch.weight is None else loss_B * batch.weight
    return Sums(jnp.sum(jnp.where(mask_B, loss_B, 0.0)),
                jnp.sum(wrong & mask_B, dtype=jnp.int32))

  def contribution(self, logits_BK, batch, combine):
    """One network's part of a joint prediction, see below."""
    del batch
    return contribution(logits_BK, combine)

  def merge(self, stacked):
    """Contributions of stacked members [M, B, K] as one."""
    return {key: part.max(0) if key == "top" else part.sum(0) for key, part in stacked.items()}

  def answer(self, network, member, x, combine):
    """One network's contribution for normalised images, traceable."""
    return contribution(network.apply(member, x, None, train=False)[0], combine)

  def average(self, total, count, combine):
    """Probabilities [B, K] of `count` networks' merged contributions, traceable; as `resolve`."""
    if combine == "logits":
      return jax.nn.softmax(total["sum"] / count)
    return total["probabilities" if combine == "vote" else "sum"] / count

  def join(self, first, second):
    """Two contributions as one, see below."""
    return join(first, second)

  def resolve(self, joined, count, combine):
    """The prediction of `count` networks, see below."""
    return resolve(joined, count, combine)


class Images:
  """The images of a run: data set, stream and test set.

  Attributes:
    task: Classification.
    stream: data.stream.Stream.
    example_shape: shape of one image.
    fingerprint: of the data.
    dataset: datasets.Dataset.
    mean, std: float32 [C] or [D], in units of the images.
    chance: error of guessing, 1 - 1/K.
    untrained: error before the first update (§1): chance; None: the untrained
      network's own is wanted.
    files: {name: text} that belong into the run folder.
  """
  files: ClassVar[dict] = {}

  def __init__(self, config, data=None):
    """Loads `config.dataset`, or takes data = (x_train, y_train, x_test, y_test), and cuts the stream.

    Raises:
      BadInput: there are no such data, or they do not fit the config.
    """
    if data is None:
      self.dataset = datasets.load(config.dataset.name, config.dataset.data_dir, config.seed)
    elif len(data) != len(datasets.ARRAYS):
      raise BadInput(f"data holds {len(data)} arrays; it should be ({', '.join(datasets.ARRAYS)}).")
    else:
      self.dataset = datasets.from_arrays("data", dict(zip(datasets.ARRAYS, data)))
    d = self.dataset
    self.stream = streams.make(len(d.x_train), config.stream, config.seed)
    self.mean, self.std = d.normalization or streams.first_normalization(d.x_train, self.stream)
    self.fingerprint = d.fingerprint
    self.task, self.example_shape = of_meta(config, self.meta())
    self.chance = 1 - 1 / d.num_classes
    self.untrained = self.chance if config.stream.untrained_error == "chance" else None

  def meta(self):
    """What `of_meta` and predictions on other images need, JSON-able."""
    d = self.dataset
    return dict(num_classes=d.num_classes, example_shape=list(d.x_train.shape[1:]), dtype=str(d.x_train.dtype),
                mean=self.mean.tolist(), std=self.std.tolist(), class_names=d.class_names and list(d.class_names))

  def pools(self, mesh):
    """Pools of training and of validation examples: both are the whole training set."""
    pool = make_pool(self.dataset.x_train, self.dataset.y_train, self.mean, self.std, mesh)
    return pool, pool

  def test_pool(self, mesh):
    return make_pool(self.dataset.x_test, self.dataset.y_test, self.mean, self.std, mesh)

  def score(self, prediction):
    """(error, loss): share of wrong test predictions, mean cross-entropy in nats."""
    return error_and_loss(*prediction, self.dataset.y_test)


def of_meta(config, meta):
  """(Classification, shape of an image) of what `Images.meta` has noted.

  Raises:
    BadInput: they cannot be augmented.
  """
  shape = tuple(map(int, meta["example_shape"]))
  if config.train.augment and len(shape) != 3:
    raise BadInput(f"train.augment=True flips and crops images, but this data set's examples have shape {shape}.")
  return Classification(meta["num_classes"], config.train.augment), shape


def make_pool(x, y, mean, std, mesh):
  """A Pool on the mesh, replicated."""
  return sharding.put(Pool(x, np.asarray(y, np.int32), mean, std), mesh)


def normalize(x, mean, std):
  """(x - mean) / std in float32 over the last axis of x [B, ..., C]."""
  lift = lambda v: v.reshape((1,) * (x.ndim - 1) + v.shape)
  return x.astype(jnp.float32) * lift(1 / std) - lift(mean / std)


# How the predictions of members are joined. A contribution is a dict of arrays
# [B, K] that add up over members and stages (`top`: the maximum); `resolve`
# makes predictions of the total.

def contribution(logits_BK, combine):
  """One network's part of a joint prediction.

  Args:
    logits_BK: float32.
    combine: probabilities, logits or vote.

  Returns:
    Dict of float32 [B, K] arrays: `sum` of what is averaged; for votes also
    `probabilities`, and `top`, the largest probability of any member.
  """
  if combine == "logits":
    return {"sum": logits_BK}
  probabilities = jax.nn.softmax(logits_BK)
  if combine == "probabilities":
    return {"sum": probabilities}
  votes = jax.nn.one_hot(jnp.argmax(logits_BK, -1), logits_BK.shape[-1])
  return {"sum": votes, "probabilities": probabilities, "top": probabilities}


def join(first, second):
  """Adds two contributions (either may be None); names that only one has are kept."""
  joined = dict(first or {})
  for key, value in (second or {}).items():
    if key not in joined:
      joined[key] = value
    else:
      joined[key] = np.maximum(joined[key], value) if key == "top" else joined[key] + value
  return joined


def resolve(total, count, combine):
  """Joint prediction of `count` networks from the sum of their contributions.

  Args:
    total: numpy arrays [B, K] as `contribution` and `join` leave them.
    count: number of networks in it.
    combine: as in `contribution`.

  Returns:
    (predicted classes int [B], probabilities float32 [B, K]). With votes the
    class is the most voted one, ties broken by the largest probability of any
    single member (the authors' 0.1), and the probabilities are the averaged
    ones.
  """
  if combine == "logits":
    logits = total["sum"] / np.float32(count)
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return logits.argmax(-1), exp / exp.sum(-1, keepdims=True)
  if combine == "probabilities":
    probabilities = total["sum"] / np.float32(count)
    return probabilities.argmax(-1), probabilities
  votes = total["sum"].copy()
  votes[np.arange(len(votes)), total["top"].argmax(-1)] += 0.1
  return votes.argmax(-1), total["probabilities"] / np.float32(count)


def error_and_loss(predicted_B, probabilities_BK, y_B):
  """Share of wrong predictions, and mean cross-entropy of the probabilities."""
  right = probabilities_BK[np.arange(len(y_B)), y_B].astype(np.float64)
  loss = -np.log(np.maximum(right, np.finfo(np.float32).tiny)).mean()
  return float((predicted_B != y_B).mean()), float(loss)
