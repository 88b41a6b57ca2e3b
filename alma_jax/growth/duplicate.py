"""Flat mixtures grow by duplicating the experts that lose most (docs/algorithms.md §5)."""
import functools

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import sharding
from alma_jax.learners import program
from alma_jax.types import Variables


def grow(old, chosen, offsets, noise, rng):
  """A network with k experts more in every mixture: copies of the chosen ones.

  Top-1 outputs are scaled by the chosen expert's probability, which copies
  would lower for all: by 1/(1 + Σ_{e in chosen} p_e). With `offsets` both
  children have the parent's offset less log 2, which the scale takes out again:
  the function stays the same. Equal router columns would starve the copies, so
  that `noise` is added to one and subtracted from the other; with 0 the function
  is preserved exactly.

  Args:
    old: host Variables [1, ...] of a models.switch network.
    chosen: {layer: k distinct experts}, of every mixture layer.
    offsets: whether to preserve the function; False: plain copies, as the paper.
    noise: standard deviation of what tells the copies' router columns apart.
    rng: numpy Generator, for the noise.

  Returns:
    Variables on the host, new arrays; the copies come last, in the order of `chosen`.
  """
  params, stats = dict(old.params), dict(old.stats)
  for layer, experts in chosen.items():
    copy = lambda leaf, axis, experts=experts: np.concatenate([leaf, np.take(leaf, experts, axis)], axis)
    mixture = dict(params[layer])
    mixture["experts"] = {name: copy(leaf, 1) for name, leaf in mixture["experts"].items()}
    router = copy(mixture["router"], 2)
    difference = (noise * rng.standard_normal((*router.shape[:2], len(experts)))).astype(router.dtype)
    router[:, :, experts] += difference
    router[:, :, -len(experts):] -= difference
    offset = copy(stats[layer]["offset"], 1)
    if offsets:
      offset[:, experts] -= np.log(2, dtype=offset.dtype)
      offset[:, -len(experts):] -= np.log(2, dtype=offset.dtype)
    params[layer], stats[layer] = mixture | {"router": router}, {"offset": offset}
  return Variables(params, stats)


def scores(network, task, variables, pool, which, mesh):
  """Loss that each expert answers for: that of the tokens routed to it.

  Args:
    network: models.SwitchNetwork.
    task: LanguageModeling.
    variables: Variables [1, ...] on every device.
    pool: language_modeling.Pool.
    which: int32 [N], windows of it.
    mesh: devices.

  Returns:
    {layer: float list [E], summed negative log-likelihood in nats}.
  """
  total = 0.0
  for batch in program.batches(which, task.eval_batch):
    total = total + np.float64(sharding.fetch(_scores(network, task, variables, pool, *sharding.put(batch, mesh))))
  total = sharding.agree_on(np.float32(total))
  return dict(zip(layers(variables), total.tolist()))


def layers(variables):
  """Names of the mixture layers, from the first."""
  return sorted(variables.stats, key=lambda name: int(name.removeprefix("layer")))


@functools.partial(jax.jit, static_argnames=("network", "task"))
def _scores(network, task, variables, pool, index_B, mask_B):
  batch = task.take(pool, index_B)
  one = jax.tree.map(lambda leaf: leaf[0], variables)
  output, _ = network.apply(one, task.inputs(pool, batch), mask_B, train=False)
  num = network.module.num_experts
  per_expert = lambda expert_BL: jnp.zeros(num).at[expert_BL.reshape(-1)].add(-output.log_probs.reshape(-1))
  return jax.vmap(per_expert)(output.expert)
