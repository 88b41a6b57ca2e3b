"""The one training loop: a stage of rounds over stacked members (§1).

A round ends with a validation: an epoch for images, a span of steps for text.

A stage is `begin`, `advance` until patience or its rows end, `finish`. Between
two advances all of it is in `FitState`: it can be saved, stopped, resumed and
reported. One advance is one dispatch of many training steps, validation and
selection included; how the rows of a stage are cut into dispatches changes no
bit of the result. Shapes do not depend on the stage, so a fixed architecture is
compiled once for the whole stream.

On a CPU a convolution inside a loop is many times slower than outside one, so
there convolutional networks take one dispatch per step (`FitSpec.stepwise`), and
language models, whose steps are long, do so everywhere.
What the devices do is in program.py.
"""
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax import keys, sharding
from alma_jax.learners import program
from alma_jax.learners.program import Carry, Records, Rows, Val
from alma_jax.sharding import MEMBER
from alma_jax.types import Array, Tree


class StageData(NamedTuple):
  """What a learner may see of a stage.

  Attributes:
    stage: counts from 0.
    seed: of the run; with the stage it decides every order and augmentation.
    pool: what the task loads training examples from: for images the whole
      training set on the device.
    val_pool: task's pool of validation examples on the device.
    train: int32 [n], indices into `pool`.
    val: int32 [n_val], indices into `val_pool`.
    num_new: how many of `train`, from the first, are no replayed memory.
  """
  stage: int
  seed: int
  pool: Tree
  val_pool: Tree
  train: np.ndarray
  val: np.ndarray
  num_new: int


class Emphasis(NamedTuple):
  """How training departs from "every example once an epoch, all alike".

  Attributes:
    own: M arrays int32 [n], members' own training examples, repeated ones
      included; None: all have those of the stage.
    own_val: M arrays int32, their own validation examples; who has none is
      selected on those of the stage. With them, and only then, the members of
      `own` may have different numbers, 0 too: such a member stays as it is.
    draw: float64 [n], probabilities with which every epoch draws n examples
      anew; None: a permutation.
    weight: float32 [n], factors of the examples' losses; None: 1.
  """
  own: Sequence[np.ndarray] | None = None
  own_val: Sequence[np.ndarray] | None = None
  draw: np.ndarray | None = None
  weight: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class FitState:
  """A stage in training.

  Attributes:
    spec: FitSpec.
    data: StageData.
    emphasis: Emphasis.
    carry: state on the devices; an `advance` consumes it.
    keys: uint32 [padded_members, 2], raw PRNG keys of the members'
      augmentation; derived from seed and stage, never saved.
    cursor: rows dispatched so far, which may include some after `carry.done`.
  """
  spec: program.FitSpec
  data: StageData
  emphasis: Emphasis
  carry: Carry
  keys: Array
  cursor: int


class FitReport(NamedTuple):
  """What a finished stage cost and reached.

  Attributes:
    rounds: rounds run.
    samples: training examples processed, by each of the members; sharded: by
      all of them together.
    val: the task's metric of the selected members, over their own validation
      examples.
  """
  rounds: int
  samples: int
  val: float


class Epoch(NamedTuple):
  """What a round reached: train_loss, val_loss in nats, and the task's metric of both.

  Attributes:
    joint: {name: float}, over the members' own examples; and lists, where the
      task has more to tell.
    members: {name: [M] numpy array}; NaN: without an example.
  """
  joint: dict
  members: dict


def begin(spec, variables, data, emphasis, opt=None):
  """Starts a stage: nothing selected.

  Args:
    spec: FitSpec.
    variables: stacked Variables [M, ...] to start from, on every device.
    data: StageData.
    emphasis: Emphasis.
    opt: optimiser state [M, ...] to go on with; None: a fresh one.

  Returns:
    FitState.
  """
  return FitState(spec, data, emphasis, program.fresh_carry(spec, variables, opt), _keys(spec, data), 0)


def save(fit):
  """What `restore` needs besides the cursor: a Carry of M members, whatever the devices."""
  carry = sharding.fetch(fit.carry)
  return carry._replace(members=jax.tree.map(lambda leaf: leaf[:fit.spec.num_members], carry.members))


def template(spec, variables):
  """Shapes and dtypes of what `save` returns."""
  carry = jax.eval_shape(functools.partial(program.fresh_carry, spec), variables)
  cut = lambda leaf: jax.ShapeDtypeStruct((spec.num_members, *leaf.shape[1:]), leaf.dtype)
  return carry._replace(members=jax.tree.map(cut, carry.members))


def restore(spec, carry, cursor, data, emphasis):
  """FitState from a saved carry (host arrays) and cursor."""
  carry = carry._replace(members=program.pad_members(spec, carry.members))
  return FitState(spec, data, emphasis, sharding.put(carry, spec.mesh, program.CARRY_SPEC), _keys(spec, data), cursor)


def num_rows(fit):
  """Training steps of the whole stage, unless patience ends it."""
  return _plan(fit).steps


