"""Networks: `build` makes the one that a config names.

  network.py                        what learners use of a network
  mlp.py, vgg.py, wide.py, moe.py   networks for images, of the layers of layers.py; convolution.py computes
                                    convolutions
  switch.py                         the Switch Transformer for text; its parts are transformer.py, attention.py,
                                    routing.py and output_layer.py
  cost.py                           parameters and multiply-adds
"""
from collections.abc import Sequence

import jax.numpy as jnp

from alma_jax.config import registry, schema
from alma_jax.errors import BadInput
from alma_jax.models import mlp, moe, resnet, transformer, vgg, wide
from alma_jax.models.cost import count_params
from alma_jax.models.network import ImageNetwork, Mixture, Network, features, loops_are_slow
from alma_jax.models.path import PathNetwork
from alma_jax.models.switch import SwitchNetwork
from alma_jax.types import Shape

__all__ = ["ImageNetwork", "Mixture", "Network", "PathNetwork", "SwitchNetwork", "build", "count_params",
           "features", "first_widths", "loops_are_slow"]


def build(config: schema.Model | schema.Switch, num_outputs: int, example_shape: Shape, precision: str,
          axis: str | None, *, size: int | None = None, gating: str = "soft", widths: Sequence[int] | None = None,
          residuals: Sequence[int] = ()) -> ImageNetwork | SwitchNetwork:
  """The network that a config names.

  Args:
    config: the section `model` of the config.
    num_outputs: K classes of images; the size of the vocabulary for text.
    example_shape: shape of one example, without the batch axis.
    precision: "float32" or "bfloat16", the dtype of the computation. Parameters are float32.
    axis: the mesh axis that batches are sharded over; None: none.
    size: number of experts that each mixture layer has room for; None: the network has no mixture layers.
    gating: "soft" or "hard" gates of mixture layers; only with `size`.
    widths: the width of each hidden layer, for Firefly; None: all have config.width.
    residuals: units of the residual layer behind each hidden layer, 0 for none; only with `widths`.

  Raises:
    BadInput: the network cannot take such examples, or cannot have mixture layers or other widths.
  """
  dtype = jnp.dtype(precision)
  if isinstance(config, schema.Switch):
    return _switch(config, num_outputs, example_shape, dtype, size)
  if config.name in (*registry.MODELS, "resnet"):
    if size or widths:
      raise BadInput(f"model.name={config.name!r} has no mixtures and is not widened; the learners moe, gmoe and ff "
                     "need 'mlp' or 'vgg'.")
    if config.name == "resnet":
      _check_images(example_shape, config.name)
      return ImageNetwork(resnet.ResNet(config.width, num_outputs, dtype, axis))
    return ImageNetwork(registry.MODELS[config.name](config.width, num_outputs, dtype, axis), counts=True)
  if config.name == "mlp":
    if size is None:
      return ImageNetwork(mlp.MLP(tuple(widths or first_widths(config)), num_outputs, dtype, tuple(residuals)))
    return ImageNetwork(moe.MoEMLP(config.width, num_outputs, size, gating, dtype, axis))
  _check_images(example_shape, config.name, widths is not None)
  if widths:
    return ImageNetwork(wide.WideVGG(tuple(widths), num_outputs, dtype, axis, tuple(residuals)))
  if size is None:
    return ImageNetwork(vgg.VGG(config.width, num_outputs, dtype, axis))
  return ImageNetwork(moe.MoEVGG(config.width, num_outputs, size, gating, dtype, axis))


def first_widths(config: schema.Model) -> tuple[int, ...]:
  """The width of each hidden layer before Firefly widens any."""
  return (config.width,) * (2 if config.name == "mlp" else wide.NUM_CONVS)


def _switch(config: schema.Switch, vocab_size: int, example_shape: Shape, dtype: jnp.dtype, size: int | None
            ) -> SwitchNetwork:
  dropout, = config.dropout
  return SwitchNetwork(transformer.Switch(
      vocab_size, config.width, config.num_layers, config.num_heads, size or config.num_experts,
      config.capacity_factor, config.group_size or example_shape[0] - 1, dropout, config.jitter, config.remat, dtype))


def _check_images(shape: Shape, name: str, widened: bool = False) -> None:
  """Raises BadInput if a convolutional network cannot take images of this shape."""
  shape, least = tuple(map(int, shape)), vgg.MIN_SIZE
  if len(shape) != 3 or min(shape[:2]) < least:
    raise BadInput(f"model.name={name!r} needs images of at least {least}x{least} pixels, "
                   f"but this data set's examples have shape {shape}; use 'mlp'.")
  if widened and max(shape[:2]) >= 2 * least:
    raise BadInput(f"learner.name='ff' widens model.name='vgg' on images of {least} to {2 * least - 1} pixels a side, "
                   f"but this data set's examples have shape {shape}; use model.name='mlp' or another learner.")
