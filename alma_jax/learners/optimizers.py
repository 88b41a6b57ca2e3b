"""Optimisers of the paper as optax transformations (§0).

All are rebuilt from zero state at every stage; for images with a constant
learning rate, for text with a warm-up and a linear decay to 0 (§5). L2 is
coupled: added to the gradient of every parameter, batch norm and biases
included, before momentum.
"""
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from alma_jax import fields

RHO, EPSILON = 0.9, 1e-6
ADAM = 0.9, 0.98, 1e-8  # of language models (§5)


def make(train):
  """The optax transformation that `train` (fields.Train) describes."""
  if isinstance(train, fields.TextTrain):
    schedule = _schedule(train)
    return optax.chain(optax.scale_by_adam(*ADAM), optax.scale_by_learning_rate(schedule))
  rate = train.learning_rate
  if train.optimizer == "adadelta":
    core = optax.chain(scale_by_adadelta(RHO, EPSILON), optax.scale_by_learning_rate(rate))
  elif train.optimizer == "sgd":
    core = optax.sgd(rate, train.momentum or None, train.nesterov)
  else:
    core = optax.adam(rate)
  return optax.chain(optax.add_decayed_weights(train.weight_decay), core) if train.weight_decay else core


def rate(train, step):
  """The learning rate of training step `step` of a stage, from 0."""
  return float(_schedule(train)(step)) if isinstance(train, fields.TextTrain) else train.learning_rate


def _schedule(train):
  """Step -> rate: linearly up to the peak at `warmup_steps`, linearly down to 0 behind the last step."""
  peak, = train.learning_rate
  steps, warm = train.plan(0).steps, train.warmup_steps
  up = optax.linear_schedule(peak / (warm + 1), peak, warm)  # the first step counts, too
  down = optax.linear_schedule(peak, 0.0, steps - warm)
  return optax.join_schedules([up, down], [warm])


class AdadeltaState(NamedTuple):
  squares: optax.Updates  # running mean of squared gradients
  moves: optax.Updates  # running mean of squared updates


def scale_by_adadelta(rho, epsilon):
  """optax.scale_by_adadelta with one square root instead of two.

  sqrt((m+ε)/(s+ε)) g for sqrt(m+ε)/sqrt(s+ε) g: on a CPU XLA takes a third of
  the time, and the update is a quarter of an MLP's training step.
  """
  def init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return AdadeltaState(zeros, zeros)

  def update(grads, state, params=None):
    del params
    decay = lambda old, new: rho * old + (1 - rho) * new * new
    squares = jax.tree.map(decay, state.squares, grads)
    moves = jax.tree.map(lambda m, s, g: jnp.sqrt((m + epsilon) / (s + epsilon)) * g,
                         state.moves, squares, grads)
    return moves, AdadeltaState(squares, jax.tree.map(decay, state.moves, moves))

  return optax.GradientTransformation(init, update)
