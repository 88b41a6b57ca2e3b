"""The Flax modules of the Switch Transformer for language modelling (Fedus et al. 2021, docs/algorithms.md §5).

It is decoder-only and normalises the inputs of every sub-layer. In every second layer the feed-forward network is a
mixture of experts, and each token goes to one of them. BLOCKS has the two kinds of layers. Layers are unrolled: a scan
over layers could save only compile time, and on two CPU cores a training step of 12 layers of width 768 compiled in
12 s, one of 4 layers in 8 s.

Further axes than in types.py: T tokens of a routing group, G groups, V vocabulary, N tokens of a batch (B L), H heads.
"""
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.models import attention, moe, routing
from alma_jax.parallel import members
from alma_jax.types import Array, Key

_router_init = nn.initializers.normal(0.02)


class Block(NamedTuple):
  """What layers of the two kinds do differently.

  Attributes:
    norm: returns the norm with parameters of this name, a function of x [..., D] with results in float32.
    activation: between the two layers of a feed-forward network.
    use_bias: whether linear layers have biases.
    variance: of initial kernels, times their number of inputs; of the last layers of attention and of feed-forward
      networks `last_variance`.
    position: adds positions to embeddings [B, L, D].
    turn: maps queries and keys [B, L, H, D / H] to those whose products are the attention's.
    gain: embeddings start as N(0, 1 / (gain² d)), and are multiplied by gain sqrt(d). Adam moves the products `gain`
      times as far as with 1.
    is_tied: whether the embedding is the output layer, too.
    reads_previous: whether the first layer also reads the embedding of the token before, times a trained vector.
  """
  norm: Callable[[str], Callable[[Array], Array]]
  activation: Callable[[Array], Array]
  use_bias: bool
  variance: float
  last_variance: float
  position: Callable[[Array], Array]
  turn: Callable[[Array], Array]
  gain: float
  is_tied: bool
  reads_previous: bool

  def init(self, is_last: bool, **axes: Any) -> Callable[..., Array]:
    """The initialiser of kernels; `axes` as in nn.initializers.variance_scaling."""
    variance = self.last_variance if is_last else self.variance
    if not variance:
      return nn.initializers.zeros
    return nn.initializers.variance_scaling(variance, "fan_in", "truncated_normal", **axes)


