"""What the devices do in a stage: training steps, validation, selection (§1).

`advance` is one dispatch of many training steps with the epoch ends among
them; `step`, `validate` and `select` are its parts as dispatches of their own,
for networks that loops slow down. All run inside `shard_map`: a device sees its
own members and its own part of the batch.
"""
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from alma_jax import fields, members, sharding
from alma_jax.learners import optimizers
from alma_jax.sharding import DATA, MEMBER
from alma_jax.types import Array, Tree, Variables


@dataclasses.dataclass(frozen=True)
class FitSpec:
  """Static facts of training; what the compiler sees.

  Attributes:
    network: models.Network or Mixture.
    task: where inputs and losses come from, see tasks/__init__.py.
    train: fields.Train or TextTrain.
    num_members: M, stacked members trained side by side.
    val_rows: validation batches of the largest stage.
    mesh: devices.
    stepwise: one dispatch per step, see fit.py.
    sharded: members have shards, training and validation examples of their own,
      of different sizes: every count has a member axis.
    keep_opt: whether the optimiser's state is selected with the variables.
  """
  network: object
  task: object
  train: fields.Train | fields.TextTrain
  num_members: int
  val_rows: int
  mesh: Mesh
  stepwise: bool
  sharded: bool = False
  keep_opt: bool = False

  @property
  def padded_batch(self):
    """Batch size, rounded up to what the devices take in equal parts."""
    return self.mesh.shape[DATA] * self._parts * self.at_once

  @property
  def at_once(self):
    """Examples that a device takes at once: its share of the batch in as few equal parts as micro_batch allows."""
    return round_up(-(-self._share // self._parts), self.task.group)

  @property
  def _share(self):
    return -(-self.train.batch_size // self.mesh.shape[DATA])

  @property
  def _parts(self):
    return -(-self._share // (self.train.micro_batch or self._share))

  @property
  def val_batch(self):
    """Size of a validation batch, likewise."""
    return round_up(self.task.eval_batch, self.mesh.shape[DATA])

  @property
  def padded_members(self):
    """Members that are trained: filled up with copies of the last one.

    Copies have that member's key and batches, so they change no decision, and
    they cost no time: some device has as many real members.
    """
    return round_up(self.num_members, self.mesh.shape[MEMBER])


class Member(NamedTuple):
  """One member in training; all leaves carry a leading axis, padded_members."""
  now: Variables
  opt: Tree
  best: Variables | None  # after the best epoch so far; None: the task keeps the last
  best_val: Tree  # its validation sums
  sums: Tree  # of this epoch's training batches so far
  best_opt: Tree = None  # with FitSpec.keep_opt: the optimiser's state after the best epoch


class Carry(NamedTuple):
  """State of a stage on the device."""
  members: Member
  epoch: Array  # int32, epochs finished
  since: Array  # int32, epochs since any member improved
  done: Array  # bool, stopped by patience


class Rows(NamedTuple):
  """Training steps of a dispatch, in segments that lie within an epoch each."""
  index: Array  # int32 [R, padded_members, B], into the pool
  count: Array  # int32 [R], real examples; the rest is padding. Sharded: [R, padded_members]
  epoch: Array  # int32 [R]
  step: Array  # int32 [R], within the epoch
  stop: Array  # int32 [R], the row after each segment
  ends: Array  # bool [R], whether the segment ends its epoch
  segments: Array  # int32, how many there are
  weight: Array | None = None  # float32 [R, padded_members, B], factors of the examples' losses


class Val(NamedTuple):
  """Validation batches of a stage; sharded: of every member, leaves [padded_members, ...]."""
  index: Array  # int32 [val_rows, B], into the pool
  total: Array  # int32, real examples; the rest is padding
  min_gain: Array  # int32, an improvement is more than so many examples more right


class Records(NamedTuple):
  """Epochs that ended in a dispatch, [R, padded_members]; the first `num` rows count."""
  num: Array
  done: Array  # bool, whether patience has ended the stage
  train: Tree
  val: Tree


CARRY_SPEC = Carry(P(MEMBER), P(), P(), P())
RECORDS_SPEC = Records(P(), P(), P(None, MEMBER), P(None, MEMBER))


def rows_spec(spec):
  """Where the leaves of Rows lie."""
  batch = P(None, MEMBER, DATA)
  return Rows(batch, P(None, MEMBER) if spec.sharded else P(), P(), P(), P(), P(), P(), batch)


def val_spec(spec):
  """Where the leaves of Val lie."""
  if spec.sharded:
    return Val(P(MEMBER, None, DATA), P(MEMBER), P(MEMBER))
  return Val(P(None, DATA), P(), P())


def _on_mesh(spec, fn, in_specs, out_specs):
  return jax.shard_map(fn, mesh=spec.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


@functools.partial(jax.jit, static_argnames="spec")
def fresh_carry(spec, variables, opt=None):
  """Carry of a stage that starts from `variables` [M, ...]: nothing selected, zero optimiser state or `opt`."""
  optimizer = optimizers.make(spec.train)

  def local(variables, opt):
    sums = _zeros(spec, jax.tree.leaves(variables)[0].shape[0])
    opt = jax.vmap(optimizer.init)(variables.params) if opt is None else opt
    best, best_opt = variables if spec.task.selects else None, opt if spec.keep_opt else None
    member = Member(variables, opt, best, sums, sums, best_opt)
    zero = jnp.zeros((), jnp.int32)
    return Carry(member, zero, zero, jnp.zeros((), bool))

  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER)), CARRY_SPEC)(*pad_members(spec, (variables, opt)))


@functools.partial(jax.jit, static_argnames="spec")
def selected(spec, carry):
  """The members, and their optimiser's state or None, after their best epochs [M, ...], on every device."""
  best = carry.members.best if spec.task.selects else carry.members.now
  best = jax.tree.map(lambda leaf: leaf[:spec.num_members], (best, carry.members.best_opt))
  return jax.lax.with_sharding_constraint(best, NamedSharding(spec.mesh, P()))


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def advance(spec, carry, keys, rows, val, pool, val_pool):
  """All segments of `rows`, each with the end of its epoch if it has one."""
  return _on_mesh(spec, functools.partial(_advance_local, spec),
                  (CARRY_SPEC, P(MEMBER), rows_spec(spec), val_spec(spec), P(), P()),
                  (CARRY_SPEC, RECORDS_SPEC))(carry, keys, rows, val, pool, val_pool)


@functools.partial(jax.jit, static_argnames=("spec", "full"), donate_argnames="carry")
def step(spec, carry, keys, rows, r, pool, full):
  """Row r of `rows`, outside of any loop; `full`: the batch has no padding, which makes it faster."""
  def local(carry, keys, rows, r, pool):
    stack = _Stack(keys)
    train = lambda member, raw_key, where, *count: _train_row(
        spec, member, raw_key, spec.task.take(pool, *where), rows, r, pool, *count, full=full)
    return stack.pack(stack.update(train, stack.unpack(carry), keys, _where(rows, r), *_counts(spec, rows, r)))
  return _on_mesh(spec, local, (CARRY_SPEC, P(MEMBER), rows_spec(spec), P(), P()), CARRY_SPEC)(
      carry, keys, rows, r, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="sums")
def validate(spec, variables, sums, val, v, pool):
  """Adds batch v of `val` to the members' sums."""
  def local(variables, sums, val, v, pool):
    one = lambda variables, own=val: _val_row(spec, variables, own, v, pool)
    more = members.apply(one, jax.tree.leaves(sums)[0].shape[0], variables, *((val,) if spec.sharded else ()))
    return jax.tree.map(jnp.add, sums, more)
  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER), val_spec(spec), P(), P()), P(MEMBER))(
      variables, sums, val, v, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="carry")