def advance(fit, rows):
  """Runs up to `rows` further training steps as one dispatch, without waiting.

  Args:
    fit: FitState, consumed.
    rows: how many steps at most.

  Returns:
    FitState, and Records to be read with `read`.
  """
  spec = fit.spec
  stop = min(fit.cursor + min(rows, spec.task.max_rows), num_rows(fit))
  host, val = _rows(fit, stop), _val(fit)
  pool, index = spec.task.load(fit.data.pool, host.index)
  pool = pool if pool is fit.data.pool else sharding.put(pool, spec.mesh)
  placed = sharding.put(
      (host._replace(index=index), val), spec.mesh, (program.rows_spec(spec), program.val_spec(spec)))
  if spec.stepwise:
    carry, records = _advance_stepwise(fit, host, val, *placed, pool)
  else:
    carry, records = _awaited(spec, program.advance(spec, fit.carry, fit.keys, *placed, pool, fit.data.val_pool))
  return dataclasses.replace(fit, carry=carry, cursor=stop), records


def read(fit, records):
  """Waits for a dispatch and reports the epochs that ended in it.

  Args:
    fit: FitState of the stage, consumed or not.
    records: as `advance` returned them.

  Returns:
    (epochs, done): an Epoch per round, and whether patience has ended the stage.
  """
  records, num_members = sharding.fetch(records), fit.spec.num_members
  own, own_val = _sizes(fit, "train"), _sizes(fit, "val")
  borrowed = np.where(own_val > 0, own_val, len(fit.data.val))
  epochs = []
  for i in range(int(records.num)):
    epoch = Epoch({}, {})
    for side, sums, mine, nums in (("train", records.train, own, own), ("val", records.val, own_val, borrowed)):
      reports = fit.spec.task.report(jax.tree.map(lambda leaf, i=i: leaf[i, :num_members], sums), mine, nums)
      for into, report in zip(epoch, reports):
        into.update({f"{side}_{name}": value for name, value in report.items()})
    epochs.append(epoch)
  return epochs, bool(records.done)


def finish(fit):
  """The selected members [M, ...] on every device, their optimiser's state if FitSpec.keep_opt, their FitReport."""
  task = fit.spec.task
  rounds, best_val = sharding.fetch((fit.carry.epoch, fit.carry.members.best_val))
  own, plan = _sizes(fit, "val"), _plan(fit)
  val = task.report(jax.tree.map(lambda leaf: leaf[:fit.spec.num_members], best_val), own, own)[0][task.metric]
  best, opt = _awaited(fit.spec, program.selected(fit.spec, fit.carry))
  samples = plan.samples if rounds == plan.rounds else int(rounds) * plan.samples // plan.rounds
  if fit.spec.sharded:
    samples = int(rounds) * int(_sizes(fit, "train").sum())
  return best, opt, FitReport(int(rounds), samples, val)


def _sizes(fit, side):
  """int64 [M], own examples of each member on a side, train or val."""
  own = {"train": fit.emphasis.own, "val": fit.emphasis.own_val}[side]
  whole = [len(getattr(fit.data, side))] * fit.spec.num_members
  return np.array(whole if own is None else [len(member) for member in own])


def _plan(fit):
  """The stage's fields.Plan: that of the member with most examples."""
  return fit.spec.train.plan(int(_sizes(fit, "train").max()))


