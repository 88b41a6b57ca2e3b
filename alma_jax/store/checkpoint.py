"""Saving and restoring a run through Orbax.

A checkpoint has two items: `meta` (JSON: static facts, the history, and a SHA-256 of every array) and `arrays`. Orbax
does not notice a flipped bit; therefore the sums are verified here. What never changes again is written once and kept
twice, and every checkpoint refers to it (once.py): what a run has frozen (the members of an ensemble, the modules of a
stream of tasks), each in one file, and the lines of metrics.jsonl, so that late checkpoints take no longer. Lines are
sealed in parts of a fixed size; a checkpoint itself holds the lines after the last sealed part. At least one line is
never sealed, because a live run may take its last line back.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization

from alma_jax.errors import BadInput, disk_problem, reason
from alma_jax.parallel import sharding
from alma_jax.store import run_files
from alma_jax.store.once import Lost, Once
from alma_jax.types import Tree

CHECKPOINTS, POOL = "checkpoints", "pool"  # folders of a run folder
_HISTORY = "history"  # in CHECKPOINTS
_PART = 128  # lines of metrics.jsonl that are sealed in one file

Meta = dict[str, Any]
Leaves = dict[str, np.ndarray]


class NotSaved(RuntimeError):
  """Orbax could not write a checkpoint. The message says why; the cause is Orbax's exception, if it raised one."""


