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

  The output of an expert is multiplied by its probability. Copies lower the probabilities: with a flat router those of
  all experts, by the factor 1/(1 + Σ_{e in chosen} p_e), with a tree of gates those of the chosen experts, which a new
  gate halves. With `offsets` both children have the parent's offset minus log 2; the scale of the output removes the
  offset again, and the function of the network stays the same. If the router gave both children the same logits, the
  copy would receive no tokens. Therefore `noise` is added to the column of one of them and subtracted from the other's;
  with 0 the function is preserved exactly.

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
    router, new = mixture["router"], dict(stats[layer], offset=copy(stats[layer]["offset"], 1))
    difference = (noise * rng.standard_normal((*router.shape[:2], len(experts)))).astype(router.dtype)
    if "tree" in new:
      new["tree"] = _with_splits(new["tree"], experts)
      router = np.concatenate([router, np.stack([difference, -difference], -1).reshape(*router.shape[:2], -1)], 2)
    else:
      router = copy(router, 2)
      router[:, :, experts] += difference
      router[:, :, -len(experts):] -= difference
    if offsets:
      new["offset"][:, experts] -= np.log(2, dtype=np.float32)
      new["offset"][:, -len(experts):] -= np.log(2, dtype=np.float32)
    params[layer], stats[layer] = mixture | {"router": router}, new
  return Variables(params, stats)


def _with_splits(tree_1EN2: np.ndarray, experts: Sequence[int] | np.ndarray) -> np.ndarray:
  """A tree of gates (moe.paths) with one more gate for each of the experts, which becomes its left child."""
  num = len(experts)
  grown = np.pad(tree_1EN2, ((0, 0), (0, num), (0, num), (0, 0)))
  for leaf, gate, expert in zip(range(grown.shape[1] - num, grown.shape[1]), range(-num, 0), experts):
    grown[:, leaf] = grown[:, expert]
    grown[:, expert, gate, 0] = grown[:, leaf, gate, 1] = 1
  return grown


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
