"""Splitting experts of gated mixtures in two (ALGORITHMS §3).

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


def grow(old, fresh, splits):
  """Copies `old` into `fresh`, whose trees have one split more.

  Both children of a split hold the parent's parameters and statistics; its gate
  is the random one of `fresh`. So the function stays the same, in training too
  with soft gates; a gate of zeros would keep the children equal for ever.

  Args:
    old: host Variables [1, ...] with E live experts in each mixture layer.
    fresh: host Variables [1, ...] with room for E + 1 at least, untrained.
    splits: {layer: list of E splits}, the last of which is new.

  Returns:
    Variables, new arrays.
  """
  params, stats = dict(old.params), dict(old.stats)
  for layer, leaves in splits.items():
    split = functools.partial(_split, num=len(leaves), leaf=leaves[-1])
    params[layer] = dict(fresh.params[layer], experts=jax.tree.map(
        split, fresh.params[layer]["experts"], old.params[layer]["experts"]))
    for gate in ("gate_kernel", "gate_bias"):
      if gate in old.params[layer]:
        params[layer][gate] = _copied(fresh.params[layer][gate], old.params[layer][gate], len(leaves) - 1)
    stats[layer] = dict(fresh.stats[layer])
    if "experts" in stats[layer]:
      stats[layer]["experts"] = jax.tree.map(split, fresh.stats[layer]["experts"], old.stats[layer]["experts"])
  return plant(Variables(params, stats), splits)


def _split(new, old, num, leaf):
  new = _copied(new, old, num)
  new[:, num] = old[:, leaf]
  return new


def _copied(new, old, num):
  new = np.array(new)
  new[:, :num] = old[:, :num]
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
  total, num = {}, len(which)
  for start in range(0, num, program.VAL_BATCH):
    index = which[np.minimum(np.arange(start, start + program.VAL_BATCH), num - 1)].astype(np.int32)
    mask = np.arange(start, start + program.VAL_BATCH) < num
    part = sharding.fetch(_scores(spec, variables, pool, *sharding.put((index, mask), spec.mesh)))
    total = jax.tree.map(np.add, total, part) if total else jax.tree.map(np.float64, part)
  return jax.tree.map(lambda leaf: leaf.tolist(), total)


@functools.partial(jax.jit, static_argnames="spec")
def _scores(spec, variables, pool, index_B, mask_B):
  batch = spec.task.take(pool, index_B)
  logits, weights = moe.route(spec.network, jax.tree.map(lambda leaf: leaf[0], variables),
                              spec.task.inputs(pool, batch))
  loss_B = jnp.where(mask_B, spec.task.losses(logits, batch), 0)
  most = lambda w_BE: jax.nn.one_hot(jnp.argmax(w_BE, -1), w_BE.shape[1])
  return {layer: {"usage": jnp.where(mask_B[:, None], w_BE, 0).sum(0), "loss": (most(w_BE) * loss_B[:, None]).sum(0)}
          for layer, w_BE in weights.items()}
