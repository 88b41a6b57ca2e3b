"""Trains DER++ (Buzzega et al., 2020) on a stream, with the network and the optimiser of a config.

    python benchmarks/der.py --config=configs/cifar.py:anytime --config.stream.num_megabatches=20 \\
        --config.train.budget=2.9e9 --config.seed=0 --out=der.csv

Stream, normalisation, test set, network, optimiser, augmentation and label smoothing are those of the config. Fields of
the config that are 0 are what its budget decides for a learner that trains after every mega-batch. DER++ trains after
every mega-batch, for as many steps as `train.budget` multiply-adds a mega-batch pay for. A step has train.batch_size
new examples, and from the second step on as many examples twice from a reservoir:

    cross-entropy(new) + alpha * mean((logits - stored logits)²) over one draw + beta * cross-entropy(another draw)

As in the authors' code, every example that a step trains on may enter the reservoir, with its logits in that step; they
cost no further forward pass. `--reservoir=0` has as many places as the stream has training examples. Every forward
pass counts: a step passes three times train.batch_size examples. It predicts with its last weights, so its learning
rate falls in the second half of a mega-batch's steps; `anytime` averages its weights instead. Alpha was chosen on
held-out training images of CIFAR-10 (seeds 1000 and 1001), at a constant rate. Prints a row, and appends it to --out.
"""
import csv
import dataclasses
import functools
import pathlib
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alma_jax import commands, keys, messages, models
from alma_jax import main as command
from alma_jax.config.stream import ALWAYS
from alma_jax.errors import BadInput
from alma_jax.models import cost
from alma_jax.parallel import runtime
from alma_jax.protocols.contract import State
from alma_jax.runs import settings
from alma_jax.training import optimizers
from alma_jax.types import Variables

PURPOSE = 201  # of random numbers on the host


class Reservoir:
  """A uniform sample of the examples that were added (Vitter, 1985); their logits are on the device.

  Attributes:
    examples: int32 [places], the example in each place.
    added: number of examples that were added so far.
  """

  def __init__(self, places: int, rng: np.random.Generator):
    self.examples, self.added, self._rng = np.zeros(places, np.int32), 0, rng

  def add(self, examples: np.ndarray) -> np.ndarray:
    """The place of each of these examples, int [B]; those that do not stay have the place behind the last one."""
    places, number = len(self.examples), self.added + np.arange(len(examples))
    at = np.where(number < places, number, np.minimum(self._rng.integers(number + 1), places))
    _, last = np.unique(at[::-1], return_index=True)  # a later example of the batch replaces an earlier one
    stays = np.isin(np.arange(len(at)), len(at) - 1 - last) & (at < places)
    self.examples[at[stays]] = examples[stays]
    self.added += len(examples)
    return np.where(stays, at, places)

  def draw(self, num: int) -> np.ndarray:
    """Places of `num` examples, with replacement; none while the reservoir is empty."""
    held = min(self.added, len(self.examples))
    return self._rng.integers(held, size=num) if held else np.zeros(0, int)


@dataclasses.dataclass(frozen=True)
class Method:
  """Static facts of a training step: a models.Network, a Classification, the section `train`, and two factors."""
  network: Any
  problem: Any
  train: Any
  alpha: float
  beta: float


class Trained(NamedTuple):
  """Variables of the network, the optimiser's state, and the logits [places, K] of the reservoir."""
  variables: Variables
  opt: Any
  logits_RK: jax.Array


class Batch(NamedTuple):
  """Examples of a step: [B] new ones, their places in the reservoir, and the places [2B] and examples [2B] of old ones.

  `factor` multiplies the update.
  """
  new: np.ndarray
  places: np.ndarray
  drawn: np.ndarray
  old: np.ndarray
  factor: np.float32


