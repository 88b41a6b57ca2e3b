"""Networks as learners use them: hashable static data with pure functions `init` and `apply`.

To add a network for images, subclass `ImageModel`, which holds its config fields.
"""
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from alma_jax.config import sections
from alma_jax.config.registry import is_own
from alma_jax.errors import BadInput
from alma_jax.parallel import members
from alma_jax.types import Array, Key, Shape, Tree, Variables


class Network(Protocol):
  """The interface of all networks: `ImageNetwork`, `Mixture` and `switch.SwitchNetwork`.

  A network is hashable and holds no arrays, so jitted functions can take it as a static argument.
  """

  def __hash__(self) -> int:
    """Equal networks have equal hashes."""

  @property
  def convolutional(self) -> bool:
    """Whether convolutions are most of the compute. XLA trains them slowly inside a loop on a CPU."""

  def inputs(self, shape: Shape) -> Any:
    """Shapes and dtypes of a batch of inputs.

    Args:
      shape: of a batch of data: [B, ...] for images, [B, L + 1] for text.
    """

  def init(self, key: Key, x: Any) -> Variables:
    """Variables before training, for inputs with the shapes and dtypes of `x`."""

  def apply(self, variables: Variables, x: Any, mask_B: Array | None, train: bool, key: Key | None = None
            ) -> tuple[Any, Tree]:
    """The output for a batch, and the statistics after it.

    Args:
      variables: as `init` returns them.
      x: a batch as `inputs` describes it.
      mask_B: bool; False for examples that only pad the batch. None: the batch has no padding.
      train: whether the network is being trained.
      key: for networks that draw random numbers in training.
    """

  def scalar_output(self, variables: Variables, x: Any, mask_B: Array | None) -> Array:
    """A scalar that depends on the whole forward pass; models/cost.py counts its multiply-adds."""


