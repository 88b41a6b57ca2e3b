"""Networks as paths through modules, of which some are frozen (docs/task-streams.md).

The modules of a network are its `parts`: a part holds the variables of Flax whose names are the part's, or begin with
it and "_". The trained parts of a PathNetwork are its parameters; the frozen ones are among its statistics, so that the
training loop leaves them as they are.
"""
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from alma_jax.errors import BadInput
from alma_jax.models.network import ImageNetwork
from alma_jax.types import Array, Key, Shape, Tree, Variables


@dataclasses.dataclass(frozen=True)
class PathNetwork:
  """An image network that trains some of its parts; see network.Network.

  Attributes:
    whole: the network.
    frozen: the parts that are not trained, whose batch norm is in evaluation mode.
  """
  whole: ImageNetwork
  frozen: tuple[str, ...] = ()

  @property
  def convolutional(self) -> bool:
    """See Network."""
    return self.whole.convolutional

  def inputs(self, shape: Shape) -> jax.ShapeDtypeStruct:
    """float32 [B, ...]."""
    return self.whole.inputs(shape)

  def init(self, key: Key, x: Array) -> Variables:
    """See Network; `x` is float32 [B, ...]."""
    return self.divided(self.whole.init(key, x))

  def apply(self, variables: Variables, x: Array, mask_B: Array | None, train: bool, key: Key | None = None
            ) -> tuple[Array, Tree]:
    """Logits, float32 [B, K], and the statistics after this batch; see Network."""
    module = self.whole.module.clone(frozen=self.frozen) if self.frozen and train else self.whole.module
    whole = dataclasses.replace(self.whole, module=module)
    logits_BK, stats = whole.apply(self.joined(variables), x, mask_B, train, key)
    return logits_BK, {"stats": stats, "frozen": variables.stats["frozen"]}

  def scalar_output(self, variables: Variables, x: Array, mask_B: Array | None) -> Array:
    """See Network."""
    return self.apply(variables, x, mask_B, train=False)[0].sum()

  def divided(self, whole: Variables) -> Variables:
    """Variables of this network from those of the whole one."""
    frozen, trained = (_of_parts(whole.params, self.frozen, inside) for inside in (True, False))
    return Variables(trained, {"stats": whole.stats, "frozen": frozen})

  def joined(self, variables: Variables) -> Variables:
    """Variables of the whole network from those of this one."""
    return Variables({**variables.stats["frozen"], **variables.params}, variables.stats["stats"])


def parts(network: ImageNetwork) -> tuple[str, ...]:
  """The names of a network's modules, from its inputs to its head."""
  names: tuple[str, ...] = getattr(network.module, "parts", ())
  if not names:
    raise BadInput(f"{type(network.module).__name__} has no attribute `parts`, the names of its modules from inputs to "
                   "head, which learners of tasks need; add it.")
  return names


def part(whole: Variables, name: str) -> Variables:
  """Variables of one part."""
  return Variables(_of_parts(whole.params, [name], True), _of_parts(whole.stats, [name], True))


def assembled(found: Iterable[Variables]) -> Variables:
  """Variables of a network from those of its parts."""
  params: dict[str, Any] = {}
  stats: dict[str, Any] = {}
  for each in found:
    params |= each.params
    stats |= each.stats
  return Variables(params, stats)


def _of_parts(tree: Mapping[str, Any], names: Iterable[str], inside: bool) -> dict[str, Any]:
  """The entries of a tree that belong to these parts, or those that do not."""
  belongs = lambda key: any(key == name or key.startswith(f"{name}_") for name in names)
  return {key: value for key, value in tree.items() if belongs(key) == inside}
