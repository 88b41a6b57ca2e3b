"""The Switch Transformer as a Network: from windows of tokens to losses (docs/algorithms.md §5).

transformer.py holds its layers; the axes are explained there.
"""
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.config.text_sections import check_different
from alma_jax.errors import BadInput
from alma_jax.models import output_layer, transformer
from alma_jax.types import Array, Key, Shape, Tree, Variables


class Windows(NamedTuple):
  """The inputs of the network: B windows of tokens.

  Attributes:
    tokens: int32 [B, L + 1]; the first L are inputs, the last L are targets.
    length: int32 [B]; the first length[i] targets of window i count.
    keys: uint32 [B, 2], raw threefry keys; None: no random numbers will be drawn.
  """
  tokens: Array
  length: Array
  keys: Array | None = None


class Output(NamedTuple):
  """The output of the network for windows; I mixture layers.

  Attributes:
    loss: float32 [], the negative log-likelihood in nats, summed over the targets that count.
    log_probs: float32 [B, L], of the targets, 0 for targets that do not count; None in training.
    balance: float32 [], `routing.Routes.balance` summed over mixture layers.
    load: int32 [I, E], the number of counted tokens by their likeliest expert.
    dropped: int32 [I], the number of counted tokens beyond the capacity of their expert.
    expert: int32 [I, B, L], the likeliest expert of every token; None in training.
  """
  loss: Array
  log_probs: Array | None
  balance: Array
  load: Array
  dropped: Array
  expert: Array | None


@dataclasses.dataclass(frozen=True)
class SwitchNetwork:
  """The module `transformer.Switch` with its output layer, as a Network."""
  module: transformer.Switch

  convolutional = False

  def inputs(self, shape: Shape) -> Windows:
    """Shapes and dtypes of a batch of windows [B, L + 1]."""
    tokens: Any = jax.ShapeDtypeStruct(shape, jnp.int32)
    length: Any = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    return Windows(tokens, length)

  def init(self, key: Key, x: Windows) -> Variables:
    """See Network. The statistics are {layer: {"offset": float32 [E]}} of the mixture layers.

    With a tree of gates they have "tree", too, float32 [E, E - 1, 2] as in moe.paths.
    """
    tokens_BL = x.tokens[:, :-1]
    tree = self._by_window(tokens_BL).init(key, tokens_BL, jnp.ones(tokens_BL.shape, bool), None, False)
    return Variables(tree["params"], tree.get("stats", {}))

  def apply(self, variables: Variables, x: Windows, mask_B: Array | None, train: bool, key: Key | None = None
            ) -> tuple[Output, Tree]:
    """The loss of windows, and the statistics, unchanged.

    Args:
      variables: of `init`.
      x: the windows.
      mask_B: bool, windows that count; None: all count.
      train: whether experts have a limited capacity, and dropout and jitter are drawn.
      key: not used; random numbers for a window follow from its own key.

    Raises:
      BadInput: the routing groups do not fit the windows, or keys are missing.
    """
    del key
    module, tokens_BL, targets_BL = self.module, x.tokens[:, :-1], x.tokens[:, 1:]
    if train and x.keys is None and (module.dropout or module.jitter):
      raise BadInput("windows without keys cannot be trained on with dropout or jitter; give keys.")
    length_B = x.length if mask_B is None else jnp.where(mask_B, x.length, 0)
    counts_BL = jnp.arange(tokens_BL.shape[1])[None] < length_B[:, None]
    # Without a limited capacity, groups change nothing but the balance.
    states: Any = (module if train else self._by_window(tokens_BL)).apply(
        _collections(variables), tokens_BL, counts_BL, x.keys, train)
    hidden_BLD, embedding_VD, routes = states
    flat = hidden_BLD.reshape(-1, module.width), embedding_VD, targets_BL.reshape(-1)
    log_probs_BL = expert = None
    if train:
      loss = output_layer.summed_nll(*flat, counts_BL.reshape(-1).astype(jnp.float32))
    else:
      log_probs_BL = jnp.where(counts_BL, output_layer.log_probs(*flat).reshape(tokens_BL.shape), 0.0)
      loss = -log_probs_BL.sum()
      expert = _stack([r.expert for r in routes], tokens_BL.shape)
    load, dropped = _stack([r.load for r in routes], (module.num_experts,)), _stack([r.dropped for r in routes])
    balance = sum((r.balance for r in routes), jnp.float32(0))
    return Output(loss, log_probs_BL, balance, load, dropped, expert), variables.stats

  def scalar_output(self, variables: Variables, x: Windows, mask_B: Array | None) -> Array:
    """See Network; the forward pass is that of training.

    Attention counts with all L keys of every query, in whatever way it is computed. Routing groups have at most the
    size of a window.
    """
    size = min(self.module.group_size, x.tokens.shape[1] - 1)
    plain = SwitchNetwork(self.module.clone(
        group_size=size, dropout=0.0, jitter=0.0, remat=False, plain_attention=True))
    return plain.apply(variables, x, mask_B, train=True)[0].loss

  def logits(self, variables: Variables, tokens_BL: Array) -> Array:
    """Logits of the token after each of `tokens_BL` (int32) in evaluation, float32 [B, L, V]."""
    hidden_BLD, embedding_VD = self._hidden(variables, tokens_BL)
    logits_NV = output_layer.logits(hidden_BLD.reshape(-1, self.module.width), embedding_VD)
    return logits_NV.reshape(*tokens_BL.shape, -1)

  def logits_at(self, variables: Variables, tokens_BL: Array, position: Array) -> Array:
    """Logits of the token after the one at `position` (int32 []) in evaluation, float32 [B, V]."""
    hidden_BLD, embedding_VD = self._hidden(variables, tokens_BL)
    hidden_BD = jax.lax.dynamic_index_in_dim(hidden_BLD, position, 1, keepdims=False)
    return output_layer.logits(hidden_BD, embedding_VD)

  def _hidden(self, variables: Variables, tokens_BL: Array) -> tuple[Array, Array]:
    """Final hidden states [B, L, D] and the embedding [V, D] in evaluation."""
    states: Any = self._by_window(tokens_BL).apply(
        _collections(variables), tokens_BL, jnp.ones(tokens_BL.shape, bool), None, False)
    return states[:2]

  def _by_window(self, tokens_BL: Array) -> transformer.Switch:
    """The module with windows as its routing groups, which fit any batch. In evaluation groups change no output."""
    return self.module.clone(group_size=tokens_BL.shape[1])