class Switch(nn.Module):
  """The network up to its output layer.

  With `paper` blocks, n layers of width d, E experts and a vocabulary of V units it has
  V d + n (4d² + 4d) + ceil(n/2) (8d² + 5d) + (2n + 1) 2d + floor(n/2) E (8d² + 6d) parameters; with `modern` ones,
  2 V d + d + 4nd² + ceil(n/2) 8d² + floor(n/2) E (8d² + d). A tree of gates has 2 (E - 1) d instead of E d parameters.
  L is the number of tokens of a window.

  Attributes:
    vocab_size: V.
    width: d, a multiple of num_heads, and even.
    num_layers: number of layers; 1, 3, 5, ... (counted from 0) have mixtures.
    num_heads: H.
    num_experts: E of each mixture.
    capacity_factor: slots of an expert, relative to its equal share of the tokens of a group. In evaluation an expert
      has as many slots as there are tokens.
    group_size: T, the number of consecutive tokens that compete for the same slots. It divides L, or is a multiple of L
      that divides B L.
    dropout: rate, for embeddings and for the output of every sub-layer.
    jitter: in training the inputs of routers are multiplied by U(1 ± jitter).
    remat: whether the backward pass computes the inside of the layers again instead of keeping it.
    dtype: of the computation. Parameters, norms, routing and losses are float32.
    plain_attention: whether attention is computed by products with all keys, the same on every machine.
    block: the kind of its layers, a name in BLOCKS.
    gates: how a mixture chooses an expert: "flat", by a score of each, or "tree", by a binary tree of gates.
  """
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_experts: int
  capacity_factor: float
  group_size: int
  dropout: float = 0.0
  jitter: float = 0.0
  remat: bool = False
  dtype: jnp.dtype = jnp.float32
  plain_attention: bool = False
  block: str = "paper"
  gates: str = "flat"

  convolutional = False

  @property
  def kind(self) -> Block:
    """What its layers do."""
    return BLOCKS[self.block]

  @nn.compact
  def __call__(self, tokens_BL: Array, counts_BL: Array, keys_B2: Array | None, train: bool
               ) -> tuple[Array, Array, list[routing.Routes]]:
    """Final hidden states [B, L, D], weights [V, D] float32 of the output layer, and the routes of each mixture layer.

    Args:
      tokens_BL: int32.
      counts_BL: bool, tokens that count. The others never reach an expert.
      keys_B2: uint32, raw keys; None: nothing is drawn.
      train: see SwitchNetwork.apply.

    Raises:
      BadInput: the routing groups do not fit the windows.
    """
    num, size = tokens_BL.shape[1], self.group_size
    if num % size and (size % num or tokens_BL.size % size):
      raise BadInput(f"routing groups of {size} tokens should divide the window of {num} or be a multiple of it, "
                     f"and divide the batch of {tokens_BL.shape[0]} windows.")
    kind, shape = self.kind, (self.vocab_size, self.width)
    embedding_VD = self.param("embedding", nn.initializers.normal(self.width**-0.5 / kind.gain), shape)
    x_BLD = kind.position(jnp.take(embedding_VD, tokens_BL, axis=0) * (kind.gain * math.sqrt(self.width)))
    if kind.reads_previous:
      share_D = self.param("share_of_previous", nn.initializers.zeros, (self.width,))
      x_BLD = x_BLD + share_D[None, None] * jnp.pad(x_BLD, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    x_BLD = _dropout(x_BLD.astype(self.dtype), self.dropout if train else 0, keys_B2, 0)
    layer = nn.remat(_Layer, static_argnums=(4,)) if self.remat else _Layer
    routes: list[routing.Routes] = []
    for i in range(self.num_layers):
      x_BLD, of_layer = layer(self.clone(parent=None), i, name=f"layer{i}")(x_BLD, counts_BL, keys_B2, train)
      routes += of_layer
    output_VD = embedding_VD if kind.is_tied else self.param("unembedding", nn.initializers.zeros, shape)
    return kind.norm("norm")(x_BLD).astype(self.dtype), output_VD, routes


class _Layer(nn.Module):
  """Layer `number` of the network `net`: attention, then a feed-forward network or a mixture of them."""
  net: Switch
  number: int

  @nn.compact
  def __call__(self, x_BLD: Array, counts_BL: Array, keys_B2: Array | None, train: bool
               ) -> tuple[Array, list[routing.Routes]]:
    """[B, L, D] -> [B, L, D], and the routes of the mixture as a list, which is empty in layers without one."""
    net, site = self.net, 1 + 3 * self.number
    drop = lambda y, i: _dropout(y, net.dropout if train else 0, keys_B2, site + i)
    y_BLD = net.kind.norm("attention_norm")(x_BLD).astype(net.dtype)
    x_BLD = x_BLD + drop(self._attend(y_BLD), 0)
    y_BLD = net.kind.norm("ffn_norm")(x_BLD)
    if self.number % 2 == 0:
      return x_BLD + drop(_FeedForward(net.kind, None, net.dtype, name="ffn")(y_BLD.astype(net.dtype)), 1), []
    noisy_BLD = _jitter(y_BLD, net.jitter if train else 0, keys_B2, site + 2)
    y_BLD, routes = self._mix(y_BLD.astype(net.dtype), noisy_BLD, counts_BL, train)
    return x_BLD + drop(y_BLD, 1), [routes]

  def _attend(self, x_BLD: Array) -> Array:
    batch, num, width = x_BLD.shape
    kind, dtype = self.net.kind, self.net.dtype
    qkv = _dense(kind, 3 * width, dtype, "qkv")(x_BLD).reshape(batch, num, 3, self.net.num_heads, -1)
    query, key, value = (qkv[:, :, i] for i in range(3))
    # Initialisation may run on another device than the one for which `fast` chooses.
    attend = attention.plain if self.net.plain_attention or self.is_initializing() else attention.fast
    y_BLD = attend(kind.turn(query), kind.turn(key), value).reshape(x_BLD.shape)
    return _dense(kind, width, dtype, "output", is_last=True)(y_BLD)

  def _mix(self, x_BLD: Array, router_BLD: Array, counts_BL: Array, train: bool) -> tuple[Array, routing.Routes]:
    """The mixture of x, where `router_BLD` (float32) are the inputs of the router, and its routes."""
    net, width = self.net, x_BLD.shape[-1]
    offset_E = self.variable("stats", "offset", jnp.zeros, (net.num_experts,)).value
    group = lambda a: a.reshape(-1, net.group_size, *a.shape[2:])
    logits_GTE, expert_GT = self._logits(group(router_BLD), offset_E)
    capacity = routing.capacity(net.capacity_factor if train else None, net.group_size, net.num_experts)
    routes = routing.route(logits_GTE, offset_E, group(counts_BL), capacity, expert_GT)
    experts, x_ND = _FeedForward(net.kind, net.num_experts, net.dtype, name="experts"), x_BLD.reshape(-1, width)
    if train or self.is_initializing():
      y_ESD = experts(routing.dispatch(x_ND, routes).reshape(net.num_experts, -1, width))
      y_ND = routing.collect(y_ESD.reshape(-1, width), routes)
    else:  # slots for all tokens in every expert would cost as much as all experts
      y_ND = experts(x_ND, jnp.where(counts_BL.reshape(-1), routes.expert, net.num_experts))
    return (y_ND * routes.scale[:, None]).astype(net.dtype).reshape(x_BLD.shape), routes


  def _logits(self, x_GTD: Array, offset_E: Array) -> tuple[Array, Array | None]:
    """(logits of the experts, [G, T, E]; the expert of each token, [G, T], or None: the one with the largest logit)."""
    num, is_flat = self.net.num_experts, self.net.gates == "flat"
    kernel = self.param("router", _router_init, (x_GTD.shape[-1], num if is_flat else 2 * (num - 1)))
    z = jnp.matmul(x_GTD, kernel, precision="highest")
    if is_flat:
      return z, None
    tree_EN2 = self.variable("stats", "tree", lambda: jnp.asarray(moe.paths(moe.balanced(num), num)[0])).value
    logits_GTE, expert_GT = routing.leaves(z.reshape(*z.shape[:2], num - 1, 2), tree_EN2)
    return logits_GTE - offset_E[None, None], expert_GT  # `route` adds the offsets, which gives back the probabilities


class _FeedForward(nn.Module):
  """Two linear layers with the kind's activation between them, of inner width 4d.

  Attributes:
    kind: Block.
    num_experts: E networks, [E, S, D] -> [E, S, D]; None: one network, [..., D] -> [..., D].
    dtype: of the computation.
  """
  kind: Block
  num_experts: int | None
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: Array, expert_N: Array | None = None) -> Array:
    """With `expert_N`, int32, maps x [N, D] -> [N, D] by the expert of each row; 0 where it is `num_experts`."""
    width = x.shape[-1]
    if self.num_experts is None:
      y = self.kind.activation(_dense(self.kind, 4 * width, self.dtype, "up")(x))
      return _dense(self.kind, width, self.dtype, "down", is_last=True)(y)
    layers = self._layer("up", width, 4 * width), self._layer("down", 4 * width, width, is_last=True)
    two_linear = functools.partial(_two_linear, self.kind.activation)
    if expert_N is None:
      return two_linear(layers, x)
    return members.routed(two_linear, layers, expert_N, x, members.block_size(expert_N.shape[0], self.num_experts))

  def _layer(self, name: str, fan_in: int, features: int, is_last: bool = False) -> tuple[Array, ...]:
    """Kernels [E, fan_in, features], and biases [E, 1, features] if there are any."""
    init = self.kind.init(is_last, batch_axis=(0,))
    kernel_EDF = self.param(f"{name}_kernel", init, (self.num_experts, fan_in, features)).astype(self.dtype)
    if not self.kind.use_bias:
      return (kernel_EDF,)
    bias_EF = self.param(f"{name}_bias", nn.initializers.zeros, (self.num_experts, features))
    return kernel_EDF, bias_EF.astype(self.dtype)[:, None]


