"""Saving and restoring a run through Orbax.

A checkpoint has two items: `meta` (JSON: static facts, the history, and a SHA-256 of every array) and `arrays`. Orbax
does not notice a flipped bit; therefore the sums are verified here. What never changes again is written once and kept
twice, and every checkpoint refers to it (permanent.py): members and modules, and most lines of metrics.jsonl.
"""
import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from alma_jax.errors import BadInput, disk_problem
from alma_jax.parallel import sharding
from alma_jax.store import arrays as flat
from alma_jax.store.permanent import Frozen, History, Leaves
from alma_jax.types import Tree

CHECKPOINTS, POOL = "checkpoints", "pool"  # folders of a run folder
_HISTORY = "history"  # in CHECKPOINTS

Meta = dict[str, Any]


class Checkpoints:
  """The folders checkpoints/ and pool/ of a run.

  All processes of a run call every method; arrays are saved whole, so that a
  run may be resumed on another number of devices.
  """

  def __init__(self, path: str | os.PathLike[str], keep: int, create: bool = True):
    """Opens the checkpoints in a run folder.

    Args:
      path: run folder.
      keep: how many of the newest checkpoints are kept.
      create: whether the folder of checkpoints is made if it does not exist.

    Raises:
      BadInput: Orbax cannot open them.
    """
    self._folder = pathlib.Path(path).absolute() / CHECKPOINTS
    self._keep = keep
    try:
      self._manager = ocp.CheckpointManager(
          self._folder, item_names=("meta", "arrays"),
          options=ocp.CheckpointManagerOptions(max_to_keep=None, create=create))
    except Exception as error:  # Orbax reads the times of all checkpoints
      if disk_problem(error):
        raise
      raise BadInput(f"the checkpoints in {self._folder} cannot be opened ({_reason(error)}); a file "
                     "_CHECKPOINT_METADATA in one of them is damaged: restore or delete it, a run goes on without it."
                     ) from error
    self._history = History(self._folder / _HISTORY, sharding.is_main())
    self._frozen = Frozen(self._folder.parent / POOL, sharding.is_main())
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
    arrays = {f"{key}.{name}": leaf for key, tree in trees.items() for name, leaf in flat.flatten(tree)}
    arrays = arrays or {"nothing": np.zeros(1, np.int8)}  # Orbax refuses to save no arrays
    sealed, rest = self._history.seal(meta["lines"])
    meta = dict(meta, sealed=sealed, lines=rest, permanent=permanent,
                sha256={name: flat.digest(leaf) for name, leaf in arrays.items()},
                frozen=[self._frozen.save(i, tree) for i, tree in enumerate(frozen)])
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
      BadInput: there are checkpoints, and all are damaged, or lack a frozen tree.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    lost = ""
    damaged: list[str] = []
    for step in steps:
      try:
        opened = self._open(step)
        if not opened.lost:
          for sentence in damaged:
            warnings.warn(sentence, stacklevel=2)
          return opened
        reason = lost = next(iter(opened.lost.values()))
      except Exception as error:  # Orbax and tensorstore raise many kinds
        reason = _reason(error)
      self._bad.add(step)
      damaged.append(f"checkpoint {step} of {self._folder} is damaged ({reason.rstrip('.')}); falling back to the one "
                     "before it")
    if lost:
      raise BadInput(f"the run in {self._folder.parent} cannot go on: {lost.rstrip('.')}; nothing was changed, and "
                     "--overwrite would start the run again.")
    if steps:
      raise BadInput(f"all checkpoints in {self._folder} are damaged ({len(steps)} tried): {reason.rstrip('.')}; "
                     "nothing was changed, and --overwrite would start the run again.")
    return None

  def newest_meta(self) -> Meta | None:
    """The meta of the newest checkpoint, without its arrays; None, with a warning, if it cannot be read."""
    step = self._manager.latest_step()
    if step is None:
      return None
    try:
      return self._whole_meta(step)
    except Exception as error:  # as above
      warnings.warn(f"checkpoint {step} of {self._folder} cannot be read ({_reason(error)})", stacklevel=2)
      return None

  def metas(self) -> dict[int, Meta]:
    """{step: meta} of the checkpoints whose meta can be read, oldest first; without the sealed part of `lines`."""
    metas = {}
    for step in sorted(self._manager.all_steps()):
      try:
        metas[step] = self._read_meta(step)
      except Exception as error:  # as above
        warnings.warn(f"checkpoint {step} of {self._folder} cannot be read ({error})", stacklevel=2)
    return metas

  def open(self, step: int) -> "Opened":
    """One checkpoint, verified; frozen trees may be missing, see `Opened.lost`.

    Raises:
      BadInput: it is damaged.
    """
    try:
      return self._open(step)
    except Exception as error:  # as above
      raise BadInput(f"checkpoint {step} of {self._folder} is damaged ({_reason(error).rstrip('.')}).") from error

  def renew_frozen(self) -> None:
    """The frozen trees have other shapes from now on, and are saved again."""
    self._frozen.renew()

  def wait(self) -> None:
    """Waits until what was saved is on disk."""
    self._manager.wait_until_finished()

  def finish(self) -> None:
    """Waits until everything is on disk, and tidies up."""
    self._manager.wait_until_finished()
    if self._permanent is not None:
      self._delete_stale()
    self._manager.close()

  def _open(self, step: int) -> "Opened":
    meta = self._whole_meta(step)
    arrays = flat.verified(lambda shapes: self._manager.restore(
        step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(shapes))).arrays, meta["sha256"])
    return Opened(meta, arrays, *self._frozen.read(meta["frozen"]))

  def _whole_meta(self, step: int) -> Meta:
    meta = self._read_meta(step)
    meta["lines"] = self._history.read(meta["sealed"], meta["lines"])
    return meta

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


class Opened:
  """A verified checkpoint.

  Attributes:
    meta: as saved.
    lost: {number: why} of frozen trees that cannot be read.
  """

  def __init__(self, meta: Meta, arrays: Leaves, frozen: list[Leaves | None], lost: dict[int, str]):
    self.meta, self.lost = meta, lost
    self._arrays, self._frozen = arrays, frozen

  def has(self, key: str) -> bool:
    """Whether a tree of this name was saved."""
    return any(name.startswith(f"{key}.") for name in self._arrays)

  def tree(self, key: str, shapes: Tree) -> Tree:
    """The saved tree of this name, numpy leaves in the structure of `shapes`."""
    return flat.unflatten({name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
                       if name.startswith(f"{key}.")}, shapes)

  def arrays(self, key: str) -> dict[str, np.ndarray]:
    """A saved dict of arrays, without knowing its shapes."""
    return {name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
            if name.startswith(f"{key}.")}

  def frozen(self, shapes: Sequence[Tree]) -> tuple[Tree | None, ...]:
    """The first frozen trees, in the structures of `shapes`; None in the place of one that is lost."""
    return tuple(None if leaves is None else flat.unflatten(leaves, shape)
                 for leaves, shape in zip(self._frozen[:len(shapes)], shapes, strict=True))


def _reason(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _meta_digest(meta: Meta) -> str:
  return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