@register
@dataclasses.dataclass(frozen=True)
class Model(sections.Model):
  """A Switch Transformer: every second layer has a mixture of experts."""
  name: str = "switch"
  width: int = field(128, "size of the vector that represents a token, d", at_least=1)
  num_layers: int = field(4, "layers; every second one has a mixture of experts", at_least=2)
  num_heads: int = field(4, "number of attention heads", at_least=1)
  num_experts: int = field(4, "initial experts of every mixture", at_least=1, at_most=sections.MOST_EXPERTS)
  capacity_factor: float = field(
      1.0, "tokens of a group that an expert takes in training, as a multiple of its equal share; the rest skip it. "
      "Evaluation has no limit", above=0)
  group_size: int = field(0, "tokens to route together, a divisor or a multiple of a window; 0: a window", at_least=0)
  balance: float = field(0.01, "weight of the load-balancing loss", at_least=0)
  dropout: tuple[float, ...] = field(
      (0.0,), "dropout rate; of several, every stage selects the one with the best validation perplexity",
      at_least=0, at_most=0.99)
  jitter: float = field(
      0.0, "in training, multiply the routers' inputs by U(1 - jitter, 1 + jitter)", at_least=0, below=1)
  block: str = field(
      "paper", "kind of layers: the `paper`'s, or `modern` ones (RMS norm, rotary positions, squared ReLU, normalised "
      "queries and keys, no biases, last layers that start as 0)", choices=tuple(transformer.BLOCKS))
  gates: str = field(
      "flat", "how a mixture chooses an expert: by a score of each (`flat`), or by a binary `tree` of gates "
      "(paper, §4.2)", choices=("flat", "tree"))
  remat: bool = field(False, "save memory: the backward pass computes activations again")

  problems: ClassVar[tuple[str, ...]] = (TEXT,)
  layer_weights: ClassVar[int] = 4

  def build(self, num_outputs: int, example_shape: Shape, dtype: Any, axis: str | None, *, size: int | None = None,
            **changes: Any) -> SwitchNetwork:
    """See models.build."""
    del axis, changes
    dropout, = self.dropout
    return SwitchNetwork(transformer.Switch(
        num_outputs, self.width, self.num_layers, self.num_heads, size or self.num_experts, self.capacity_factor,
        self.group_size or example_shape[0] - 1, dropout, self.jitter, self.remat, dtype,
        block=self.block, gates=self.gates))

  def check(self, config: Any) -> None:
    sections.check_free("model.width", self.width, config)
    if self.width % self.num_heads or self.width % 2:
      raise BadInput(f"model.width={self.width} should be an even multiple of model.num_heads={self.num_heads}.")
    if self.width % (2 * self.num_heads) and self.block == "modern":
      raise BadInput(f"model.block=modern needs heads of an even width; make model.width={self.width} a multiple of "
                     f"{2 * self.num_heads}, twice model.num_heads.")
    if self.gates == "tree" and self.num_experts == 1:
      raise BadInput("model.gates=tree needs a gate between two experts at least; set model.num_experts=2 or more.")
    check_different("model.dropout", self.dropout)
    length, windows = config.dataset.sequence_length, config.train.batch_size
    group = self.group_size or length
    if length % group and group % length:
      raise BadInput(f"model.group_size={group} should divide dataset.sequence_length={length}, or be a multiple of "
                     "it.")
    if group > windows * length:
      raise BadInput(f"model.group_size={group} exceeds the {windows * length} tokens of a step, train.batch_size="
                     f"{windows} windows.")


def _collections(variables: Variables) -> dict[str, Tree]:
  """Variables as Flax's collections."""
  return {"params": variables.params, "stats": variables.stats}


def _stack(layers: Sequence[Array], shape: Shape = ()) -> Array:
  """Integers of every mixture layer, stacked to int32 [I, *shape]."""
  return jnp.array([a.reshape(shape) for a in layers], jnp.int32).reshape(-1, *shape)
