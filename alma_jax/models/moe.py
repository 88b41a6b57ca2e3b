"""Mixtures of experts behind a binary tree of gates (docs/algorithms.md §3).

Experts and gates are stacked to a capacity, and the tree lies among the
network's statistics as an array: a split changes no shape, and so compiles
nothing, until the capacity is full.

A tree is written as the list of its splits: split i puts gate i in the place of
leaf splits[i], which becomes the left child; the right child is leaf i + 1.
"""
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import members
from alma_jax.models import layers, vgg


def capacity(num_experts):
  """Experts that a layer of `num_experts` has room for: the next power of two."""
  return 1 << (num_experts - 1).bit_length()


def balanced(num_experts):
  """The splits of a tree whose `num_experts` leaves are as equally deep as can be."""
  return [i + 1 - (1 << ((i + 1).bit_length() - 1)) for i in range(num_experts - 1)]


def nested(splits):
  """The tree as leaves (int) and gates (number, left, right)."""
  def under(leaf, first):  # what became of `leaf` from split `first` on
    for gate in range(first, len(splits)):
      if splits[gate] == leaf:
        return gate, under(leaf, gate + 1), under(gate + 1, gate + 1)
    return leaf
  return under(0, 0)


def paths(splits, size):
  """Tree as arrays of a layer with capacity `size`.

  Returns:
    float32 [size, size - 1, 2]: 1 where a leaf lies behind that branch of that
    gate; and float32 [size]: 1 for the leaves that there are.
  """
  tree, live = np.zeros((size, size - 1, 2), np.float32), np.zeros(size, np.float32)
  live[:len(splits) + 1] = 1
  for gate, leaf in enumerate(splits):
    tree[gate + 1] = tree[leaf]
    tree[leaf, gate, 0] = tree[gate + 1, gate, 1] = 1
  return tree, live


class MixtureLayer(nn.Module):
  """Experts of one kind, each weighted by the gates on the path to it.

  All gates see the layer's input. Without room for a second expert there are no
  gates. Sows "routing", the experts' weights [B, E].

  Attributes:
    expert: unbound Flax module of signature (x, mask, train).
    size: E, experts that there is room for.
    apart: whether the experts share no product of matrices (convolutions).
    gating: "soft": the gates' probabilities; "hard": in training one branch is
      drawn by them (straight-through estimator), else the likelier one taken.
    axis: mesh axis that the batch is sharded over, or None.
  """
  expert: nn.Module
  size: int
  apart: bool
  gating: str
  axis: str | None = None

  @nn.compact
  def __call__(self, z, mask_B, train):
    """Input [B, ...] of every expert -> the mixture of their outputs."""
    outputs_BE = self._experts(z, mask_B, train)
    if self.size == 1:
      return outputs_BE[:, 0]
    weights_BE = self._weights(_gate_inputs(z), train)
    self.sow("routing", "weights", weights_BE)
    # Elementwise, so that nobody counts the mixing as a product of matrices.
    weights_BE = weights_BE.astype(outputs_BE.dtype).reshape(weights_BE.shape + (1,) * (outputs_BE.ndim - 2))
    return (weights_BE * outputs_BE).sum(1)

  def _experts(self, z, mask_B, train):
    expert = self.expert.clone(parent=None)
    fresh = lambda keys: jax.vmap(lambda key: expert.init(key, z, None, False))(keys)
    keys = lambda key: jax.random.split(key, self.size)
    params = self.param("experts", lambda key: fresh(keys(key))["params"])
    if self.is_initializing():
      stats = fresh(keys(jax.random.key(0))).get("batch_stats", {})
    else:
      stats = self.get_variable("batch_stats", "experts", {})

    def apply(params, stats):
      tree = {"params": params, "batch_stats": stats}
      if not train:
        return expert.apply(tree, z, mask_B, False), stats
      y, new = expert.apply(tree, z, mask_B, True, mutable=["batch_stats"])
      return y, new.get("batch_stats", {})

    if self.apart:
      outputs, stats = members.apply(apply, self.size, params, stats)
      outputs = jnp.moveaxis(outputs, 0, 1)
    else:
      outputs, stats = jax.vmap(apply, out_axes=(1, 0))(params, stats)
    if stats and (train or self.is_initializing()):
      self.put_variable("batch_stats", "experts", stats)
    return outputs

  def _weights(self, z_BD, train):
    """[B, E] float32; sums to 1."""
    gates = self.size - 1
    init = lambda key, shape: jnp.moveaxis(layers.kernel_init(key, (shape[2], shape[0] * 2)), 0, 1).reshape(shape)
    kernel = self.param("gate_kernel", init, (gates, 2, z_BD.shape[1]))
    bias = self.param("gate_bias", layers.bias_init(z_BD.shape[1]), (gates, 2))
    tree, live = paths((), self.size)
    tree = self.variable("batch_stats", "tree", lambda: jnp.asarray(tree)).value
    live = self.variable("batch_stats", "live", lambda: jnp.asarray(live)).value
    logits = jax.lax.dot_general(z_BD.astype(jnp.float32), kernel, (((1,), (2,)), ((), ()))) + bias[None]
    if self.gating == "soft":
      log_BE = jax.lax.dot_general(jax.nn.log_softmax(logits), tree, (((1, 2), (1, 2)), ((), ())),
                                   precision=jax.lax.Precision.HIGHEST)
      return jnp.exp(log_BE) * live[None]
    branch_BG2 = self._drawn(logits) if train else jax.nn.one_hot(jnp.argmax(logits, -1), 2)
    passed = jnp.where(tree[None] > 0, branch_BG2[:, None], 1.0)  # [B, E, G, 2]
    return passed.prod((2, 3)) * live[None]

  def _drawn(self, logits_BG2):
    """One branch of every gate, drawn; its gradient is that of the probabilities."""
    probs = jax.nn.softmax(logits_BG2)
    num, gates, _ = probs.shape
    # Drawn for the batches of all devices, so that it does not depend on their number.
    devices = 1 if self.axis is None else jax.lax.axis_size(self.axis)
    start = 0 if self.axis is None else jax.lax.axis_index(self.axis) * num
    noise = jax.random.uniform(self.make_rng("gating"), (devices * num, gates))
    noise = jax.lax.dynamic_slice_in_dim(noise, start, num)
    drawn = jax.nn.one_hot((noise >= probs[:, :, 0]).astype(jnp.int32), 2)
    return drawn + probs - jax.lax.stop_gradient(probs)


