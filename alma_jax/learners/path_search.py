"""A stochastic search among the candidates of a task: weights and a sampler of paths are trained together.

The stochastic variant of modular networks with task-driven priors (Veniat et al., 2021). The candidates form a tree:
each part of the network is a branching with a softmax over the choices that go on. All candidates share the new
modules. In every step one sampled candidate trains its new modules on one half of the training examples, and the
sampler is trained on the other half by REINFORCE: the reward of a candidate is -loss - c·(number of its new modules),
the baseline of a sample is the mean reward of the others of its step, and the entropy of the sampler is added.
"""
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax import keys
from alma_jax.config import image_sections
from alma_jax.config.fields import Section, field
from alma_jax.models import cost
from alma_jax.models.path import PathNetwork, assembled, part
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Array, Tree, Variables

_SAMPLED = 4  # candidates that a step of the sampler compares on one batch
_WORST = 100.0  # nats; a larger loss, or one that has diverged, counts as this one
_RATE = 0.05  # learning rate of the sampler, by Adam


@dataclasses.dataclass(frozen=True)
class Reinforce(Section):
  """A sampler of candidates is trained first, then the likeliest candidate."""
  name: str = "reinforce"
  search_steps: int = field(300, "training steps of the sampler", at_least=1)
  price: float = field(0.01, "price of a new module, c, in nats of the loss", at_least=0)
  entropy: float = field(0.01, "factor of the sampler's entropy in its reward", at_least=0)

  def judge(self, search: Callable[["Reinforce"], "Found"]) -> "Found":
    """What the search finds out about the candidates."""
    return search(self)


class Found(NamedTuple):
  """What a search has found.

  Attributes:
    probabilities: of the candidates.
    macs: multiply-adds of all forward passes.
    flops: floating-point operations of all passes.
  """
  probabilities: list[float]
  macs: int
  flops: int


class Candidate(NamedTuple):
  """A way through the network.

  Attributes:
    network: its batches are not sharded.
    choices: a hashable choice for every part of the network; equal beginnings are one path.
    stored: Variables of the parts that are not new, by name.
  """
  network: PathNetwork
  choices: tuple[Any, ...]
  stored: dict[str, Variables]


