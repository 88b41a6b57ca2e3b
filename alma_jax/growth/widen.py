"""Firefly: wider and more layers, by split and by new neurons, where they help most (ALGORITHMS §4).

Works on the Variables of a models.wide network. Here a kernel's last axes are
[inputs, outputs]: [3, 3, I, O] of a convolution, [I, O] of a linear layer.

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

from alma_jax.models import layers
from alma_jax.types import Array, Variables

_EPSILON = 1e-5  # of batch norm


class Residual(NamedTuple):
  """A residual layer of n neurons behind one of O."""
  into: Array  # [.., O, n]
  bias: Array | None
  norm: dict | None
  out: Array  # [n, O]


class Layer(NamedTuple):
  """A layer's own parameters, and statistics where it has a batch norm."""
  kernel: Array
  bias: Array | None
  norm: dict | None  # scale, bias, mean, var
  residual: Residual | None = None  # behind it


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


def take_apart(module, variables):
  """The network as a list of Layer, the output layer last."""
  params, stats = variables
  names = [*(f"hidden{i}" for i in range(len(module.widths))), "output"]
  chain = []
  for i, name in enumerate(names):
    residual, norm = f"residual{i}", f"norm{i}"
    if residual in params:
      inner = params[residual]
      behind = Residual(*_linear_part(inner["into"]), _norm_part(params, stats, residual), inner["out"])
    else:
      behind = None
    chain.append(Layer(*_linear_part(params[name]), _norm_part(params, stats, norm), behind))
  return chain


def _linear_part(params):
  """(kernel, bias or None) of a convolution or a linear layer."""
  kernel = params["kernel"]
  return kernel if kernel.ndim == 4 else kernel.T, params.get("bias")


def _norm_part(params, stats, name):
  """scale, bias, mean, var of a batch norm, or of the one in a residual layer; None: there is none."""
  if name not in stats:
    return None
  params, stats = params[name], stats[name]
  return {**params.get("norm", params), **stats.get("norm", stats)}


def put_together(chain):
  """Variables of a list of Layer, the widths, and those of the residual layers."""
  params, stats = {}, {}
  for i, layer in enumerate(chain):
    name = "output" if i + 1 == len(chain) else f"hidden{i}"
    params[name], norm = _split_off(layer)
    if norm is not None:
      params[f"norm{i}"], stats[f"norm{i}"] = norm
    if layer.residual is not None:
      into, norm = _split_off(Layer(layer.residual.into, layer.residual.bias, layer.residual.norm))
      params[f"residual{i}"] = {"into": into, "out": layer.residual.out}
      if norm is not None:
        params[f"residual{i}"]["norm"], stats[f"residual{i}"] = norm[0], {"norm": norm[1]}
  widths = tuple(int(layer.kernel.shape[-1]) for layer in chain[:-1])
  return Variables(params, stats), widths, tuple(num_residual(layer) for layer in chain[:-1])


def _split_off(layer):
  """(kernel and bias, (scale and bias, mean and var) of the batch norm or None) as Flax holds them."""
  linear = {"kernel": layer.kernel if layer.kernel.ndim == 4 else layer.kernel.T}
  if layer.bias is not None:
    linear["bias"] = layer.bias
  pick = lambda *names: {name: layer.norm[name] for name in names}
  return linear, None if layer.norm is None else (pick("bias", "scale"), pick("mean", "var"))


def num_residual(layer):
  """Neurons of the residual layer behind a Layer."""
  return 0 if layer.residual is None else int(layer.residual.out.shape[0])


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
    more = 0
    if layer.residual is not None:
      into, bias, norm, out = layer.residual
      inner = _linear(old, into)
      more += _activate(inner if bias is None else inner + _lift(bias, inner), norm, False) @ out
    if way.into is not None:
      inner = _activate(_linear(old, way.into), _fresh_norm(layer), False)
      more += (_lift(step.deep, inner) * inner) @ way.out
    old = old + more
  old, new = (z.reshape(len(z), -1) for z in (old, new))
  head = chain[-1]
  logits = _linear(old, head.kernel) + _linear(new, directions[-1].below)
  return logits + _lift(head.bias, logits)


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
  return layer.norm and {"scale": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}


