"""Networks as the learners see them: hashable, with `init` and `apply`."""
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import members, plugins
from alma_jax.errors import BadInput
from alma_jax.models import mlp, moe, switch, vgg, wide
from alma_jax.models.switch import SwitchNetwork
from alma_jax.types import Variables


@dataclasses.dataclass(frozen=True)
class Network:
  """A Flax module of signature (x, mask_B, train) as two pure functions."""
  module: nn.Module

  def init(self, key, x):
    """Fresh variables for inputs like `x` [B, ...] float."""
    tree = self.module.init(key, x, None, train=False)
    return Variables(tree["params"], tree.get("batch_stats", {}))

  def inputs(self, shape):
    """Shapes and dtypes of a batch of inputs [B, ...]."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)

  def total(self, variables, x, mask):
    """A number that takes a whole forward pass; its multiply-adds are what is counted."""
    return self.apply(variables, x, mask, train=False)[0].sum()

  def apply(self, variables, x, mask, train, key=None):
    """Logits [B, K] float32, and the batch-norm statistics after this batch.

    `mask` bool [B] tells examples from padding; None: there is none. `key` is
    for networks that draw in training.
    """
    tree = {"params": variables.params, "batch_stats": variables.stats}
    if not train:
      return self.module.apply(tree, x, mask, train=False), variables.stats
    rngs = None if key is None else {"gating": key}
    logits, new = self.module.apply(tree, x, mask, train=True, mutable=["batch_stats"], rngs=rngs)
    return logits, new.get("batch_stats", {})


@dataclasses.dataclass(frozen=True)
class Mixture:
  """A uniform mixture: `size` networks whose logits are averaged or added.

  One network to whoever trains it (UMix, docs/algorithms.md §2); its variables carry
  a leading axis of `size`.
  """
  network: Network
  size: int
  combine: str  # mean, sum

  def init(self, key, x):
    # The first component starts as the network alone would.
    keys = jnp.stack([key, *(jax.random.fold_in(key, i) for i in range(1, self.size))])
    return jax.vmap(self.network.init, in_axes=(0, None))(keys, x)

  inputs, total = Network.inputs, Network.total

  def apply(self, variables, x, mask, train, key=None):
    logits, stats = members.apply(
        lambda v: self.network.apply(v, x, mask, train, key), self.size, variables)
    total = logits.sum(0)
    return (total / self.size if self.combine == "mean" else total), stats


def build(config, num_classes, image_shape, precision, axis, *, size=None, gating=None, widths=None, residuals=()):
  """The network that `config` (fields.Model) names.

  Args:
    config: fields.Model or Switch.
    num_classes: K; of text the vocabulary's size.
    image_shape: shape of one example, without the batch axis.
    precision: "float32" or "bfloat16": dtype of the computation; parameters
      are float32 either way.
    axis: mesh axis that batches are sharded over.
    size: experts that its mixture layers have room for; None: it has none.
    gating: of them, soft or hard.
    widths: of its hidden layers, one by one, for Firefly; None: all config.width.
    residuals: units of the residual layers behind them, with `widths`.

  Returns:
    Network or SwitchNetwork.

  Raises:
    BadInput: the network cannot take such examples.
  """
  if config.name == "switch":
    rate, = config.dropout
    return SwitchNetwork(switch.Switch(
        num_classes, config.width, config.num_layers, config.num_heads, size or config.num_experts,
        config.capacity_factor, config.group_size or image_shape[0] - 1, rate, config.jitter, config.remat,
        jnp.dtype(precision)))
  if config.name in plugins.MODELS:
    if size or widths:
      raise BadInput(f"model.name={config.name!r} has no mixtures and is not widened; the learners moe, gmoe and ff "
                     "want 'mlp' or 'vgg'.")
    return Network(plugins.MODELS[config.name](config.width, num_classes, jnp.dtype(precision), axis))
  dtype, shape, least = jnp.dtype(precision), tuple(map(int, image_shape)), vgg.MIN_SIZE
  if config.name == "mlp" and size is None:
    return Network(mlp.MLP(widths or first_widths(config), num_classes, dtype, residuals))
  if config.name == "mlp":
    return Network(moe.MoEMLP(config.width, num_classes, size, gating, dtype, axis))
  if len(shape) != 3 or min(shape[:2]) < least:
    raise BadInput(f"model.name='vgg' needs images of at least {least}x{least} pixels, "
                   f"but this data set's examples have shape {shape}; use 'mlp'.")
  if widths and max(shape[:2]) >= 2 * least:
    raise BadInput(f"learner.name='ff' widens model.name='vgg' on images of {least} to {2 * least - 1} pixels a side, "
                   f"but this data set's examples have shape {shape}.")
  if widths:
    return Network(wide.WideVGG(widths, num_classes, dtype, axis, residuals))
  if size is None:
    return Network(vgg.VGG(config.width, num_classes, dtype, axis))
  return Network(moe.MoEVGG(config.width, num_classes, size, gating, dtype, axis))


def first_widths(config):
  """Widths of the hidden layers of `config` (fields.Model), one by one."""
  return (config.width,) * (2 if config.name == "mlp" else wide.NUM_CONVS)


def features(network, variables, x):
  """float32 [B, H], the inputs of the network's last layer in evaluation."""
  tree = {"params": variables.params, "batch_stats": variables.stats}
  _, sown = network.module.apply(tree, x, None, train=False, mutable=["features"])
  return sown["features"]["output"]["penultimate"][0]


def count_params(params):
  """Number of trainable parameters in a pytree of arrays or shapes."""
  return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(params)))


def loops_are_slow(network):
  """Whether XLA would run this network slowly inside a loop: convolutions on a CPU."""
  inner = network.network if isinstance(network, Mixture) else network
  return inner.module.convolutional and jax.default_backend() == "cpu"
