"""The one training loop: a stage of epochs over stacked members (§1).

A stage is `begin`, `advance` until `is_over`, `finish`. Between two advances
all of it is in `FitState`: it can be saved, stopped, resumed and reported.
One advance is one dispatch of many training steps, validation and selection
included; how the rows of a stage are cut into dispatches changes no bit of
the result. Shapes do not depend on the stage, so a fixed architecture is
compiled once for the whole stream.

On a CPU a convolution inside a loop is many times slower than outside one, so
there convolutional networks take one dispatch per step (`FitSpec.stepwise`).
"""
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from alma_jax import config, keys, members, sharding
from alma_jax.learners import optimizers
from alma_jax.sharding import DATA, MEMBER
from alma_jax.tasks.classification import Classification, Sums
from alma_jax.types import Array, Tree, Variables

ROWS = 256  # most training steps in one dispatch
VAL_BATCH = 512  # examples of a validation or test batch
_ORDER = 2  # purpose of the random numbers that shuffle, see data/stream.py


@dataclasses.dataclass(frozen=True)
class FitSpec:
  """Static facts of training; what the compiler sees.

  Attributes:
    network: models.Network or Mixture.
    task: where inputs and losses come from.
    train: config.Train.
    num_members: M, stacked members trained side by side.
    val_rows: validation batches of the largest stage.
    mesh: devices.
    stepwise: one dispatch per step (see above).
  """
  network: object
  task: Classification
  train: config.Train
  num_members: int
  val_rows: int
  mesh: Mesh
  stepwise: bool

  @property
  def padded_batch(self):
    """Batch size, rounded up to a multiple of the data axis."""
    return _round_up(self.train.batch_size, self.mesh.shape[DATA])

  @property
  def val_batch(self):
    """Size of a validation batch, likewise."""
    return _round_up(VAL_BATCH, self.mesh.shape[DATA])


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


class Member(NamedTuple):
  """One member in training; all leaves carry a leading axis [M]."""
  now: Variables
  opt: Tree
  best: Variables  # after the best epoch so far
  best_right: Array  # int32, validation examples it has right; -1: no epoch yet
  sums: Sums  # of this epoch's training batches so far


class Carry(NamedTuple):
  """State of a stage on the device."""
  members: Member
  epoch: Array  # int32, epochs finished
  since: Array  # int32, epochs since any member improved
  done: Array  # bool, stopped by patience


class Rows(NamedTuple):
  """Training steps of a dispatch, in segments that lie within an epoch each."""
  index: Array  # int32 [R, M, B], into the pool
  count: Array  # int32 [R], real examples; the rest is padding
  epoch: Array  # int32 [R]
  step: Array  # int32 [R], within the epoch
  stop: Array  # int32 [R], the row after each segment
  ends: Array  # bool [R], whether the segment ends its epoch
  segments: Array  # int32, how many there are


class Val(NamedTuple):
  """Validation batches of a stage."""
  index: Array  # int32 [val_rows, B], into the pool
  total: Array  # int32, real examples; the rest is padding
  min_gain: Array  # int32, an improvement is more than so many examples more right


class Records(NamedTuple):
  """Epochs that ended in a dispatch, [R, M]; the first `num` rows count."""
  num: Array
  done: Array  # bool, whether patience has ended the stage
  train: Sums
  val: Sums


@dataclasses.dataclass(frozen=True)
class FitState:
  """A stage in training.

  Attributes:
    carry: state on the device; an `advance` consumes it.
    keys: uint32 [M, 2], raw PRNG keys of the members' augmentation; derived
      from seed and stage, never saved.
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
    variables: stacked Variables [M, ...] to start from, on the mesh.
    data: StageData.

  Returns:
    FitState.
  """
  return FitState(_fresh_carry(spec, variables), _keys(spec, data), 0)


def template(spec, variables):
  """Shapes and dtypes of a stage's carry, for restoring one."""
  return jax.eval_shape(functools.partial(_fresh_carry, spec), variables)


def restore(spec, carry, cursor, data):
  """FitState from a saved carry (host arrays) and cursor."""
  return FitState(sharding.put(carry, spec.mesh, _CARRY_SPEC), _keys(spec, data), cursor)


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
  stop = min(start + min(rows, ROWS), num_rows(spec, data))
  val = _val(spec, data)
  if spec.stepwise:
    rows = _rows(spec, data, start, stop, stop - start)
    carry, records = _advance_stepwise(spec, fit, rows, val, data.pool)
  else:
    plan = sharding.put(_rows(spec, data, start, stop, ROWS), spec.mesh, _ROWS_SPEC)
    val = sharding.put(val, spec.mesh, _VAL_SPEC)
    carry, records = _awaited(spec, _advance(spec, fit.carry, fit.keys, plan, val, data.pool))
  return FitState(carry, fit.keys, stop), records


