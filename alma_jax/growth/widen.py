"""Firefly: where a network is best widened or deepened, by split and by new neurons (docs/algorithms.md §4).

Works on networks that growth.surgery has taken apart; what is found, it does.

Every layer has, while growth lasts, a direction `split` for each of its neurons
and `num` candidates for new ones: `fresh` [.., I, num] leads to them from the
old neurons below, `below` [.., num, O + num] from the candidates below to the
layer's old neurons and to its own candidates. `below` of the output layer leads
to the logits. The strengths are one number per neuron, `old` [O] and `new` [num].

With depth, every layer also has `num` candidates for neurons of the residual
layer behind it, x + sum_i out_i relu(into_i . x), which is not there as long as
it has none: `into` [.., O, num] and `out` [num, O]; their strengths are `deep`.
"""
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax.growth import surgery
from alma_jax.models import layers
from alma_jax.types import Array

_EPSILON = 1e-5  # of batch norm


class Directions(NamedTuple):
  """A layer's auxiliary variables."""
  split: Array | None  # None: output layer
  fresh: Array | None
  below: Array | None  # None: first layer
  into: Array | None = None  # None: without depth, or output layer
  out: Array | None = None


class Strengths(NamedTuple):
  """How far each neuron of a layer is moved, 0 to 1."""
  old: Array
  new: Array
  deep: Array | None = None


def draw(rng, chain, num, depth=False):
  """Random Directions of every layer: U(±0.1) splits, N(0, 0.1²) and U(±0.01) candidates.

  Args:
    rng: numpy Generator.
    chain: list of Layer.
    num: candidates of a layer.
    depth: whether there are candidates for residual layers.

  Returns:
    List of Directions of float32 numpy arrays.
  """
  directions = []
  for i, layer in enumerate(chain):
    *space, inputs, outputs = layer.kernel.shape
    last = i + 1 == len(chain)
    split = fresh = below = into = out = None
    if not last:
      split, fresh = rng.uniform(-0.1, 0.1, layer.kernel.shape), rng.normal(0, 0.1, (*space, inputs, num))
    if i:
      below = rng.uniform(-0.01, 0.01, (*space, num, outputs if last else outputs + num))
    if depth and not last:
      into, out = rng.normal(0, 0.1, (*space, outputs, num)), rng.uniform(-0.01, 0.01, (num, outputs))
    directions.append(jax.tree.map(np.float32, Directions(split, fresh, below, into, out)))
  return directions


def strengths(directions, value):
  """Strengths of all layers at one value, float32."""
  full = lambda array: None if array is None else jnp.full(array.shape[-1], value, jnp.float32)
  return [Strengths(full(way.split), full(way.fresh), full(way.into)) for way in directions[:-1]]


def forward(module, chain, directions, steps, x, kept=None):
  """Logits [B, K] of the network with its neurons moved by `steps`, in evaluation.

  At strength 0 the network as it is, whatever the directions.

  Args:
    module: models.wide module.
    chain: list of Layer.
    directions: list of Directions.
    steps: list of Strengths, one less.
    x: normalised inputs [B, ...].
    kept: bool [num] per layer, candidates of its own whose outputs count; None: all.
  """
  old, new = (x if chain[0].kernel.ndim == 4 else x.reshape(len(x), -1)), None
  for i, (layer, way, step, pool) in enumerate(zip(chain, directions, steps, module.pools)):
    num_old = layer.kernel.shape[-1]
    there, aside, fresh = (_linear(old, kernel) for kernel in (layer.kernel, way.split, way.fresh))
    there = there if layer.bias is None else there + _lift(layer.bias, there)
    aside, fresh = _lift(step.old, aside) * aside, _lift(step.new, fresh) * fresh
    if new is not None:
      from_new = _linear(new, way.below)
      there, fresh = there + from_new[..., :num_old], fresh + from_new[..., num_old:]
    ends = [_activate(z, layer.norm, pool) for z in (there + aside, there - aside)]
    old, new = (ends[0] + ends[1]) / 2, _activate(fresh, _fresh_norm(layer), pool)
    new = new if kept is None else new * _lift(kept[i], new)
    old = old + _behind(old, layer, way, step)
  old, new = (z.reshape(len(z), -1) for z in (old, new))
  head = chain[-1]
  logits = _linear(old, head.kernel) + _linear(new, directions[-1].below)
  return logits + _lift(head.bias, logits)