@dataclasses.dataclass(frozen=True)
class ImageNetwork:
  """A Flax module of signature (x, mask_B, train) -> logits_BK, as a Network.

  Attributes:
    module: the module.
    counts: whether the module may use the batch size, as a user's module may with `len(x)`. An exported program does
      not know the batch size, so there the module gets one example at a time.
  """
  module: nn.Module
  counts: bool = False

  @property
  def convolutional(self) -> bool:
    """See Network."""
    return getattr(self.module, "convolutional", False)

  def inputs(self, shape: Shape) -> jax.ShapeDtypeStruct:
    """float32 [B, ...]."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)

  def init(self, key: Key, x: Array) -> Variables:
    """See Network; `x` is float32 [B, ...]."""
    tree = self.module.init(key, x, None, train=False)
    return Variables(tree["params"], tree.get("batch_stats", {}))

  def apply(self, variables: Variables, x: Array, mask_B: Array | None, train: bool, key: Key | None = None
            ) -> tuple[Array, Tree]:
    """Logits, float32 [B, K], and the statistics of batch norm after this batch; see Network."""
    tree = _collections(variables)
    if not train:
      return self.evaluated(lambda *batch: self.module.apply(tree, *batch, train=False), x, mask_B), variables.stats
    rngs = None if key is None else {"gating": key}
    logits_BK, new = self.module.apply(tree, x, mask_B, train=True, mutable=["batch_stats"], rngs=rngs)
    return logits_BK, new.get("batch_stats", {})

  def scalar_output(self, variables: Variables, x: Array, mask_B: Array | None) -> Array:
    """See Network."""
    return self.apply(variables, x, mask_B, train=False)[0].sum()

  def evaluated(self, fn: Callable[..., Any], x: Array, mask_B: Array | None) -> Any:
    """fn(x, mask_B), an array with a row for each example."""
    if not self.counts or isinstance(x.shape[0], int):
      return fn(x, mask_B)
    return jax.vmap(lambda *example: fn(*jax.tree.map(lambda leaf: leaf[None], example))[0])(x, mask_B)


@dataclasses.dataclass(frozen=True)
class ImageModel(sections.Model):
  """Base class of the fields, under `model.`, of a network that classifies images; `module` makes the network.

  Attributes:
    least_pixels: smallest side of an image in pixels; 0: any arrays.
  """
  least_pixels: ClassVar[int] = 0

  def module(self, num_classes: int, dtype: Any, axis: str | None) -> nn.Module:
    """The network.

    Args:
      num_classes: K.
      dtype: of the computation; parameters are float32.
      axis: mesh axis over which batches are sharded, for layers.BatchNorm; None: batches are not sharded.

    Returns:
      A Flax module that takes (x float32 [B, ...], mask_B bool or None, train bool) and returns logits, float32 [B, K].
      Its attribute `convolutional` says whether XLA runs it slowly inside a loop on a CPU.
    """
    raise BadInput(f"{type(self).__name__} has no method module(self, num_classes, dtype, axis); write one that "
                   "returns the network.")

  def mixture(self, num_classes: int, dtype: Any, axis: str | None, size: int, gating: str) -> nn.Module:
    """The same network with mixtures of experts in place of layers; see models.build.

    Raises:
      BadInput: this network cannot have mixtures.
    """
    del num_classes, dtype, axis, size, gating
    raise BadInput(f"model.name={self.name!r} has no mixtures; the learners moe and gmoe need 'mlp' or 'vgg', so use "
                   "one of them.")

  def widened(self, num_classes: int, dtype: Any, axis: str | None, widths: tuple[int, ...],
              residuals: tuple[int, ...]) -> nn.Module:
    """The same network with layers of these widths, see models.build."""
    raise NotImplementedError

  def build(self, num_outputs: int, example_shape: Shape, dtype: Any, axis: str | None, *, size: int | None = None,
            gating: str = "soft", widths: Sequence[int] | None = None, residuals: Sequence[int] = (), **changes: Any
            ) -> ImageNetwork:
    """See models.build."""
    self.check_shape(tuple(map(int, example_shape)), widths is not None)
    if size:
      return ImageNetwork(self.mixture(num_outputs, dtype, axis, size, gating))
    if widths is None:
      return ImageNetwork(self.module(num_outputs, dtype, axis), counts=is_own(type(self)))
    if not widths:
      raise BadInput(f"model.name={self.name!r} cannot be widened; the learner ff needs 'mlp' or 'vgg', so use one of "
                     "them.")
    return ImageNetwork(self.widened(num_outputs, dtype, axis, tuple(widths), tuple(residuals)))

  def check_shape(self, shape: Shape, widened: bool) -> None:
    """Raises BadInput if the network cannot take examples of this shape."""
    del widened
    if self.least_pixels and (len(shape) != 3 or min(shape[:2]) < self.least_pixels):
      raise BadInput(f"model.name={self.name!r} needs images of at least {self.least_pixels}x{self.least_pixels} "
                     f"pixels, but this data set's examples have shape {shape}; use 'mlp'.")


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Several networks of one kind with averaged or added logits (UMix, docs/algorithms.md §2).

  The training loop treats them as one network. The variables have a leading axis of length `size`.

  Attributes:
    network: one of the networks.
    size: number of networks.
    combine: "mean" or "sum" of the logits.
  """
  network: ImageNetwork
  size: int
  combine: str

  @property
  def convolutional(self) -> bool:
    """See Network."""
    return self.network.convolutional

  def inputs(self, shape: Shape) -> jax.ShapeDtypeStruct:
    """float32 [B, ...]."""
    return self.network.inputs(shape)

  def init(self, key: Key, x: Array) -> Variables:
    """See Network. The first network has the variables that it would have alone."""
    keys = jnp.stack([key, *(jax.random.fold_in(key, i) for i in range(1, self.size))])
    return jax.vmap(self.network.init, in_axes=(0, None))(keys, x)

  def apply(self, variables: Variables, x: Array, mask_B: Array | None, train: bool, key: Key | None = None
            ) -> tuple[Array, Tree]:
    """Joint logits, float32 [B, K], and the statistics of all networks after this batch; see Network."""
    logits, stats = members.apply(lambda v: self.network.apply(v, x, mask_B, train, key), self.size, variables)
    total_BK = logits.sum(0)
    return (total_BK / self.size if self.combine == "mean" else total_BK), stats

  def scalar_output(self, variables: Variables, x: Array, mask_B: Array | None) -> Array:
    """See Network."""
    return self.apply(variables, x, mask_B, train=False)[0].sum()


def features(network: ImageNetwork, variables: Variables, x: Array) -> Array:
  """The inputs of the network's last layer in evaluation, float32 [B, D]; `x` is float32 [B, ...]."""
  def penultimate(x: Array, mask_B: None) -> Any:
    _, sown = network.module.apply(_collections(variables), x, mask_B, train=False, mutable=["features"])
    return sown["features"]["output"]["penultimate"][0]

  return network.evaluated(penultimate, x, None)


def loops_are_slow(network: Network) -> bool:
  """Whether XLA runs this network slowly inside a loop on this machine: convolutions on a CPU."""
  return network.convolutional and jax.default_backend() == "cpu"


def _collections(variables: Variables) -> dict[str, Tree]:
  """Variables as Flax's collections."""
  return {"params": variables.params, "batch_stats": variables.stats}