def _two_linear(activation: Callable[[Array], Array], layers: tuple[tuple[Array, ...], tuple[Array, ...]], x: Array
                ) -> Array:
  """Two linear layers, (kernel,) or (kernel, bias) each, with the activation between them."""
  up, down = (lambda x, kernel=kernel, bias=bias: sum(bias, jnp.matmul(x, kernel)) for kernel, *bias in layers)
  return down(activation(up(x)))


def _dense(kind: Block, features: int, dtype: jnp.dtype, name: str, is_last: bool = False) -> nn.Dense:
  return nn.Dense(features, kind.use_bias, dtype, kernel_init=kind.init(is_last), name=name)


def _layer_norm(name: str) -> nn.LayerNorm:
  """Layer norm in float32."""
  return nn.LayerNorm(1e-5, dtype=jnp.float32, use_fast_variance=False, name=name)


def _normalized(x: Array) -> Array:
  """x with mean squares of 1 along its last axis, float32 (RMS norm; Zhang and Sennrich, 2019)."""
  x = x.astype(jnp.float32)
  return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def _turned(x_BLHC: Array) -> Array:
  """Normalised queries or keys with rotary positions (Su et al. 2021).

  At position p, the pairs (i, i + C/2) of the C numbers of a head turn by p 10000^(-2i/C) radians.
  """
  angles_LC = _angles(x_BLHC.shape[1], x_BLHC.shape[-1])
  cos, sin = (jnp.asarray(fn(angles_LC), jnp.float32)[None, :, None] for fn in (np.cos, np.sin))
  a, b = jnp.split(_normalized(x_BLHC), 2, -1)
  return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x_BLHC.dtype)


