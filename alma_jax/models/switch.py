"""Switch Transformer language model (Fedus et al. 2021, docs/algorithms.md §5).

Decoder-only and pre-LN, with fixed sinusoidal positions and tied embeddings. The
feed-forward network of every second layer is a mixture of experts, of which each
token takes one. Layers are unrolled: a training step of 12 layers of width 768
compiled in 12 s on two CPU cores where one of 4 layers took 8, which a scan could
at most save once.

Axes beside those of `types.py`: T tokens of a routing group, G groups, V
vocabulary, N tokens of a batch (B L), H heads.
"""
import dataclasses
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.errors import BadInput
from alma_jax.models import attention, routing, vocabulary
from alma_jax.types import Array, Variables

_kernel_init = nn.initializers.variance_scaling(0.1, "fan_in", "truncated_normal")
_expert_init = nn.initializers.variance_scaling(0.1, "fan_in", "truncated_normal", batch_axis=(0,))
_router_init = nn.initializers.normal(0.02)


class Windows(NamedTuple):
  """What the network reads.

  Attributes:
    tokens: int32 [B, L + 1]; inputs are the first L, targets the last L.
    length: int32 [B], targets that count: the first so many of each window.
    keys: uint32 [B, 2], raw threefry keys; None: nothing will be drawn.
  """
  tokens: Array
  length: Array
  keys: Array | None = None


class Output(NamedTuple):
  """What the network says of windows; I mixture layers.

  Attributes:
    loss: float32 [], negative log-likelihood in nats, summed over the targets that count.
    log_probs: float32 [B, L], of the targets, 0 for those that do not count; None in training.
    balance: float32 [], sum over mixture layers and groups of E * sum_e f_e P_e.
    load: int32 [I, E], tokens that count, by their likeliest expert.
    dropped: int32 [I], of them, those that found their expert full.
    expert: int32 [I, B, L], likeliest expert of every token; None in training.
  """
  loss: Array
  log_probs: Array | None
  balance: Array
  load: Array
  dropped: Array
  expert: Array | None


@dataclasses.dataclass(frozen=True)
class SwitchNetwork:
  """The module `Switch` as pure functions."""
  module: nn.Module

  def init(self, key, windows):
    """Variables for windows like `windows`; stats are {layer: {"offset": float32 [E]}} of the mixture layers."""
    tokens_BL = windows.tokens[:, :-1]
    tree = self._by_window(tokens_BL).init(key, tokens_BL, jnp.ones(tokens_BL.shape, bool), None, False)
    return Variables(tree["params"], tree.get("stats", {}))

  def apply(self, variables, windows, mask, train, key=None):
    """Loss of windows.

    Args:
      variables: Variables.
      windows: Windows.
      mask: bool [B], windows that count; None: all.
      train: whether experts are limited to their capacity and noise is drawn.
      key: unused; what is drawn for a window follows from its own key.

    Returns:
      Output, and the statistics, unchanged.

    Raises:
      BadInput: routing groups do not fit the windows, or keys are missing.
    """
    del key
    module, tokens, targets_BL = self.module, windows.tokens[:, :-1], windows.tokens[:, 1:]
    if train and windows.keys is None and (module.dropout or module.jitter):
      raise BadInput("Windows without keys cannot be trained on with dropout or jitter.")
    length_B = windows.length if mask is None else jnp.where(mask, windows.length, 0)
    counts_BL = jnp.arange(tokens.shape[1])[None] < length_B[:, None]
    # Without a limit groups change nothing but the balance.
    hidden_BLD, embedding_VD, routes = (module if train else self._by_window(tokens)).apply(
        _tree(variables), tokens, counts_BL, windows.keys, train)
    flat = hidden_BLD.reshape(-1, module.width), embedding_VD, targets_BL.reshape(-1)
    if train:
      loss, log_probs_BL, expert = vocabulary.summed_nll(*flat, counts_BL.reshape(-1).astype(jnp.float32)), None, None
    else:
      log_probs_BL = jnp.where(counts_BL, vocabulary.log_probs(*flat).reshape(tokens.shape), 0.0)
      loss = -log_probs_BL.sum()
      expert = _stack([r.expert for r in routes], tokens.shape)
    load, dropped = _stack([r.load for r in routes], (module.num_experts,)), _stack([r.dropped for r in routes])
    balance = sum((r.balance for r in routes), jnp.float32(0))
    return Output(loss, log_probs_BL, balance, load, dropped, expert), variables.stats

  def inputs(self, shape):
    """Shapes and dtypes of a batch of windows [B, L + 1]."""
    return Windows(jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape[:1], jnp.int32))

  def total(self, variables, windows, mask):
    """A number that takes a whole forward pass as in training; its multiply-adds are what is counted.

    Attention counts with all L keys of every query, however it is computed; groups are windows at most.
    """
    size = min(self.module.group_size, windows.tokens.shape[1] - 1)
    plain = SwitchNetwork(self.module.clone(
        group_size=size, dropout=0.0, jitter=0.0, remat=False, plain_attention=True))
    return plain.apply(variables, windows, mask, train=True)[0].loss

  def logits(self, variables, tokens_BL):
    """float32 [B, L, V], of the tokens after each of int32 `tokens_BL`, in evaluation."""
    hidden_BLD, embedding_VD = self._hidden(variables, tokens_BL)
    logits = vocabulary.logits(hidden_BLD.reshape(-1, self.module.width), embedding_VD)
    return logits.reshape(*tokens_BL.shape, -1)

  def logits_at(self, variables, tokens_BL, position):
    """float32 [B, V], of the token after the one at `position` (int32 []), in evaluation."""
    hidden_BLD, embedding_VD = self._hidden(variables, tokens_BL)
    return vocabulary.logits(jax.lax.dynamic_index_in_dim(hidden_BLD, position, 1, keepdims=False), embedding_VD)

  def _hidden(self, variables, tokens_BL):
    hidden_BLD, embedding_VD, _ = self._by_window(tokens_BL).apply(
        _tree(variables), tokens_BL, jnp.ones(tokens_BL.shape, bool), None, False)
    return hidden_BLD, embedding_VD

  def _by_window(self, tokens_BL):
    """The module with windows as its groups, for any number of them: in evaluation outputs do not depend on groups."""
    return self.module.clone(group_size=tokens_BL.shape[1])


