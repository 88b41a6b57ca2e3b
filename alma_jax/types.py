"""Type aliases, and the legend of the axes that array names end in.

  B batch (examples)      E expert                 L length (tokens)
  C channel               G gate                   M member (stacked models)
  D width of a layer      H, W height, width       N examples of a data set
                          K class                  R training step of a dispatch
                                                   S stage

models/transformer.py and its parts use G for routing groups, H for heads, N for all tokens of a batch, S for slots of
experts, T for tokens of a group, and V for the vocabulary. A digit is an axis of that length: corner_B2.

`t` counts mega-batches from 1, `stage` counts from 0.
"""
from typing import Any, NamedTuple

import jax
import numpy as np

Array = jax.Array
AnyArray = jax.Array | np.ndarray  # on devices, or on the host
Key = jax.Array  # of jax.random
Tree = Any  # a pytree of arrays
Shape = tuple[int, ...]


class Variables(NamedTuple):
  """The variables of a network.

  Attributes:
    params: pytree of the trainable parameters.
    stats: pytree of what gradients do not change: statistics of batch norm, trees of gates, offsets of routers.
  """
  params: Tree
  stats: Tree


class Cost(NamedTuple):
  """What a learner costs in its present state (docs/algorithms.md §1). All but `num_params` are per example.

  Attributes:
    num_params: trainable parameters held, those of frozen members included.
    fwd_macs: multiply-adds of a forward pass of what is being trained.
    train_flops: floating-point operations of a training step, 2 per multiply-add of the forward and backward pass.
    predict_macs: multiply-adds of a prediction.
  """
  num_params: int
  fwd_macs: int
  train_flops: int
  predict_macs: int
