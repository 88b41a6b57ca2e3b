"""The one way from a learner to predictions: contributions of blocks, joined and resolved.

Evaluation, `Run.predict` and the learners themselves use `contributions`, batch by batch; export and sampling use
`predict`, in one call.
"""
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from alma_jax.learners.contract import Contribution, Learner, LearnerState
from alma_jax.parallel import sharding, threads
from alma_jax.training import batching, stage
from alma_jax.types import Tree


def contributions(learner: Learner, problem: Any, state: LearnerState, block: int, pool: Tree,
                  which: np.ndarray | None = None) -> Contribution:
  """The contribution of one block to the predictions for many examples.

  Args:
    learner: Learner.
    problem: see problems/contract.py.
    state: of the learner.
    block: number of the block.
    pool: the problem's examples.
    which: int [N], examples of the pool, N at least 1; None: all.

  Returns:
    Dict of numpy arrays [N, ...].
  """
  return _in_batches(functools.partial(learner.padded_contribution, state, block), problem, learner.mesh, pool, which)


def joined(learner: Learner, problem: Any, state: LearnerState, pool: Tree, which: np.ndarray | None = None,
           total: Contribution | None = None, first: int = 0) -> Contribution:
  """The joint contribution of all blocks, for `learner.resolve`.

  Args:
    learner, problem, state, pool, which: as for `contributions`.
    total: joint contribution of the blocks before `first`.
    first: number of a block.
  """
  for block in range(first, learner.num_blocks(state)):
    total = problem.join(total, contributions(learner, problem, state, block, pool, which))
  return total or {}


def of_pool(learner: Learner, problem: Any, state: LearnerState, pool: Tree, which: np.ndarray | None = None) -> Any:
  """The prediction for many examples; for the arguments see `contributions`."""
  return learner.resolve(state, joined(learner, problem, state, pool, which))


def in_batches(fn: Callable[[Tree], Contribution], problem: Any, mesh: jax.sharding.Mesh, pool: Tree,
               which: np.ndarray | None = None) -> Contribution:
  """fn(inputs) -> dict of arrays [B, ...], for many examples of a pool; the arguments are those of `contributions`."""
  return _in_batches(lambda inputs, _: fn(inputs), problem, mesh, pool, which)


def _in_batches(fn: Callable[[Tree, np.ndarray], Contribution], problem: Any, mesh: jax.sharding.Mesh, pool: Tree,
                which: np.ndarray | None) -> Contribution:
  """Like `in_batches`, for fn(inputs, mask_B), where `mask_B` is False for padding."""
  which = np.arange(len(pool[0]), dtype=np.int32) if which is None else which

  def one(index: np.ndarray, mask_B: np.ndarray) -> Contribution:
    return fn(_inputs(problem, pool, sharding.put(index, mesh, sharding.EXAMPLES)), mask_B)

  batches = batching.padded(which, stage.round_up(problem.eval_batch, mesh.size))
  parts = sharding.fetch(threads.side_by_side(mesh, [functools.partial(one, *batch) for batch in batches]))
  return {key: np.concatenate([part[key] for part in parts])[:len(which)] for key in parts[0]}


def predict(learner: Learner, problem: Any, state: LearnerState, inputs: Tree) -> Any:
  """The prediction for one batch of inputs; traceable."""
  joined = None
  for block in range(learner.num_blocks(state)):
    joined = problem.join(joined, learner.contribution(state, block, inputs))
  return learner.resolve(state, joined or {})


@functools.partial(jax.jit, static_argnames="problem")
def _inputs(problem: Any, pool: Tree, index_B: jax.Array) -> Tree:
  return problem.inputs(pool, problem.take(pool, index_B))