def select(spec, carry, sums, val):
  """Ends an epoch with these validation sums; also returns its training sums."""
  def local(carry, sums, val):
    stack = _Stack(jax.tree.leaves(sums)[0])
    carry, train = _end_epoch(spec, stack, stack.unpack(carry), sums, val)
    return stack.pack(carry), train
  return _on_mesh(spec, local, (CARRY_SPEC, P(MEMBER), val_spec(spec)), (CARRY_SPEC, P(MEMBER)))(carry, sums, val)


class _Stack:
  """This device's members: a list of single ones (unrolled) or a stacked tree."""

  def __init__(self, leaf):
    self.size = leaf.shape[0]
    self.unrolled = members.unroll(self.size)

  def unpack(self, carry):
    return carry._replace(members=self._split(carry.members))

  def pack(self, carry):
    return carry._replace(members=members.stack(carry.members)) if self.unrolled else carry

  def map(self, fn, *stacked):
    """fn(...) -> tree for every member, unpacked; arguments are stacked or unpacked."""
    if not self.unrolled:
      return jax.vmap(fn)(*stacked)
    return [fn(*args) for args in zip(*(self._split(tree) for tree in stacked))]

  def update(self, fn, carry, *stacked):
    """fn(member, ...) -> member over all members of an unpacked carry."""
    return carry._replace(members=self.map(fn, carry.members, *stacked))

  def read(self, fn, carry, *stacked):
    """fn(member, ...) -> tree over all members, stacked: leaves [M, ...]."""
    trees = self.map(fn, carry.members, *stacked)
    return members.stack(trees) if self.unrolled else trees

  def _split(self, tree):
    split = self.unrolled and not isinstance(tree, list)
    return [members.index(tree, i) for i in range(self.size)] if split else tree


