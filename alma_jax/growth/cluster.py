"""Clusters of examples in a space of features, each of which has an expert (ALGORITHMS §6.1).

All is done on the host, in float64, on features [N, H]; an example belongs to
the nearest prototype.
"""
from typing import NamedTuple

import numpy as np
import scipy.spatial
import sklearn.cluster
import threadpoolctl


class Clusters(NamedTuple):
  """Prototypes of the clusters.

  Attributes:
    prototypes: float64 [k, H].
    counts: int64 [k], examples that each is the mean of.
  """
  prototypes: np.ndarray
  counts: np.ndarray


def nearest(features, prototypes):
  """(index int [N], Euclidean distance float64 [N]) of the nearest prototype; of equals the first."""
  index, distance = np.zeros(len(features), np.int64), np.zeros(len(features))
  for start in range(0, len(features), 4096):
    part = slice(start, start + 4096)
    distances = scipy.spatial.distance.cdist(features[part], prototypes)
    index[part], distance[part] = distances.argmin(1), distances.min(1)
  return index, distance


def kmeans(features, num, rng):
  """Clusters of k-means (k-means++, Lloyd until no example changes hands, the best of 10).

  Args:
    features: [N, H].
    num: how many; fewer come back where there are fewer different examples.
    rng: numpy Generator.
  """
  features = np.float64(features)
  num = min(num, len(np.unique(features, axis=0)))
  # One thread: partial sums of several are added up in any order.
  with threadpoolctl.threadpool_limits(1):
    found = sklearn.cluster.KMeans(num, n_init=10, max_iter=1000, tol=0, algorithm="lloyd",
                                   random_state=int(rng.integers(2**31))).fit(features)
  return Clusters(found.cluster_centers_, np.bincount(found.labels_, minlength=num))


def update(clusters, features):
  """W_i += sum(h - W_i) / n_i over the examples nearest to W_i, n_i counting them too."""
  index, _ = nearest(features, clusters.prototypes)
  new = np.bincount(index, minlength=len(clusters.counts))
  counts = clusters.counts + new
  total = np.zeros_like(clusters.prototypes)
  np.add.at(total, index, np.float64(features))
  moved = clusters.prototypes + (total - new[:, None] * clusters.prototypes) / np.maximum(counts, 1)[:, None]
  return Clusters(moved, counts)


def add(clusters, features):
  """One cluster more, of these examples; returns it and the cluster nearest to it."""
  mean = np.float64(features).mean(0)
  parent = int(nearest(mean[None], clusters.prototypes)[0][0])
  return Clusters(np.vstack([clusters.prototypes, mean]), np.append(clusters.counts, len(features))), parent


def split(clusters, which, features, rng):
  """Cluster `which` in two by 2-means of its examples; the second half comes last.

  Its count is shared out as its examples are.
  """
  halves = kmeans(features, 2, rng)
  if len(halves.counts) < 2:  # all its examples are the same
    return clusters
  prototypes = np.vstack([clusters.prototypes, halves.prototypes[1]])
  prototypes[which] = halves.prototypes[0]
  counts = np.append(clusters.counts, clusters.counts[which] * halves.counts[1] // halves.counts.sum())
  counts[which] -= counts[-1]
  return Clusters(prototypes, counts)


def remove(clusters, least):
  """Without the clusters of fewer than `least` examples; returns the rest and which they are.

  The largest stays in any case.
  """
  kept = np.flatnonzero((clusters.counts >= least) | (np.arange(len(clusters.counts)) == clusters.counts.argmax()))
  return Clusters(clusters.prototypes[kept], clusters.counts[kept]), kept
