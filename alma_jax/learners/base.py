"""The contract between the stream and a learner.

A learner is a NamedTuple of functions over a `LearnerState`. It never sees the
test set: the environment (experiment.py) hands it stages and asks it for
contributions to predictions. To add one, write a file with a factory
`(Context) -> Learner` and name it in learners/__init__.py.

The life of a stage: `grow` (identity for fixed architectures; may use the
stage's data), `begin`, `advance` until its `num_rows` are run or `read` says
that patience ended it, `finish`; and all of that again unless `complete`.
"""
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from alma_jax import fields, models, sharding
from alma_jax.types import Tree, Variables


class LearnerState(NamedTuple):
  """What a learner is between two stages.

  Attributes:
    spec: JSON-able dict of static facts: member counts, later also topology.
    live: Variables of what can still be trained.
    frozen: tuple of Variables that never change again, oldest first; each is
      saved once.
    opt: optimiser state that the next stage goes on with; None: a fresh one.
  """
  spec: dict
  live: Variables
  frozen: tuple[Variables, ...] = ()
  opt: Tree = None


class GrowthReport(NamedTuple):
  """What growing cost.

  Attributes:
    macs: multiply-adds of forward passes, part of the paper's Comp.
    flops: floating-point operations of all passes; None: 2 per multiply-add.
  """
  macs: int = 0
  flops: int | None = None


class Learner(NamedTuple):
  """Pure functions; `data` is a fit.StageData, `fit_state` a fit.FitState.

  Attributes:
    init: () -> LearnerState, untrained.
    grow: (state, data) -> (LearnerState, GrowthReport).
    begin: (state, data) -> FitState.
    advance: (fit_state, rows) -> (FitState, records); one dispatch of at most
      `rows` training steps, not waited for. Consumes its fit_state.
    read: (fit_state, records) -> (epochs, done), see fit.read; waits.
    finish: (state, fit_state) -> (LearnerState, FitReport).
    complete: (state) -> whether the stage has ended; False: it goes on with
      another growth and training, whose reports are those of the stage.
    num_blocks: (state) -> number of additive parts of the prediction.
    num_final: (state) -> how many of them, from the first, never change again.
    contribution: (state, block, pool) -> dict of arrays to be joined, of images
      [N, K], of text [N, L]; a name that only some blocks have is kept as it is.
    resolve: (state, joined) -> prediction, as the task's source scores it: of
      images (classes [N], probabilities [N, K]), of text log-probabilities [N, L].
    predict: (state, x) -> what is exported, traceable: of normalised images
      [B, ...] class probabilities [B, K], of tokens int32 [B, L] the
      log-probabilities [B, L, V] of what follows each.
    cost: (state) -> types.Cost.
    describe: (spec) -> text for people: what has grown.
    template: (spec) -> LearnerState of shapes, to restore a state into.
    fit_template: (state) -> shapes of what `save_fit` returns.
    restore: (LearnerState of host arrays) -> LearnerState.
    save_fit: (fit_state) -> tree of host arrays, the same on any devices.
    restore_fit: (state, saved, cursor, data) -> FitState.
    num_rows: (fit_state) -> training steps of a whole stage.
    network: (spec) -> the network of each member.
    mesh: the devices it runs on.
  """
  init: Callable[..., Any]
  grow: Callable[..., Any]
  begin: Callable[..., Any]
  advance: Callable[..., Any]
  read: Callable[..., Any]
  finish: Callable[..., Any]
  complete: Callable[..., Any]
  num_blocks: Callable[..., Any]
  num_final: Callable[..., Any]
  contribution: Callable[..., Any]
  resolve: Callable[..., Any]
  predict: Callable[..., Any]
  cost: Callable[..., Any]
  describe: Callable[..., Any]
  template: Callable[..., Any]
  fit_template: Callable[..., Any]
  restore: Callable[..., Any]
  save_fit: Callable[..., Any]
  restore_fit: Callable[..., Any]
  num_rows: Callable[..., Any]
  network: Callable[..., Any]
  mesh: Any


@dataclasses.dataclass(frozen=True)
class Context:
  """What a learner is built from.

  Attributes:
    config: fields.RunConfig.
    task: see tasks/__init__.py.
    example_shape: shape of one input; for text (L + 1,).
    max_val: validation examples of the largest stage.
    num_train: training examples of the first stage; None: unknown, and nothing
      is to be trained.
  """
  config: fields.RunConfig
  task: object
  example_shape: tuple[int, ...]
  max_val: int
  num_train: int | None = None

  def network(self, **options):
    """The network that the config names; options are those of models.build."""
    return models.build(self.config.model, self.task.num_outputs, self.example_shape, self.config.precision,
                        sharding.DATA, **options)

  @property
  def example(self):
    """Zeros in the place of one input with its batch axis, as the networks read it."""
    shapes = self.network().inputs((1, *self.example_shape))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
