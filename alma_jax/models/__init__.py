"""Networks: `build` makes the one that a config names.

  network.py                        what learners use of a network
  mlp.py, vgg.py, wide.py, moe.py   networks for images, of the layers of layers.py; convolution.py computes
                                    convolutions
  switch.py                         the Switch Transformer for text; its parts are transformer.py, attention.py,
                                    routing.py and output_layer.py
  cost.py                           parameters and multiply-adds
"""
from typing import Any

import jax.numpy as jnp

from alma_jax.config import sections
from alma_jax.models.cost import count_params
from alma_jax.models.network import ImageModel, ImageNetwork, Mixture, Network, features, loops_are_slow
from alma_jax.models.path import PathNetwork
from alma_jax.models.switch import SwitchNetwork
from alma_jax.types import Shape

__all__ = ["ImageModel", "ImageNetwork", "Mixture", "Network", "PathNetwork", "SwitchNetwork", "build", "count_params",
           "features", "loops_are_slow"]


def build(config: sections.Model, num_outputs: int, example_shape: Shape, precision: str, axis: str | None,
          **changes: Any) -> Any:
  """The network that a config names.

  Args:
    config: the section `model` of the config.
    num_outputs: K classes of images; the size of the vocabulary for text.
    example_shape: shape of one example, without the batch axis.
    precision: "float32" or "bfloat16", the dtype of the computation. Parameters are float32.
    axis: the mesh axis that batches are sharded over; None: none.
    **changes: what a learner asks for; for images `size`, `gating`, `widths` and `residuals`, for text `size`.
    size: number of experts that each mixture layer has room for; None: the network has no mixture layers.
    gating: "soft" or "hard" gates of mixture layers; only with `size`.
    widths: the width of each hidden layer, for Firefly; None: all have config.width.
    residuals: units of the residual layer behind each hidden layer, 0 for none; only with `widths`.

  Raises:
    BadInput: the network cannot take such examples, or cannot have mixture layers or other widths.
  """
  return config.build(num_outputs, example_shape, jnp.dtype(precision), axis, **changes)