class Checkpoints:
  """The folders checkpoints/ and pool/ of a run.

  All processes of a run call every method; arrays are saved whole, so that a
  run may be resumed on another number of devices.
  """

  def __init__(self, path: str | os.PathLike[str], keep: int = 0):
    """Opens the checkpoints in a run folder.

    Args:
      path: run folder.
      keep: how many of the newest checkpoints are kept; 0: they are only read.

    Raises:
      BadInput: Orbax cannot open them.
    """
    self._folder = pathlib.Path(path).absolute() / CHECKPOINTS
    self._keep = keep
    try:
      self._manager = ocp.CheckpointManager(
          self._folder, item_names=("meta", "arrays"),
          options=ocp.CheckpointManagerOptions(max_to_keep=None, create=keep > 0))
    except Exception as error:  # Orbax reads the times of all checkpoints
      if disk_problem(error):
        raise
      raise BadInput(f"the checkpoints in {self._folder} cannot be opened ({reason(error)}); a file "
                     "_CHECKPOINT_METADATA in one of them is damaged: restore or delete it, a run goes on without it."
                     ) from error
    self._history = Once(self._folder / _HISTORY, ".json", sharding.is_main())
    self._frozen = Once(self._folder.parent / POOL, ".msgpack", sharding.is_main())
    self._bad: set[int] = set()  # steps that are damaged
    self._permanent: set[int] = set()  # steps that are kept permanently, as `newest` has read them

  def save(self, meta: Meta, trees: dict[str, Tree], frozen: tuple[Tree, ...], permanent: bool = False) -> None:
    """Saves a checkpoint; returns while it is still being written. A session calls `newest` first.

    Args:
      meta: JSON-able dict, which `Opened.meta` returns. Its entry `lines` is a list that only grows at its end.
      trees: dict of pytrees of arrays.
      frozen: tuple of pytrees that never change; the first ones have been
        saved with an earlier checkpoint, in the same order.
      permanent: whether to keep it permanently.

    Raises:
      NotSaved: Orbax did not write it, or the one before it.
    """
    self.wait()
    self._delete_stale()
    step = (self._manager.latest_step() or 0) + 1
    if permanent:
      self._permanent.add(step)
    trees = {key: sharding.fetch(tree) for key, tree in trees.items()}
    arrays = {f"{key}.{name}": leaf for key, tree in trees.items() for name, leaf in flatten(tree)}
    arrays = arrays or {"nothing": np.zeros(1, np.int8)}  # Orbax refuses to save no arrays
    lines = meta["lines"]
    sealed = self._history.save(max(0, len(lines) - 1) // _PART, lambda i: json.dumps(
        lines[i * _PART:(i + 1) * _PART], allow_nan=False).encode())
    meta = dict(meta, sealed=sealed, lines=lines[len(sealed) * _PART:], permanent=sorted(self._permanent),
                sha256={name: _sum_of(leaf) for name, leaf in arrays.items()},
                frozen=self._frozen.save(len(frozen), lambda i: _packed(frozen[i])))
    meta = dict(meta, meta_sha256=run_files.digest_of(meta))
    meta = json.loads(json.dumps(meta))  # a copy: Orbax writes it later, when the caller's lists have grown
    with _of_orbax():
      saved = self._manager.save(step, args=ocp.args.Composite(
          meta=ocp.args.JsonSave(meta), arrays=ocp.args.StandardSave(arrays)))
    if not saved:
      raise NotSaved(f"Orbax skipped checkpoint {step}")

  def newest(self) -> "Opened | None":
    """The newest undamaged checkpoint, or None if no checkpoint exists.

    Warns about each damaged one.

    Raises:
      BadInput: there are checkpoints, and all are damaged, or lack a frozen tree.
    """
    problems: list[str] = []
    for step in sorted(self._manager.all_steps(), reverse=True):
      try:
        opened = self.open(step)
        problem = "".join(f"checkpoint {step} lacks a network: {why}" for why in [*opened.lost.values()][:1])
      except BadInput as error:
        problem = str(error)
      if not problem:
        for each in problems:
          warnings.warn(f"{each}; falling back to the checkpoint before it", stacklevel=2)
        self._permanent = set(opened.meta["permanent"])
        return opened
      self._bad.add(step)
      problems.append(problem.rstrip("."))
    if problems:
      raise BadInput(f"the run in {self._folder.parent} cannot go on, because all its checkpoints are damaged: "
                     f"{problems[0]}; nothing was changed, and --overwrite would start the run again.")
    return None

  def newest_meta(self) -> Meta | None:
    """The meta of the newest checkpoint, without its arrays; None, with a warning, if it cannot be read."""
    step = self._manager.latest_step()
    return None if step is None else self._readable([step], self._whole_meta).get(step)

  def metas(self) -> dict[int, Meta]:
    """{step: meta} of the checkpoints whose meta can be read, oldest first; without the sealed part of `lines`."""
    return self._readable(sorted(self._manager.all_steps()), self._meta)

  def open(self, step: int) -> "Opened":
    """One checkpoint, verified; frozen trees may be missing, see `Opened.lost`.

    Raises:
      BadInput: it is damaged.
    """
    try:
      meta = self._whole_meta(step)
      shapes = {name: np.zeros(shape, dtype) for name, (_, shape, dtype) in meta["sha256"].items()}
      arrays = self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(shapes))).arrays
      for name, expected in meta["sha256"].items():
        if _sum_of(arrays[name]) != expected:
          raise ValueError(f"array {name} does not match its checksum")
      return Opened(self._folder.parent, meta, arrays, self._frozen.read(meta["frozen"]))
    except Exception as error:  # Orbax and tensorstore raise many kinds
      raise BadInput(f"checkpoint {step} of {self._folder} is damaged ({reason(error)}).") from error

  def renew_frozen(self) -> None:
    """The frozen trees have other shapes from now on, and are saved again."""
    self._frozen.renew()

  def wait(self) -> None:
    """Waits until every save is on disk. Raises NotSaved if one failed."""
    with _of_orbax():
      self._manager.wait_until_finished()

  def finish(self) -> None:
    """Waits until everything is on disk, then tidies up. Raises NotSaved if a checkpoint could not be written."""
    self.wait()
    if self._keep:
      self._delete_stale()
    self._manager.close()

  def _readable(self, steps: Sequence[int], read: Callable[[int], Meta]) -> dict[int, Meta]:
    metas = {}
    for step in steps:
      try:
        metas[step] = read(step)
      except Exception as error:  # as above
        warnings.warn(f"checkpoint {step} of {self._folder} cannot be read ({reason(error)})", stacklevel=3)
    return metas

  def _whole_meta(self, step: int) -> Meta:
    meta = self._meta(step)
    sealed: list[Any] = []
    for part in self._history.read(meta["sealed"]):
      if isinstance(part, Lost):
        raise part
      sealed += json.loads(part)
    return dict(meta, lines=sealed + meta["lines"])

  def _meta(self, step: int) -> Meta:
    meta = dict(self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta)
    if meta.pop("meta_sha256") != run_files.digest_of(meta):
      raise ValueError("its description does not match its checksum")
    return meta

  def _delete_stale(self) -> None:
    """Deletes all but the newest sound checkpoints, the permanent ones, and damaged ones that are the newest."""
    steps = sorted(self._manager.all_steps())
    sound = [step for step in steps if step not in self._bad]
    stale = set(sound[:-self._keep]) - self._permanent
    stale |= {step for step in self._bad.intersection(steps) if sound and step < sound[-1]}
    for step in sorted(stale):
      self._manager.delete(step)


