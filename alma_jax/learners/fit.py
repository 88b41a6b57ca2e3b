"""The one training loop: a stage of epochs over stacked members (§1).

A stage is `begin`, `advance` until patience or its rows end, `finish`. Between
two advances all of it is in `FitState`: it can be saved, stopped, resumed and
reported. One advance is one dispatch of many training steps, validation and
selection included; how the rows of a stage are cut into dispatches changes no
bit of the result. Shapes do not depend on the stage, so a fixed architecture is
compiled once for the whole stream.

On a CPU a convolution inside a loop is many times slower than outside one, so
there convolutional networks take one dispatch per step (`FitSpec.stepwise`).
What the devices do is in program.py.
"""
import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax import keys, sharding
from alma_jax.learners import program
from alma_jax.learners.program import Carry, Records, Rows, Val
from alma_jax.sharding import MEMBER
from alma_jax.tasks.classification import Sums
from alma_jax.types import Array, Tree

_ORDER = 2  # purpose of the random numbers that shuffle, see data/stream.py


class StageData(NamedTuple):
  """What a learner may see of a stage.

  Attributes:
    stage: counts from 0.
    seed: of the run; with the stage it decides every order and augmentation.
    pool: task's pool of the whole training set, on the device.
    train, val: int32 indices into it.
  """
  stage: int
  seed: int
  pool: Tree
  train: np.ndarray
  val: np.ndarray


@dataclasses.dataclass(frozen=True)
class FitState:
  """A stage in training.

  Attributes:
    carry: state on the devices; an `advance` consumes it.
    keys: uint32 [padded_members, 2], raw PRNG keys of the members'
      augmentation; derived from seed and stage, never saved.
    cursor: rows dispatched so far, which may include some after `carry.done`.
  """
  carry: Carry
  keys: Array
  cursor: int


class FitReport(NamedTuple):
  """What a finished stage cost and reached.

  Attributes:
    epochs: epochs run.
    samples: training examples processed, counted once for all members.
    val_error: validation error of the selected members, averaged over them.
  """
  epochs: int
  samples: int
  val_error: float


def begin(spec, variables, data):
  """Starts a stage: a fresh optimiser, nothing selected.

  Args:
    spec: FitSpec.
    variables: stacked Variables [M, ...] to start from, on every device.
    data: StageData.

  Returns:
    FitState.
  """
  return FitState(program.fresh_carry(spec, variables), _keys(spec, data), 0)


def save(spec, fit):
  """What `restore` needs besides the cursor: a Carry of M members, whatever the devices."""
  carry = sharding.fetch(fit.carry)
  return carry._replace(members=jax.tree.map(lambda leaf: leaf[:spec.num_members], carry.members))


def template(spec, variables):
  """Shapes and dtypes of what `save` returns."""
  carry = jax.eval_shape(functools.partial(program.fresh_carry, spec), variables)
  cut = lambda leaf: jax.ShapeDtypeStruct((spec.num_members, *leaf.shape[1:]), leaf.dtype)
  return carry._replace(members=jax.tree.map(cut, carry.members))


def restore(spec, carry, cursor, data):
  """FitState from a saved carry (host arrays) and cursor."""
  carry = carry._replace(members=program.pad_members(spec, carry.members))
  return FitState(sharding.put(carry, spec.mesh, program.CARRY_SPEC), _keys(spec, data), cursor)


def num_rows(spec, data):
  """Training steps of the whole stage, unless patience ends it."""
  return spec.train.epochs * _steps(spec, data)


def advance(spec, fit, data, rows):
  """Runs up to `rows` further training steps as one dispatch, without waiting.

  Args:
    spec: FitSpec.
    fit: FitState, consumed.
    data: StageData.
    rows: how many steps at most.

  Returns:
    FitState, and Records to be read with `read`.
  """
  start = fit.cursor
  stop = min(start + min(rows, program.ROWS), num_rows(spec, data))
  host = _rows(spec, data, start, stop), _val(spec, data)
  placed = sharding.put(host, spec.mesh, (program.ROWS_SPEC, program.VAL_SPEC))
  if spec.stepwise:
    carry, records = _advance_stepwise(spec, fit, *host, *placed, data.pool)
  else:
    carry, records = _awaited(spec, program.advance(spec, fit.carry, fit.keys, *placed, data.pool))
  return FitState(carry, fit.keys, stop), records


def read(spec, data, records):
  """Waits for a dispatch and reports the epochs that ended in it.

  Args:
    spec: FitSpec.
    data: StageData.
    records: as `advance` returned them.

  Returns:
    (epochs, done): a dict of [M] numpy arrays train_loss, train_error,
    val_loss, val_error per epoch (losses in nats per example); and whether
    patience has ended the stage.
  """
  records = sharding.fetch(records)
  train, val = len(data.train), len(data.val)
  t, v = jax.tree.map(lambda leaf: leaf[:int(records.num), :spec.num_members], (records.train, records.val))
  columns = dict(train_loss=t.loss / train, train_error=t.wrong / train,
                 val_loss=v.loss / val, val_error=v.wrong / val)
  return [{key: column[i] for key, column in columns.items()} for i in range(int(records.num))], bool(records.done)