def _with_positions(x_BLD: Array) -> Array:
  return x_BLD + _positions(*x_BLD.shape[1:])[None]


def _positions(num: int, width: int) -> Array:
  """Sines and cosines of wavelengths from 2π to 20000π (Vaswani et al. 2017), float32 [num, width]."""
  angles = _angles(num, width)
  return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], -1), jnp.float32)


def _angles(num: int, width: int) -> np.ndarray:
  """Positions in radians at wavelengths from 2π to 20000π, [num, width / 2]."""
  angles: np.ndarray = np.arange(num)[:, None] * 10000.0 ** -(np.arange(width // 2) * 2 / width)[None]
  return angles


BLOCKS: Mapping[str, Block] = {
    "paper": Block(
        _layer_norm, nn.relu, use_bias=True, variance=0.1, last_variance=0.1, position=_with_positions,
        turn=lambda x_BLHC: x_BLHC, gain=1.0, is_tied=True, reads_previous=False),
    "modern": Block(
        lambda name: _normalized, lambda x: jnp.square(nn.relu(x)), use_bias=False, variance=1 / 3, last_variance=0.0,
        position=lambda x_BLD: x_BLD, turn=_turned, gain=7.5, is_tied=False, reads_previous=True),
}


def _dropout(x_BLD: Array, rate: float, keys_B2: Array | None, site: int) -> Array:
  """Dropout. Each window draws from its own key and `site`, which numbers the places in the network."""
  if not rate:
    return x_BLD
  _, num, width = x_BLD.shape
  # Two elements use 32 random bits, because drawing bits is what dropout costs.
  bits = _draw(keys_B2, site, lambda key: jax.random.bits(key, (num, width // 2), jnp.uint32))
  keep = round((1 - rate) * 2**16)
  keep_BLD = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(x_BLD.shape).astype(jnp.int32) < keep
  return jnp.where(keep_BLD, x_BLD * (2**16 / keep), 0).astype(x_BLD.dtype)


def _jitter(x_BLD: Array, size: float, keys_B2: Array | None, site: int) -> Array:
  """x multiplied by U(1 ± size), drawn as in `_dropout`."""
  if not size:
    return x_BLD
  return x_BLD * _draw(keys_B2, site, lambda key: jax.random.uniform(
      key, x_BLD.shape[1:], minval=1 - size, maxval=1 + size))


def _draw(keys_B2: Array | None, site: int, draw: Callable[[Key], Array]) -> Array:
  """`draw(key)` for every window, stacked."""
  assert keys_B2 is not None, "SwitchNetwork.apply checks that there are keys"
  keys_B = jax.random.wrap_key_data(keys_B2, impl="threefry2x32")
  return jax.vmap(lambda key: draw(jax.random.fold_in(key, site)))(keys_B)
