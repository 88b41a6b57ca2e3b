"""Checks whether a run fits into memory, by shapes, before anything large is allocated.

The estimate is a lower bound, so that no run that fits is refused. It counts what training holds at one moment: the
data, the batches of a dispatch, the learner's variables, the state of a stage, and the largest output of one layer. It
does not count gradients, copies, compiled programs, other activations, and most of what a learner may grow to.
"""
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.messages import num_bytes
from alma_jax.models import convolution, cost
from alma_jax.parallel import sharding
from alma_jax.parallel.machine import host_memory
from alma_jax.runs.settings import Setting
from alma_jax.training import loop
from alma_jax.types import Tree

_FLOAT = 4  # bytes
_COPIES = 3  # of all variables: between stages, in training, and those of the best epoch or a moment of the optimiser


class Limits(NamedTuple):
  """Memory that a run may use, in bytes.

  Attributes:
    host: memory of this process.
    device: memory of each device; None: devices use the host's memory (a CPU).
  """
  host: float
  device: float | None


class Part(NamedTuple):
  """Something that a run holds in memory.

  Attributes:
    what: its name in messages.
    advice: what to change if it is too large.
    host: bytes of it in the host's memory.
    device: bytes of it on each device that has a memory of its own, else 0.
  """
  what: str
  advice: str
  host: int
  device: int


def check(setting: Setting, limits: Limits | None = None) -> None:
  """Refuses a run that cannot fit into memory. It allocates nothing large, and waits for no other process.

  Args:
    setting: the run.
    limits: memory that the run may use; None: that of this process and its devices.

  Raises:
    BadInput: the run needs more memory than there is. The message says how much, and which field to change.
  """
  limits = limits or available(setting.learner.mesh)
  held = Held(setting, apart=limits.device is not None)
  fixed = [held.data(), held.batches()]
  problem = _problem([*fixed, held.least_variables()], limits)  # plain integers, so of any size
  problem = problem or _problem([*fixed, *held.training()], limits)
  if problem:
    raise BadInput(problem)


def available(mesh: Mesh) -> Limits:
  """The memory of this process and of the devices of a mesh."""
  devices = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
  if mesh.devices.flat[0].platform == "cpu":
    return Limits(host_memory(), None)
  return Limits(host_memory(), min(((d.memory_stats() or {}).get("bytes_limit", math.inf) for d in devices),
                                   default=math.inf))


def _problem(parts: Sequence[Part], limits: Limits) -> str | None:
  """A sentence about the memory that is too small, or None."""
  places = [("memory", limits.host, lambda part: part.host)]
  if limits.device is not None:
    places.append(("memory on each device", limits.device, lambda part: part.device))
  for where, limit, size in places:
    needed, largest = sum(map(size, parts)), max(parts, key=size)
    if needed > limit:
      return (f"the run needs at least {num_bytes(needed)} of {where}, but there are {num_bytes(limit)}; "
              f"{num_bytes(size(largest))} are for {largest.what}, so {largest.advice}.")
  return None