def read(data, records):
  """Waits for a dispatch and reports the epochs that ended in it.

  Args:
    data: StageData.
    records: as `advance` returned them.

  Returns:
    (epochs, done): a dict of [M] numpy arrays train_loss, train_error,
    val_loss, val_error per epoch (losses in nats per example); and whether
    patience has ended the stage.
  """
  records = sharding.fetch(records)
  train, val = len(data.train), len(data.val)
  epochs = [dict(train_loss=records.train.loss[i] / train, train_error=records.train.wrong[i] / train,
                 val_loss=records.val.loss[i] / val, val_error=records.val.wrong[i] / val)
            for i in range(int(records.num))]
  return epochs, bool(records.done)


def finish(fit, data):
  """The selected members [M, ...] and what they cost."""
  epochs, right = sharding.fetch((fit.carry.epoch, fit.carry.members.best_right))
  val_error = float(1 - right.mean() / len(data.val))
  return fit.carry.members.best, FitReport(int(epochs), int(epochs) * len(data.train), val_error)


# ---------------------------------------------------------------- on the host


def _steps(spec, data):
  return -(-len(data.train) // spec.train.batch_size)


def _rows(spec, data, start, stop, size):
  """Rows start..stop of the stage, padded to `size`."""
  steps, batch = _steps(spec, data), spec.train.batch_size
  index = np.zeros((size, spec.num_members, spec.padded_batch), np.int32)
  row = np.arange(size, dtype=np.int32) + np.int32(start)
  epoch, step = row // steps, row % steps
  count = np.minimum(batch, len(data.train) - step * batch).astype(np.int32)
  epochs = range(start // steps, -(-stop // steps))
  stops, ends = np.zeros(size, np.int32), np.zeros(size, bool)
  for segment, e in enumerate(epochs):
    order = _orders(spec, data, e)
    last = min(stop, (e + 1) * steps)
    for r in range(max(start, e * steps), last):
      part = order[:, (r - e * steps) * batch:][:, :batch]
      index[r - start, :, :part.shape[1]] = part
    stops[segment], ends[segment] = last - start, last == (e + 1) * steps
  return Rows(index, count, epoch, step, stops, ends, np.int32(len(epochs)))


def _orders(spec, data, epoch):
  """int32 [M, n]: every member's order of the training indices in an epoch."""
  rngs = [np.random.default_rng([data.seed, _ORDER, data.stage, epoch, m]) for m in range(spec.num_members)]
  return np.stack([rng.permutation(data.train) for rng in rngs])


def _val(spec, data):
  index = np.zeros(spec.val_rows * spec.val_batch, np.int32)
  index[:len(data.val)] = data.val
  gain = int(spec.train.patience_delta * len(data.val) + 1e-9)
  return Val(index.reshape(spec.val_rows, spec.val_batch), np.int32(len(data.val)), np.int32(gain))


def _keys(spec, data):
  raw = keys.member_keys(data.seed, data.stage, keys.AUGMENT, spec.num_members)
  return sharding.put(raw, spec.mesh, P(MEMBER))


def _advance_stepwise(spec, fit, rows, val, pool):
  """`_advance` with the loops on the host, for networks that loops slow down."""
  carry, ended, start = fit.carry, [], 0
  done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
  place = functools.partial(sharding.put, mesh=spec.mesh)
  for s in range(0 if done else int(rows.segments)):
    for r in range(start, rows.stop[s]):
      steps = (field[r:r + 1] for field in (rows.index, rows.count, rows.epoch, rows.step))
      row = place(Rows(*steps, rows.stop[:1], rows.ends[:1], rows.segments), spec=_ROWS_SPEC)
      carry = _awaited(spec, _step(spec, carry, fit.keys, row, pool))
    start = rows.stop[s]
    if rows.ends[s]:
      sums = _zero_sums(spec)
      for v in range(-(-int(val.total) // spec.val_batch)):
        left = np.int32(val.total - v * spec.val_batch)
        part = place(Val(val.index[v:v + 1], left, val.min_gain), spec=_VAL_SPEC)
        sums = _awaited(spec, _validate(spec, carry.members.now, sums, part, pool))
      carry, train = _awaited(spec, _select(spec, carry, sums, place(val, spec=_VAL_SPEC)))
      ended.append((train, sums))
      done = bool(spec.train.patience) and bool(sharding.fetch(carry.done))
      if done:
        break
  if not ended:
    return carry, Records(np.int32(0), done, _zero_sums(spec), _zero_sums(spec))
  ended = sharding.fetch(ended)
  train, sums = (jax.tree.map(lambda *s: np.stack(s), *side) for side in zip(*ended))
  return carry, Records(np.int32(len(ended)), done, train, sums)


def _awaited(spec, results):
  """Results of a dispatch, waited for where collectives would dead-lock otherwise."""
  return jax.block_until_ready(results) if sharding.needs_waiting(spec.mesh) else results


def _zero_sums(spec):
  zeros = Sums(np.zeros(spec.num_members, np.float32), np.zeros(spec.num_members, np.int32))
  return sharding.put(zeros, spec.mesh, P(MEMBER))


# -------------------------------------------- on the device, inside shard_map

_ROWS_SPEC = Rows(P(None, MEMBER, DATA), P(), P(), P(), P(), P(), P())
_VAL_SPEC = Val(P(None, DATA), P(), P())
_CARRY_SPEC = Carry(P(MEMBER), P(), P(), P())
_RECORDS_SPEC = Records(P(), P(), P(None, MEMBER), P(None, MEMBER))


def _on_mesh(spec, fn, in_specs, out_specs):
  return jax.shard_map(fn, mesh=spec.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


@functools.partial(jax.jit, static_argnames="spec")
def _fresh_carry(spec, variables):
  optimizer = optimizers.make(spec.train)

  def local(variables):
    size = jax.tree.leaves(variables)[0].shape[0]
    sums = Sums(jnp.zeros(size), jnp.zeros(size, jnp.int32))
    opt = jax.vmap(optimizer.init)(variables.params)
    member = Member(variables, opt, variables, jnp.full(size, -1, jnp.int32), sums)
    zero = jnp.zeros((), jnp.int32)
    return Carry(member, zero, zero, jnp.zeros((), bool))

  return _on_mesh(spec, local, P(MEMBER), _CARRY_SPEC)(variables)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def _advance(spec, carry, keys, rows, val, pool):
  """All segments of `rows`, each with the end of its epoch if it has one."""
  return _on_mesh(spec, functools.partial(_advance_local, spec),
                  (_CARRY_SPEC, P(MEMBER), _ROWS_SPEC, _VAL_SPEC, P()),
                  (_CARRY_SPEC, _RECORDS_SPEC))(carry, keys, rows, val, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def _step(spec, carry, keys, rows, pool):
  """One training step, outside of any loop."""
  def local(carry, keys, rows, pool):
    stack = _Stack(keys)
    return stack.pack(_train_row(spec, stack, stack.unpack(carry), keys, rows, 0, pool))
  return _on_mesh(spec, local, (_CARRY_SPEC, P(MEMBER), _ROWS_SPEC, P()), _CARRY_SPEC)(carry, keys, rows, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="sums")
def _validate(spec, variables, sums, val, pool):
  """Adds the first batch of `val` to the members' sums."""
  def local(variables, sums, val, pool):
    more = members.apply(lambda v: _val_row(spec, v, val, 0, pool), sums.wrong.shape[0], variables)
    return jax.tree.map(jnp.add, sums, more)
  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER), _VAL_SPEC, P()), P(MEMBER))(variables, sums, val, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def _select(spec, carry, sums, val):
  """Ends an epoch with these validation sums; also returns its training sums."""
  def local(carry, sums, val):
    stack = _Stack(sums.wrong)
    carry, train = _end_epoch(spec, stack, stack.unpack(carry), sums, val)
    return stack.pack(carry), train
  return _on_mesh(spec, local, (_CARRY_SPEC, P(MEMBER), _VAL_SPEC), (_CARRY_SPEC, P(MEMBER)))(carry, sums, val)


class _Stack:
  """This device's members: a list of single ones (unrolled) or a stacked tree."""

  def __init__(self, leaf):
    self.size = leaf.shape[0]
    self.unrolled = members.unroll(self.size)

  def unpack(self, carry):
    if not self.unrolled:
      return carry
    return carry._replace(members=[members.index(carry.members, i) for i in range(self.size)])

  def pack(self, carry):
    return carry._replace(members=members.stack(carry.members)) if self.unrolled else carry

  def update(self, fn, carry, *stacked):
    """fn(member, ...) -> member over all members of an unpacked carry."""
    if not self.unrolled:
      return carry._replace(members=jax.vmap(fn)(carry.members, *stacked))
    return carry._replace(members=[fn(m, *members.index(stacked, i)) for i, m in enumerate(carry.members)])

  def read(self, fn, carry, *stacked):
    """fn(member, ...) -> tree over all members, stacked: leaves [M, ...]."""
    if not self.unrolled:
      return jax.vmap(fn)(carry.members, *stacked)
    return members.stack([fn(m, *members.index(stacked, i)) for i, m in enumerate(carry.members)])


def _advance_local(spec, carry, keys, rows, val, pool):
  stack = _Stack(keys)
  zeros = jnp.zeros((ROWS, stack.size))
  blank = Sums(zeros, zeros.astype(jnp.int32))

  def end(state):
    carry, records = state
    sums = _validate_all(spec, stack, carry, val, pool)
    carry, train = _end_epoch(spec, stack, carry, sums, val)
    write = lambda buffer, new: buffer.at[records.num].set(new)
    return carry, Records(records.num + 1, carry.done, jax.tree.map(write, records.train, train),
                          jax.tree.map(write, records.val, sums))

  # The end of an epoch stands outside the loop over its steps, so that the
  # steps carry no conditional.
  def segment(loop):
    s, start, carry, records = loop
    step = lambda r, carry: _train_row(spec, stack, carry, keys, rows, r, pool)
    carry = jax.lax.fori_loop(start, rows.stop[s], step, carry)
    carry, records = jax.lax.cond(rows.ends[s], end, lambda state: state, (carry, records))
    return s + 1, rows.stop[s], carry, records

  zero = jnp.int32(0)
  start = (zero, zero, stack.unpack(carry), Records(zero, carry.done, blank, blank))
  _, _, carry, records = jax.lax.while_loop(
      lambda loop: (loop[0] < rows.segments) & ~loop[2].done, segment, start)
  return stack.pack(carry), records


def _train_row(spec, stack, carry, keys, rows, r, pool):
  """One optimiser step of every member, each on its own batch."""
  count, size = rows.count[r], rows.index.shape[-1]
  offset = jax.lax.axis_index(DATA) * size
  mask = jnp.arange(size) + offset < count
  optimizer = optimizers.make(spec.train)

  def train(member, raw_key, index_B):
    key = jax.random.wrap_key_data(raw_key)
    key = jax.random.fold_in(jax.random.fold_in(key, rows.epoch[r]), rows.step[r])
    x = spec.task.train_inputs(pool, index_B, key, offset, spec.padded_batch)

    def loss(params):
      logits, stats = spec.network.apply(Variables(params, member.now.stats), x, mask, train=True)
      sums = spec.task.sums(logits, pool, index_B, mask)
      return sums.loss / count, (sums, stats)

    grads, (sums, stats) = jax.grad(loss, has_aux=True)(member.now.params)
    grads, sums = sharding.psum((grads, sums), DATA)
    updates, opt = optimizer.update(grads, member.opt, member.now.params)
    params = optax.apply_updates(member.now.params, updates)
    return member._replace(now=Variables(params, stats), opt=opt,
                           sums=jax.tree.map(jnp.add, member.sums, sums))

  return stack.update(train, carry, keys, rows.index[r])


def _validate_all(spec, stack, carry, val, pool):
  """Validation sums [M] over all of `val`."""
  num = (val.total + spec.val_batch - 1) // spec.val_batch

  def validate(member):
    add = lambda v, sums: jax.tree.map(jnp.add, sums, _val_row(spec, member.now, val, v, pool))
    return jax.lax.fori_loop(0, num, add, Sums(jnp.float32(0), jnp.int32(0)))

  return stack.read(validate, carry)


def _val_row(spec, variables, val, v, pool):
  """One network's sums over validation batch v."""
  index_B = val.index[v]
  offset = v * spec.val_batch + jax.lax.axis_index(DATA) * index_B.shape[0]
  mask = jnp.arange(index_B.shape[0]) + offset < val.total
  logits, _ = spec.network.apply(variables, spec.task.inputs(pool, index_B), mask, train=False)
  return sharding.psum(spec.task.sums(logits, pool, index_B, mask), DATA)


def _end_epoch(spec, stack, carry, sums, val):
  """Selection and patience (§1): the first epoch, or better than the best by δ.

  Returns the carry, and the sums [M] over the epoch's training batches.
  """
  right = val.total - sums.wrong
  best = stack.read(lambda member: member.best_right, carry)
  better = (best < 0) | (right > best + val.min_gain)

  def select(member, right, better):
    pick = functools.partial(jax.tree.map, lambda new, old: jnp.where(better, new, old))
    return member._replace(best=pick(member.now, member.best), best_right=pick(right, member.best_right),
                           sums=jax.tree.map(jnp.zeros_like, member.sums))

  train = stack.read(lambda member: member.sums, carry)
  improved = sharding.psum(jnp.sum(better, dtype=jnp.int32), MEMBER) > 0
  since = jnp.where(improved, 0, carry.since + 1)
  done = (since >= spec.train.patience) if spec.train.patience else jnp.zeros((), bool)
  carry = stack.update(select, carry, right, better)
  return carry._replace(epoch=carry.epoch + 1, since=since, done=done), train


def _round_up(number, multiple):
  return -(-number // multiple) * multiple