def _advance_local(spec, carry, keys, rows, val, pool, val_pool):
  stack = _Stack(keys)
  blank = jax.tree.map(lambda leaf: jnp.zeros((spec.task.max_rows, *leaf.shape), leaf.dtype), _zeros(spec, stack.size))

  def end(state):
    carry, records = state
    sums = _validate_all(spec, stack, carry, val, val_pool)
    carry, train = _end_epoch(spec, stack, carry, sums, val)
    write = lambda buffer, new: buffer.at[records.num].set(new)
    return carry, Records(records.num + 1, carry.done, jax.tree.map(write, records.train, train),
                          jax.tree.map(write, records.val, sums))

  def take(r):
    return stack.map(lambda where: spec.task.take(pool, *where), _where(rows, jnp.minimum(r, spec.task.max_rows - 1)))

  def step(r, loop):  # takes the batches of the next step meanwhile
    carry, batches = loop
    train = lambda member, raw_key, batch, *count: _train_row(spec, member, raw_key, batch, rows, r, pool, *count)
    return stack.update(train, carry, keys, batches, *_counts(spec, rows, r)), take(r + 1)

  # The end of an epoch stands outside the loop over its steps, so that the
  # steps carry no conditional.
  def segment(loop):
    s, start, carry, records = loop
    carry, _ = jax.lax.fori_loop(start, rows.stop[s], step, (carry, take(start)))
    carry, records = jax.lax.cond(rows.ends[s], end, lambda state: state, (carry, records))
    return s + 1, rows.stop[s], carry, records

  zero = jnp.int32(0)
  start = (zero, zero, stack.unpack(carry), Records(zero, carry.done, blank, blank))
  _, _, carry, records = jax.lax.while_loop(
      lambda loop: (loop[0] < rows.segments) & ~loop[2].done, segment, start)
  return stack.pack(carry), records


def _where(rows, r):
  """What a task takes row r by: indices [M, B], and factors of the losses or None."""
  return rows.index[r], None if rows.weight is None else rows.weight[r]


def _counts(spec, rows, r):
  """Real examples of each member in row r, [M], where they differ."""
  return (rows.count[r],) if spec.sharded else ()


def _train_row(spec, member, raw_key, batch, rows, r, pool, own_count=None, *, full=False):
  """One optimiser step of one member on its batch of row r; none where it has no example."""
  count, size = rows.count[r] if own_count is None else own_count, jax.tree.leaves(batch)[0].shape[0]
  offset = jax.lax.axis_index(DATA) * size
  mask = jnp.arange(size) + offset < count
  key = jax.random.wrap_key_data(raw_key)
  key = jax.random.fold_in(jax.random.fold_in(key, rows.epoch[r]), rows.step[r])
  x = spec.task.train_inputs(pool, batch, key, offset, spec.padded_batch)

  norm = spec.task.norm(batch, mask, count)

  def loss(params, x, batch, mask):
    output, stats = spec.network.apply(
        Variables(params, member.now.stats), x, None if full else mask, train=True, key=jax.random.fold_in(key, 2))
    sums = spec.task.sums(output, batch, mask)
    return spec.task.objective(output, sums, norm), (sums, stats)

  def grads_of(part):
    grads, (sums, stats) = jax.grad(loss, has_aux=True)(member.now.params, *part)
    return (grads, sums), stats

  (grads, sums), stats = _accumulate(grads_of, (x, batch, mask), spec.at_once)
  grads, sums = sharding.psum((grads, sums), DATA)
  updates, opt = optimizers.make(spec.train).update(grads, member.opt, member.now.params)
  params = optax.apply_updates(member.now.params, updates)
  after = member._replace(now=Variables(params, stats), opt=opt, sums=jax.tree.map(jnp.add, member.sums, sums))
  return after if own_count is None else jax.tree.map(functools.partial(jnp.where, count > 0), after, member)


