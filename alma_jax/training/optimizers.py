"""Optimisers of the paper as optax transformations (docs/algorithms.md §0).

Their state is fresh at every stage, unless a learner keeps it. The learning rate is constant for images; for text it
has a warm-up and a linear decay to 0 (§5). The L2 penalty is coupled: it is added to the gradient of every parameter,
of batch norm and biases, too, before momentum.
"""
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax.config import image_sections, text_sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.config.sections import Optimizer
from alma_jax.errors import BadInput

RHO, EPSILON = 0.9, 1e-6  # of Adadelta
ADAM = 0.9, 0.98, 1e-8  # β1, β2 and ε for language models (§5)


@register
@dataclasses.dataclass(frozen=True)
class Adadelta(Optimizer):
  """Adadelta, as the paper uses it for MNIST."""
  name: str = "adadelta"

  def transform(self, rate: Any) -> optax.GradientTransformation:
    return optax.chain(scale_by_adadelta(RHO, EPSILON), optax.scale_by_learning_rate(rate))


@register
@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
  """Stochastic gradient descent."""
  name: str = "sgd"
  momentum: float = field(0.0, "momentum", at_least=0, below=1)
  nesterov: bool = field(False, "whether the momentum is Nesterov's")

  def transform(self, rate: Any) -> optax.GradientTransformation:
    return optax.sgd(rate, self.momentum or None, self.nesterov)

  def check(self, config: Any) -> None:
    """Raises BadInput if the fields do not go together."""
    del config
    if self.nesterov and not self.momentum:
      raise BadInput("train.nesterov=True needs train.momentum above 0.")


@register
@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
  """Adam."""
  name: str = "adam"

  def transform(self, rate: Any) -> optax.GradientTransformation:
    return optax.adam(rate)


def make(train: image_sections.Train | text_sections.Train) -> optax.GradientTransformation:
  """The optax transformation that the section `train` of a config describes."""
  if isinstance(train, text_sections.Train):
    schedule = _schedule(train)
    return optax.chain(optax.scale_by_adam(*ADAM), optax.scale_by_learning_rate(schedule))
  core = train.optimizer.transform(train.learning_rate)
  return optax.chain(optax.add_decayed_weights(train.weight_decay), core) if train.weight_decay else core


def rate(train: image_sections.Train | text_sections.Train, stage: int, step: int, steps: int) -> float:
  """The learning rate of training step `step` of a stage of `steps`, both counted from 0."""
  found = float(jnp.asarray(_schedule(train)(step))) if isinstance(train, text_sections.Train) else train.learning_rate
  factor = scale(train, stage, np.array([step]), steps)
  return found if factor is None else found * float(factor[0])


def scale(train: image_sections.Train | text_sections.Train, stage: int, step: np.ndarray,
          steps: int) -> np.ndarray | None:
  """Factors of the learning rate, apart from what it is in every stage of a run.

  Args:
    train: the section `train` of the config.
    stage: number of the stage, from 0.
    step: int [R], training steps of the stage, from 0.
    steps: number of all training steps of the stage.

  Returns:
    float32 [R]; None if all runs with this `train` have the factor 1.
  """
  if isinstance(train, text_sections.Train):
    return None if train.restart == 1 else np.full(len(step), train.restart if stage else 1, np.float32)
  if not train.decay:
    return None
  return np.clip((steps - step) / (train.decay * steps), 0, 1).astype(np.float32)


def _schedule(train: text_sections.Train) -> optax.Schedule:
  """Step -> rate: linear up to the peak at step `warmup_steps`, constant, then linear down to 0 after the last step."""
  peak, = train.learning_rate
  steps, warm = train.plan(0).steps, train.warmup_steps
  falling = max(1, min(round(train.decay * steps), steps - warm))
  up = optax.linear_schedule(peak / (warm + 1), peak, warm)  # the rate of step 0 is not 0
  return optax.join_schedules([up, optax.linear_schedule(peak, 0.0, falling, steps - warm - falling)], [warm])


class AdadeltaState(NamedTuple):
  """State of `scale_by_adadelta`: pytrees of the parameters' structure.

  Attributes:
    squares: running mean of squared gradients.
    moves: running mean of squared updates.
  """
  squares: optax.Updates
  moves: optax.Updates


def scale_by_adadelta(rho: float, epsilon: float) -> optax.GradientTransformation:
  """optax.scale_by_adadelta with one square root instead of two.

  It computes sqrt((m + ε) / (s + ε)) g in place of sqrt(m + ε) / sqrt(s + ε) g. XLA on a CPU takes a third of the time
  for it, and the update is a quarter of the time of an MLP's training step.
  """
  def init(params: optax.Params) -> AdadeltaState:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return AdadeltaState(zeros, zeros)

  def update(grads: optax.Updates, state: AdadeltaState, params: optax.Params | None = None
             ) -> tuple[optax.Updates, AdadeltaState]:
    del params
    decay = lambda old, new: rho * old + (1 - rho) * new * new
    squares = jax.tree.map(decay, state.squares, grads)
    moves = jax.tree.map(lambda m, s, g: jnp.sqrt((m + epsilon) / (s + epsilon)) * g,
                         state.moves, squares, grads)
    return moves, AdadeltaState(squares, jax.tree.map(decay, state.moves, moves))

  return optax.GradientTransformation(init, update)
