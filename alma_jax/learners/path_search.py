"""A stochastic search among the candidates of a task: weights and a sampler of paths are trained together.

The stochastic variant of modular networks with task-driven priors (Veniat et al., 2021). The candidates form a tree:
each part of the network is a branching with a softmax over the choices that go on. All candidates share the new
modules. In every step one sampled candidate trains its new modules on one half of the training examples, and the
sampler is trained on the other half by REINFORCE: the reward of a candidate is -loss - c·(number of its new modules),
the baseline is the mean reward of the candidates that were sampled, and the entropy of the sampler is added.
"""
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax import keys
from alma_jax.config import schema
from alma_jax.models import cost
from alma_jax.models.path import PathNetwork, assembled, part
from alma_jax.parallel import sharding
from alma_jax.training import loop, optimizers
from alma_jax.types import Array, Tree, Variables

_SAMPLED = 4  # candidates that a step of the sampler compares on one batch
_RATE = 0.05  # learning rate of the sampler, by Adam


class Options(NamedTuple):
  """How it searches.

  Attributes:
    steps: number of steps.
    price: c, of a new module in nats.
    entropy: factor of the sampler's entropy.
  """
  steps: int
  price: float
  entropy: float


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


class Paths(NamedTuple):
  """The candidates of a task.

  Attributes:
    networks: of each candidate, whose batches are not sharded.
    choices: of each candidate, a hashable choice for every part of the network.
    parts: names of the parts.
    fresh: Variables of each part, if it is new.
    stored: Variables of the parts of each candidate that are not new, by name.
  """
  networks: Sequence[PathNetwork]
  choices: Sequence[tuple[Any, ...]]
  parts: Sequence[str]
  fresh: dict[str, Variables]
  stored: Sequence[dict[str, Variables]]


def search(paths: Paths, task: Any, train: schema.Train, data: loop.StageData, options: Options) -> Found:
  """Trains the sampler; a pure function of its arguments.

  Args:
    paths: candidates, at least two.
    task: tasks.heads.HeadClassification.
    train: optimiser and batches of the weights.
    data: of the stage. Its pool is on the device, as the variables are.
    options: Options.
  """
  rng, num = keys.rng(data.seed, keys.PATHS, data.stage), len(paths.networks)
  order, batch = rng.permutation(data.train), train.batch_size
  halves = order[:-(-len(order) // 2)], order[len(order) // 2:]  # of an odd number one example is in both
  drawn = lambda half: half[rng.integers(len(half), size=batch)].astype(np.int32)
  key = jax.random.wrap_key_data(jnp.asarray(keys.member_keys(data.seed, data.stage, keys.AUGMENT, 1))[0])
  optimizer = optimizers.make(train)
  fresh, opt = dict(paths.fresh), {name: optimizer.init(each.params) for name, each in paths.fresh.items()}
  num_new = np.array([len(paths.parts) - len(stored) for stored in paths.stored])
  sampler, trained, judged = _Sampler(paths.choices, options.entropy), np.zeros(num, int), np.zeros(num, int)
  for step in range(options.steps):
    p = sampler.probabilities()
    i, where = int(rng.choice(num, p=p)), drawn(halves[0])
    mine = {name: fresh[name] for name in paths.parts if name not in paths.stored[i]}
    new, moments = _train(paths.networks[i], task, train, mine, {name: opt[name] for name in mine}, paths.stored[i],
                          data.pool, where, jax.random.fold_in(key, step))
    fresh, opt = fresh | new, opt | moments
    trained[i] += 1
    sampled, where = rng.choice(num, _SAMPLED, p=p), drawn(halves[1])
    losses = {j: _loss(paths.networks[j], task, {name: fresh[name] for name in paths.parts
                                                 if name not in paths.stored[j]}, paths.stored[j], data.pool, where)
              for j in sorted(set(sampled.tolist()))}
    judged[list(losses)] += 1
    losses = sharding.agree_on({j: np.asarray(loss, np.float64) for j, loss in losses.items()})
    sampler.improve(sampled, np.array([-losses[j] - options.price * num_new[j] for j in sampled.tolist()]))
  shape = (1, *data.pool.x.shape[1:])
  forward, both = (np.array([count(network, shape) for network in paths.networks], np.int64)
                   for count in (cost.forward_macs, cost.training_flops))
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
    """A step of REINFORCE with the rewards, float64 [S], of sampled candidates, int [S]."""
    log_P = self._log_P()
    slope_PE = self._edges_PE - self._passes_PE * np.exp(self._log_E())  # of log p with respect to the logits
    gain_E = ((rewards - rewards.mean())[:, None] * slope_PE[sampled]).mean(0)
    gain_E -= self._entropy * ((np.exp(log_P) * log_P)[:, None] * slope_PE).sum(0)  # the slope of the entropy
    updates, self._moments = self._optimizer.update(-gain_E, self._moments)
    self._logits_E = self._logits_E + np.asarray(updates, np.float64)

  def _log_E(self) -> np.ndarray:
    """float64 [E], the logarithm of the probability of each edge at its branching."""
    return self._logits_E - np.log(self._same_EE @ np.exp(self._logits_E))

  def _log_P(self) -> np.ndarray:
    return self._edges_PE @ self._log_E()


@functools.partial(jax.jit, static_argnames=("network", "task", "train"))
def _train(network: PathNetwork, task: Any, train: schema.Train, new: dict[str, Variables], opt: dict[str, Tree],
           stored: dict[str, Variables], pool: Tree, index_B: Array, key: Array
           ) -> tuple[dict[str, Variables], dict[str, Tree]]:
  """(the new modules, their optimisers' states) after a step of one candidate."""
  batch, all_B = task.take(pool, index_B), jnp.ones(len(index_B), bool)
  x = task.train_inputs(pool, batch, key, jnp.int32(0), len(index_B))
  variables = network.divided(assembled([*new.values(), *stored.values()]))

  def loss(params: Tree) -> tuple[Array, Tree]:
    output, stats = network.apply(Variables(params, variables.stats), x, None, train=True)
    sums = task.sums(output, batch, all_B)
    return task.objective(output, batch, all_B, sums, len(index_B)), stats

  grads, stats = jax.grad(loss, has_aux=True)(variables.params)
  whole, optimizer, moments = network.joined(Variables(variables.params, stats)), optimizers.make(train), {}
  for name in new:
    old = part(whole, name)
    updates, moments[name] = optimizer.update(part(Variables(grads, {}), name).params, opt[name], old.params)
    new = new | {name: Variables(optax.apply_updates(old.params, updates), old.stats)}
  return new, moments


@functools.partial(jax.jit, static_argnames=("network", "task"))
def _loss(network: PathNetwork, task: Any, new: dict[str, Variables], stored: dict[str, Variables], pool: Tree,
          index_B: Array) -> Array:
  """Mean loss of a candidate in nats. New modules use the statistics of the batch, their own being young."""
  batch, variables = task.take(pool, index_B), network.divided(assembled([*new.values(), *stored.values()]))
  output, _ = network.apply(variables, task.inputs(pool, batch), None, train=True)
  return task.losses(output, batch).mean()
