"""What a run has frozen, the members of an ensemble or the modules of a stream of tasks, in the folder `pool`.

Each is one file, NUMBER-SHA256.msgpack, written when the first checkpoint refers to it, and kept twice (store.py).
flax.serialization.msgpack_restore returns its arrays by their names.
"""
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import orbax.checkpoint as ocp
from flax import serialization

from alma_jax.parallel import sharding
from alma_jax.runs import arrays, store
from alma_jax.types import Tree

_SUMS = "sha256.json"  # of a tree that an earlier version has saved

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

  def __init__(self, pool: pathlib.Path, earlier: pathlib.Path, writes: bool):
    """Opens them.

    Args:
      pool: folder, which is made when it is first written to.
      earlier: folder in which version 0.1 saved them, one folder of Orbax each. It is only read.
      writes: whether this process writes.
    """
    self._store, self._earlier = store.Store(pool, ".msgpack", writes), earlier
    self._saved: list[str] = []  # digests of the trees that are known to be sound in the pool

  def save(self, i: int, tree: Tree) -> str:
    """Writes tree i unless this session has found it on disk; returns its digest."""
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
        is_earlier = not self._store.holds(_name(i), digest) and self._has_earlier(i, digest)
        trees.append(self._read_earlier(i, digest) if is_earlier else
                     serialization.msgpack_restore(self._store.get(_name(i), digest)))
      except Exception as error:  # Orbax and tensorstore raise many kinds
        trees.append(None)
        lost[i] = (str(error).strip().splitlines() or [type(error).__name__])[0]
        continue
      if not is_earlier and len(self._saved) == i:
        self._saved.append(digest)  # those of an earlier version are saved again
    return Read(trees, lost)

  def renew(self) -> None:
    """The trees have other shapes from now on, and are saved again."""
    self._saved = []

  def _has_earlier(self, i: int, digest: str) -> bool:
    return (self._earlier / _name(i)).exists() or self._version(i, digest).exists()

  def _version(self, i: int, digest: str) -> pathlib.Path:
    """Where tree i was saved if another one of its number was there."""
    return self._earlier / f"{_name(i)}-{digest[:12]}"

  def _read_earlier(self, i: int, digest: str) -> Leaves:
    path = self._version(i, digest) if self._version(i, digest).exists() else self._earlier / _name(i)
    text = (path / _SUMS).read_text()
    if hashlib.sha256(text.encode()).hexdigest() != digest:
      raise ValueError(f"the checksums in {path} are not those of the checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
      return arrays.verified(lambda shapes: checkpointer.restore(path, shapes), json.loads(text))


def _name(i: int) -> str:
  return f"{i:05d}"
