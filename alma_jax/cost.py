"""Multiply-adds, counted in the jaxpr (docs/algorithms.md §1).

Only matrix products and convolutions count: no biases, activations, batch
norm or pooling. XLA's own cost analysis counts the body of a loop once, so the
jaxpr is walked here, loops multiplied by their length.
"""
import functools
import math

import jax
import jax.extend.core
import numpy as np

from alma_jax.types import Variables


@functools.lru_cache(maxsize=64)
def forward_macs(network, shape):
  """Multiply-adds of one forward pass over one example of shape (1, ...)."""
  x, mask, variables = _abstract(network, shape)
  return count(network.total, variables, x, mask)


@functools.lru_cache(maxsize=64)
def training_flops(network, shape):
  """Floating-point operations of forward and backward pass over one example.

  Two per multiply-add. About 6 times the forward multiply-adds, less what the
  first layer's input gradient, which nobody needs, would cost.

  Args:
    network: models.Network, Mixture or SwitchNetwork.
    shape: of one example with its batch axis, (1, ...).
  """
  x, mask, variables = _abstract(network, shape)

  def loss(params, stats, x, mask):
    return network.total(Variables(params, stats), x, mask)

  return 2 * count(jax.grad(loss), variables.params, variables.stats, x, mask)


def count(fn, *args):
  """Multiply-adds of `fn(*args)`; args may be shapes (jax.ShapeDtypeStruct)."""
  return _walk(jax.make_jaxpr(fn)(*args).jaxpr)


def _abstract(network, shape):
  x = network.inputs(shape)
  mask = jax.ShapeDtypeStruct(shape[:1], bool)
  return x, mask, abstract_variables(network, shape)


@functools.lru_cache(maxsize=64)
def abstract_variables(network, shape):
  """Shapes and dtypes of the network's Variables for one example of shape (1, ...)."""
  return jax.eval_shape(network.init, jax.random.key(0), network.inputs(shape))


def _walk(jaxpr):
  total = 0
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    if name == "dot_general":
      total += _dot(eqn)
    elif name == "conv_general_dilated":
      total += _conv(eqn)
    elif name == "scan":
      total += eqn.params["length"] * _walk(eqn.params["jaxpr"].jaxpr)
    elif name == "while":
      if _walk(eqn.params["body_jaxpr"].jaxpr):
        raise ValueError("multiply-adds inside a loop of unknown length cannot be counted")
    elif name == "cond":
      total += max(_walk(branch.jaxpr) for branch in eqn.params["branches"])
    else:
      total += sum(_walk(sub) for sub in jax.extend.core.jaxprs_in_params(eqn.params))
  return total


def _dot(eqn):
  (contracted, _), _ = eqn.params["dimension_numbers"]
  shape = eqn.invars[0].aval.shape
  return math.prod(shape[i] for i in contracted) * int(np.prod(eqn.outvars[0].aval.shape, dtype=np.int64))


def _conv(eqn):
  """Every output adds up kernel height x width x input channels of its group."""
  kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
  per_output = math.prod(kernel[i] for i in spec[1:])
  return per_output * int(np.prod(eqn.outvars[0].aval.shape, dtype=np.int64))