def search(candidates: Sequence[Candidate], fresh: dict[str, Variables], problem: Any, train: image_sections.Train,
           data: loop.StageData, options: Reinforce) -> Found:
  """Trains the sampler; a pure function of its arguments.

  Args:
    candidates: at least two.
    fresh: Variables of every part of the network, if it is new.
    problem: problems.classification.Classification.
    train: optimiser and batches of the weights.
    data: of the stage. Its pool is on the device, as the variables are.
    options: how it searches.
  """
  rng, num, batch = keys.rng(data.seed, keys.PATHS, data.stage), len(candidates), train.batch_size
  order, key = rng.permutation(data.train), keys.member_keys(data.seed, data.stage, keys.AUGMENT, 1)[0]
  halves = order[:-(-len(order) // 2)], order[len(order) // 2:]  # of an odd number one example is in both
  drawn = lambda half: half[rng.integers(len(half), size=batch)].astype(np.int32)
  new_of = lambda one, tree: {name: tree[name] for name in fresh if name not in one.stored}
  optimizer, now = optimizers.of(train), fresh
  opt: dict[str, Tree] = {name: optimizer.init(each.params) for name, each in fresh.items()}
  sampler = _Sampler([one.choices for one in candidates], options.entropy)
  trained, judged = np.zeros(num, int), np.zeros(num, int)
  for step in range(options.search_steps):
    p = sampler.probabilities()
    i, where = int(rng.choice(num, p=p)), drawn(halves[0])
    one = candidates[i]
    moved, moments = _train(one.network, problem, train, new_of(one, now), new_of(one, opt), one.stored, data.pool,
                            where, jax.random.fold_in(jax.random.wrap_key_data(key), step))
    now, opt = now | moved, opt | moments
    trained[i] += 1
    sampled, where = rng.choice(num, _SAMPLED, p=p), drawn(halves[1])
    rewards = {}
    shown = {name: old._replace(params=train.optimizer.evaluated(opt[name], old.params)) for name, old in now.items()}
    for j in sorted(set(sampled.tolist())):
      one = candidates[j]
      loss = np.float64(sharding.agree(np.asarray(
          _loss(one.network, problem, new_of(one, shown), one.stored, data.pool, where))))
      rewards[j] = -min(np.nan_to_num(loss, nan=_WORST), _WORST) - options.price * len(new_of(one, fresh))
      judged[j] += 1
    sampler.improve(sampled, np.array([rewards[j] for j in sampled.tolist()]))
  shape = (1, *data.pool.x.shape[1:])
  forward, both = (np.array([count(one.network, shape) for one in candidates], np.int64)
                   for count in (cost.forward_macs, functools.partial(optimizers.flops, train)))
  return Found(sampler.probabilities().tolist(), batch * int(((trained + judged) * forward).sum()),
               batch * int((trained * both + 2 * judged * forward).sum()))


class _Sampler:
  """A distribution over candidates, which is uniform at first: a softmax at every branching of the tree of choices."""

  def __init__(self, choices: Sequence[tuple[Any, ...]], entropy: float):
    edges: dict[tuple[Any, ...], int] = {}
    for path in choices:
      for depth in range(len(path)):
        edges.setdefault(path[:depth + 1], len(edges))
    self._entropy = entropy
    self._edges_PE = np.array([[path[:len(edge)] == edge for edge in edges] for path in choices])
    nodes = {node: number for number, node in enumerate(dict.fromkeys(edge[:-1] for edge in edges))}
    self._same_EE = np.equal.outer(*2 * [np.array([nodes[edge[:-1]] for edge in edges])])  # edges of one branching
    self._passes_PE = self._edges_PE @ self._same_EE  # whether a path passes the branching of an edge
    self._logits_E = np.log(self._edges_PE.sum(0))  # by the number of candidates behind an edge
    self._optimizer = optax.adam(_RATE)
    self._moments = self._optimizer.init(self._logits_E)

  def probabilities(self) -> np.ndarray:
    """float64 [P]."""
    p = np.exp(self._log_P())
    return p / p.sum()

  def improve(self, sampled: np.ndarray, rewards: np.ndarray) -> None:
    """A step of REINFORCE with the rewards, float64 [S], of sampled candidates, int [S], S at least 2.

    The baseline of a sample is the mean reward of the others. Written with the mean of all, which holds the sample's
    own reward, the difference is S / (S - 1) times as large.
    """
    log_P = self._log_P()
    slope_PE = self._edges_PE - self._passes_PE * np.exp(self._log_E())  # of log p with respect to the logits
    advantages = (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1)
    gain_E = (advantages[:, None] * slope_PE[sampled]).mean(0)
    gain_E -= self._entropy * ((np.exp(log_P) * log_P)[:, None] * slope_PE).sum(0)  # the slope of the entropy
    updates, self._moments = self._optimizer.update(-gain_E, self._moments)
    self._logits_E = self._logits_E + np.asarray(updates, np.float64)

  def _log_E(self) -> np.ndarray:
    """float64 [E], the logarithm of the probability of each edge at its branching."""
    return self._logits_E - np.log(self._same_EE @ np.exp(self._logits_E))

  def _log_P(self) -> np.ndarray:
    return self._edges_PE @ self._log_E()


@functools.partial(jax.jit, static_argnames=("network", "problem", "train"))
def _train(network: PathNetwork, problem: Any, train: image_sections.Train, new: dict[str, Variables],
           opt: dict[str, Tree], stored: dict[str, Variables], pool: Tree, index_B: Array, key: Array
           ) -> tuple[dict[str, Variables], dict[str, Tree]]:
  """(the new modules, their optimisers' states) after a step of one candidate."""
  batch, all_B = problem.take(pool, index_B), jnp.ones(len(index_B), bool)
  x = problem.train_inputs(pool, batch, key, jnp.int32(0), len(index_B))
  variables = network.divided(assembled([*new.values(), *stored.values()]))

  def loss(params: Tree) -> tuple[Array, Tree]:
    output, stats = network.apply(Variables(params, variables.stats), x, None, train=True)
    sums = problem.sums(output, batch, all_B)
    return problem.objective(output, batch, all_B, sums, len(index_B)), stats

  grads, stats = jax.grad(loss, has_aux=True)(variables.params)
  whole, optimizer, moments = network.joined(Variables(variables.params, stats)), optimizers.of(train), {}
  for name in new:
    old = part(whole, name)
    updates, moments[name] = optimizer.update(part(Variables(grads, {}), name).params, opt[name], old.params)
    new = new | {name: Variables(optax.apply_updates(old.params, updates), old.stats)}
  return new, moments


@functools.partial(jax.jit, static_argnames=("network", "problem"))
def _loss(network: PathNetwork, problem: Any, new: dict[str, Variables], stored: dict[str, Variables], pool: Tree,
          index_B: Array) -> Array:
  """Mean loss of a candidate in nats. New modules use the statistics of the batch, their own being young."""
  batch, variables = problem.take(pool, index_B), network.divided(assembled([*new.values(), *stored.values()]))
  output, _ = network.apply(variables, problem.inputs(pool, batch), None, train=True)
  return problem.losses(output, batch).mean()
