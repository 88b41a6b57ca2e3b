"""A network for examples of any shape."""
import dataclasses
from typing import Any, ClassVar

import flax.linen as nn

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import compact, mlp
from alma_jax.models.network import ImageModel, ImageNetwork
from alma_jax.types import Shape


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """`compact` for images of 14x14 pixels or more, a perceptron with two hidden layers for other examples.

  Adam trains the perceptron under `muon`, too: orthogonalising a matrix of width w costs as much as training on 5w
  examples, and gains less.
  """
  name: str = "auto"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = mlp.Model.layer_weights

  def build(self, num_outputs: int, example_shape: Shape, dtype: Any, axis: str | None, **changes: Any
            ) -> ImageNetwork:
    """Builds the network that it chooses; see models.build."""
    if len(example_shape) == 3 and min(example_shape[:2]) >= compact.LEAST:
      return compact.Model(name=self.name, width=self.width).build(num_outputs, example_shape, dtype, axis, **changes)
    return super().build(num_outputs, example_shape, dtype, axis, **changes)

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    return mlp.MLP((self.width,) * 2, num_classes, dtype, matrix="weights")