def optimizer():
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

  updates, state = optimizer().update(jax.grad(loss)(directions), state, directions)
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


def operate(chain, directions, picks):
  """The wider network: the moved one at strength 1 for what was picked, 0 elsewhere.

  Args:
    chain: list of Layer, host arrays.
    directions: list of Directions, host arrays.
    picks: as `select` returns them.

  Returns:
    List of Layer, new arrays. An outputs' order: old neurons, second halves of
    the split ones, new ones.
  """
  wider, splits_below, news_below = [], np.zeros(0, int), np.zeros(0, int)
  for i, (layer, way) in enumerate(zip(chain, directions)):
    num_old, last = layer.kernel.shape[-1], i + 1 == len(chain)
    splits, news, deeps = (np.asarray(pick, int) for pick in (((),) * 3 if last else picks[i]))
    kernel = np.array(layer.kernel)
    if not last:
      kernel[..., splits] += way.split[..., splits]
      halves = layer.kernel[..., splits] - way.split[..., splits]
      kernel = np.concatenate([kernel, halves, way.fresh[..., news]], -1)
    old, second = kernel.copy(), kernel[..., splits_below, :] / 2
    old[..., splits_below, :] /= 2
    parts = [old, second]
    if i:
      outputs = [*range(num_old), *splits, *(num_old + news)]
      parts.append(way.below[..., news_below, :][..., outputs])
    bias = layer.bias
    if bias is not None and not last:
      bias = np.concatenate([bias, bias[splits], np.zeros(len(news), bias.dtype)])
    norm = None if layer.norm is None else {
        key: np.concatenate([_with_blanks(key, value, 0), _with_blanks(key, value[splits], len(news))])
        for key, value in layer.norm.items()}
    wider.append(Layer(np.concatenate(parts, -2), bias, norm, _operate_behind(layer, way, splits, len(news), deeps)))
    splits_below, news_below = splits, news
  return wider


def _operate_behind(layer, way, splits, num_new, deeps):
  """The residual layer behind a wider layer, with the candidates `deeps`; None: there is none.

  It reads the halves of what was split with half the weight, and adds to both; new neurons it leaves alone.
  """
  old = layer.residual
  if old is None and not len(deeps):
    return None
  fresh = None if way.into is None else (way.into[..., deeps], way.out[deeps])
  if old is None:
    into, out = fresh
    bias = None if layer.bias is None else np.zeros(len(deeps), into.dtype)
    norm = None if layer.norm is None else {key: _with_blanks(key, into[:0, 0, 0, 0], len(deeps)) for key in layer.norm}
  else:
    into, out = (old.into, old.out) if fresh is None else (
        np.concatenate([old.into, fresh[0]], -1), np.concatenate([old.out, fresh[1]]))
    bias = None if old.bias is None else np.pad(old.bias, (0, len(deeps)))
    norm = None if old.norm is None else {key: _with_blanks(key, old.norm[key], len(deeps)) for key in old.norm}
  into, out = np.array(into), np.array(out)
  into[..., splits, :] /= 2
  zeros = lambda array, axis: np.zeros([num_new if a == axis else n for a, n in enumerate(array.shape)], array.dtype)
  into = np.concatenate([into, into[..., splits, :], zeros(into, into.ndim - 2)], -2)
  return Residual(into, bias, norm, np.concatenate([out, out[:, splits], zeros(out, 1)], 1))


def _with_blanks(key, value, num):
  """A batch norm's values, and those of `num` neurons that are new to it."""
  blank = {"scale": 1, "bias": 0, "mean": 0, "var": 1}[key]
  return np.concatenate([value, np.full(num, blank, value.dtype)])


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