class Held:
  """What a run holds in memory, part by part."""

  def __init__(self, setting: Setting, apart: bool):
    """`apart`: whether devices have a memory of their own."""
    self._setting, self._apart = setting, apart
    c = setting.config
    problem: Any = setting.facts.problem
    train: Any = c.train
    self._spec = loop.FitSpec(None, problem, train, c.num_members, 0, setting.learner.mesh, False)  # for its arithmetic
    name = c.learner.members
    self._members = (getattr(c.learner, name), f"learner.{name}") if name else (1, "learner.name")

  def data(self) -> Part:
    """The data set, once, because a CPU may use the host's arrays as they are."""
    advice = f"take fewer or smaller examples than dataset.name={self._setting.config.dataset.name!r} has"
    return self._of_host("the data set", advice, *self._setting.protocol.num_bytes)

  def batches(self) -> Part:
    """What the host prepares for a dispatch, see `loop.advance`: indices, and for text the windows."""
    c, spec, rows = self._setting.config, self._spec, self._setting.facts.problem.max_steps
    sizes = self._setting.facts.problem.batch_bytes(rows * spec.padded_members * spec.padded_batch, spec.mesh.size)
    advice = _lower((c.train.batch_size, "train.batch_size"), self._members)
    return self._of_host(f"the batches of {rows} training steps", advice, *sizes)

  def least_variables(self) -> Part:
    """A lower bound of the variables in training, from the config alone."""
    c = self._setting.config
    one = c.model.layer_weights * c.model.num_layers * c.model.width**2
    size = _FLOAT * one * c.num_members * c.learner.mixture_size
    return self._variables(size, size * (_COPIES - 1))

  def training(self) -> list[Part]:
    """The variables of a stage in training, members of earlier stages, and the largest output of one layer."""
    learner = self._setting.learner
    state = contract.untrained(learner)
    if state is None:
      return [self.least_variables()]
    live = _bytes(state.live)
    data = loop.StageData(0, self._setting.config.seed, None, None, np.zeros(1, np.int32), np.zeros(1, np.int32), 1)
    training = learner.largest_training(state, data)
    return [self._variables(live, _bytes(loop.template(training.spec, training.variables))), self._frozen(live),
            self._activations(training.spec.network)]

  def _variables(self, live: int, carry: int) -> Part:
    """Variables between two stages, all of them on each device, and the state of a stage, which devices share."""
    c = self._setting.config
    advice = _lower((c.model.width**2, "model.width", c.model.width), self._members,
                    (c.model.num_experts, "model.num_experts"), (c.model.num_layers, "model.num_layers"))
    shares = self._setting.learner.mesh.shape[sharding.MEMBER] if self._apart else 1
    return self._of_devices("the network's variables and their optimiser", advice, live + carry // shares)

  def _frozen(self, live: int) -> Part:
    """Members of earlier stages, in the last stage. The newest is not counted: the live member may start from it."""
    c = self._setting.config
    num = max(0, len(self._setting.protocol.sizes().train) - 2) if self._setting.learner.freezes else 0
    advice = f"train less often or lower model.width={c.model.width}"
    return self._of_devices("the members kept of earlier stages", advice, num * live)

  def _activations(self, network: Any) -> Part:
    """The largest output of a matrix product or convolution, for the examples that a device takes at once."""
    c, shape = self._setting.config, (self._spec.at_once, *self._setting.facts.example_shape)
    variables = cost.abstract_variables(network, (1, *shape[1:]))
    mask = jax.ShapeDtypeStruct(shape[:1], bool)
    largest = _largest_output(jax.make_jaxpr(network.scalar_output)(variables, network.inputs(shape), mask).jaxpr)
    batch = ((c.train.micro_batch, "train.micro_batch") if c.train.micro_batch else
             (c.train.batch_size, "train.batch_size"))
    return self._of_devices("the output of one layer", _lower(batch, (c.model.width, "model.width")), largest)

  def _of_host(self, what: str, advice: str, host: int, device: int) -> Part:
    return Part(what, advice, host, device if self._apart else 0)

  def _of_devices(self, what: str, advice: str, size: int) -> Part:
    """A Part that devices alone hold. If they have no memory of their own, it is in the host's."""
    return Part(what, advice, 0 if self._apart else size, size if self._apart else 0)


def _largest_output(jaxpr: Any) -> int:
  """Bytes of the largest such output. Batched products do not count: those of attention are computed in pieces."""
  found = [0]
  for eqn in jaxpr.eqns:
    name, is_conv = eqn.primitive.name, eqn.params.get("name") in convolution.PRODUCTS
    if name == "conv_general_dilated" or is_conv or (
        name == "dot_general" and not eqn.params["dimension_numbers"][1][0]):
      found.append(_bytes([eqn.outvars[0].aval]))
    found += [_largest_output(sub) for sub in cost.jaxprs_of(eqn)]
  return max(found)


def _lower(*factors: tuple[Any, ...]) -> str:
  """Advice to lower the field that contributes most, of (contribution, field) or (contribution, field, value)."""
  _, field, value = max(((*factor, factor[0])[:3] for factor in factors), key=lambda factor: factor[0])
  return f"lower {field}={value}"


def _bytes(tree: Tree) -> int:
  """Bytes of a pytree of arrays or shapes, as an int of any size."""
  return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
