"""What the devices compute in a stage: training steps, validation, selection (docs/algorithms.md §1).

`advance` is one dispatch of many training steps, and of the validations and selections at the ends of rounds. `step`,
`validate` and `select` are its parts as dispatches of their own, for networks that run slowly inside a loop. All of
them run inside `shard_map`: a device sees its own members and its own part of the batch.
"""
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from alma_jax.parallel import members, sharding
from alma_jax.parallel.sharding import DATA, MEMBER
from alma_jax.training import optimizers
from alma_jax.training.stage import FitSpec
from alma_jax.training.state import (
  STATE_SPEC,
  SUMS_SPEC,
  LoopState,
  Member,
  RoundSums,
  TrainBatches,
  ValBatches,
  pad_members,
  train_batches_spec,
  val_batches_spec,
)
from alma_jax.types import Array, Tree, Variables


@functools.partial(jax.jit, static_argnames="spec")
def initial_state(spec: FitSpec, variables: Variables, opt: Tree = None) -> LoopState:
  """LoopState of a stage that starts from `variables` [M, ...]; `opt` [M, ...], or None for a fresh optimiser state."""
  optimizer = optimizers.make(spec.train)

  def local(variables: Variables, opt: Tree) -> LoopState:
    sums = _zeros(spec, jax.tree.leaves(variables)[0].shape[0])
    opt = jax.vmap(optimizer.init)(variables.params) if opt is None else opt
    best, best_opt = variables if spec.task.selects else None, opt if spec.keep_opt else None
    member = Member(variables, opt, best, sums, sums, best_opt)
    zero = jnp.zeros((), jnp.int32)
    return LoopState(member, zero, zero, jnp.zeros((), bool))

  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER)), STATE_SPEC)(*pad_members(spec, (variables, opt)))


@functools.partial(jax.jit, static_argnames="spec")
def selected(spec: FitSpec, state: LoopState) -> tuple[Variables, Tree]:
  """(Variables, optimiser state or None) of the selected members, [M, ...] on every device."""
  best = state.members.best if spec.task.selects else state.members.now
  best = jax.tree.map(lambda leaf: leaf[:spec.num_members], (best, state.members.best_opt))
  return jax.lax.with_sharding_constraint(best, NamedSharding(spec.mesh, P()))


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="state")
def advance(spec: FitSpec, state: LoopState, keys: Array, batches: TrainBatches, val: ValBatches, pool: Tree,
            val_pool: Tree) -> tuple[LoopState, RoundSums]:
  """All steps of `batches`, and what follows each step that ends a round; it stops where patience ends the stage."""
  return _on_mesh(spec, functools.partial(_advance_local, spec),
                  (STATE_SPEC, P(MEMBER), train_batches_spec(spec), val_batches_spec(spec), P(), P()),
                  (STATE_SPEC, SUMS_SPEC))(state, keys, batches, val, pool, val_pool)


@functools.partial(jax.jit, static_argnames=("spec", "full"), donate_argnames="state")
def step(spec: FitSpec, state: LoopState, keys: Array, batches: TrainBatches, r: Array, pool: Tree,
         full: bool) -> LoopState:
  """Step r of `batches`, outside of any loop. `full`: the batch has no padding, which is faster."""
  def local(state: LoopState, keys: Array, batches: TrainBatches, r: Array, pool: Tree) -> LoopState:
    stack = _Stack(keys)
    train = lambda member, raw_key, where, *count: _train_step(
        spec, member, raw_key, spec.task.take(pool, *where), batches, r, pool, *count, full=full)
    return stack.pack(stack.update(train, stack.unpack(state), keys, _taken(batches, r),
                                   *_own_counts(spec, batches, r)))

  return _on_mesh(spec, local, (STATE_SPEC, P(MEMBER), train_batches_spec(spec), P(), P()), STATE_SPEC)(
      state, keys, batches, r, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="sums")
def validate(spec: FitSpec, variables: Variables, sums: Tree, val: ValBatches, v: Array, pool: Tree) -> Tree:
  """Adds batch v of `val` to the members' sums."""
  def local(variables: Variables, sums: Tree, val: ValBatches, v: Array, pool: Tree) -> Tree:
    one = lambda variables, own=val: _val_sums(spec, variables, own, v, pool)
    more = members.apply(one, jax.tree.leaves(sums)[0].shape[0], variables, *((val,) if spec.own_examples else ()))
    return jax.tree.map(jnp.add, sums, more)

  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER), val_batches_spec(spec), P(), P()), P(MEMBER))(
      variables, sums, val, v, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="state")
def select(spec: FitSpec, state: LoopState, sums: Tree, val: ValBatches) -> tuple[LoopState, Tree]:
  """Ends a round that has these validation sums; also returns its training sums."""
  def local(state: LoopState, sums: Tree, val: ValBatches) -> tuple[LoopState, Tree]:
    stack = _Stack(jax.tree.leaves(sums)[0])
    state, train = _end_round(spec, stack, stack.unpack(state), sums, val)
    return stack.pack(state), train

  return _on_mesh(spec, local, (STATE_SPEC, P(MEMBER), val_batches_spec(spec)), (STATE_SPEC, P(MEMBER)))(
      state, sums, val)


