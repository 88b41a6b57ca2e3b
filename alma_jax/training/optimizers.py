"""The optimisers that the section `train` of a config can name, as optax transformations (docs/algorithms.md §0, §5).

  adadelta       images, tasks: as the paper uses it for MNIST; the default for images
  adam           all: the default for tasks and text; for text with the moments of the Switch Transformer
  adamw          all: Adam with decoupled weight decay
  muon           all: matrices and convolutions by their orthogonalised momentum, the rest by Adam
  schedule_free  all: AdamW whose average of all steps predicts; the rate need not fall
  sgd            images, tasks: with momentum, Nesterov's too

To add one, write a class whose `transform` returns the transformation, and register it for its problems. `of` adds what
all have in common. Their state is fresh at every stage, unless a learner keeps it.
"""
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from alma_jax.config.fields import field
from alma_jax.config.registry import IMAGES, TASKS, TEXT, register
from alma_jax.config.sections import Optimizer
from alma_jax.errors import BadInput
from alma_jax.models import cost
from alma_jax.models.network import Network
from alma_jax.types import Shape

RHO, EPSILON = 0.9, 1e-6  # of Adadelta


def of(train: Any, decay: Any = None, factors: Sequence[Any] = ()) -> optax.GradientTransformation:
  """The optimiser of a section `train`.

  The L2 penalty is coupled: it is added to the gradient of every parameter, of batch norm and biases, too, before
  momentum. An optimiser whose `decoupled` is true shrinks the parameters by rate x penalty instead.

  Args:
    train: the section.
    decay: coefficient of a penalty besides `train.weight_decay`, and
    factors: of the learning rate. They may be traced, and the state does not depend on them.
  """
  rate = _schedule(train)
  core = train.optimizer.transform(rate)
  if train.weight_decay:
    shrinking = optax.add_decayed_weights(_times(-train.weight_decay, rate))
    core = optax.chain(*_penalized(train, core, train.weight_decay, shrinking))
  parts = [core]
  if decay is not None:  # XLA rounds this difference otherwise than the sum above
    shrinking = optax.stateless(lambda updates, params: jax.tree.map(
        lambda update, old: update - rate * decay * old, updates, params))
    parts = _penalized(train, core, decay, shrinking)
  parts, whole = [*parts, *map(optax.scale, factors)], rate
  for factor in factors:
    whole = _times(factor, whole)

  def update(updates: optax.Updates, state: Any, params: optax.Params | None = None) -> tuple[optax.Updates, Any]:
    after = {}
    for part in parts:
      updates, after[part] = part.update(updates, state if part is core else optax.EmptyState(), params)
    return updates, after[core]

  return train.optimizer.around(optax.GradientTransformation(core.init, update), whole)


def rate(train: Any, step: int) -> Any:
  """The learning rate of the optimiser of a section `train` in a step of a stage, from 0."""
  made = _schedule(train)
  return made(step) if callable(made) else made


def flops(train: Any, network: Network, shape: Shape) -> int:
  """Floating-point operations of training on one example of `shape` (1, ...): both passes, and its part of an update.

  An update counts its matrix products, 2 operations per multiply-add. 0 while costs are predicted.
  """
  passes = cost.training_flops(network, shape)
  if not passes or not train.optimizer.multiplies:
    return passes
  return passes + _update_flops(train, network, shape) // train.batch_size


@functools.lru_cache(maxsize=64)
def _update_flops(train: Any, network: Network, shape: Shape) -> int:
  optimizer, params = of(train), cost.abstract_variables(network, shape).params
  return 2 * cost.count(lambda params: optimizer.update(params, optimizer.init(params), params), params)


def _penalized(train: Any, core: optax.GradientTransformation, decay: Any, shrinking: optax.GradientTransformation
               ) -> list[optax.GradientTransformation]:
  """The optimiser and its L2 penalty, in their order; `shrinking` is the penalty if it is decoupled."""
  return [core, shrinking] if train.optimizer.decoupled else [optax.add_decayed_weights(decay), core]


def _schedule(train: Any) -> float | optax.Schedule:
  """A number, or the rate of each step: linear up to its peak, constant, then linear down to 0 after the last step."""
  if not train.falling:
    return float(train.learning_rate)
  (peak,), warm = train.learning_rate, train.warmup_steps
  up = optax.linear_schedule(peak / (warm + 1), peak, warm)  # the rate of step 0 is not 0
  down = optax.linear_schedule(peak, 0.0, train.falling, train.plan(0).steps - warm - train.falling)
  return optax.join_schedules([up, down], [warm])


