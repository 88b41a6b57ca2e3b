"""Networks for images whose layers are mixtures of experts behind a binary tree of gates (docs/algorithms.md §3).

Each mixture layer has room for a fixed number of experts and gates, its capacity, and the tree is an array among the
network's statistics. A split therefore changes no shape and compiles nothing, until the capacity is full.

A tree is written as a list of splits. Split i puts gate i in the place of leaf splits[i]; this leaf becomes the left
child of the gate, and the new leaf i + 1 becomes its right child.
"""
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.models import layers
from alma_jax.models.network import ImageNetwork
from alma_jax.parallel import members
from alma_jax.types import Array, Key, Shape, Tree, Variables


def capacity(num_experts: int, most: int) -> int:
  """The number of experts that a layer of `num_experts` has room for, if it will hold `most` in the end.

  It is the smallest of most, most / 3, most / 9, ..., rounded up, that is large enough; beyond `most` of 3 most, ...
  A factor of 3 compiles fewer programs than one of 2 and computes as many experts that are not in use, because the
  last capacity has none.
  """
  size = most
  while size < num_experts:
    size *= 3
  while (smaller := -(-size // 3)) >= num_experts and smaller < size:
    size = smaller
  return size


def balanced(num_experts: int) -> list[int]:
  """The splits of a tree with `num_experts` leaves whose depths differ by 1 at most."""
  return [i + 1 - (1 << ((i + 1).bit_length() - 1)) for i in range(num_experts - 1)]


def nested(splits: Sequence[int]) -> int | tuple[int, Any, Any]:
  """The tree as nested tuples: a leaf is its number, a gate is (number, left child, right child)."""
  def grown(leaf: int, first: int) -> int | tuple[int, Any, Any]:
    """What `leaf` becomes by the splits from number `first` on."""
    for gate in range(first, len(splits)):
      if splits[gate] == leaf:
        return gate, grown(leaf, gate + 1), grown(gate + 1, gate + 1)
    return leaf
  return grown(0, 0)


def paths(splits: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray]:
  """The tree as arrays of a layer with room for `size` experts.

  Returns:
    (tree, live). tree, float32 [E, G, 2] with E = size and G = size - 1, is 1 if the path to a leaf takes that branch
    (0 left, 1 right) of that gate. live, float32 [E], is 1 for the leaves that exist.
  """
  tree_EG2, live_E = np.zeros((size, size - 1, 2), np.float32), np.zeros(size, np.float32)
  live_E[:len(splits) + 1] = 1
  for gate, leaf in enumerate(splits):
    tree_EG2[gate + 1] = tree_EG2[leaf]
    tree_EG2[leaf, gate, 0] = tree_EG2[gate + 1, gate, 1] = 1
  return tree_EG2, live_E


class MixtureLayer(nn.Module):
  """A layer of experts, each weighted by the gates on the path to it.

  All gates read the input of the layer. The layer sows the weights of its experts, float32 [B, E], under "routing". A
  layer with room for one expert has no gates, and sows nothing.

  Attributes:
    expert: unbound Flax module of signature (x, mask_B, train).
    size: E, the number of experts that there is room for.
    convolutional: whether the experts are convolutions, which cannot be computed as one matrix product for all experts.
    gating: "soft": the weights are products of the gates' probabilities. "hard": one branch of each gate is taken, in
      training drawn by its probabilities (straight-through estimator), else the likelier one.
    axis: the mesh axis that the batch is sharded over, or None.
  """
  expert: nn.Module
  size: int
  convolutional: bool
  gating: str
  axis: str | None = None

  @nn.compact
  def __call__(self, z: Array, mask_B: Array | None, train: bool) -> Array:
    """The mixture of the experts' outputs for inputs [B, ...]; `mask_B` is False for padding."""
    outputs_BE = self._experts(z, mask_B, train)
    if self.size == 1:
      return outputs_BE[:, 0]
    weights_BE = self._weights(_gate_inputs(z), train)
    self.sow("routing", "weights", weights_BE)
    # Elementwise, because a matrix product would be counted among the multiply-adds.
    weights_BE = weights_BE.astype(outputs_BE.dtype).reshape(weights_BE.shape + (1,) * (outputs_BE.ndim - 2))
    return (weights_BE * outputs_BE).sum(1)

  def _experts(self, z: Array, mask_B: Array | None, train: bool) -> Array:
    """Outputs of all experts, [B, E, ...]."""
    expert = self.expert.clone(parent=None)
    if self.is_initializing():
      return self._fresh(expert, z)
    # `self.param` would trace the initialisation once more, for a check of shapes.
    params: Tree = self.get_variable("params", "experts")
    stats: Tree = self.get_variable("batch_stats", "experts", {})

    def apply(params: Tree, stats: Tree) -> tuple[Array, Tree]:
      tree = {"params": params, "batch_stats": stats}
      if not train:
        output: Any = expert.apply(tree, z, mask_B, False)
        return output, stats
      y, new = expert.apply(tree, z, mask_B, True, mutable=["batch_stats"])
      return y, new.get("batch_stats", {})

    if self.convolutional:
      outputs, stats = members.apply(apply, self.size, params, stats)
      outputs = jnp.moveaxis(outputs, 0, 1)
    else:
      outputs, stats = jax.vmap(apply, out_axes=(1, 0))(params, stats)
    if stats and train:
      self.put_variable("batch_stats", "experts", stats)
    return outputs

  def _fresh(self, expert: nn.Module, z: Array) -> Array:
    """Initialises the experts; returns their outputs [B, E, ...]."""
    made: list[tuple[Array, Tree]] = []

    def init(key: Key) -> Tree:
      one = lambda key: expert.init_with_output(key, z, None, False)
      made.append(jax.vmap(one, out_axes=(1, 0))(jax.random.split(key, self.size)))
      return made[0][1]["params"]

    self.param("experts", init)
    (outputs, tree), = made
    if "batch_stats" in tree:
      self.put_variable("batch_stats", "experts", tree["batch_stats"])
    return outputs

  def _weights(self, z_BD: Array, train: bool) -> Array:
    """Weights of the experts, float32 [B, E], which sum to 1."""
    num_gates, width = self.size - 1, z_BD.shape[1]
    kernel_G2D = self.param("gate_kernel", _init_gates, (num_gates, 2, width))
    bias_G2 = self.param("gate_bias", layers.bias_init(width), (num_gates, 2))
    tree, live = paths((), self.size)
    tree_EG2 = self.variable("batch_stats", "tree", lambda: jnp.asarray(tree)).value
    live_E = self.variable("batch_stats", "live", lambda: jnp.asarray(live)).value
    logits_BG2 = jax.lax.dot_general(z_BD.astype(jnp.float32), kernel_G2D, (((1,), (2,)), ((), ()))) + bias_G2[None]
    if self.gating == "soft":
      log_BE = jax.lax.dot_general(jax.nn.log_softmax(logits_BG2), tree_EG2, (((1, 2), (1, 2)), ((), ())),
                                   precision=jax.lax.Precision.HIGHEST)
      return jnp.exp(log_BE) * live_E[None]
    branch_BG2 = self._draw(logits_BG2) if train else jax.nn.one_hot(jnp.argmax(logits_BG2, -1), 2)
    passed_BEG2 = jnp.where(tree_EG2[None] > 0, branch_BG2[:, None], 1.0)
    return passed_BEG2.prod((2, 3)) * live_E[None]

  def _draw(self, logits_BG2: Array) -> Array:
    """One-hot branches [B, G, 2], drawn by their probabilities, with the gradient of these probabilities."""
    probs_BG2 = jax.nn.softmax(logits_BG2)
    num, num_gates, _ = probs_BG2.shape
    # Drawn for the batches of all devices, so that the draws do not depend on the number of devices.
    devices = 1 if self.axis is None else jax.lax.axis_size(self.axis)
    start = 0 if self.axis is None else jax.lax.axis_index(self.axis) * num
    noise_BG = jax.random.uniform(self.make_rng("gating"), (devices * num, num_gates))
    noise_BG = jax.lax.dynamic_slice_in_dim(noise_BG, start, num)
    drawn_BG2 = jax.nn.one_hot((noise_BG >= probs_BG2[:, :, 0]).astype(jnp.int32), 2)
    return drawn_BG2 + probs_BG2 - jax.lax.stop_gradient(probs_BG2)


def _init_gates(key: Key, shape: Shape) -> Array:
  """Initial kernel [G, 2, D] of gates; both branches of all gates are outputs of one linear layer."""
  num_gates, _, width = shape
  return jnp.moveaxis(layers.kernel_init(key, (width, num_gates * 2)), 0, 1).reshape(shape)


def _gate_inputs(z: Array, pool: int = 4) -> Array:
  """What gates read of inputs [B, ...], as [B, D].

  Images are averaged over pool x pool bins. Along an axis of length H, bin i holds the pixels from floor(iH/pool) to
  ceil((i+1)H/pool) - 1.
  """
  if z.ndim == 2:
    return z
  bins = lambda size: [slice(i * size // pool, -(-(i + 1) * size // pool)) for i in range(pool)]
  means = [z[:, rows, columns].mean((1, 2)) for rows in bins(z.shape[1]) for columns in bins(z.shape[2])]
  return jnp.concatenate(means, -1)


class _DenseExpert(nn.Module):
  """Linear layer and ReLU."""
  width: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x_BD: Array, mask_B: Array | None, train: bool) -> Array:
    return nn.relu(layers.Dense(self.width, self.dtype, name="dense")(x_BD))


class _MixtureNetwork(nn.Module):
  """A network with mixture layers.

  Attributes:
    width: of every expert.
    num_classes: K.
    size: experts that each mixture layer has room for.
    gating: see MixtureLayer.
    dtype: of the computation.
    axis: the mesh axis that the batch is sharded over, or None.
  """
  width: int
  num_classes: int
  size: int
  gating: str
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None


class MoEMLP(_MixtureNetwork):
  """The MLP of mlp.py whose two hidden layers are mixtures.

  With E live experts, D inputs, K classes and width h it has E(Dh+h)+2(E-1)(D+1)+E(h²+h)+2(E-1)(h+1)+Kh+K parameters.
  """

  convolutional = False
  mixtures = ("hidden0", "hidden1")

  @nn.compact
  def __call__(self, x_B: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of x [B, ...] float."""
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for name in self.mixtures:
      expert = _DenseExpert(self.width, self.dtype, parent=None)
      x_BD = MixtureLayer(expert, self.size, False, self.gating, self.axis, name=name)(x_BD, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BD)


class _BlockExpert(nn.Module):
  """A block of VGG19, see layers.vgg_block."""
  width: int
  num_convs: int
  dtype: jnp.dtype
  axis: str | None

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    return layers.vgg_block(x_BHWC, mask_B, train, self.width, self.num_convs, self.dtype, self.axis, "layer")


class MoEVGG(_MixtureNetwork):
  """VGG19 whose blocks 2 to 5 are mixtures of whole blocks.

  With E live experts, K classes and width c it has 9c²+33c+E(126c²+42c)+8(E-1)(16c+1)+Kc+K parameters on 32x32x3
  images.
  """

  convolutional = True
  mixtures = ("block1", "block2", "block3", "block4")

  @nn.compact
  def __call__(self, x_BHWC: Array, mask_B: Array | None, train: bool) -> Array:
    """Logits, float32 [B, K], of images [B, H, W, C] float, H and W at least 32."""
    x_BHWC = x_BHWC.astype(self.dtype)
    x_BHWC = layers.vgg_block(x_BHWC, mask_B, train, self.width, layers.VGG_BLOCKS[0], self.dtype, self.axis, "block0")
    for name, num_convs in zip(self.mixtures, layers.VGG_BLOCKS[1:]):
      expert = _BlockExpert(self.width, num_convs, self.dtype, self.axis, parent=None)
      x_BHWC = MixtureLayer(expert, self.size, True, self.gating, self.axis, name=name)(x_BHWC, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BHWC)


def route(network: ImageNetwork, variables: Variables, x: Array) -> tuple[Array, dict[str, Array]]:
  """Logits and expert weights in evaluation.

  Args:
    network: a network with mixture layers.
    variables: its variables.
    x: float32 [B, ...].

  Returns:
    (logits float32 [B, K], {mixture layer: weights of its experts, float32 [B, E]}). Layers without gates are missing.
  """
  tree = {"params": variables.params, "batch_stats": variables.stats}
  logits_BK, sown = network.module.apply(tree, x, None, train=False, mutable=["routing"])
  return logits_BK, {layer: leaves["weights"][0] for layer, leaves in sown.get("routing", {}).items()}