def _gate_inputs(z, pool=4):
  """[B, D] of [B, ...]; images are averaged to pool x pool bins, bin i from iH/pool to (i+1)H/pool, outwards."""
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
  def __call__(self, x_BD, mask_B, train):
    return nn.relu(layers.Dense(self.width, self.dtype, name="dense")(x_BD))


class _Mixed(nn.Module):
  """A network whose layers `mixtures` are mixtures with room for `size` experts."""
  width: int
  num_classes: int
  size: int
  gating: str
  dtype: jnp.dtype = jnp.float32
  axis: str | None = None


class MoEMLP(_Mixed):
  """The MLP whose two hidden layers are mixtures.

  E(Dh+h)+2(E-1)(D+1)+E(h²+h)+2(E-1)(h+1)+Kh+K parameters of E live experts.
  """

  convolutional = False
  mixtures = ("hidden0", "hidden1")

  @nn.compact
  def __call__(self, x_B, mask_B, train):
    """[B, ...] float -> logits_BK float32."""
    x_BD = x_B.reshape(x_B.shape[0], -1).astype(self.dtype)
    for name in self.mixtures:
      expert = _DenseExpert(self.width, self.dtype, parent=None)
      x_BD = MixtureLayer(expert, self.size, False, self.gating, self.axis, name=name)(x_BD, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x_BD)


class _Block(nn.Module):
  """A block of VGG19."""
  width: int
  num_convs: int
  dtype: jnp.dtype
  axis: str | None

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    return vgg.block(x_BHWC, mask_B, train, self.width, self.num_convs, self.dtype, self.axis, "layer")


class MoEVGG(_Mixed):
  """VGG19 whose blocks 2 to 5 are mixtures of whole blocks.

  9c²+33c+E(126c²+42c)+8(E-1)(16c+1)+Kc+K parameters on 32x32x3 images.
  """

  convolutional = True
  mixtures = ("block1", "block2", "block3", "block4")

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    """[B, H, W, C] float, H and W at least 32 -> logits_BK float32."""
    x = x_BHWC.astype(self.dtype)
    x = vgg.block(x, mask_B, train, self.width, vgg.BLOCKS[0], self.dtype, self.axis, "block0")
    for name, num_convs in zip(self.mixtures, vgg.BLOCKS[1:]):
      expert = _Block(self.width, num_convs, self.dtype, self.axis, parent=None)
      x = MixtureLayer(expert, self.size, True, self.gating, self.axis, name=name)(x, mask_B, train)
    return layers.Head(self.num_classes, self.dtype, name="output")(x)


def route(network, variables, x):
  """(logits [B, K], {mixture layer: its experts' weights [B, E]}) in evaluation; layers without gates are missing."""
  tree = {"params": variables.params, "batch_stats": variables.stats}
  logits, sown = network.module.apply(tree, x, None, train=False, mutable=["routing"])
  return logits, {layer: leaves["weights"][0] for layer, leaves in sown.get("routing", {}).items()}
