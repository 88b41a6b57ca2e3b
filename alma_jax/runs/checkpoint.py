"""Saving and restoring a run through Orbax.

A checkpoint has two items: `meta` (JSON: static facts, the history, and a SHA-256 of every array) and `arrays`. Orbax
does not notice a flipped bit; therefore the sums are verified here. What never changes again, members and most lines of
metrics.jsonl, is written once, in a folder of its own, and every checkpoint refers to it.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from alma_jax.errors import BadInput
from alma_jax.parallel import sharding
from alma_jax.runs import history
from alma_jax.types import Tree

_FROZEN, _SUMS, _HISTORY = "frozen", "sha256.json", "history"
Meta = dict[str, Any]
_LATE, _LATE_SECONDS = "Event loop is closed", 0.5


class Checkpoints:
  """The checkpoints/ of a run folder.

  All processes of a run call every method; arrays are saved whole, so that a
  run may be resumed on another number of devices.
  """

  def __init__(self, folder: str | os.PathLike[str], keep: int, create: bool = True):
    """Opens `folder`, or makes it if it may `create` it; the `keep` newest checkpoints are kept."""
    self._folder = pathlib.Path(folder).absolute()
    self._keep = keep
    self._manager = ocp.CheckpointManager(
        self._folder, item_names=("meta", "arrays"),
        options=ocp.CheckpointManagerOptions(max_to_keep=None, create=create))
    self._history = history.History(self._folder / _HISTORY, sharding.is_main())
    self._frozen: list[str] = []  # digests of the frozen trees that are known to be sound on disk
    self._bad: set[int] = set()  # steps found damaged
    self._permanent: set[int] | None = None  # steps that are kept permanently, once they have been read from disk

  def save(self, meta: Meta, trees: dict[str, Tree], frozen: tuple[Tree, ...], permanent: bool = False) -> None:
    """Saves a checkpoint; returns while it is still being written.

    Args:
      meta: JSON-able dict, which `Opened.meta` returns. Its entry `lines` is a list that only grows at its end.
      trees: dict of pytrees of arrays.
      frozen: tuple of pytrees that never change; the first ones have been
        saved with an earlier checkpoint, in the same order.
      permanent: whether to keep it permanently.

    Raises:
      RuntimeError: Orbax did not write it.
    """
    self._manager.wait_until_finished()
    if self._permanent is None:
      self._permanent = {s for s in self._manager.all_steps() if self._permanent_on_disk(s)}
    self._delete_stale()
    trees = {key: sharding.fetch(tree) for key, tree in trees.items()}
    arrays = {f"{key}.{name}": leaf for key, tree in trees.items() for name, leaf in _flatten(tree)}
    arrays = arrays or {"nothing": np.zeros(1, np.int8)}  # Orbax refuses to save no arrays
    if "lines" in meta:
      sealed, rest = self._history.seal(meta["lines"])
      meta = dict(meta, sealed=sealed, lines=rest)
    meta = dict(meta, permanent=permanent, sha256={name: _digest(leaf) for name, leaf in arrays.items()},
                frozen=[self._save_frozen(i, tree) for i, tree in enumerate(frozen)])
    meta = dict(meta, meta_sha256=_meta_digest(meta))
    meta = json.loads(json.dumps(meta))  # a copy: Orbax writes it later, when the caller's lists have grown
    step = (self._manager.latest_step() or 0) + 1
    saved = self._manager.save(step, args=ocp.args.Composite(
        meta=ocp.args.JsonSave(meta), arrays=ocp.args.StandardSave(arrays)))
    if not saved:
      raise RuntimeError(f"Orbax skipped checkpoint {step} of {self._folder}")
    if permanent:
      self._permanent.add(step)

  def newest(self) -> "Opened | None":
    """The newest undamaged checkpoint, or None if no checkpoint exists.

    Warns about each damaged one.

    Raises:
      BadInput: there are checkpoints, and all are damaged.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for step in steps:
      try:
        with _no_late_answers():
          return self._open(step)
      except Exception as error:  # Orbax and tensorstore raise many kinds
        self._bad.add(step)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        warnings.warn(f"checkpoint {step} of {self._folder} is damaged ({reason}); "
                      "falling back to the one before it", stacklevel=2)
    if steps:
      raise BadInput(f"all checkpoints in {self._folder} are damaged ({len(steps)} tried); nothing was changed, "
                     "and --overwrite would start the run again.")
    return None

  def metas(self) -> dict[int, Meta]:
    """{step: meta} of the checkpoints whose meta can be read, oldest first; without the sealed part of `lines`."""
    found = {}
    for step in sorted(self._manager.all_steps()):
      try:
        found[step] = self._read_meta(step)
      except Exception as error:  # as above
        warnings.warn(f"checkpoint {step} of {self._folder} cannot be read ({error})", stacklevel=2)
    return found

  def open(self, step: int) -> "Opened":
    """One checkpoint, verified.

    Raises:
      BadInput: it is damaged.
    """
    try:
      return self._open(step)
    except Exception as error:  # as above
      raise BadInput(f"checkpoint {step} of {self._folder} is damaged.") from error

  def renew_frozen(self) -> None:
    """The frozen trees have other shapes from now on, and are saved again."""
    self._frozen = []

  def finish(self) -> None:
    """Waits until everything is on disk, and tidies up."""
    self._manager.wait_until_finished()
    if self._permanent is not None:
      self._delete_stale()
    self._manager.close()

  def _open(self, step: int) -> "Opened":
    meta = self._read_meta(step)
    if "lines" in meta:  # earlier versions sealed none of them
      meta["lines"] = self._history.read(meta.get("sealed", []), meta["lines"])
    arrays = _verified(lambda shapes: self._manager.restore(
        step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(shapes))).arrays, meta["sha256"])
    frozen = [self._read_frozen(i, sums) for i, sums in enumerate(meta["frozen"])]
    self._frozen = list(meta["frozen"])
    return Opened(meta, arrays, frozen)

  def _read_meta(self, step: int) -> Meta:
    meta = dict(self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta)
    if meta.pop("meta_sha256") != _meta_digest(meta):
      raise ValueError("its description does not match its checksum")
    return meta

  def _permanent_on_disk(self, step: int) -> bool:
    try:
      return bool(self._read_meta(step)["permanent"])
    except Exception:  # a checkpoint that cannot be read now is kept
      return True

  def _delete_stale(self) -> None:
    """Deletes all but the newest sound checkpoints, the permanent ones, and damaged ones that are the newest."""
    steps = sorted(self._manager.all_steps())
    sound = [step for step in steps if step not in self._bad]
    stale = set(sound[:-self._keep]) - (self._permanent or set())
    stale |= {step for step in self._bad.intersection(steps) if sound and step < sound[-1]}
    for step in sorted(stale):
      self._manager.delete(step)

  def _save_frozen(self, i: int, tree: Tree) -> str:
    """Writes frozen tree i unless this session has found it on disk; returns its digest."""
    if i < len(self._frozen):
      return self._frozen[i]
    path = self._folder / _FROZEN / f"{i:05d}"
    leaves = dict(_flatten(sharding.fetch(tree)))
    sums = json.dumps({name: _digest(leaf) for name, leaf in leaves.items()}, sort_keys=True)
    digest = hashlib.sha256(sums.encode()).hexdigest()
    if (path / _SUMS).exists() and (path / _SUMS).read_text() != sums:
      path = _other_version(path, digest)  # earlier checkpoints refer to the tree with fewer outputs
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(path, leaves, force=True)
    if sharding.is_main():
      (path / _SUMS).write_text(sums)
    self._frozen.append(digest)
    return self._frozen[i]

  def _read_frozen(self, i: int, digest: str) -> dict[str, np.ndarray]:
    path = self._folder / _FROZEN / f"{i:05d}"
    if _other_version(path, digest).exists():
      path = _other_version(path, digest)
    text = (path / _SUMS).read_text()
    if hashlib.sha256(text.encode()).hexdigest() != digest:
      raise ValueError(f"the checksums of frozen member {i} are not those of the checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
      return _verified(lambda shapes: checkpointer.restore(path, shapes), json.loads(text))


def _other_version(path: pathlib.Path, digest: str) -> pathlib.Path:
  """Where a frozen tree is saved if another one of its number is at `path`."""
  return path.with_name(f"{path.name}-{digest[:12]}")


class Opened:
  """A verified checkpoint.

  Attributes:
    meta: as saved.
  """

  def __init__(self, meta: Meta, arrays: dict[str, np.ndarray], frozen: list[dict[str, np.ndarray]]):
    self.meta = meta
    self._arrays, self._frozen = arrays, frozen

  def has(self, key: str) -> bool:
    """Whether a tree of this name was saved."""
    return any(name.startswith(f"{key}.") for name in self._arrays)

  def tree(self, key: str, shapes: Tree) -> Tree:
    """The saved tree of this name, numpy leaves in the structure of `shapes`."""
    return _unflatten({name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
                       if name.startswith(f"{key}.")}, shapes)

  def arrays(self, key: str) -> dict[str, np.ndarray]:
    """A saved dict of arrays, without knowing its shapes."""
    return {name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
            if name.startswith(f"{key}.")}

  def frozen(self, shapes: Sequence[Tree]) -> tuple[Tree, ...]:
    """The first frozen trees, in the structures of `shapes`."""
    return tuple(_unflatten(leaves, shape) for leaves, shape in zip(self._frozen[:len(shapes)], shapes, strict=True))


@contextlib.contextmanager
def _no_late_answers() -> Iterator[None]:
  """Suppresses the stack traces of tensorstore's threads after one array could not be read.

  Orbax then closes its event loop while other arrays are still being read, and each of them would print a stack trace
  when it arrives.
  """
  before = sys.unraisablehook
  sys.unraisablehook = lambda args: None if str(args.exc_value) == _LATE else before(args)
  try:
    yield
  except Exception:
    time.sleep(_LATE_SECONDS)
    raise
  finally:
    sys.unraisablehook = before


def _flatten(tree: Tree) -> list[tuple[str, np.ndarray]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [(jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf)) for path, leaf in leaves]


def _unflatten(leaves: dict[str, np.ndarray], shapes: Tree) -> Tree:
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


def _digest(array: Any) -> list[Any]:
  """[SHA-256, shape, dtype] of an array, as JSON holds it."""
  array = np.asarray(array)
  return [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(), list(array.shape), str(array.dtype)]


def _verified(restore: Callable[[dict[str, np.ndarray]], Any], sums: dict[str, list[Any]]) -> dict[str, np.ndarray]:
  """The arrays that `restore` returns for zeros of the saved shapes, each verified by its checksum."""
  arrays = restore({name: np.zeros(shape, dtype) for name, (_, shape, dtype) in sums.items()})
  for name, expected in sums.items():
    if _digest(arrays[name]) != expected:
      raise ValueError(f"array {name} does not match its checksum")
  return arrays


def _meta_digest(meta: Meta) -> str:
  return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
