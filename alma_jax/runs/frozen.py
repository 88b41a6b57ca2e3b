"""What a run has frozen, the members of an ensemble or the modules of a stream of tasks, in the folder `pool`.

Each is one file, NUMBER-SHA256.msgpack, written when the first checkpoint refers to it, and kept twice (store.py).
flax.serialization.msgpack_restore returns its arrays by their names.
"""
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from flax import serialization

from alma_jax.parallel import sharding
from alma_jax.runs import arrays, store
from alma_jax.types import Tree

Leaves = dict[str, np.ndarray]


class Read(NamedTuple):
  """Frozen trees that were read.

  Attributes:
    trees: the arrays of each by their names, None where they are lost.
    lost: {number: why}.
  """
  trees: list[Leaves | None]
  lost: dict[int, str]


class Frozen:
  """The frozen trees of a run; all processes of the run call every method."""

  def __init__(self, pool: pathlib.Path, writes: bool):
    """Opens them.

    Args:
      pool: folder, which is made when it is first written to.
      writes: whether this process writes.
    """
    self._store = store.Store(pool, ".msgpack", writes)
    self._saved: list[str] = []  # digests of the trees that are known to be sound in the pool

  def save(self, i: int, tree: Tree) -> str:
    """Writes tree i unless this session has read or written it; returns its digest."""
    if i == len(self._saved):
      leaves = {name: np.asarray(leaf, order="C") for name, leaf in arrays.flatten(sharding.fetch(tree))}
      self._saved.append(self._store.put(_name(i), serialization.msgpack_serialize(leaves)))
    return self._saved[i]

  def read(self, digests: Sequence[str]) -> Read:
    """The trees of the digests that `save` returned, from the first one on."""
    trees: list[Leaves | None] = []
    lost = {}
    self._saved = []
    for i, digest in enumerate(digests):
      try:
        trees.append(serialization.msgpack_restore(self._store.get(_name(i), digest)))
      except store.Lost as error:
        trees.append(None)
        lost[i] = str(error)
        continue
      if len(self._saved) == i:
        self._saved.append(digest)
    return Read(trees, lost)

  def renew(self) -> None:
    """The trees have other shapes from now on, and are saved again."""
    self._saved = []


def _name(i: int) -> str:
  return f"{i:05d}"
