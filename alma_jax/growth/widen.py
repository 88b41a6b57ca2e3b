"""Finds where Firefly adds neurons to a network: by splits, new neurons and residual layers (docs/algorithms.md §4).

Works on the layers that surgery.take_apart returns; surgery.operate then adds the neurons.

During growth every layer has a direction `split` for each of its neurons, in which the neuron would be split, and `num`
candidates for new neurons. `fresh` [.., I, num] are the weights from the old neurons of the layer below to the
candidates. `below` [.., num, O + num] are the weights from the candidates of the layer below to the old neurons of the
layer and to its own candidates; of the output layer they are the weights to the logits. Each neuron has a strength:
`old` [O] and `new` [num].

With depth, every layer also has `num` candidates for neurons of the residual layer that follows it,
x + sum_i out_i relu(into_i . x), which exists once it has a neuron: `into` [.., O, num] and `out` [num, O]. Their
strengths are `deep`.
"""
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax.growth import surgery
from alma_jax.growth.surgery import Directions, Layer, Picks
from alma_jax.models import convolution, layers
from alma_jax.problems.contract import Problem
from alma_jax.types import Array, Tree, Variables

_EPSILON = 1e-5  # of batch norm


class Strengths(NamedTuple):
  """How far the neurons of a layer are moved along their directions, 0 to 1.

  Attributes:
    old: [O].
    new: [num].
    deep: [num]; None without depth.
  """
  old: Any
  new: Any
  deep: Any = None


