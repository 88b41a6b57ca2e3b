"""Adds output units to a trained learner, for classes that a live stream brings later."""
from typing import Any

import jax
import numpy as np

from alma_jax.learners.contract import Learner, LearnerState
from alma_jax.parallel import sharding
from alma_jax.types import Tree


def add_classes(old: Learner, new: Learner, state: LearnerState, fresh: Tree | None) -> LearnerState:
  """The state of a learner with more outputs. What the state predicts for the old classes keeps its logits.

  Args:
    old: the learner that the state belongs to.
    new: the same learner for more classes.
    state: of `old`; it is not changed.
    fresh: Variables like `new.template(state.spec).live`, from which the new units of the live block take their
      weights; None: zeros. Those of frozen blocks, which never learn them, and of the optimiser are zeros.

  Returns:
    A state of `new`. Leaves whose shape does not depend on the number of classes are those of `state`.
  """
  before, after = old.template(state.spec), new.template(state.spec)
  grow = lambda name, values, start=None: _grown(getattr(before, name), getattr(after, name), values, start)
  fresh = None if fresh is None else sharding.fetch(fresh)
  live = grow("live", state.live, fresh)
  opt = None if state.opt is None else grow("opt", state.opt)
  average = None if state.average is None else grow("average", state.average, fresh)
  frozen = tuple(_grown(one, two, values) for one, two, values in zip(before.frozen, after.frozen, state.frozen))
  live, opt, average, frozen = sharding.put((live, opt, average, frozen), new.mesh)
  return state._replace(live=live, opt=opt, average=average, frozen=frozen)


def _grown(before: Tree, after: Tree, values: Tree, fresh: Tree | None = None) -> Tree:
  """Host arrays of the shapes `after`, with `values` of the shapes `before` at their beginnings."""
  trees = (before, after, sharding.fetch(values), *(() if fresh is None else (fresh,)))
  return jax.tree.map(_grown_leaf, *trees)


def _grown_leaf(before: Any, after: Any, value: np.ndarray, fresh: np.ndarray | None = None) -> np.ndarray:
  if before.shape == after.shape:
    return value
  grown = np.zeros(after.shape, after.dtype) if fresh is None else np.array(fresh)
  grown[tuple(slice(size) for size in before.shape)] = value
  return grown