def _times(factor: Any, rate: Any) -> Any:
  """A learning rate, a number or a schedule, times a factor."""
  return (lambda step: factor * rate(step)) if callable(rate) else factor * rate


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
  nesterov: bool = field(False, "Nesterov's momentum")

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

  moments: ClassVar[tuple[float, float, float]] = 0.9, 0.999, 1e-8  # β1, β2 and ε

  def transform(self, rate: Any) -> optax.GradientTransformation:
    return optax.adam(rate, *self.moments)


@register
@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
  """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
  name: str = "adamw"

  decoupled: ClassVar[bool] = True


@register
@dataclasses.dataclass(frozen=True)
class Muon(Optimizer):
  """Muon for matrices and convolutions, Adam with Nesterov momentum for the rest (Jordan et al., 2024)."""
  name: str = "muon"
  momentum: float = field(0.9, "Nesterov momentum", at_least=0, below=1)
  adam_rate: float = field(
      0.1, "Adam trains the last layer and what is no matrix, at this share of `train.learning_rate`", above=0)

  decoupled: ClassVar[bool] = True
  multiplies: ClassVar[bool] = True
  mirrors: ClassVar[bool] = False

  def transform(self, rate: Any) -> optax.GradientTransformation:
    return contrib.muon(rate, beta=self.momentum, adam_learning_rate=_times(self.adam_rate, rate),
                        muon_weight_dimension_numbers=self.matrices)

  @staticmethod
  def matrices(params: Any) -> Any:
    """What Muon takes for a matrix, a pytree of dimension numbers; None: Adam trains this parameter.

    Kernels of dense layers are [..., outputs, inputs], those of convolutions [..., H, W, inputs, outputs]; each expert
    and each network of a mixture has matrices of its own. Adam trains gates and the last layer.
    """
    def matrix(path: Any, leaf: Any) -> contrib.MuonDimensionNumbers | None:
      names = [each.key for each in path]
      if not names[-1].endswith("kernel") or names[-1].startswith("gate") or "output" in names:
        return None
      return contrib.MuonDimensionNumbers(*((-1, -2) if leaf.ndim < 4 else ((-4, -3, -2), -1)))

    return jax.tree_util.tree_map_with_path(matrix, params)


@register
@dataclasses.dataclass(frozen=True)
class ScheduleFree(Optimizer):
  """Schedule-free AdamW, whose average of all steps predicts; the rate need not fall (Defazio et al., 2024)."""
  name: str = "schedule_free"
  momentum: float = field(
      0.9, "gradients are taken where the average has this share and the newest step the rest", above=0, below=1)

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS, TEXT)
  decoupled: ClassVar[bool] = True
  mirrors: ClassVar[bool] = False

  def transform(self, rate: Any) -> optax.GradientTransformation:
    _, decay, eps = Adam.moments
    return optax.chain(optax.scale_by_rms(decay, eps, eps_in_sqrt=False, bias_correction=True),
                       optax.scale_by_learning_rate(rate))

  def around(self, inner: optax.GradientTransformation, rate: Any) -> optax.GradientTransformation:
    return contrib.schedule_free(inner, rate, self.momentum)

  def evaluated(self, state: Any, params: Any) -> Any:
    return contrib.schedule_free_eval_params(state, params)

  def check(self, config: Any) -> None:
    """Raises BadInput if the weights would be averaged twice."""
    if config.learner.average:
      raise BadInput(f"learner.average={config.learner.average} averages weights that train.optimizer={self.name} "
                     "averages already; set learner.average=0.")


@register
@dataclasses.dataclass(frozen=True)
class TextAdam(Adam):
  """Adam, as language models use it."""
  problems: ClassVar[tuple[str, ...]] = (TEXT,)
  moments: ClassVar[tuple[float, float, float]] = 0.9, 0.98, 1e-8


@register
@dataclasses.dataclass(frozen=True)
class TextAdamW(TextAdam):
  """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""
  name: str = "adamw"

  decoupled: ClassVar[bool] = True


@register
@dataclasses.dataclass(frozen=True)
class TextMuon(Muon):
  """Muon for the matrices of layers, one for each expert, Adam with Nesterov momentum for the rest."""
  momentum: float = 0.95
  adam_rate: float = field(
      0.4, "Adam trains embeddings, routers and vectors, at this share of `train.learning_rate`",
      above=0)

  problems: ClassVar[tuple[str, ...]] = (TEXT,)

  @staticmethod
  def matrices(params: Any) -> Any:
    """Kernels [..., inputs, outputs] of layers."""
    def matrix(path: Any, leaf: Any) -> contrib.MuonDimensionNumbers | None:
      return contrib.MuonDimensionNumbers(-2, -1) if path[-1].key.endswith("kernel") else None

    return jax.tree_util.tree_map_with_path(matrix, params)


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
