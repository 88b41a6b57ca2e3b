"""Clusters of examples in a space of features; each cluster has an expert (docs/algorithms.md §6.1).

All of it is computed on the host in float64, from features [N, H]. Prototypes are rounded to float32. An example
belongs to the cluster of the nearest prototype.
"""
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys
from alma_jax.training import loop


class Clusters(NamedTuple):
  """k clusters.

  Attributes:
    prototypes: float64 [k, H].
    counts: int64 [k], number of examples that each cluster has received so far.
  """
  prototypes: np.ndarray
  counts: np.ndarray


def nearest(features: np.ndarray, prototypes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The nearest prototype of each example; of several at the same distance the first.

  Args:
    features: [N, H].
    prototypes: [k, H].

  Returns:
    (index int64 [N], Euclidean distance float64 [N]).
  """
  from scipy.spatial import distance as distances  # importing it takes a sixth of the time of starting up

  index, distance = np.zeros(len(features), np.int64), np.zeros(len(features))
  for start in range(0, len(features), 4096):
    part = slice(start, start + 4096)
    found = distances.cdist(features[part], prototypes)
    index[part], distance[part] = found.argmin(1), found.min(1)
  return index, distance


def kmeans(features: np.ndarray, num: int, rng: np.random.Generator) -> Clusters:
  """k-means: k-means++, then Lloyd's algorithm until no example changes its cluster; the best of 10 runs.

  Args:
    features: [N, H].
    num: number of clusters. There are fewer if there are fewer different examples.
    rng: for the initial prototypes.
  """
  import sklearn.cluster  # importing it takes most of a second
  import threadpoolctl

  features = features.astype(np.float64)
  num = min(num, len(np.unique(features, axis=0)))
  # One thread: several threads add their partial sums in any order, hence with different rounding.
  with threadpoolctl.threadpool_limits(1):
    found = sklearn.cluster.KMeans(num, n_init=10, max_iter=1000, tol=0, algorithm="lloyd",
                                   random_state=int(rng.integers(2**31))).fit(features)
  return _rounded(found.cluster_centers_, np.bincount(found.labels_, minlength=num))


def update(clusters: Clusters, features: np.ndarray) -> Clusters:
  """The clusters after they have received the examples `features` [N, H].

  W_i += sum(h - W_i) / n_i over the examples h that are nearest to prototype W_i; n_i includes these examples.
  """
  index, _ = nearest(features, clusters.prototypes)
  new = np.bincount(index, minlength=len(clusters.counts))
  counts = clusters.counts + new
  total = np.zeros_like(clusters.prototypes)
  np.add.at(total, index, features.astype(np.float64))
  moved = clusters.prototypes + (total - new[:, None] * clusters.prototypes) / np.maximum(counts, 1)[:, None]
  return _rounded(moved, counts)


def add(clusters: Clusters, features: np.ndarray) -> tuple[Clusters, int]:
  """Adds a cluster of the examples `features` [N, H], as the last one.

  Returns:
    (Clusters, the number of the old cluster that is nearest to the new one).
  """
  mean = features.astype(np.float64).mean(0)
  parent = int(nearest(mean[None], clusters.prototypes)[0][0])
  return _rounded(np.vstack([clusters.prototypes, mean]), np.append(clusters.counts, len(features))), parent


def split(clusters: Clusters, which: int, features: np.ndarray, least: int, rng: np.random.Generator) -> Clusters:
  """Splits a cluster in two by 2-means of its present examples.

  The count of the cluster is divided in the ratio of these examples. Both halves are moved by the same vector, such
  that the mean of all examples that the cluster has received stays where it was. An example close to a neighbouring
  cluster may therefore change its cluster.

  Args:
    clusters: Clusters.
    which: number of the cluster to split.
    features: [N, H], its present examples.
    least: if a half would have fewer of these examples, nothing is split.
    rng: for 2-means.

  Returns:
    Clusters, in which the first half has the old number and the second half comes last.
  """
  halves = kmeans(features, 2, rng)
  if len(halves.counts) < 2 or halves.counts.min() < least:
    return clusters
  second = clusters.counts[which] * halves.counts[1] // halves.counts.sum()
  counts = np.append(clusters.counts, second)
  counts[which] -= second
  middle = np.average(halves.prototypes, axis=0, weights=[counts[which], second])
  moved = halves.prototypes + clusters.prototypes[which] - middle
  prototypes = np.vstack([clusters.prototypes, moved[1]])
  prototypes[which] = moved[0]
  return _rounded(prototypes, counts)


def remove(clusters: Clusters, least: int) -> tuple[Clusters, np.ndarray]:
  """Removes the clusters that have received fewer than `least` examples, but never the largest one.

  Returns:
    (the remaining Clusters, int [k] their old numbers).
  """
  kept = np.flatnonzero((clusters.counts >= least) | (np.arange(len(clusters.counts)) == clusters.counts.argmax()))
  return Clusters(clusters.prototypes[kept], clusters.counts[kept]), kept


def refit(clusters: Clusters, features: np.ndarray, before: np.ndarray, after: np.ndarray) -> Clusters:
  """The clusters after some of their examples were assigned to others.

  W_i becomes the mean of the examples of this call that are assigned to i, and of n_i - m_i times the old W_i, where
  m_i of the n_i examples of i are among them. A cluster that is left without examples keeps its prototype. The new
  counts are those of the examples that are nearest to the new prototypes.

  Args:
    clusters: Clusters.
    features: [N, H], those of the clusters' examples that may move.
    before: int [N], the cluster of each so far.
    after: int [N], the cluster that each is assigned to.
  """
  num = len(clusters.counts)
  old = np.maximum(clusters.counts - np.bincount(before, minlength=num), 0)
  share, total = old + np.bincount(after, minlength=num), clusters.prototypes * old[:, None]
  np.add.at(total, after, features.astype(np.float64))
  moved = np.where(share[:, None] > 0, total / np.maximum(share, 1)[:, None], clusters.prototypes)
  moved = _rounded(moved, old).prototypes
  return _rounded(moved, old + np.bincount(nearest(features, moved)[0], minlength=num))


def follow(host: dict[str, Any], features: np.ndarray, data: loop.StageData, options: Any
           ) -> tuple[Clusters, list[int]]:
  """The clusters of a later stage: updated, added, split and removed, in this order.

  Args:
    host: of the state of `hmoe` before.
    features: [N, H] of the stage's new training examples.
    data: StageData.
    options: of the learner.

  Returns:
    (Clusters, for each of them the number of the old one whose expert it copies).
  """
  clusters = Clusters(host["prototypes"], host["counts"])
  parents, losses = list(range(len(host["counts"]))), list(host["losses"])
  _, distance = nearest(features, clusters.prototypes)
  far = (distance > options.add_beyond * host["spread"]) & (options.add_beyond > 0)
  far &= far.sum() >= options.min_shard
  clusters = update(clusters, features[~far])
  if far.any():
    clusters, parent = add(clusters, features[far])
    parents, losses = [*parents, parent], [*losses, 0.0]
  if options.split_every and data.stage % options.split_every == 0:
    index, _ = nearest(features, clusters.prototypes)
    large = np.bincount(index, minlength=len(parents)) >= 2 * options.min_shard
    if large.any():
      which = int(np.where(large, losses, -1).argmax())
      clusters = split(clusters, which, features[index == which], options.min_shard, rng_of(data, 1))
      parents += [parents[which]] * (len(clusters.counts) - len(parents))
  clusters, kept = remove(clusters, options.min_shard)
  return clusters, [parents[i] for i in kept]


def rng_of(data: loop.StageData, number: int) -> np.random.Generator:
  """Random numbers for the clusters of a stage; `number` sets their uses apart."""
  return keys.rng(data.seed, keys.CLUSTER, data.stage, number)


def _rounded(prototypes: np.ndarray, counts: np.ndarray) -> Clusters:
  return Clusters(prototypes.astype(np.float32).astype(np.float64), counts.astype(np.int64))