def _rows(fit, stop):
  """Rows fit.cursor..stop of the stage, padded to the task's max_rows."""
  spec, start, plan = fit.spec, fit.cursor, _plan(fit)
  size, steps, batch = spec.task.max_rows, plan.per_round, spec.train.batch_size
  weights = fit.emphasis.weight
  index = np.zeros((size, spec.padded_members, spec.padded_batch), np.int32)
  weight = None if weights is None else np.zeros(index.shape, np.float32)
  row = np.arange(size, dtype=np.int32) + np.int32(start)
  epoch, step = row // steps, row % steps
  nums = program.pad_members(spec, _sizes(fit, "train")) if spec.sharded else _sizes(fit, "train")[:1]
  nums = nums if spec.task.in_epochs else np.full_like(nums, steps * batch)  # every batch is full
  count = np.clip(nums[None] - step[:, None] * batch, 0, batch).astype(np.int32)
  count = count if spec.sharded else count[:, 0]
  epochs = range(start // steps, -(-stop // steps))
  if not spec.task.in_epochs:
    epoch, step = np.zeros_like(row), row  # validations change no draw
  stops, ends = np.zeros(size, np.int32), np.zeros(size, bool)
  for segment, e in enumerate(epochs):
    first, last = max(start, e * steps), min(stop, (e + 1) * steps)
    if spec.task.in_epochs:
      order, chosen = (both[:, (first - e * steps) * batch:(last - e * steps) * batch] for both in _orders(fit, e))
    else:
      order = _endless_order(fit, first * batch, last * batch)
    for r in range(first, last):
      part = slice((r - first) * batch, (r - first + 1) * batch)
      index[r - start, :, :order[:, part].shape[1]] = order[:, part]
      if weights is not None:
        weight[r - start, :, :order[:, part].shape[1]] = weights[chosen[:, part]]
    stops[segment], ends[segment] = last - start, last == min((e + 1) * steps, plan.steps)
  return Rows(index, count, epoch, step, stops, ends, np.int32(len(epochs)), weight)


def _endless_order(fit, start, stop):
  """int32 [padded_members, stop - start], that part of every member's permutations of the stage, one after another."""
  data, num, orders = fit.data, len(fit.data.train), []
  for again in range(start // num, -(-stop // num)):
    chosen = _permutations(data.seed, data.stage, again, (num,) * fit.spec.num_members)
    orders.append(data.train[chosen[:, max(start - again * num, 0):stop - again * num]])
  return program.pad_members(fit.spec, np.concatenate(orders, 1))


def _orders(fit, epoch):
  """int32 [padded_members, n], twice: pool indices in every member's order of an epoch, and places in its examples.

  n is that of the member with most examples; the others' ends are padding.
  """
  spec, data, emphasis = fit.spec, fit.data, fit.emphasis
  nums = _sizes(fit, "train")
  if emphasis.draw is None:
    chosen = _permutations(data.seed, data.stage, epoch, tuple(nums.tolist()))
  else:
    chosen = np.stack([keys.rng(data.seed, keys.EPOCH, data.stage, epoch, member).choice(num, num, p=emphasis.draw)
                       for member, num in enumerate(nums)])
  if emphasis.own is None:
    order = data.train[chosen]
  else:
    own = np.zeros_like(chosen)
    for member, examples in enumerate(emphasis.own):
      own[member, :len(examples)] = examples
    order = np.take_along_axis(own, chosen, 1)
  return program.pad_members(spec, (order, chosen))


@functools.lru_cache(maxsize=2)  # an epoch spans several dispatches
def _permutations(seed, stage, epoch, nums):
  """int64 [M, n] of members with n_m <= n examples each, zeros behind them."""
  orders = np.zeros((len(nums), max(nums)), np.int64)
  for member, num in enumerate(nums):
    orders[member, :num] = keys.rng(seed, keys.EPOCH, stage, epoch, member).permutation(num)
  return orders


def _val(fit):
  spec = fit.spec
  own = [part if len(part) else fit.data.val for part in fit.emphasis.own_val] if spec.sharded else [fit.data.val]
  nums = np.array([len(examples) for examples in own])
  index = np.zeros((len(own), spec.val_rows * spec.val_batch), np.int32)
  for member, examples in enumerate(own):
    index[member, :len(examples)] = examples
  total, gain = nums.astype(np.int32), (spec.train.patience_delta * nums + 1e-9).astype(np.int32)
  val = Val(index.reshape(len(own), spec.val_rows, spec.val_batch), total, gain)
  return program.pad_members(spec, val) if spec.sharded else jax.tree.map(lambda leaf: leaf[0], val)


def _keys(spec, data):
  raw = keys.member_keys(data.seed, data.stage, keys.AUGMENT, spec.num_members)
  return sharding.put(program.pad_members(spec, np.asarray(raw)), spec.mesh, P(MEMBER))


def _advance_stepwise(fit, rows, val, placed_rows, placed_val, pool):
  """program.advance with its loops on the host, for networks that loops slow down."""
  spec, carry, ended, start = fit.spec, fit.carry, [], 0
  done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
  for s in range(0 if done else int(rows.segments)):
    for r in range(start, rows.stop[s]):
      full = bool((rows.count[r] == spec.padded_batch).all())
      carry = _awaited(spec, program.step(spec, carry, fit.keys, placed_rows, np.int32(r), pool, full))
    start = rows.stop[s]
    if rows.ends[s]:
      sums = _zero_sums(spec)
      for v in range(-(-int(val.total.max()) // spec.val_batch)):
        sums = _awaited(spec, program.validate(spec, carry.members.now, sums, placed_val, np.int32(v),
                                               fit.data.val_pool))
      carry, train = _awaited(spec, program.select(spec, carry, sums, placed_val))
      ended.append((train, sums))
      done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
      if done:
        break
  if not ended:  # what is waited for must outlive the carry
    return carry, Records(np.int32(0), jnp.logical_or(carry.done, False), None, None)
  ended = sharding.fetch(ended)
  train, sums = (jax.tree.map(lambda *s: np.stack(s), *side) for side in zip(*ended))
  return carry, Records(np.int32(len(ended)), done, train, sums)


def _awaited(spec, results):
  """Results of a dispatch, waited for where collectives would dead-lock otherwise."""
  return jax.block_until_ready(results) if sharding.needs_waiting(spec.mesh) else results


def _zero_sums(spec):
  one = jax.device_get(spec.task.zeros(spec.network))
  zeros = jax.tree.map(lambda leaf: np.zeros((spec.padded_members, *leaf.shape), leaf.dtype), one)
  return sharding.put(zeros, spec.mesh, P(MEMBER))
