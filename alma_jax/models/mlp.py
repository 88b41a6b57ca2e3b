"""The paper's network for MNIST: an MLP with two hidden layers (docs/algorithms.md §7)."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import layers, moe
from alma_jax.models.network import ImageModel
from alma_jax.types import Array


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """A perceptron with two hidden layers."""
  name: str = "mlp"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = 1
  one_thread: ClassVar[int] = 128 * 128

  @property
  def first_widths(self) -> tuple[int, ...]:
    return (self.width,) * 2

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return MLP(self.first_widths, num_classes, dtype)

  def mixture(self, num_classes: int, dtype: Any, axis: str | None, size: int, gating: str) -> nn.Module:
    return moe.MoEMLP(self.width, num_classes, size, gating, dtype, axis)

  def widened(self, num_classes: int, dtype: Any, axis: str | None, widths: tuple[int, ...],
              residuals: tuple[int, ...]) -> nn.Module:
    return MLP(widths, num_classes, dtype, residuals)


class MLP(nn.Module):
  """Flattens its inputs; hidden ReLU layers, then a linear output layer.

  With D inputs, K classes and two hidden layers of width h it has h²+(D+1+K)h+K + h parameters: 26,506 for MNIST at
  width 32. Firefly widens the hidden layers and adds residual layers behind them (docs/algorithms.md §4).

  Attributes:
    widths: the width of each hidden layer.
    num_classes: K.
    dtype: of the computation.
    residuals: units of the residual layer behind each hidden layer, 0 for none; empty: none anywhere.
    matrix: of the hidden layers, see layers.Dense.
  """
  widths: tuple[int, ...]
  num_classes: int
  dtype: jnp.dtype = jnp.float32
  residuals: tuple[int, ...] = ()
  matrix: str = "kernel"
  frozen: tuple[str, ...] = ()  # changes nothing: there is no batch norm

  convolutional = False
  pools = (False, False)  # whether a pooling follows each layer

  @property
  def parts(self) -> tuple[str, ...]:
    """The modules, see path.py."""
    return (*(f"hidden{i}" for i in range(len(self.widths))), "output")

  @nn.compact
  def __call__(self, x_B: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of x [B, ...] float. The mask and `train` change nothing."""
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for i, width in enumerate(self.widths):
      x_BD = nn.relu(layers.Dense(width, self.dtype, self.matrix, name=f"hidden{i}")(x_BD))
      if self.residuals and self.residuals[i]:
        x_BD = layers.Residual(self.residuals[i], self.dtype, None, name=f"residual{i}")(x_BD, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BD)
