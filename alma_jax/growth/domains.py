"""Divides documents into domains: k-means of their tf-idf, or at random (docs/algorithms.md §6.3).

Documents are rows of token ids. A document is known by its number in the text, from 0.
"""
from typing import Any, NamedTuple

import numpy as np

from alma_jax import keys


class Domains(NamedTuple):
  """k domains in the space of tf-idf.

  Attributes:
    idf: float32 [V], inverse document frequencies, ln((1 + n) / (1 + number of documents with the token)) + 1 of n
      documents.
    centres: float32 [k, V].
  """
  idf: np.ndarray
  centres: np.ndarray


def document_of(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
  """The number of the document that holds each position, int64 [N].

  Args:
    ids: [num_tokens], as `text.Corpus.tokens`: the first token, END, stands before every document and after the last.
    positions: int [N]. The END before a document belongs to it.
  """
  return np.searchsorted(np.flatnonzero(ids == ids[0]), positions, "right") - 1


def token_counts(ids: np.ndarray, which: np.ndarray, vocab_size: int) -> Any:
  """How often each token occurs in the documents `which`, without END; scipy.sparse.csr_matrix float64 [n, V]."""
  import scipy.sparse  # importing it takes a sixth of the time of starting up

  ends = np.flatnonzero(ids == ids[0])
  found = [np.unique(ids[ends[number] + 1:ends[number + 1]], return_counts=True) for number in which]
  columns, counts = (np.concatenate(each) for each in zip(*found))
  rows = np.cumsum([0, *(len(each) for each, _ in found)])
  return scipy.sparse.csr_matrix((counts.astype(np.float64), columns.astype(np.int64), rows), (len(which), vocab_size))


def cluster(counts: Any, num: int, rng: np.random.Generator) -> Domains:
  """k-means of documents: the best of 10 runs.

  Args:
    counts: of `token_counts`.
    num: k, at most the number of documents.
    rng: for the initial centres.
  """
  import sklearn.cluster  # importing it takes most of a second
  import threadpoolctl

  seen = np.bincount(counts.indices, minlength=counts.shape[1])
  idf = (np.log((1 + counts.shape[0]) / (1 + seen)) + 1).astype(np.float32)
  # One thread: several threads add their partial sums in any order, hence with different rounding.
  with threadpoolctl.threadpool_limits(1):
    found = sklearn.cluster.KMeans(num, n_init=10, max_iter=1000, tol=0, algorithm="lloyd",
                                   random_state=int(rng.integers(2**31))).fit(_tfidf(counts, idf))
  return Domains(idf, found.cluster_centers_.astype(np.float32))


def nearest(domains: Domains, counts: Any) -> np.ndarray:
  """The domain of each document, int32 [n]: that of the nearest centre."""
  centres = domains.centres.astype(np.float64)
  products = np.asarray(_tfidf(counts, domains.idf) @ centres.T)
  return (products - 0.5 * np.square(centres).sum(1)[None]).argmax(1).astype(np.int32)


def dealt(seed: int, which: np.ndarray, num: int) -> np.ndarray:
  """Random domains of the documents `which`, int32 [n]. Each `num` consecutive documents get each domain once."""
  blocks = {int(block): keys.rng(seed, keys.CLUSTER, int(block)).permutation(num) for block in set(which // num)}
  return np.array([blocks[int(number // num)][number % num] for number in which], np.int32)


def _tfidf(counts: Any, idf: np.ndarray) -> Any:
  """count · idf of every document, scaled to length 1, as scikit-learn's TfidfTransformer does.

  With the logarithms of the counts, documents of similar lengths became domains.
  """
  import sklearn.preprocessing

  weights = counts.copy()
  weights.data = weights.data * idf.astype(np.float64)[weights.indices]
  return sklearn.preprocessing.normalize(weights)
