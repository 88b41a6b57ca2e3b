"""Clusters of examples in a space of features, each of which has an expert (docs/algorithms.md §6.1).

All is done on the host on features [N, H], in float64; prototypes are rounded
to float32. An example belongs to the nearest one.
"""
from typing import NamedTuple

import numpy as np


class Clusters(NamedTuple):
  """Prototypes of the clusters.

  Attributes:
    prototypes: float64 [k, H].
    counts: int64 [k], examples that came to each so far.
  """
  prototypes: np.ndarray
  counts: np.ndarray


def nearest(features, prototypes):
  """(index int [N], Euclidean distance float64 [N]) of the nearest prototype; of equals the first."""
  from scipy.spatial import distance as distances  # a sixth of the time of starting up

  index, distance = np.zeros(len(features), np.int64), np.zeros(len(features))
  for start in range(0, len(features), 4096):
    part = slice(start, start + 4096)
    found = distances.cdist(features[part], prototypes)
    index[part], distance[part] = found.argmin(1), found.min(1)
  return index, distance


def kmeans(features, num, rng):
  """Clusters of k-means (k-means++, Lloyd until no example changes hands, the best of 10).

  Args:
    features: [N, H].
    num: how many; fewer come back where there are fewer different examples.
    rng: numpy Generator.
  """
  import sklearn.cluster  # takes most of a second
  import threadpoolctl

  features = np.float64(features)
  num = min(num, len(np.unique(features, axis=0)))
  # One thread: partial sums of several are added up in any order.
  with threadpoolctl.threadpool_limits(1):
    found = sklearn.cluster.KMeans(num, n_init=10, max_iter=1000, tol=0, algorithm="lloyd",
                                   random_state=int(rng.integers(2**31))).fit(features)
  return _rounded(found.cluster_centers_, np.bincount(found.labels_, minlength=num))


def update(clusters, features):
  """W_i += sum(h - W_i) / n_i over the examples nearest to W_i, n_i counting them too."""
  index, _ = nearest(features, clusters.prototypes)
  new = np.bincount(index, minlength=len(clusters.counts))
  counts = clusters.counts + new
  total = np.zeros_like(clusters.prototypes)
  np.add.at(total, index, np.float64(features))
  moved = clusters.prototypes + (total - new[:, None] * clusters.prototypes) / np.maximum(counts, 1)[:, None]
  return _rounded(moved, counts)


def add(clusters, features):
  """One cluster more, of these examples; returns it and the cluster nearest to it."""
  mean = np.float64(features).mean(0)
  parent = int(nearest(mean[None], clusters.prototypes)[0][0])
  return _rounded(np.vstack([clusters.prototypes, mean]), np.append(clusters.counts, len(features))), parent


def split(clusters, which, features, least, rng):
  """Cluster `which` in two by 2-means of its examples `features`; the second half comes last.

  Its count is shared out as these examples are, and both halves are moved alike
  so that the mean of all that came to them stays where it was. An example close
  to a neighbour of the cluster may change hands. Where a half would have fewer
  than `least` examples nothing is split.
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


def remove(clusters, least):
  """Without the clusters of fewer than `least` examples; returns the rest and which they are.

  The largest stays in any case.
  """
  kept = np.flatnonzero((clusters.counts >= least) | (np.arange(len(clusters.counts)) == clusters.counts.argmax()))
  return Clusters(clusters.prototypes[kept], clusters.counts[kept]), kept


def _rounded(prototypes, counts):
  return Clusters(np.float64(np.float32(prototypes)), np.int64(counts))
