"""Splitting experts of gated mixtures in two (docs/algorithms.md §3).

Works on stacked Variables [1, ...] of models.moe networks, whose mixture layers
hold `experts` [1, E, ...] and gates [1, E-1, ...] with room for E experts.
"""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import sharding
from alma_jax.learners import program
from alma_jax.models import moe
from alma_jax.types import Variables


def plant(variables, splits):
  """The variables with their layers' trees set.

  Args:
    variables: Variables [1, ...].
    splits: {layer: list of its splits}, see models.moe.

  Returns:
    Variables; the arrays that were changed lie on the host.
  """
  stats = dict(variables.stats)
  for layer, leaves in splits.items():
    if "tree" in stats.get(layer, {}):
      tree, live = moe.paths(leaves, stats[layer]["live"].shape[-1])
      stats[layer] = dict(stats[layer], tree=tree[None], live=live[None])
  return variables._replace(stats=stats)


def grow(old, shapes, splits, rng):
  """A larger network of the same function, whose trees have one split more.

  Both children of a split hold the parent's parameters and statistics; its gate
  is random. So the function stays the same, in training too with soft gates; a
  gate of zeros would keep the children equal for ever.

  Args:
    old: host Variables [1, ...] with E live experts in each mixture layer.
    shapes: Variables of shapes [1, ...] with room for E + 1 at least.
    splits: {layer: list of E splits}, the last of which is new.
    rng: numpy Generator, for the gates.

  Returns:
    Variables on the host, new arrays; room that is not used yet is zero.
  """
  params, stats = _grow_params(old.params, shapes.params, splits, rng.uniform), dict(old.stats)
  for layer, leaves in splits.items():
    stats[layer] = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes.stats[layer])
    if "experts" in stats[layer]:
      stats[layer]["experts"] = _grow_experts(old.stats[layer]["experts"], shapes.stats[layer]["experts"], leaves)
  return plant(Variables(params, stats), splits)


def grow_optimizer(old, shapes, params, splits):
  """The state of an optimiser after `grow`: both children have the parent's moments, the gate has none.

  Args:
    old: host state [1, ...] of one of optax's shape: what has the structure of
      the parameters belongs to them.
    shapes: of the larger state.
    params: those before the growth.
    splits: as in `grow`.
  """
  structure = jax.tree.structure(params)
  like_params = lambda node: jax.tree.structure(node) == structure
  no_moments = lambda low, high, shape: np.zeros(shape)
  one = lambda old, shapes: _grow_params(old, shapes, splits, no_moments) if like_params(old) else old
  return jax.tree.map(one, old, shapes, is_leaf=like_params)


def _grow_params(old, shapes, splits, draw):
  """The parameters, or what is like them, after a split of each layer; draw(low, high, shape) makes its gate."""
  params = dict(old)
  for layer, leaves in splits.items():
    num = len(leaves)
    params[layer] = dict(experts=_grow_experts(old[layer]["experts"], shapes[layer]["experts"], leaves))
    bound = 1 / np.sqrt(shapes[layer]["gate_kernel"].shape[-1])
    for gate in ("gate_kernel", "gate_bias"):
      shape = shapes[layer][gate]
      params[layer][gate] = new = _with_room(shape, old[layer].get(gate), num - 1)
      new[:, num - 1] = draw(-bound, bound, new.shape[2:])
  return params


def _grow_experts(old, shapes, leaves):
  """Experts [1, E, ...] with a copy of expert leaves[-1] behind them."""
  num, leaf = len(leaves), leaves[-1]

  def split(shape, array):
    new = _with_room(shape, array, num)
    new[:, num] = array[:, leaf]
    return new

  return jax.tree.map(split, shapes, old)


def _with_room(shape, array, num):
  """Zeros of `shape` [1, E, ...] that begin with the first `num` of `array`."""
  new = np.zeros(shape.shape, shape.dtype)
  if num:
    new[:, :num] = array[:, :num]
  return new


def scores(spec, variables, pool, which):
  """How much use each expert is of, and how much loss it answers for.

  Args:
    spec: program.FitSpec.
    variables: Variables [1, ...] on every device.
    pool: task's pool.
    which: int32 [N], validation examples in it.

  Returns:
    {layer: {"usage": sum of the weights, "loss": summed cross-entropy (nats) of
    the examples whose largest weight is the expert's}}, lists of floats over the
    E experts that there is room for; {} without gates.
  """
  total = {}
  for batch in program.batches(which, spec.task.eval_batch):
    part = sharding.fetch(_scores(spec, variables, pool, *sharding.put(batch, spec.mesh)))
    total = jax.tree.map(np.add, total, part) if total else jax.tree.map(np.float64, part)
  return jax.tree.map(lambda leaf: leaf.tolist(), sharding.agree_on(jax.tree.map(np.float32, total)))


@functools.partial(jax.jit, static_argnames="spec")
def _scores(spec, variables, pool, index_B, mask_B):
  batch = spec.task.take(pool, index_B)
  logits, weights = moe.route(spec.network, jax.tree.map(lambda leaf: leaf[0], variables),
                              spec.task.inputs(pool, batch))
  loss_B = jnp.where(mask_B, spec.task.losses(logits, batch), 0)
  most = lambda w_BE: jax.nn.one_hot(jnp.argmax(w_BE, -1), w_BE.shape[1])
  return {layer: {"usage": jnp.where(mask_B[:, None], w_BE, 0).sum(0), "loss": (most(w_BE) * loss_B[:, None]).sum(0)}
          for layer, w_BE in weights.items()}
