"""Chooses a network by the shape of the examples."""
import dataclasses
from typing import Any, ClassVar

from alma_jax.config.registry import IMAGES, TASKS, register
from alma_jax.models import compact, mlp
from alma_jax.models.network import ImageModel, ImageNetwork
from alma_jax.types import Shape


@register
@dataclasses.dataclass(frozen=True)
class Model(ImageModel):
  """`compact` for images of 8x8 pixels or more, `mlp` for other examples."""
  name: str = "auto"

  problems: ClassVar[tuple[str, ...]] = (IMAGES, TASKS)
  layer_weights: ClassVar[int] = mlp.Model.layer_weights

  def build(self, num_outputs: int, example_shape: Shape, dtype: Any, axis: str | None, **changes: Any
            ) -> ImageNetwork:
    """Of the network that it chooses; see models.build."""
    least = compact.Model.least_pixels
    is_image = len(example_shape) == 3 and min(example_shape[:2]) >= least
    kind: type[ImageModel] = compact.Model if is_image else mlp.Model
    chosen = kind(width=self.width, num_experts=self.num_experts)
    return chosen.build(num_outputs, example_shape, dtype, axis, **changes)