class Switch(nn.Module):
  """The network up to its output layer.

  V d + L (4d² + 4d) + ceil(L/2) (8d² + 5d) + (2L + 1) 2d + floor(L/2) E (8d² + 6d)
  parameters, of L layers of width d.

  Attributes:
    vocab_size: V.
    width: d, a multiple of num_heads, and even.
    num_layers: of them 1, 3, 5, ... (from 0) are mixtures.
    num_heads: H.
    num_experts: E of each mixture.
    capacity_factor: slots of an expert, relative to its even share of a group. In
      evaluation there are as many as tokens.
    group_size: T, tokens that compete for the same slots: a divisor of L, or a
      multiple of it that divides B L. Groups are consecutive tokens.
    dropout: rate, of embeddings and of every sub-layer's output.
    jitter: routers' inputs are multiplied by U(1 ± jitter) in training.
    remat: whether gradients recompute the layers instead of storing what is inside.
    dtype: to compute in. Parameters, norms, routing and losses are float32.
    plain_attention: whether to compute attention by products with all keys, the
      same on every machine.
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

  convolutional = False

  @nn.compact
  def __call__(self, tokens_BL, counts_BL, keys_B2, train):
    """Final hidden states [B, L, D], embedding [V, D] float32, and routing.Routes of each mixture layer.

    Args:
      tokens_BL: int32.
      counts_BL: bool, tokens that count; the others never reach an expert.
      keys_B2: uint32, raw keys; None: nothing is drawn.
      train: see SwitchNetwork.apply.
    """
    num, size = tokens_BL.shape[1], self.group_size
    if num % size and (size % num or tokens_BL.size % size):
      raise BadInput(f"Routing groups of {size} tokens should divide the window of {num} or be a multiple of it, "
                     f"and divide the batch of {tokens_BL.shape[0]} windows.")
    embedding_VD = self.param("embedding", nn.initializers.normal(self.width**-0.5), (self.vocab_size, self.width))
    x_BLD = jnp.take(embedding_VD, tokens_BL, axis=0) * math.sqrt(self.width) + _positions(num, self.width)[None]
    x_BLD = _dropout(x_BLD.astype(self.dtype), self.dropout if train else 0, keys_B2, 0)
    layer = nn.remat(_Layer, static_argnums=(4,)) if self.remat else _Layer
    routes = []
    for i in range(self.num_layers):
      x_BLD, routed = layer(self.clone(parent=None), i, name=f"layer{i}")(x_BLD, counts_BL, keys_B2, train)
      routes += routed
    return _norm("norm")(x_BLD).astype(self.dtype), embedding_VD, routes


class _Layer(nn.Module):
  """Layer `number` of `net` (a Switch): attention, and a feed-forward network or a mixture of them."""
  net: nn.Module
  number: int

  @nn.compact
  def __call__(self, x_BLD, counts_BL, keys_B2, train):
    """[B, L, D] -> the same, and a list of the mixture's routing.Routes, if it is one."""
    net, site = self.net, 1 + 3 * self.number
    drop = lambda y, i: _dropout(y, net.dropout if train else 0, keys_B2, site + i)
    y_BLD = _norm("attention_norm")(x_BLD).astype(net.dtype)
    x_BLD = x_BLD + drop(self._attend(y_BLD), 0)
    y_BLD = _norm("ffn_norm")(x_BLD)
    if self.number % 2 == 0:
      return x_BLD + drop(_FFN(None, net.dtype, name="ffn")(y_BLD.astype(net.dtype)), 1), []
    noisy_BLD = _jitter(y_BLD, net.jitter if train else 0, keys_B2, site + 2)
    y_BLD, routes = self._mix(y_BLD.astype(net.dtype), noisy_BLD, counts_BL, train)
    return x_BLD + drop(y_BLD, 1), [routes]

  def _attend(self, x_BLD):
    batch, num, width = x_BLD.shape
    dense = lambda features, name: nn.Dense(features, dtype=self.net.dtype, kernel_init=_kernel_init, name=name)
    qkv = dense(3 * width, "qkv")(x_BLD).reshape(batch, num, 3, self.net.num_heads, -1)
    attend = attention.plain if self.net.plain_attention else attention.fast
    return dense(width, "output")(attend(*(qkv[:, :, i] for i in range(3))).reshape(x_BLD.shape))

  def _mix(self, x_BLD, router_BLD, counts_BL, train):
    """The mixture of x, routed by `router_BLD` (float32), and its Routes."""
    net, width = self.net, x_BLD.shape[-1]
    kernel_DE = self.param("router", _router_init, (width, net.num_experts))
    offset_E = self.variable("stats", "offset", jnp.zeros, (net.num_experts,)).value
    group = lambda a: a.reshape(-1, net.group_size, *a.shape[2:])
    logits_GTE = jnp.matmul(group(router_BLD), kernel_DE, precision="highest")
    capacity = routing.capacity(net.capacity_factor if train else None, net.group_size, net.num_experts)
    routes = routing.route(logits_GTE, offset_E, group(counts_BL), capacity)
    x_SD = routing.dispatch(x_BLD.reshape(-1, width), routes)
    y_ESD = _FFN(net.num_experts, net.dtype, name="experts")(x_SD.reshape(net.num_experts, -1, width))
    y_ND = routing.collect(y_ESD.reshape(-1, width), routes) * routes.scale[:, None]
    return y_ND.astype(net.dtype).reshape(x_BLD.shape), routes