def _on_mesh(spec: FitSpec, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
  return jax.shard_map(fn, mesh=spec.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


class _Stack:
  """The members of this device: a list of single members if they are unrolled, otherwise a stacked pytree."""

  def __init__(self, leaf: Array):
    """`leaf` has a leading member axis."""
    self.size = leaf.shape[0]
    self.unrolled = members.unroll(self.size)

  def unpack(self, state: LoopState) -> LoopState:
    return state._replace(members=self._split(state.members))

  def pack(self, state: LoopState) -> LoopState:
    return state._replace(members=members.stack(state.members)) if self.unrolled else state

  def map(self, fn: Callable[..., Any], *stacked: Any) -> Any:
    """fn(...) -> tree of every member, unpacked; the arguments are stacked or unpacked."""
    if not self.unrolled:
      return jax.vmap(fn)(*stacked)
    return [fn(*args) for args in zip(*(self._split(tree) for tree in stacked))]

  def update(self, fn: Callable[..., Any], state: LoopState, *stacked: Any) -> LoopState:
    """fn(member, ...) -> member, for all members of an unpacked state."""
    return state._replace(members=self.map(fn, state.members, *stacked))

  def read(self, fn: Callable[..., Any], state: LoopState, *stacked: Any) -> Any:
    """fn(member, ...) -> tree, for all members of an unpacked state; returns leaves [M, ...]."""
    trees = self.map(fn, state.members, *stacked)
    return members.stack(trees) if self.unrolled else trees

  def _split(self, tree: Any) -> Any:
    split = self.unrolled and not isinstance(tree, list)
    return [members.index(tree, i) for i in range(self.size)] if split else tree


def _advance_local(spec: FitSpec, state: LoopState, keys: Array, batches: TrainBatches, val: ValBatches, pool: Tree,
                   val_pool: Tree) -> tuple[LoopState, RoundSums]:
  # One loop whose body may end a round takes 0.99 to 1.01 of the time of nested loops over rounds and over their steps
  # (python benchmarks/loop.py sm, and ens).
  stack, last = _Stack(keys), spec.task.max_steps - 1
  empty = jax.tree.map(lambda leaf: jnp.zeros((spec.task.max_steps, *leaf.shape), leaf.dtype), _zeros(spec, stack.size))

  def end_round(loop: tuple[LoopState, RoundSums]) -> tuple[LoopState, RoundSums]:
    state, ended = loop
    sums = _validate_all(spec, stack, state, val, val_pool)
    state, train = _end_round(spec, stack, state, sums, val)
    write = lambda buffer, new: buffer.at[ended.num].set(new)
    return state, RoundSums(ended.num + 1, state.done, jax.tree.map(write, ended.train, train),
                            jax.tree.map(write, ended.val, sums))

  def take(r: Array) -> Any:
    return stack.map(lambda where: spec.task.take(pool, *where), _taken(batches, jnp.minimum(r, last)))

  def body(loop: Any) -> Any:
    r, examples, state, ended = loop
    train = lambda member, raw_key, batch, *count: _train_step(
        spec, member, raw_key, batch, batches, r, pool, *count)
    state = stack.update(train, state, keys, examples, *_own_counts(spec, batches, r))
    following = take(r + 1)  # can run while the step is computed
    state, ended = jax.lax.cond(batches.ends_round[r], end_round, lambda loop: loop, (state, ended))
    return r + 1, following, state, ended

  zero = jnp.int32(0)
  start = (zero, take(zero), stack.unpack(state), RoundSums(zero, state.done, empty, empty))
  _, _, state, ended = jax.lax.while_loop(lambda loop: (loop[0] < batches.num_steps) & ~loop[2].done, body, start)
  return stack.pack(state), ended


def _taken(batches: TrainBatches, r: Array) -> tuple[Array, Array | None]:
  """What the task's `take` needs for step r: indices [M, B], and factors of the losses [M, B] or None."""
  return batches.examples[r], None if batches.weight is None else batches.weight[r]


def _own_counts(spec: FitSpec, batches: TrainBatches, r: Array) -> tuple[Array, ...]:
  """([M] numbers of examples of each member in step r,) if they may differ, otherwise ()."""
  return (batches.num_examples[r],) if spec.own_examples else ()


def _train_step(spec: FitSpec, member: Member, raw_key: Array, batch: Tree, batches: TrainBatches, r: Array, pool: Tree,
                own_count: Array | None = None, *, full: bool = False) -> Member:
  """One optimiser step of one member with its batch of step r; a member without examples stays as it is."""
  count, size = batches.num_examples[r] if own_count is None else own_count, jax.tree.leaves(batch)[0].shape[0]
  offset = jax.lax.axis_index(DATA) * size
  mask = jnp.arange(size) + offset < count
  key = jax.random.wrap_key_data(raw_key)
  key = jax.random.fold_in(jax.random.fold_in(key, batches.epoch[r]), batches.step[r])
  x = spec.task.train_inputs(pool, batch, key, offset, spec.padded_batch)

  norm = spec.task.norm(batch, mask, count)

  def loss(params: Tree, x: Tree, batch: Tree, mask: Array) -> tuple[Array, tuple[Tree, Tree]]:
    output, stats = spec.network.apply(
        Variables(params, member.now.stats), x, None if full else mask, train=True, key=jax.random.fold_in(key, 2))
    sums = spec.task.sums(output, batch, mask)
    return spec.task.objective(output, sums, norm), (sums, stats)

  def grads_of(part: Tree) -> tuple[tuple[Tree, Tree], Tree]:
    grads, (sums, stats) = jax.grad(loss, has_aux=True)(member.now.params, *part)
    return (grads, sums), stats

  (grads, sums), stats = _accumulate(grads_of, (x, batch, mask), spec.at_once)
  grads, sums = sharding.psum((grads, sums), DATA)
  updates, opt = optimizers.make(spec.train).update(grads, member.opt, member.now.params)
  params = optax.apply_updates(member.now.params, updates)
  after = member._replace(now=Variables(params, stats), opt=opt, sums=jax.tree.map(jnp.add, member.sums, sums))
  return after if own_count is None else jax.tree.map(functools.partial(jnp.where, count > 0), after, member)


def _accumulate(grads_of: Callable[[Tree], tuple[Tree, Tree]], batch: Tree, at_once: int) -> tuple[Tree, Tree]:
  """(grads, sums) added over micro-batches of `at_once` examples, and the statistics of the last one."""
  size = jax.tree.leaves(batch)[0].shape[0]
  if size == at_once:
    return grads_of(batch)
  parts = jax.tree.map(lambda leaf: leaf.reshape(size // at_once, at_once, *leaf.shape[1:]), batch)
  first, stats = grads_of(members.index(parts, 0))

  def add(total: Tree, part: Tree) -> tuple[Tree, Tree]:
    new, stats = grads_of(part)
    return jax.tree.map(jnp.add, total, new), stats

  total, stats = jax.lax.scan(add, first, jax.tree.map(lambda leaf: leaf[1:], parts))
  return total, members.index(stats, -1)


def _validate_all(spec: FitSpec, stack: _Stack, state: LoopState, val: ValBatches, pool: Tree) -> Tree:
  """Validation sums [M] over all of `val`."""
  def validate(member: Member, own: ValBatches = val) -> Tree:
    num = (own.num_examples + spec.val_batch - 1) // spec.val_batch
    add = lambda v, sums: jax.tree.map(jnp.add, sums, _val_sums(spec, member.now, own, v, pool))
    return jax.lax.fori_loop(0, num, add, spec.task.zeros(spec.network))

  return stack.read(validate, state, *((val,) if spec.own_examples else ()))


def _val_sums(spec: FitSpec, variables: Variables, val: ValBatches, v: Array, pool: Tree) -> Tree:
  """One network's sums over validation batch v."""
  index_B = val.examples[v]
  offset = v * spec.val_batch + jax.lax.axis_index(DATA) * index_B.shape[0]
  mask = jnp.arange(index_B.shape[0]) + offset < val.num_examples
  batch = spec.task.take(pool, index_B)
  output, _ = spec.network.apply(variables, spec.task.inputs(pool, batch), mask, train=False)
  return sharding.psum(spec.task.sums(output, batch, mask), DATA)


def _end_round(spec: FitSpec, stack: _Stack, state: LoopState, sums: Tree, val: ValBatches) -> tuple[LoopState, Tree]:
  """Selection and patience (docs/algorithms.md §1), from validation sums [M].

  A member's first round is selected, and every later one that is better than the best so far by δ. If the task does not
  select, it is always the last round.

  Returns:
    (the state, the sums [M] over the round's training batches).
  """
  selects = spec.task.selects
  best = stack.read(lambda member: member.best_val, state)
  better = jnp.full(stack.size, state.epoch == 0) | (spec.task.better(sums, best, val) if selects else True)

  def select(member: Member, sums: Tree, better: Array) -> Member:
    pick = functools.partial(jax.tree.map, lambda new, old: jnp.where(better, new, old))
    return member._replace(
        best=pick(member.now, member.best) if selects else None, best_val=pick(sums, member.best_val),
        best_opt=pick(member.opt, member.best_opt) if spec.keep_opt else None,
        sums=jax.tree.map(jnp.zeros_like, member.sums))

  train = stack.read(lambda member: member.sums, state)
  improved = sharding.psum(jnp.sum(better, dtype=jnp.int32), MEMBER) > 0
  since = jnp.where(improved, 0, state.since + 1)
  done = (since >= spec.train.patience) if spec.train.patience else jnp.zeros((), bool)
  state = stack.update(select, state, sums, better)
  return state._replace(epoch=state.epoch + 1, since=since, done=done), train


def _zeros(spec: FitSpec, size: int) -> Tree:
  """The task's sums over no examples for each of `size` members, [size, ...]."""
  return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), spec.task.zeros(spec.network))
