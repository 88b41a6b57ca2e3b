"""Compares three forms of the training loop, for an MLP of width 32 on random images of 28x28 pixels, batch 128.

    python benchmarks/loop.py sm
    python benchmarks/loop.py ens --devices 1

  single    what program.advance does: one loop on the devices, whose body is a training step and then a `lax.cond`,
            which validates and selects where a round ends
  nested    a loop over rounds on the devices, around a loop over the steps of each round
  stepwise  a loop on the host, which dispatches every step (FitSpec.stepwise)

The forms take turns in one process. Prints the median milliseconds of a training step of all members, and the median
and the quartiles of the ratios of each turn to the turn of `single` in the same round. `--clock cpu` measures processor
time, which other programs on the machine disturb less; a process for this MLP has one thread for computing.
"""
import argparse
import dataclasses
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax import config as configs
from alma_jax.parallel import runtime
from alma_jax.parallel.sharding import MEMBER
from alma_jax.runs import settings
from alma_jax.training import loop, program, state

BATCH, WIDTH, EXAMPLES = 128, 32, 12_800  # 90 steps of an epoch; 1,280 examples for validation
SINGLE = program.advance


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("learner", choices=("sm", "ens"))
  parser.add_argument("--turns", type=int, default=31)
  parser.add_argument("--dispatches", type=int, default=4, help="dispatches of 256 steps in a turn")
  parser.add_argument("--devices", type=int, default=0)
  parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
  args = parser.parse_args()
  setting = prepare(args.learner, args.devices)
  data = setting.protocol.stage(setting.protocol.expected_ends[:1], setting.learner, {}).data
  training = setting.learner.training(setting.learner.init(), data)
  fits = {form: begin(training, stepwise=form == "stepwise") for form in ("single", "nested", "stepwise")}
  clock = {"wall": time.perf_counter, "cpu": time.process_time}[args.clock]
  times = {form: [] for form in fits}
  for turn in range(args.turns + 1):
    for form in fits:
      program.advance = nested if form == "nested" else SINGLE
      began, before = clock(), fits[form].cursor
      for _ in range(args.dispatches):
        fits[form], _ = loop.advance(fits[form], 256)
      jax.block_until_ready(fits[form].state)
      if turn:  # the first one compiles
        times[form].append(1e3 * (clock() - began) / (fits[form].cursor - before))
  print(f"{args.learner}, {setting.learner.mesh.size} device(s), {args.turns} turns, {args.clock} time")
  for form, values in times.items():
    low, middle, high = statistics.quantiles([a / b for a, b in zip(values, times["single"])], n=4)
    print(f"  {form:9s} {statistics.median(values):7.3f} ms   ratio {middle:.3f} ({low:.3f} to {high:.3f})")
  ends = [jax.device_get(fits[form].state) for form in ("single", "nested")]
  print(f"  single and nested end equal to the bit: {jax.tree.all(jax.tree.map(np.array_equal, *ends))}")


def prepare(learner, devices):
  """The setting of a stage without an end on random images."""
  config = configs.base(learner)
  config.update_from_flattened_dict({
      "stream.num_megabatches": 1, "stream.waiting_time": 1, "model.name": "mlp", "model.width": WIDTH,
      "train.batch_size": BATCH, "train.epochs": 10**6, "train.patience": 0, "devices": devices})
  if learner == "ens":
    config.learner.num_members = 5
  config = configs.parse(config)
  runtime.setup(config, alone=True)
  rng = np.random.default_rng(0)
  draw = lambda num: (rng.integers(0, 256, (num, 28, 28, 1), np.uint8), np.arange(num) % 10)
  return settings.prepare(config, (*draw(EXAMPLES), *draw(100)))


def begin(training, stepwise):
  """The FitState of a form, with variables of its own."""
  spec = dataclasses.replace(training.spec, stepwise=stepwise)
  return loop.begin(dataclasses.replace(training, spec=spec, variables=jax.tree.map(jnp.array, training.variables)))


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def nested(spec, carry, own, batches, val, pool, val_pool):
  """program.advance with nested loops."""
  return program._on_mesh(
      spec, functools.partial(nested_local, spec),
      (state.STATE_SPEC, P(MEMBER), state.train_batches_spec(spec), state.val_batches_spec(spec), P(), P()),
      (state.STATE_SPEC, state.SUMS_SPEC))(carry, own, batches, val, pool, val_pool)


def nested_local(spec, carry, own, batches, val, pool, val_pool):
  stack, size = program._Stack(own.key), spec.problem.max_steps
  empty = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), program._zeros(spec, stack.size))
  # The step after each round's last one of this dispatch.
  stops = jnp.where(batches.ends_round, jnp.arange(size) + 1, size + 1)
  stops = jnp.minimum(jnp.sort(stops), batches.num_steps)

  def end_round(loop):
    carry, ended = loop
    sums = program._validate_all(spec, stack, carry, val, val_pool)
    carry, train = program._end_round(spec, stack, carry, sums, val)
    write = lambda buffer, new: buffer.at[ended.num].set(new)
    return carry, state.RoundSums(ended.num + 1, carry.done, jax.tree.map(write, ended.train, train),
                                  jax.tree.map(write, ended.val, sums), ended.first)

  def take(r):
    return stack.map(lambda where: spec.problem.take(pool, *where), program._taken(batches, jnp.minimum(r, size - 1)))

  def step(r, loop):
    carry, examples = loop
    train = lambda member, mine, batch, *count: member._replace(**program._train_step(
        spec, state.trained_of(member), mine, batch, batches, r, pool, *count)._asdict())
    return stack.update(train, carry, own, examples, *program._own_counts(spec, batches, r)), take(r + 1)

  def round_(loop):
    number, start, carry, ended = loop
    stop = stops[number]
    carry, _ = jax.lax.fori_loop(start, stop, step, (carry, take(start)))
    carry, ended = jax.lax.cond(batches.ends_round[stop - 1], end_round, lambda loop: loop, (carry, ended))
    return number + 1, stop, carry, ended

  zero = jnp.int32(0)
  start = (zero, zero, stack.unpack(carry), state.RoundSums(zero, carry.done, empty, empty, carry.epoch))
  _, _, carry, ended = jax.lax.while_loop(lambda loop: (loop[1] < batches.num_steps) & ~loop[2].done, round_, start)
  return stack.pack(carry), ended


if __name__ == "__main__":
  main()
