"""Trees of arrays as checkpoints hold them: by name, with a SHA-256 of each array."""
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.types import Tree


def flatten(tree: Tree) -> list[tuple[str, np.ndarray]]:
  """[(name, array)] of the leaves."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [(jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf)) for path, leaf in leaves]


def unflatten(leaves: dict[str, np.ndarray], shapes: Tree) -> Tree:
  """The tree of `flatten`, in the structure of `shapes`.

  Raises:
    BadInput: names, shapes or dtypes differ.
  """
  paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
  names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
  if set(names) != set(leaves):
    odd = ", ".join(sorted(set(leaves) ^ set(names))[:4])
    raise BadInput(f"the run was saved by another version of alma_jax: the "
                   f"arrays {odd} are in only one of the checkpoint and the learner.")
  for name, (_, shape) in zip(names, paths):
    if leaves[name].shape != shape.shape or leaves[name].dtype != shape.dtype:
      raise BadInput(f"the run was saved by another version of alma_jax: {name} has shape {leaves[name].shape} "
                     f"and dtype {leaves[name].dtype}, not {shape.shape} and {shape.dtype}.")
  return jax.tree.unflatten(structure, [leaves[name] for name in names])


def digest(array: Any) -> list[Any]:
  """[SHA-256, shape, dtype] of an array, as JSON holds it."""
  array = np.asarray(array)
  return [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(), list(array.shape), str(array.dtype)]


def verified(restore: Callable[[dict[str, np.ndarray]], Any], sums: dict[str, list[Any]]) -> dict[str, np.ndarray]:
  """The arrays that Orbax returns for zeros of the saved shapes, each verified by its checksum.

  Raises:
    ValueError: an array is not what was saved. Orbax raises other exceptions as well.
  """
  arrays = restore({name: np.zeros(shape, dtype) for name, (_, shape, dtype) in sums.items()})
  for name, expected in sums.items():
    if digest(arrays[name]) != expected:
      raise ValueError(f"array {name} does not match its checksum")
  return arrays
