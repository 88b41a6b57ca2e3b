"""Image classification: batches from a pool on the device, losses, scores."""
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.data import augment
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
  """Static facts of the task.

  Attributes:
    num_classes: K.
    augment: random flip and crop of training images.
  """
  num_classes: int
  augment: bool

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
