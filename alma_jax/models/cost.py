"""Counts parameters, and multiply-adds in the jaxpr of a function (docs/algorithms.md §1).

Only matrix products and convolutions count: no biases, activations, batch norm or pooling, and no zeros with which
convolution.py pads a kernel. XLA's own cost analysis counts the body of a loop once, so the jaxpr is walked here, and
the body counts once for each iteration.
"""
import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from alma_jax.models import convolution
from alma_jax.models.network import Mixture, Network
from alma_jax.types import Array, Shape, Tree, Variables

_JAXPRS = jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr
_predicting = False


def count_params(params: Tree) -> int:
  """The number of trainable parameters in a pytree of arrays or shapes."""
  return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(params)))


@functools.lru_cache(maxsize=64)
def forward_macs(network: Network, shape: Shape) -> int:
  """Multiply-adds of a forward pass of one example; `shape` is its shape with a batch axis, (1, ...)."""
  if isinstance(network, Mixture):  # its networks are alike, so one of them is traced
    return network.size * forward_macs(network.network, shape)
  x, mask, variables = _abstract(network, shape)
  return count(network.scalar_output, variables, x, mask)


def training_flops(network: Network, shape: Shape) -> int:
  """Floating-point operations of the forward and backward pass of one example, 2 per multiply-add.

  That is about 6 times the forward multiply-adds, less the gradient with respect to the inputs of the network, which
  training does not need. `shape` is the shape of the example with a batch axis, (1, ...).
  """
  return 0 if _predicting else _training_flops(network, shape)


@contextlib.contextmanager
def predicting() -> Iterator[None]:
  """A context for costs of many networks, in which less is traced.

  `training_flops` is 0, because tracing a backward pass takes longer than all the rest. Learners that `stand_in` serves
  trace the initialisation of a network once, for any number of members.
  """
  global _predicting
  before, _predicting = _predicting, True
  try:
    yield
  finally:
    _predicting = before


def stand_in(network: Network, num_members: int, example: Any) -> Variables | None:
  """While costs are predicted, zeros in the shapes of the variables [M, ...] of new members; otherwise None.

  None as well if `example`, the input that they are initialised for, is no single array.
  """
  if not _predicting or not hasattr(example, "shape"):
    return None
  return jax.tree.map(lambda leaf: jnp.zeros((num_members, *leaf.shape), leaf.dtype),
                      abstract_variables(network, example.shape))


@functools.lru_cache(maxsize=64)
def _training_flops(network: Network, shape: Shape) -> int:
  x, mask, variables = _abstract(network, shape)

  def loss(params: Tree, stats: Tree, x: Any, mask: Array) -> Array:
    return network.scalar_output(Variables(params, stats), x, mask)

  return 2 * count(jax.grad(loss), variables.params, variables.stats, x, mask)


def count(fn: Callable[..., Any], *args: Any) -> int:
  """Multiply-adds of `fn(*args)`; args may be shapes (jax.ShapeDtypeStruct).

  Raises:
    ValueError: a `while` loop holds multiply-adds; its number of iterations is unknown.
  """
  return _walk(jax.make_jaxpr(fn)(*args).jaxpr)


@functools.lru_cache(maxsize=64)
def abstract_variables(network: Network, shape: Shape) -> Variables:
  """Shapes and dtypes of the network's variables, for an example of shape (1, ...)."""
  return jax.eval_shape(network.init, jax.random.key(0), network.inputs(shape))


def _abstract(network: Network, shape: Shape) -> tuple[Any, Any, Variables]:
  """Shapes and dtypes of a batch, of its mask and of the network's variables."""
  return network.inputs(shape), jax.ShapeDtypeStruct(shape[:1], bool), abstract_variables(network, shape)


def _walk(jaxpr: Any) -> int:
  total = 0
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    if name == "dot_general":
      total += _dot_general(eqn)
    elif name == "conv_general_dilated":
      total += _convolution(eqn)
    elif name == "scan":
      total += eqn.params["length"] * _walk(eqn.params["jaxpr"].jaxpr)
    elif name == "while":
      if _walk(eqn.params["body_jaxpr"].jaxpr):
        raise ValueError("multiply-adds inside a loop of unknown length cannot be counted; use jax.lax.scan")
    elif name == "cond":
      total += max(_walk(branch.jaxpr) for branch in eqn.params["branches"])
    else:
      all_of_it = sum(map(_walk, jaxprs_of(eqn)))
      total += int(all_of_it * convolution.PRODUCTS.get(eqn.params.get("name"), 1))
  return total


def jaxprs_of(eqn: Any) -> Iterator[Any]:
  """The jaxprs among the parameters of an equation, such as the body of a loop."""
  for value in eqn.params.values():
    for each in value if isinstance(value, (list, tuple)) else (value,):
      if isinstance(each, _JAXPRS):
        yield getattr(each, "jaxpr", each)


def _dot_general(eqn: Any) -> int:
  (contracted, _), _ = eqn.params["dimension_numbers"]
  shape = eqn.invars[0].aval.shape
  return math.prod(shape[i] for i in contracted) * int(np.prod(eqn.outvars[0].aval.shape, dtype=np.int64))


def _convolution(eqn: Any) -> int:
  """Every output sums over the height and width of the kernel and the input channels of its group."""
  kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
  per_output = math.prod(kernel[i] for i in spec[1:])
  return per_output * int(np.prod(eqn.outvars[0].aval.shape, dtype=np.int64))
