"""Splits experts of gated mixtures in two (docs/algorithms.md §3).

Works on stacked Variables [1, ...] of models.moe networks. Their mixture layers hold `experts` [1, E, ...] and gates
[1, E-1, ...], where E is the number of experts that there is room for.
"""
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax.models import moe
from alma_jax.parallel import sharding
from alma_jax.training import batching, loop
from alma_jax.types import Array, Tree, Variables

Splits = Mapping[str, Sequence[int]]  # the splits of each mixture layer, see models.moe


def plant(variables: Variables, splits: Splits) -> Variables:
  """Sets the trees of gates that belong to `splits`.

  Args:
    variables: Variables [1, ...].
    splits: the splits of each layer.

  Returns:
    Variables; the trees are on the host.
  """
  stats = dict(variables.stats)
  for layer, leaves in splits.items():
    if "tree" in stats.get(layer, {}):
      tree, live = moe.paths(leaves, stats[layer]["live"].shape[-1])
      stats[layer] = dict(stats[layer], tree=tree[None], live=live[None])
  return variables._replace(stats=stats)


def grow(old: Variables, shapes: Variables, splits: Splits, rng: np.random.Generator) -> Variables:
  """A larger network of the same function, whose trees have one more split.

  Both children of a split have the parameters and statistics of the parent, and the gate is random. The function stays
  the same; with soft gates it does so in training, too. With a gate of zeros the children would stay equal forever.

  Args:
    old: Variables [1, ...] on the host, with E experts in each mixture layer.
    shapes: Variables of shapes [1, ...] with room for at least E + 1 experts.
    splits: E splits of each layer, the last of which is new.
    rng: for the gates.

  Returns:
    Variables of new arrays on the host; room that is not used yet is filled with zeros.
  """
  params, stats = _grow_params(old.params, shapes.params, splits, rng.uniform), dict(old.stats)
  for layer, leaves in splits.items():
    stats[layer] = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes.stats[layer])
    if "experts" in stats[layer]:
      stats[layer]["experts"] = _grow_experts(old.stats[layer]["experts"], shapes.stats[layer]["experts"], leaves)
  return plant(Variables(params, stats), splits)


def with_room(old: Variables, shapes: Variables, splits: Splits) -> Variables:
  """The same network with room for more experts, which is filled with zeros.

  Args:
    old: Variables [1, ...] on the host, with E experts in each mixture layer.
    shapes: Variables of shapes [1, ...] with room for more.
    splits: E - 1 splits of each layer.

  Returns:
    Variables of new arrays on the host, without trees; see `plant`.
  """
  params, stats = dict(old.params), dict(old.stats)
  for layer, leaves in splits.items():
    padded = functools.partial(_with_room, num=len(leaves) + 1)
    gates = {gate: _with_room(shapes.params[layer][gate], old.params[layer].get(gate), len(leaves))
             for gate in ("gate_kernel", "gate_bias")}
    params[layer] = dict(experts=jax.tree.map(padded, shapes.params[layer]["experts"], old.params[layer]["experts"]),
                         **gates)
    stats[layer] = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes.stats[layer])
    if "experts" in stats[layer]:
      stats[layer]["experts"] = jax.tree.map(
          padded, shapes.stats[layer]["experts"], old.stats[layer]["experts"])
  return Variables(params, stats)


def without_room(old: Variables, shapes: Variables) -> Variables:
  """The inverse of `with_room`, including the trees.

  Args:
    old: Variables [1, ...] on the host, with room for experts.
    shapes: Variables of shapes [1, ...], with room for exactly the experts that exist.
  """
  def cut(shapes: Tree, old: Tree) -> Tree:
    if isinstance(shapes, Mapping):  # a network with room for one expert has no gates
      return {name: cut(shape, old[name]) for name, shape in shapes.items()}
    return old[tuple(slice(size) for size in shapes.shape)]

  return Variables(*map(cut, shapes, old))


def grow_optimizer(old: Tree, shapes: Tree, params: Tree, splits: Splits) -> Tree:
  """The optimiser state after `grow`: both children have the moments of the parent, those of the gate are zero.

  Args:
    old: optimiser state [1, ...] of optax on the host. Each of its nodes that has the structure of the parameters
      belongs to them.
    shapes: of the state after growth.
    params: the parameters before growth.
    splits: as in `grow`.
  """
  structure: Any = jax.tree.structure(params)
  like_params = lambda node: jax.tree.structure(node) == structure
  no_moments = lambda low, high, shape: np.zeros(shape)
  one = lambda old, shapes: _grow_params(old, shapes, splits, no_moments) if like_params(old) else old
  return jax.tree.map(one, old, shapes, is_leaf=like_params)


def _grow_params(old: Tree, shapes: Tree, splits: Splits, draw: Callable[..., np.ndarray]) -> dict[str, Any]:
  """A pytree of the parameters' structure after a split of each layer; draw(low, high, shape) makes the new gate."""
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


def _grow_experts(old: Tree, shapes: Tree, leaves: Sequence[int]) -> Tree:
  """Experts [1, E, ...], followed by a copy of expert leaves[-1]."""
  num, leaf = len(leaves), leaves[-1]

  def split(shape: Any, array: np.ndarray) -> np.ndarray:
    new = _with_room(shape, array, num)
    new[:, num] = array[:, leaf]
    return new

  return jax.tree.map(split, shapes, old)


def _with_room(shape: Any, array: np.ndarray | None, num: int) -> np.ndarray:
  """An array of `shape` [1, E, ...]: the first `num` of `array`, then zeros."""
  new = np.zeros(shape.shape, shape.dtype)
  if num and array is not None:
    new[:, :num] = array[:, :num]
  return new


def scores(spec: loop.FitSpec, variables: Variables, pool: Tree, which: np.ndarray
           ) -> dict[str, dict[str, list[float]]]:
  """How much each expert is used, and the loss of its examples.

  Args:
    spec: static facts of the training.
    variables: Variables [1, ...] on every device.
    pool: the problem's pool.
    which: int32 [N], validation examples of the pool.

  Returns:
    {layer: {"usage": sums of the experts' weights, "loss": sums of the cross-entropies, in nats, of the examples for
    which an expert has the largest weight}}, lists of E floats; {} if the network has no gates.
  """
  total: Any = {}
  for batch in batching.padded(which, spec.problem.eval_batch):
    part = sharding.fetch(_scores(spec, variables, pool, *sharding.put(batch, spec.mesh)))
    total = jax.tree.map(np.add, total, part) if total else jax.tree.map(np.float64, part)
  return jax.tree.map(lambda leaf: leaf.tolist(), sharding.agree(jax.tree.map(np.float32, total)))


@functools.partial(jax.jit, static_argnames="spec")
def _scores(spec: loop.FitSpec, variables: Variables, pool: Tree, index_B: Array, mask_B: Array
            ) -> dict[str, dict[str, Array]]:
  problem: Any = spec.problem  # classification.Classification
  batch = problem.take(pool, index_B)
  logits, weights = moe.route(spec.network, jax.tree.map(lambda leaf: leaf[0], variables),
                              problem.inputs(pool, batch))
  loss_B = jnp.where(mask_B, problem.losses(logits, batch), 0)
  most = lambda w_BE: jax.nn.one_hot(jnp.argmax(w_BE, -1), w_BE.shape[1])
  return {layer: {"usage": jnp.where(mask_B[:, None], w_BE, 0).sum(0), "loss": (most(w_BE) * loss_B[:, None]).sum(0)}
          for layer, w_BE in weights.items()}