def _accumulate(grads_of, batch, at_once):
  """(grads, sums) added up over parts of the batch, `at_once` examples each, and the last part's statistics."""
  size = jax.tree.leaves(batch)[0].shape[0]
  if size == at_once:
    return grads_of(batch)
  parts = jax.tree.map(lambda leaf: leaf.reshape(size // at_once, at_once, *leaf.shape[1:]), batch)
  first, stats = grads_of(members.index(parts, 0))

  def add(total, part):
    new, stats = grads_of(part)
    return jax.tree.map(jnp.add, total, new), stats

  total, stats = jax.lax.scan(add, first, jax.tree.map(lambda leaf: leaf[1:], parts))
  return total, members.index(stats, -1)


def _validate_all(spec, stack, carry, val, pool):
  """Validation sums [M] over all of `val`."""
  def validate(member, own=val):
    num = (own.total + spec.val_batch - 1) // spec.val_batch
    add = lambda v, sums: jax.tree.map(jnp.add, sums, _val_row(spec, member.now, own, v, pool))
    return jax.lax.fori_loop(0, num, add, spec.task.zeros(spec.network))

  return stack.read(validate, carry, *((val,) if spec.sharded else ()))


def _val_row(spec, variables, val, v, pool):
  """One network's sums over validation batch v."""
  index_B = val.index[v]
  offset = v * spec.val_batch + jax.lax.axis_index(DATA) * index_B.shape[0]
  mask = jnp.arange(index_B.shape[0]) + offset < val.total
  batch = spec.task.take(pool, index_B)
  output, _ = spec.network.apply(variables, spec.task.inputs(pool, batch), mask, train=False)
  return sharding.psum(spec.task.sums(output, batch, mask), DATA)


def _end_epoch(spec, stack, carry, sums, val):
  """Selection and patience (§1): the first epoch, or better than the best by δ; or always the last.

  Returns the carry, and the sums [M] over the epoch's training batches.
  """
  selects = spec.task.selects
  best = stack.read(lambda member: member.best_val, carry)
  better = jnp.full(stack.size, carry.epoch == 0) | (spec.task.better(sums, best, val) if selects else True)

  def select(member, sums, better):
    pick = functools.partial(jax.tree.map, lambda new, old: jnp.where(better, new, old))
    return member._replace(
        best=pick(member.now, member.best) if selects else None, best_val=pick(sums, member.best_val),
        best_opt=pick(member.opt, member.best_opt) if spec.keep_opt else None,
        sums=jax.tree.map(jnp.zeros_like, member.sums))

  train = stack.read(lambda member: member.sums, carry)
  improved = sharding.psum(jnp.sum(better, dtype=jnp.int32), MEMBER) > 0
  since = jnp.where(improved, 0, carry.since + 1)
  done = (since >= spec.train.patience) if spec.train.patience else jnp.zeros((), bool)
  carry = stack.update(select, carry, sums, better)
  return carry._replace(epoch=carry.epoch + 1, since=since, done=done), train


def _zeros(spec, size):
  """The task's sums of nothing for so many members, [size, ...]."""
  return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), spec.task.zeros(spec.network))


def batches(which, size):
  """(int32 [size], bool [size]) of `which` [N], batch after batch: examples, and which of them are no padding."""
  for start in range(0, len(which), size):
    place = np.arange(start, start + size)
    yield which[np.minimum(place, len(which) - 1)].astype(np.int32), place < len(which)


def pad_members(spec, tree):
  """Leaves [M, ...] -> [padded_members, ...]; host arrays stay there."""
  which = np.minimum(np.arange(spec.padded_members), spec.num_members - 1)
  same = spec.padded_members == spec.num_members
  return tree if same else jax.tree.map(lambda leaf: leaf[which], tree)


def round_up(number, multiple):
  """The smallest multiple of `multiple` that is not below `number`."""
  return -(-number // multiple) * multiple
