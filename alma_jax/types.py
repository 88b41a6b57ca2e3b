"""Aliases, and the legend of the axes that array names end in.

  B batch (examples)      E expert                 L length (tokens)
  C channel               H, W height, width       M member (stacked models)
  D width of a layer      K class                  N examples of a data set
  R row (one training step of a dispatch)          S stage

`t` counts mega-batches from 1, `stage` counts from 0.
"""
from typing import Any, NamedTuple

import jax

Array = jax.Array
Key = jax.Array
Tree = Any  # a pytree of arrays


class Variables(NamedTuple):
  """What a network holds: trainable parameters, and what training does not touch by gradients.

  The latter are batch-norm statistics, gates' trees, routers' offsets.
  """
  params: Tree
  stats: Tree


class Cost(NamedTuple):
  """Cost of a learner as it stands, per example (docs/algorithms.md §1).

  Attributes:
    num_params: trainable parameters held, frozen members included.
    fwd_macs: multiply-adds of the forward pass of what is being trained.
    train_flops: floating-point operations of one training step, 2 per
      multiply-add of the forward and the backward pass.
    predict_macs: multiply-adds of one prediction.
  """
  num_params: int
  fwd_macs: int
  train_flops: int
  predict_macs: int