def draw(rng: np.random.Generator, chain: Sequence[Layer], num: int, depth: bool = False) -> list[Directions]:
  """Random directions: `split` from U(±0.1), `fresh` and `into` from N(0, 0.1²), `below` and `out` from U(±0.01).

  Args:
    rng: draws them.
    chain: the layers.
    num: number of candidates of a layer.
    depth: whether there are candidates for residual layers.

  Returns:
    The Directions of each layer, float32 numpy arrays.
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


def strengths(directions: Sequence[Directions], value: Any) -> list[Strengths]:
  """Strengths of all hidden layers that are equal to one value, float32."""
  full = lambda array: None if array is None else jnp.full(array.shape[-1], value, jnp.float32)
  return [Strengths(full(way.split), full(way.fresh), full(way.into)) for way in directions[:-1]]


def forward(module: Any, chain: Sequence[Layer], directions: Sequence[Directions], steps: Sequence[Strengths], x: Array,
            kept: Sequence[Array] | None = None) -> Array:
  """Logits float32 [B, K] in evaluation of the network whose neurons are moved by `steps`.

  With all strengths 0 it is the network itself.

  Args:
    module: of models.mlp or models.wide.
    chain: the layers.
    directions: of each layer.
    steps: strengths of each hidden layer.
    x: normalised inputs [B, ...].
    kept: bool [num] for each hidden layer, which of its candidates are used; None: all.
  """
  old: Array = x if chain[0].kernel.ndim == 4 else x.reshape(len(x), -1)
  new: Any = None
  for i, (layer, way, step, pool) in enumerate(zip(chain, directions, steps, module.pools)):
    num_old = layer.kernel.shape[-1]
    there, aside, fresh = (_linear(old, kernel) for kernel in (layer.kernel, way.split, way.fresh))
    there = there if layer.bias is None else there + _lift(layer.bias, there)
    aside, fresh = _lift(step.old, aside) * aside, _lift(step.new, fresh) * fresh
    if new is not None:
      from_new = _linear(new, way.below)
      there, fresh = there + from_new[..., :num_old], fresh + from_new[..., num_old:]
    ends = [_activate(z, layer.norm, pool) for z in (there + aside, there - aside)]
    old, new = (ends[0] + ends[1]) / 2, _activate(fresh, _new_norm(layer), pool)
    new = new if kept is None else new * _lift(kept[i], new)
    old = old + _residual(old, layer, way, step)
  old, new = (z.reshape(len(z), -1) for z in (old, new))
  head = chain[-1]
  logits = _linear(old, head.kernel) + _linear(new, directions[-1].below)
  return logits + _lift(head.bias, logits)


def _residual(x: Array, layer: Layer, way: Directions, step: Strengths) -> Any:
  """What the residual layer after `layer` adds to the outputs x, with its candidates at their strengths."""
  more: Any = 0
  if layer.residual is not None:
    inner, out = layer.residual
    z = _linear(x, inner.kernel)
    more += _activate(z if inner.bias is None else z + _lift(inner.bias, z), inner.norm, False) @ out
  if way.into is not None:
    y = _activate(_linear(x, way.into), _new_norm(layer), False)
    more += (_lift(step.deep, y) * y) @ way.out
  return more


def _linear(x: Array, kernel: Array) -> Array:
  if kernel.ndim == 2:
    return x @ kernel
  return convolution.convolve(x, kernel)


def _activate(z: Array, norm: dict[str, Any] | None, pool: bool) -> Array:
  """Batch norm in evaluation if there is one, ReLU, and max pooling if `pool`."""
  if norm is not None:
    gain = norm["scale"] * jax.lax.rsqrt(norm["var"] + _EPSILON)
    z = z * _lift(gain, z) + _lift(norm["bias"] - norm["mean"] * gain, z)
  z = jax.nn.relu(z)
  return layers.max_pool2(z) if pool else z


def _lift(values: Any, like: Array) -> Array:
  """Values of each channel with the rank of `like`."""
  return jnp.reshape(values, (1,) * (like.ndim - 1) + (-1,))


def _new_norm(layer: Layer) -> dict[str, Any] | None:
  """Batch norm of candidates; None if the layer has none."""
  return layer.norm and surgery.NEW_NORM


@jax.jit
def optimizer_state(directions: Sequence[Directions]) -> Tree:
  """Fresh state of the optimiser that trains directions."""
  return _optimizer().init(directions)


def _optimizer() -> optax.GradientTransformation:
  """The optimiser that trains directions (docs/algorithms.md §4, step 1)."""
  return optax.rmsprop(1e-3, decay=0.9, eps=1e-8, eps_in_sqrt=False, momentum=0.1)


@functools.partial(jax.jit, static_argnames=("module", "problem"), donate_argnames=("directions", "state"))
def train_directions(module: Any, problem: Problem, chain: Sequence[Layer], directions: list[Directions], state: Tree,
                     pool: Tree, index_B: Array, mask_B: Array) -> tuple[list[Directions], Tree]:
  """One optimiser step of the directions on a batch, with all strengths 1 (docs/algorithms.md §4, step 1).

  Adds 1e-2 times the squares of `split` and 1e-4 times the squares of `fresh` and `into` to the mean loss.

  Returns:
    (directions, optimiser state).
  """
  batch = problem.take(pool, index_B)
  x, count = problem.inputs(pool, batch), mask_B.sum()
  steps = strengths(directions, 1.0)

  def loss(directions: list[Directions]) -> Array:
    logits = forward(module, chain, directions, steps, x)
    squares = lambda name: sum((jnp.sum(leaf**2) for way in directions[:-1] for leaf in jax.tree.leaves(
        getattr(way, name))), start=0.0)
    penalty = 1e-2 * squares("split") + 1e-4 * (squares("fresh") + squares("into"))
    return problem.sums(logits, batch, mask_B).loss / count + penalty

  updates, state = _optimizer().update(jax.grad(loss)(directions), state, directions)
  return optax.apply_updates(directions, updates), state


@functools.partial(jax.jit, static_argnames=("module", "problem"), donate_argnames="total")
def add_slopes(module: Any, problem: Problem, chain: Sequence[Layer], directions: Sequence[Directions],
               total: list[Strengths], pool: Tree, index_B: Array, mask_B: Array, strength: Array) -> list[Strengths]:
  """Adds to `total` the gradient of a batch's summed loss with respect to the strengths; all of them are `strength`."""
  batch = problem.take(pool, index_B)
  x = problem.inputs(pool, batch)

  def loss(steps: list[Strengths]) -> Array:
    return problem.sums(forward(module, chain, directions, steps, x), batch, mask_B).loss

  return jax.tree.map(jnp.add, total, jax.grad(loss)(strengths(directions, strength)))


def select(scores: Sequence[Strengths], number: int) -> list[Picks]:
  """Selects the neurons with the most negative scores over all layers.

  Args:
    scores: of each layer, numpy arrays: by how much each neuron changes the loss.
    number: how many neurons to add; fewer are selected if fewer scores are negative.

  Returns:
    For each layer ascending indices of (old neurons to split, candidates for new neurons, candidates for the residual
    layer).
  """
  flat = np.concatenate([np.concatenate(jax.tree.leaves(s)) for s in scores])
  best = np.argsort(flat, kind="stable")[:number]
  chosen = np.zeros(len(flat), bool)
  chosen[best[flat[best] < 0]] = True
  picks: list[Picks] = []
  start = 0
  for s in scores:
    sizes = [0 if part is None else len(part) for part in s]
    parts = np.split(chosen[start:start + sum(sizes)], np.cumsum(sizes)[:-1])
    splits, news, deeps = map(np.flatnonzero, parts)
    picks.append((splits, news, deeps))
    start += sum(sizes)
  return picks


@functools.partial(jax.jit, static_argnames=("network", "problem"))
def refresh_stats(network: Any, problem: Problem, variables: Variables, pool: Tree, index_B: Array,
                  mask_B: Array) -> Tree:
  """The statistics of batch norm after one more batch; the parameters do not change."""
  x = problem.inputs(pool, problem.take(pool, index_B))
  return network.apply(variables, x, mask_B, train=True)[1]