def _behind(x, layer, way, step):
  """What the residual layer behind a layer adds to its outputs x, candidates at their strength included."""
  more = 0
  if layer.residual is not None:
    inner, out = layer.residual
    z = _linear(x, inner.kernel)
    more += _activate(z if inner.bias is None else z + _lift(inner.bias, z), inner.norm, False) @ out
  if way.into is not None:
    y = _activate(_linear(x, way.into), _fresh_norm(layer), False)
    more += (_lift(step.deep, y) * y) @ way.out
  return more


def _linear(x, kernel):
  if kernel.ndim == 2:
    return x @ kernel
  return layers.convolve(x, kernel)


def _activate(z, norm, pool):
  if norm is not None:
    gain = norm["scale"] * jax.lax.rsqrt(norm["var"] + _EPSILON)
    z = z * _lift(gain, z) + _lift(norm["bias"] - norm["mean"] * gain, z)
  z = jax.nn.relu(z)
  return layers.max_pool2(z) if pool else z


def _lift(values, like):
  """Per-channel values in the rank of `like`."""
  return jnp.reshape(values, (1,) * (like.ndim - 1) + (-1,))


def _fresh_norm(layer):
  return layer.norm and surgery.BLANK


@jax.jit
def optimizer_state(directions):
  """Fresh state of the directions' optimiser."""
  return _optimizer().init(directions)


def _optimizer():
  """Of the directions (§4, step 1)."""
  return optax.rmsprop(1e-3, decay=0.9, eps=1e-8, eps_in_sqrt=False, momentum=0.1)


@functools.partial(jax.jit, static_argnames=("module", "task"), donate_argnames=("directions", "state"))
def train_directions(module, task, chain, directions, state, pool, index_B, mask_B):
  """One step at full strength; penalises split directions by 1e-2, candidates' by 1e-4 of their squares."""
  batch = task.take(pool, index_B)
  x, count = task.inputs(pool, batch), mask_B.sum()
  steps = strengths(directions, 1.0)

  def loss(directions):
    logits = forward(module, chain, directions, steps, x)
    squares = lambda name: sum((jnp.sum(leaf**2) for way in directions[:-1] for leaf in jax.tree.leaves(
        getattr(way, name))), start=0.0)
    penalty = 1e-2 * squares("split") + 1e-4 * (squares("fresh") + squares("into"))
    return task.sums(logits, batch, mask_B).loss / count + penalty

  updates, state = _optimizer().update(jax.grad(loss)(directions), state, directions)
  return optax.apply_updates(directions, updates), state


@functools.partial(jax.jit, static_argnames=("module", "task"), donate_argnames="total")
def add_slopes(module, task, chain, directions, total, pool, index_B, mask_B, strength):
  """Adds the loss's derivatives by every neuron's strength, where all have this one, summed over a batch."""
  batch = task.take(pool, index_B)
  x = task.inputs(pool, batch)

  def loss(steps):
    return task.sums(forward(module, chain, directions, steps, x), batch, mask_B).loss

  return jax.tree.map(jnp.add, total, jax.grad(loss)(strengths(directions, strength)))


def select(scores, number):
  """The `number` most negative scores over all layers.

  Args:
    scores: list of Strengths of numpy arrays; what a neuron does to the loss.
    number: how many neurons to add; fewer if fewer help.

  Returns:
    List of (splits, news, deeps): indices into old neurons and candidates, ascending.
  """
  flat = np.concatenate([np.concatenate(jax.tree.leaves(s)) for s in scores])
  best = np.argsort(flat, kind="stable")[:number]
  chosen = np.zeros(len(flat), bool)
  chosen[best[flat[best] < 0]] = True
  picks, start = [], 0
  for s in scores:
    sizes = [0 if part is None else len(part) for part in s]
    parts = np.split(chosen[start:start + sum(sizes)], np.cumsum(sizes)[:-1])
    picks.append(tuple(map(np.flatnonzero, parts)))
    start += sum(sizes)
  return picks


@functools.partial(jax.jit, static_argnames=("network", "task"))
def refresh_stats(network, task, variables, pool, index_B, mask_B):
  """Batch-norm statistics after one more batch, parameters as they are."""
  x = task.inputs(pool, task.take(pool, index_B))
  return network.apply(variables, x, mask_B, train=True)[1]


def batches(order, size):
  """(index int32 [size], mask bool [size]) of successive batches, the last one padded."""
  for start in range(0, len(order), size):
    part = order[start:start + size].astype(np.int32)
    yield np.pad(part, (0, size - len(part))), np.arange(size) < len(part)
