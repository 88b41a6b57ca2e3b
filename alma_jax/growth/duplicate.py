"""Growth of flat mixtures: the experts with the largest loss are duplicated (docs/algorithms.md §5)."""
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.parallel import sharding
from alma_jax.problems.language_modeling import LanguageModeling, Pool
from alma_jax.training import batching
from alma_jax.types import Array, Variables


def grow(old: Variables, chosen: Mapping[str, Sequence[int] | np.ndarray], offsets: bool, noise: float,
         rng: np.random.Generator) -> Variables:
  """A network with k more experts in every mixture, which are copies of the chosen ones.

  The output of an expert is multiplied by its probability. Copies lower the probabilities of all experts, by the factor
  1/(1 + Σ_{e in chosen} p_e). With `offsets` both children have the parent's offset minus log 2; the scale of the
  output removes the offset again, and the function of the network stays the same. If the router columns of both
  children were equal, the copy would receive no tokens. Therefore `noise` is added to one column and subtracted from
  the other; with 0 the function is preserved exactly.

  Args:
    old: Variables [1, ...] of a models.switch network, on the host.
    chosen: {layer: k distinct experts} for every mixture layer.
    offsets: whether to preserve the function. False makes plain copies, as in the paper.
    noise: standard deviation of the noise.
    rng: for the noise.

  Returns:
    Variables of new arrays on the host; the copies come last, in the order of `chosen`.
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


def scores(network: Any, problem: LanguageModeling, variables: Variables, pool: Pool, which: np.ndarray,
           mesh: Mesh) -> dict[str, list[float]]:
  """The loss of the tokens that are routed to each expert.

  Args:
    network: models.SwitchNetwork.
    problem: LanguageModeling.
    variables: Variables [1, ...] on every device.
    pool: windows on the devices.
    which: int32 [N], windows of the pool.
    mesh: devices.

  Returns:
    {layer: float list [E], sums of negative log-likelihoods in nats}.
  """
  total: Any = 0.0
  for batch in batching.padded(which, problem.eval_batch):
    total = total + np.float64(sharding.fetch(_scores(network, problem, variables, pool, *sharding.put(batch, mesh))))
  total = sharding.agree(np.float32(total))
  return dict(zip(layers(variables), total.tolist()))


def layers(variables: Variables) -> list[str]:
  """Names of the mixture layers, in their order."""
  return sorted(variables.stats, key=lambda name: int(name.removeprefix("layer")))


@functools.partial(jax.jit, static_argnames=("network", "problem"))
def _scores(network: Any, problem: LanguageModeling, variables: Variables, pool: Pool, index_B: Array,
            mask_B: Array) -> Array:
  """Summed losses of the tokens of a batch, [I, E] for I mixture layers."""
  batch = problem.take(pool, index_B)
  one = jax.tree.map(lambda leaf: leaf[0], variables)
  output, _ = network.apply(one, problem.inputs(pool, batch), mask_B, train=False)
  num = network.module.num_experts
  per_expert = lambda expert_BL: jnp.zeros(num).at[expert_BL.reshape(-1)].add(-output.log_probs.reshape(-1))
  return jax.vmap(per_expert)(output.expert)