class _FFN(nn.Module):
  """Two linear layers with a ReLU between, of width 4d; `num_experts` of them, or one.

  One of many: [E, S, D] -> [E, S, D]. A single one: [..., D] -> [..., D].
  """
  num_experts: int | None
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x):
    width = x.shape[-1]
    return self._linear("down", nn.relu(self._linear("up", x, 4 * width)), width)

  def _linear(self, name, x, features):
    if self.num_experts is None:
      return nn.Dense(features, dtype=self.dtype, kernel_init=_kernel_init, name=name)(x)
    kernel_EDF = self.param(f"{name}_kernel", _expert_init, (self.num_experts, x.shape[-1], features))
    bias_EF = self.param(f"{name}_bias", nn.initializers.zeros, (self.num_experts, features))
    return jnp.matmul(x, kernel_EDF.astype(self.dtype)) + bias_EF.astype(self.dtype)[:, None]


def _norm(name):
  """Layer norm in float32."""
  return nn.LayerNorm(1e-5, dtype=jnp.float32, use_fast_variance=False, name=name)


def _positions(num, width):
  """float32 [num, width], sines and cosines of wavelengths from 2π to 20000π (Vaswani et al. 2017)."""
  angles = np.arange(num)[:, None] * 10000.0 ** -(np.arange(width // 2) * 2 / width)[None]
  return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], -1), jnp.float32)


def _dropout(x_BLD, rate, keys_B2, site):
  """Dropout, drawn for each window from its own key and the place in the network, `site`."""
  if not rate:
    return x_BLD
  _, num, width = x_BLD.shape
  # Two elements of every 32 random bits: those are what dropout costs.
  bits = _draw(keys_B2, site, lambda key: jax.random.bits(key, (num, width // 2), jnp.uint32))
  keep = round((1 - rate) * 2**16)
  keep_BLD = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(x_BLD.shape).astype(jnp.int32) < keep
  return jnp.where(keep_BLD, x_BLD * (2**16 / keep), 0).astype(x_BLD.dtype)


def _jitter(x_BLD, size, keys_B2, site):
  if not size:
    return x_BLD
  return x_BLD * _draw(keys_B2, site, lambda key: jax.random.uniform(
      key, x_BLD.shape[1:], minval=1 - size, maxval=1 + size))


def _draw(keys_B2, site, draw):
  """`draw(key)` for every window."""
  keys_B = jax.random.wrap_key_data(keys_B2, impl="threefry2x32")
  return jax.vmap(lambda key: draw(jax.random.fold_in(key, site)))(keys_B)


def _tree(variables):
  return {"params": variables.params, "stats": variables.stats}


def _stack(layers, shape=()):
  """Integers of every mixture layer -> int32 [I, *shape]."""
  return jnp.array([a.reshape(shape) for a in layers], jnp.int32).reshape(-1, *shape)