def batches(new: np.ndarray, steps: int, train: Any, reservoir: Reservoir, rng: np.random.Generator) -> Iterator[Batch]:
  """The batches of a mega-batch whose training examples are `new`: one permutation of them after the other."""
  size = train.batch_size
  order = np.concatenate([rng.permutation(new) for _ in range(-(-steps * size // len(new)))])
  for i, factor in enumerate(train.factors(0, range(steps), steps) or np.ones(steps)):
    drawn, now = reservoir.draw(2 * size), order[i * size:(i + 1) * size]
    old = reservoir.examples[drawn]
    yield Batch(now, reservoir.add(now), drawn, old, np.float32(factor))


@functools.partial(jax.jit, static_argnames="method", donate_argnames="trained")
def step(method: Method, trained: Trained, batch: Batch, pool: Any, key: jax.Array) -> Trained:
  """One training step. Batch norm sees new and old examples together."""
  size, (params, stats) = len(batch.new), trained.variables
  examples = method.problem.take(pool, jnp.concatenate([batch.new, batch.old]))
  total = len(examples.y)
  x = method.problem.train_inputs(pool, examples, key, 0, total)

  def entropy(logits_BK: jax.Array, part: slice) -> jax.Array:
    labelled, mask = jax.tree.map(lambda leaf: leaf[part], examples), jnp.ones(size, bool)
    return method.problem.objective(logits_BK[part], labelled, mask,
                                    method.problem.sums(logits_BK[part], labelled, mask), jnp.float32(size))

  def loss(params: Any) -> tuple[jax.Array, Any]:
    logits_BK, new_stats = method.network.apply(Variables(params, stats), x, None, train=True)
    value = entropy(logits_BK, slice(size))
    if total > size:
      change = logits_BK[size:2 * size] - trained.logits_RK[batch.drawn[:size]]
      value += method.alpha * (change**2).mean() + method.beta * entropy(logits_BK, slice(2 * size, None))
    return value, (logits_BK[:size], new_stats)

  grads, (logits_BK, stats) = jax.grad(loss, has_aux=True)(params)
  updates, opt = optimizers.of(method.train).update(grads, trained.opt, params)
  params = optax.apply_updates(params, jax.tree.map(lambda update: batch.factor * update, updates))
  return Trained(Variables(params, stats), opt, trained.logits_RK.at[batch.places].set(logits_BK, mode="drop"))


def run(setting: settings.Setting, alpha: float, beta: float, places: int) -> dict[str, float]:
  """CER, final error, multiply-adds and parameters held of DER++ on the stream of a setting.

  Raises:
    BadInput: the budget is below one step for every mega-batch.
  """
  config, facts, learner, protocol = setting.config, setting.facts, setting.learner, setting.protocol
  network = models.build(config.model, facts.problem.num_outputs, facts.example_shape, config.precision, None)
  method = Method(network, facts.problem, config.train, alpha, beta)
  macs = cost.forward_macs(network, (1, *facts.example_shape))
  of_step = 3 * config.train.batch_size * macs
  if config.train.budget < of_step:
    raise BadInput(f"train.budget={config.train.budget:g} multiply-adds a mega-batch pay for less than a step of "
                   f"DER++; raise it to {of_step:.2g}, or lower model.width or train.batch_size.")
  megabatches, rng = protocol.source.megabatches, keys.rng(config.seed, PURPOSE)
  pool, _ = protocol.source.select(np.zeros(0, np.int32), learner.mesh)
  reservoir = Reservoir(places or int(megabatches.seen[-1, 0]), rng)
  logits_RK = jnp.zeros((len(reservoir.examples), facts.problem.num_outputs))
  state, errors, spent = learner.init(), [], 0
  for t in range(1, megabatches.num + 1):
    steps = int((t * config.train.budget - spent) // of_step)
    key = jax.random.wrap_key_data(keys.member_keys(config.seed, t, keys.AUGMENT, 1)[0])
    variables = jax.tree.map(lambda leaf: leaf[0], state.live)
    trained = Trained(variables, optimizers.of(config.train).init(variables.params), logits_RK)
    for i, batch in enumerate(batches(megabatches.part(t)[0], steps, config.train, reservoir, rng)):
      trained = step(method, trained, batch, pool, jax.random.fold_in(key, i))
      spent += macs * (len(batch.new) + len(batch.old))
    logits_RK = trained.logits_RK
    state = state._replace(live=jax.tree.map(lambda leaf: leaf[None], trained.variables))
    errors.append(protocol.test(learner, State(state, 0, {}), None)["error"])
    messages.say(f"mega-batch {t} of {megabatches.num}: {steps} steps, test error {errors[-1]:.4f}")
  held = cost.count_params(variables.params) * megabatches.num
  return {"CER": sum(errors), "final_error": errors[-1], "cumulative_fwd_macs": spent, "cumulative_params": held}


def append(path: pathlib.Path, row: dict[str, Any]) -> None:
  """Adds a row to a CSV file, which gets a head if it is new."""
  is_new = not path.exists()
  with path.open("a", newline="") as file:
    writer = csv.DictWriter(file, row)
    if is_new:
      writer.writeheader()
    writer.writerow(row)


def main() -> None:
  parser = commands.Parser("benchmarks/der.py", __doc__)
  parser.add_argument("--alpha", type=float, default=0.5, help="factor of the squared difference of logits")
  parser.add_argument("--beta", type=float, default=1.0, help="factor of the cross-entropy on old examples")
  parser.add_argument("--reservoir", type=int, default=5000, help="places of the reservoir; 0: as many as examples")
  parser.add_argument("--out", default="der.csv", help="CSV file that gets another row")
  options, flags = parser.parse_known_args()
  _, config = command._parse(flags)
  if not config.train.budget:
    raise BadInput("DER++ needs a budget; give --config.train.budget=MULTIPLY-ADDS.")
  config = dataclasses.replace(config, stream=dataclasses.replace(config.stream, schedule=ALWAYS),
                               train=dataclasses.replace(config.train, decay=0.5))
  runtime.setup(config, alone=True)
  began, setting = time.monotonic(), settings.prepare(config)
  c = setting.config
  row = {"data": c.dataset.name, "B": c.stream.num_megabatches, "seed": c.seed, "budget": c.train.budget,
         "width": c.model.width, "alpha": options.alpha, "beta": options.beta, "reservoir": options.reservoir,
         **run(setting, options.alpha, options.beta, options.reservoir)}
  row |= {"wall_seconds": round(time.monotonic() - began, 1), "command": shlex.join(["python", *sys.argv])}
  print(", ".join(f"{name} {value}" for name, value in row.items()))
  append(pathlib.Path(options.out), row)


if __name__ == "__main__":
  sys.exit(commands.exit_code(main))
