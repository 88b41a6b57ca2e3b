"""Judges stored networks by how well the nearest neighbours among their features classify a new task."""
import functools
from typing import Any

import jax
import numpy as np

from alma_jax import keys
from alma_jax.learners import expert_stacks
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Array, Variables

_ROWS = 256  # validation examples whose distances are computed at once


def examples(data: loop.StageData, max_train: int, max_val: int) -> tuple[np.ndarray, np.ndarray]:
  """Uniform samples of the training and validation examples of a stage, int32; all if there are no more."""
  drawn = []
  for side, (index, most) in enumerate(((data.train, max_train), (data.val, max_val))):
    rng = keys.rng(data.seed, keys.EMBED, data.stage, side)
    drawn.append(index if len(index) <= most else np.sort(rng.choice(index, most, replace=False)))
  return drawn[0], drawn[1]


def accuracy(network: Any, problem: Any, mesh: jax.sharding.Mesh, variables: Variables, data: loop.StageData,
             train: np.ndarray, val: np.ndarray, num_neighbors: int) -> float:
  """Validation accuracy of the majority of the nearest neighbours, by Euclidean distance between features.

  Args:
    network: models.ImageNetwork.
    problem: problems.classification.Classification.
    mesh: devices.
    variables: Variables of the network. It embeds in evaluation mode.
    data: StageData of a task.
    train: int32 [n], training examples of the pool.
    val: int32 [m], validation examples, likewise.
    num_neighbors: k; n if there are fewer training examples.
  """
  one = jax.tree.map(lambda leaf: leaf[None], variables)
  both = expert_stacks.features(network, problem, mesh, one, data.pool, np.concatenate([train, val]))  # in few batches
  near, far = both[:len(train)], both[len(train):]
  labels, num_classes = sharding.fetch((data.pool.y, data.pool.num_classes))
  predicted = vote(near, far, labels[train], min(num_neighbors, len(train)), int(num_classes))
  return float((predicted == labels[val]).mean())


def macs(network: Any, shape: tuple[int, ...], num_train: int, num_val: int, num_features: int) -> int:
  """Multiply-adds of `accuracy`: of the embeddings, and of the products in the distances."""
  return (num_train + num_val) * cost.forward_macs(network, shape) + num_train * num_val * num_features


def vote(train_ND: np.ndarray, val_MD: np.ndarray, labels_N: np.ndarray, num_neighbors: int, num_classes: int
         ) -> np.ndarray:
  """The most frequent label, int [M], among the nearest of the training features; of several the smallest label."""
  rows = []
  for start in range(0, len(val_MD), _ROWS):
    part = val_MD[start:start + _ROWS]
    padded = np.concatenate([part, np.zeros((_ROWS - len(part), part.shape[1]), part.dtype)])
    rows.append(np.asarray(_nearest(train_ND, padded, num_neighbors))[:len(part)])
  near_MJ = labels_N[np.concatenate(rows)]
  counts_MK = (near_MJ[..., None] == np.arange(num_classes)).sum(1)
  return counts_MK.argmax(-1)


@functools.partial(jax.jit, static_argnames="num_neighbors")
def _nearest(train_ND: Array, val_RD: Array, num_neighbors: int) -> Array:
  """int32 [R, num_neighbors], the nearest rows of `train_ND`."""
  product_RN = jax.lax.dot_general(val_RD, train_ND, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST)
  distance_RN = (train_ND * train_ND).sum(-1)[None] - 2 * product_RN  # up to a constant of the row
  return jax.lax.top_k(-distance_RN, num_neighbors)[1]
