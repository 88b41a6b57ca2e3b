"""Saving and restoring a run through Orbax.

A checkpoint has two items: `meta` (JSON: everything static, the history, and a
SHA-256 of every array) and `arrays`. Orbax restores a flipped bit without a
word, so the sums are verified. Members that will never change are written
once, beside the checkpoints, and referred to.
"""
import hashlib
import json
import pathlib
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp

from alma_jax import sharding
from alma_jax.errors import BadInput

_FROZEN, _SUMS = "frozen", "sha256.json"


class Checkpoints:
  """The checkpoints/ of a run folder.

  All processes of a run call every method; arrays are saved whole, so that a
  run may be resumed on another number of devices.
  """

  def __init__(self, folder, keep):
    """Opens (or makes) `folder`; `keep` newest checkpoints are kept."""
    self._folder = pathlib.Path(folder).absolute()
    self._keep = keep
    self._manager = ocp.CheckpointManager(
        self._folder, item_names=("meta", "arrays"),
        options=ocp.CheckpointManagerOptions(max_to_keep=None, create=True))
    self._frozen = []  # digests of the frozen trees that are known to be sound on disk
    self._bad = set()  # steps found damaged
    self._permanent = None  # steps kept for good, once they have been looked up

  def save(self, meta, trees, frozen, permanent=False):
    """Saves a checkpoint; returns while it is still being written.

    Args:
      meta: JSON-able dict; what `restore` gives back.
      trees: dict of pytrees of arrays.
      frozen: tuple of pytrees that never change; the first ones have been
        saved with an earlier checkpoint, in the same order.
      permanent: keep it for good.

    Raises:
      RuntimeError: Orbax did not write it.
    """
    self._manager.wait_until_finished()
    if self._permanent is None:
      self._permanent = {s for s in self._manager.all_steps() if self._permanent_on_disk(s)}
    self._delete_stale()
    trees = {key: sharding.fetch(tree) for key, tree in trees.items()}
    arrays = {f"{key}.{name}": leaf for key, tree in trees.items() for name, leaf in _flatten(tree)}
    meta = dict(meta, permanent=permanent, sha256={name: _digest(leaf) for name, leaf in arrays.items()},
                frozen=[self._save_frozen(i, tree) for i, tree in enumerate(frozen)])
    meta = dict(meta, meta_sha256=_meta_digest(meta))
    meta = json.loads(json.dumps(meta))  # Orbax writes it later, when the caller's lists have grown
    step = (self._manager.latest_step() or 0) + 1
    saved = self._manager.save(step, args=ocp.args.Composite(
        meta=ocp.args.JsonSave(meta), arrays=ocp.args.StandardSave(arrays)))
    if not saved:
      raise RuntimeError(f"Orbax skipped checkpoint {step} of {self._folder}")
    if permanent:
      self._permanent.add(step)

  def newest(self):
    """The newest undamaged checkpoint, or None if there is none at all.

    Warns about each damaged one that is passed over.

    Raises:
      BadInput: there are checkpoints, and all are damaged.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for step in steps:
      try:
        return self._open(step)
      except Exception as error:  # Orbax and tensorstore raise whatever they like
        self._bad.add(step)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        warnings.warn(f"checkpoint {step} of {self._folder} is damaged ({reason}); "
                      "falling back to the one before", stacklevel=2)
    if steps:
      raise BadInput(f"all checkpoints in {self._folder} are damaged ({len(steps)} tried); nothing was changed, "
                     "and --overwrite would start the run again.")
    return None

  def metas(self):
    """{step: meta} of the checkpoints whose meta can be read, oldest first."""
    found = {}
    for step in sorted(self._manager.all_steps()):
      try:
        found[step] = self._read_meta(step)
      except Exception as error:  # as above
        warnings.warn(f"checkpoint {step} of {self._folder} cannot be read ({error})", stacklevel=2)
    return found

  def open(self, step):
    """One checkpoint, verified.

    Raises:
      BadInput: it is damaged.
    """
    try:
      return self._open(step)
    except Exception as error:  # as above
      raise BadInput(f"checkpoint {step} of {self._folder} is damaged.") from error

  def finish(self):
    """Waits until everything is on disk, and tidies up."""
    self._manager.wait_until_finished()
    if self._permanent is not None:
      self._delete_stale()
    self._manager.close()

  def _open(self, step):
    meta = self._read_meta(step)
    arrays = _verified(lambda shapes: self._manager.restore(
        step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(shapes))).arrays, meta["sha256"])
    frozen = [self._read_frozen(i, sums) for i, sums in enumerate(meta["frozen"])]
    self._frozen = list(meta["frozen"])
    return Opened(meta, arrays, frozen)

  def _read_meta(self, step):
    meta = dict(self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta)
    if meta.pop("meta_sha256") != _meta_digest(meta):
      raise ValueError("its description does not match its checksum")
    return meta

  def _permanent_on_disk(self, step):
    try:
      return bool(self._read_meta(step)["permanent"])
    except Exception:  # whatever cannot be read now is not deleted for that
      return True

  def _delete_stale(self):
    """Deletes all but the newest sound ones and the permanent; damaged ones once outlived."""
    steps = sorted(self._manager.all_steps())
    sound = [step for step in steps if step not in self._bad]
    stale = set(sound[:-self._keep]) - self._permanent
    stale |= {step for step in self._bad.intersection(steps) if sound and step < sound[-1]}
    for step in sorted(stale):
      self._manager.delete(step)

  def _save_frozen(self, i, tree):
    """Writes frozen tree i unless this session knows it to be there; returns its digest."""
    if i < len(self._frozen):
      return self._frozen[i]
    path = self._folder / _FROZEN / f"{i:05d}"
    leaves = dict(_flatten(sharding.fetch(tree)))
    sums = json.dumps({name: _digest(leaf) for name, leaf in leaves.items()}, sort_keys=True)
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(path, leaves, force=True)
    if sharding.is_main():
      (path / _SUMS).write_text(sums)
    self._frozen.append(hashlib.sha256(sums.encode()).hexdigest())
    return self._frozen[i]

  def _read_frozen(self, i, digest):
    path = self._folder / _FROZEN / f"{i:05d}"
    text = (path / _SUMS).read_text()
    if hashlib.sha256(text.encode()).hexdigest() != digest:
      raise ValueError(f"the checksums of frozen member {i} are not those of the checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
      return _verified(lambda shapes: checkpointer.restore(path, shapes), json.loads(text))


class Opened:
  """A verified checkpoint.

  Attributes:
    meta: as saved.
  """

  def __init__(self, meta, arrays, frozen):
    self.meta = meta
    self._arrays, self._frozen = arrays, frozen

  def has(self, key):
    """Whether a tree of this name was saved."""
    return any(name.startswith(f"{key}.") for name in self._arrays)

  def tree(self, key, shapes):
    """The saved tree of this name, numpy leaves in the structure of `shapes`."""
    return _unflatten({name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
                       if name.startswith(f"{key}.")}, shapes)

  def arrays(self, key):
    """A saved dict of arrays, without knowing its shapes."""
    return {name.removeprefix(f"{key}."): leaf for name, leaf in self._arrays.items()
            if name.startswith(f"{key}.")}

  def frozen(self, shapes):
    """The frozen trees in the structures of `shapes`."""
    return tuple(_unflatten(leaves, shape) for leaves, shape in zip(self._frozen, shapes, strict=True))


def _flatten(tree):
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return [(jax.tree_util.keystr(path, simple=True, separator="."), np.asarray(leaf)) for path, leaf in leaves]


def _unflatten(leaves, shapes):
  paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
  names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
  if set(names) != set(leaves):
    odd = ", ".join(sorted(set(leaves) ^ set(names))[:4])
    raise BadInput(f"the run was saved by another version of alma_jax: {odd} have no place or no source.")
  for name, (_, shape) in zip(names, paths):
    if leaves[name].shape != shape.shape or leaves[name].dtype != shape.dtype:
      raise BadInput(f"the run was saved by another version of alma_jax: {name} has shape {leaves[name].shape} "
                     f"and dtype {leaves[name].dtype}, not {shape.shape} and {shape.dtype}.")
  return jax.tree.unflatten(structure, [leaves[name] for name in names])


def _digest(array):
  """[SHA-256, shape, dtype] of an array, as JSON holds it."""
  array = np.asarray(array)
  return [hashlib.sha256(np.ascontiguousarray(array)).hexdigest(), list(array.shape), str(array.dtype)]


def _verified(restore, sums):
  """restore(zeros of the saved shapes), every array held against its checksum."""
  arrays = restore({name: np.zeros(shape, dtype) for name, (_, shape, dtype) in sums.items()})
  for name, expected in sums.items():
    if _digest(arrays[name]) != expected:
      raise ValueError(f"array {name} does not match its checksum")
  return arrays


def _meta_digest(meta):
  return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