def finish(spec, fit, data):
  """The selected members [M, ...], on every device, and their FitReport."""
  epochs, right = sharding.fetch((fit.carry.epoch, fit.carry.members.best_right))
  val_error = float(1 - right[:spec.num_members].mean() / len(data.val))
  best = _awaited(spec, program.selected(spec, fit.carry))
  return best, FitReport(int(epochs), int(epochs) * len(data.train), val_error)


def _steps(spec, data):
  return -(-len(data.train) // spec.train.batch_size)


def _rows(spec, data, start, stop):
  """Rows start..stop of the stage, padded to program.ROWS."""
  size, steps, batch = program.ROWS, _steps(spec, data), spec.train.batch_size
  index = np.zeros((size, spec.padded_members, spec.padded_batch), np.int32)
  row = np.arange(size, dtype=np.int32) + np.int32(start)
  epoch, step = row // steps, row % steps
  count = np.minimum(batch, len(data.train) - step * batch).astype(np.int32)
  epochs = range(start // steps, -(-stop // steps))
  stops, ends = np.zeros(size, np.int32), np.zeros(size, bool)
  for segment, e in enumerate(epochs):
    order = program.pad_members(spec, _orders(spec, data, e))
    last = min(stop, (e + 1) * steps)
    for r in range(max(start, e * steps), last):
      part = order[:, (r - e * steps) * batch:][:, :batch]
      index[r - start, :, :part.shape[1]] = part
    stops[segment], ends[segment] = last - start, last == (e + 1) * steps
  return Rows(index, count, epoch, step, stops, ends, np.int32(len(epochs)))


def _orders(spec, data, epoch):
  """int32 [M, n]: every member's order of the training indices in an epoch."""
  return data.train[_permutations(data.seed, data.stage, epoch, spec.num_members, len(data.train))]


@functools.lru_cache(maxsize=2)  # an epoch spans several dispatches
def _permutations(seed, stage, epoch, num_members, num):
  rngs = (np.random.default_rng([seed, _ORDER, stage, epoch, member]) for member in range(num_members))
  return np.stack([rng.permutation(num) for rng in rngs])


def _val(spec, data):
  index = np.zeros(spec.val_rows * spec.val_batch, np.int32)
  index[:len(data.val)] = data.val
  gain = int(spec.train.patience_delta * len(data.val) + 1e-9)
  return Val(index.reshape(spec.val_rows, spec.val_batch), np.int32(len(data.val)), np.int32(gain))


def _keys(spec, data):
  raw = keys.member_keys(data.seed, data.stage, keys.AUGMENT, spec.num_members)
  return sharding.put(program.pad_members(spec, np.asarray(raw)), spec.mesh, P(MEMBER))


def _advance_stepwise(spec, fit, rows, val, placed_rows, placed_val, pool):
  """program.advance with its loops on the host, for networks that loops slow down."""
  carry, ended, start = fit.carry, [], 0
  done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
  for s in range(0 if done else int(rows.segments)):
    for r in range(start, rows.stop[s]):
      full = bool(rows.count[r] == spec.padded_batch)
      carry = _awaited(spec, program.step(spec, carry, fit.keys, placed_rows, np.int32(r), pool, full))
    start = rows.stop[s]
    if rows.ends[s]:
      sums = _zero_sums(spec)
      for v in range(-(-int(val.total) // spec.val_batch)):
        sums = _awaited(spec, program.validate(spec, carry.members.now, sums, placed_val, np.int32(v), pool))
      carry, train = _awaited(spec, program.select(spec, carry, sums, placed_val))
      ended.append((train, sums))
      done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
      if done:
        break
  if not ended:
    none = Sums(*np.zeros((2, 0, spec.padded_members), np.float32))
    return carry, Records(np.int32(0), done, none, none)
  ended = sharding.fetch(ended)
  train, sums = (jax.tree.map(lambda *s: np.stack(s), *side) for side in zip(*ended))
  return carry, Records(np.int32(len(ended)), done, train, sums)


def _awaited(spec, results):
  """Results of a dispatch, waited for where collectives would dead-lock otherwise."""
  return jax.block_until_ready(results) if sharding.needs_waiting(spec.mesh) else results


def _zero_sums(spec):
  zeros = Sums(np.zeros(spec.padded_members, np.float32), np.zeros(spec.padded_members, np.int32))
  return sharding.put(zeros, spec.mesh, P(MEMBER))