class Opened:
  """A verified checkpoint.

  Attributes:
    meta: as saved.
    lost: {number: why} of frozen trees that cannot be read.
  """

  def __init__(self, run: pathlib.Path, meta: Meta, arrays: Leaves, frozen: Sequence[bytes | Lost]):
    self._run, self.meta, self._arrays, self._frozen = run, meta, arrays, frozen
    self.lost = {i: str(entry) for i, entry in enumerate(frozen) if isinstance(entry, Lost)}

  def has(self, key: str) -> bool:
    """Whether a tree of this name was saved."""
    return any(name.startswith(f"{key}.") for name in self._arrays)

  def tree(self, key: str, shapes: Tree) -> Tree:
    """The saved tree of this name, numpy leaves in the structure of `shapes`."""
    return self._unflatten(self.arrays(key), shapes)

  def arrays(self, key: str) -> dict[str, np.ndarray]:
    """A saved dict of arrays, without knowing its shapes."""
    return {name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
            if name.startswith(f"{key}.")}

  def frozen(self, shapes: Sequence[Tree]) -> tuple[Tree | None, ...]:
    """The first frozen trees, in the structures of `shapes`; None in the place of one that is lost."""
    return tuple(None if isinstance(entry, Lost) else self._unflatten(serialization.msgpack_restore(entry), shape)
                 for entry, shape in zip(self._frozen[:len(shapes)], shapes, strict=True))

  def _unflatten(self, leaves: dict[str, np.ndarray], shapes: Tree) -> Tree:
    """The tree of `flatten`, in the structure of `shapes`.

    Raises:
      BadInput: names, shapes or dtypes differ.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(shapes)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): shape for path, shape in expected}
    then, now = ({name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in tree.items()} for tree in (leaves, named))
    differ = [f"{name} is {then.get(name, 'missing')} in its checkpoint and {now.get(name, 'missing')} here"
              for name in sorted(then.keys() | now.keys()) if then.get(name) != now.get(name)]
    if differ:
      raise BadInput(f"the run in {run_files.shown(self._run)} was saved by another version of alma_jax: {differ[0]}; "
                     "use that version, or run it again with --overwrite.")
    return jax.tree.unflatten(structure, [leaves[name] for name in named])


def flatten(tree: Tree) -> list[tuple[str, np.ndarray]]:
  """[(name, array)] of the leaves."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [(jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf)) for path, leaf in leaves]


def _packed(tree: Tree) -> bytes:
  """A file of the pool; msgpack_restore returns its arrays by their names."""
  leaves = {name: np.asarray(leaf, order="C") for name, leaf in flatten(sharding.fetch(tree))}
  packed: bytes = serialization.msgpack_serialize(leaves)
  return packed


def _sum_of(array: Any) -> list[Any]:
  """[SHA-256, shape, dtype] of an array, as JSON holds it."""
  array = np.asarray(array)
  return [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest(), list(array.shape), str(array.dtype)]


@contextlib.contextmanager
def _of_orbax() -> Iterator[None]:
  """Raises what Orbax raises as NotSaved: without memory, it fails in many ways."""
  try:
    yield
  except Exception as error:
    raise NotSaved(reason(error)) from error
