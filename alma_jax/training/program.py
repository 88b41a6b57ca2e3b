"""What the devices compute in a stage: training steps, validation, selection (docs/algorithms.md §1).

`advance` is one dispatch of many training steps, and of the validations and selections at the ends of rounds. `step`,
`validate` and `select` are its parts as dispatches of their own, for networks that run slowly inside a loop. These
train one member in a dispatch if members are unrolled: a program for one member compiles many times faster than one for
all, and dispatches of several threads run side by side. All programs run inside `shard_map`: a device sees its own
members and its own part of the batch.
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
  Own,
  RoundSums,
  Stepped,
  TrainBatches,
  ValBatches,
  pad_members,
  predicting,
  train_batches_spec,
  trained_of,
  val_batches_spec,
  without_trained,
)
from alma_jax.types import Array, Tree, Variables


@functools.partial(jax.jit, static_argnames="spec")
def initial_state(spec: FitSpec, variables: Variables, opt: Tree = None) -> LoopState:
  """LoopState of a stage that starts from `variables` [M, ...]; `opt` [M, ...], or None for a fresh optimiser state."""
  optimizer = optimizers.of(spec.train)

  def local(variables: Variables, opt: Tree) -> LoopState:
    sums = _zeros(spec, jax.tree.leaves(variables)[0].shape[0])
    opt = jax.vmap(optimizer.init)(variables.params) if opt is None else opt
    best, best_opt = variables if spec.problem.selects else None, opt if spec.keep_opt else None
    average, last = variables if spec.average else None, best if spec.keep_last else None
    member = Member(variables, opt, best, sums, sums, best_opt, average, last)
    zero = jnp.zeros((), jnp.int32)
    return LoopState(member, zero, zero, jnp.zeros((), bool))

  return _on_mesh(spec, local, (P(MEMBER), P(MEMBER)), STATE_SPEC)(*pad_members(spec, (variables, opt)))


@functools.partial(jax.jit, static_argnames="spec")
def selected(spec: FitSpec, state: LoopState) -> tuple[Variables, Tree, Variables | None]:
  """Of the selected members (Variables, optimiser state or None, weights that are not averaged or None).

  Their leaves are [M, ...] on every device.
  """
  m = state.members
  best, last = (m.best, m.best_last) if spec.problem.selects else (
      jax.vmap(functools.partial(predicting, spec))(m), m.now if spec.keep_last else None)
  best = jax.tree.map(lambda leaf: leaf[:spec.num_members], (best, m.best_opt, last))
  return jax.lax.with_sharding_constraint(best, NamedSharding(spec.mesh, P()))


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="state")
def advance(spec: FitSpec, state: LoopState, own: Own, batches: TrainBatches, val: ValBatches, pool: Tree,
            val_pool: Tree) -> tuple[LoopState, RoundSums]:
  """All steps of `batches`, and what follows each step that ends a round; it stops where patience ends the stage."""
  return _on_mesh(spec, functools.partial(_advance_local, spec),
                  (STATE_SPEC, P(MEMBER), train_batches_spec(spec), val_batches_spec(spec), P(), P()),
                  (STATE_SPEC, SUMS_SPEC))(state, own, batches, val, pool, val_pool)


@functools.partial(jax.jit, static_argnames="spec")
def take_apart(spec: FitSpec, trained: Stepped) -> list[Stepped]:
  """The parts of the members that `step` trains.

  Where members are unrolled there is a part for each member of a device, and its leaves have an axis of the devices.
  Otherwise one part holds all members.
  """
  def local(trained: Stepped) -> list[Stepped]:
    size = jax.tree.leaves(trained.sums)[0].shape[0]
    if not members.unroll(size):
      return [trained]
    return [jax.tree.map(lambda leaf, i=i: leaf[i:i + 1], trained) for i in range(size)]

  return _on_mesh(spec, local, (P(MEMBER),), P(MEMBER))(trained)


@functools.partial(jax.jit, static_argnames="spec")
def put_together(spec: FitSpec, parts: list[Tree]) -> Tree:
  """The reverse of `take_apart`, for any pytrees of parts."""
  return _on_mesh(spec, _joined, (P(MEMBER),), P(MEMBER))(parts)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="part")
def step(spec: FitSpec, part: Stepped, i: Array, own: Own, batches: TrainBatches, r: Array, pool: Tree) -> Stepped:
  """Step r of `batches` for part i, outside of any loop."""
  def local(part: Stepped, i: Array, own: Own, batches: TrainBatches, r: Array, pool: Tree) -> Stepped:
    train = lambda trained, mine, where, *count: _train_step(
        spec, trained, mine, spec.problem.take(pool, *where), batches, r, pool, *count)
    return _of_part(train, part, i, own, _taken(batches, r), *_own_counts(spec, batches, r))

  return _on_mesh(spec, local, (P(MEMBER), P(), P(MEMBER), train_batches_spec(spec), P(), P()), P(MEMBER))(
      part, i, own, batches, r, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="sums")
def validate(spec: FitSpec, part: Stepped, i: Array, sums: Tree, val: ValBatches, v: Array, pool: Tree) -> Tree:
  """Adds batch v of `val` to the sums of part i."""
  def local(part: Stepped, i: Array, sums: Tree, val: ValBatches, v: Array, pool: Tree) -> Tree:
    one = lambda member, own=val: _val_sums(spec, predicting(spec, member), own, v, pool)
    return jax.tree.map(jnp.add, sums, _of_part(one, part, i, *((val,) if spec.own_examples else ())))

  return _on_mesh(spec, local, (P(MEMBER), P(), P(MEMBER), val_batches_spec(spec), P(), P()), P(MEMBER))(
      part, i, sums, val, v, pool)


@functools.partial(jax.jit, static_argnames="spec", donate_argnames="rest")
def select(spec: FitSpec, parts: list[Stepped], rest: LoopState, sums: list[Tree], val: ValBatches
           ) -> tuple[LoopState, Tree, Tree]:
  """Ends a round.

  Args:
    spec: FitSpec.
    parts: the members after the round; their sums over its training batches count no more.
    rest: the state without what the parts hold.
    sums: validation sums of each part.
    val: the validation batches.

  Returns:
    (the rest, the sums over the round's training batches, those over the validation batches).
  """
  def local(parts: list[Stepped], rest: LoopState, sums: list[Tree], val: ValBatches) -> tuple[LoopState, Tree, Tree]:
    joint = _joined(sums)
    state = rest._replace(members=rest.members._replace(**_joined(parts)._asdict()))
    state, train = _end_round(spec, _Stack(jax.tree.leaves(joint)[0], unrolled=False), state, joint, val)
    return without_trained(state), train, joint

  return _on_mesh(spec, local, (P(MEMBER), STATE_SPEC, P(MEMBER), val_batches_spec(spec)),
                  (STATE_SPEC, P(MEMBER), P(MEMBER)))(parts, rest, sums, val)


def _joined(trees: list[Tree]) -> Tree:
  return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def _of_part(fn: Callable[..., Any], part: Tree, i: Array, *stacked: Tree) -> Tree:
  """fn(member of part i, ...); `stacked` are of all members."""
  size = jax.tree.leaves(part)[0].shape[0]
  here = lambda leaf: leaf if leaf.shape[0] == size else jax.lax.dynamic_slice_in_dim(leaf, i, size)
  return members.apply(fn, size, part, *jax.tree.map(here, stacked))


def _on_mesh(spec: FitSpec, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
  return jax.shard_map(fn, mesh=spec.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


class _Stack:
  """The members of this device: a list of single members if they are unrolled, otherwise a stacked pytree."""

  def __init__(self, leaf: Array, unrolled: bool | None = None):
    """`leaf` has a leading member axis; `unrolled` decides otherwise than `members.unroll`."""
    self.size = leaf.shape[0]
    self.unrolled = members.unroll(self.size) if unrolled is None else unrolled

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
    return members.split(tree, self.size) if self.unrolled and not isinstance(tree, list) else tree


def _advance_local(spec: FitSpec, state: LoopState, own: Own, batches: TrainBatches, val: ValBatches, pool: Tree,
                   val_pool: Tree) -> tuple[LoopState, RoundSums]:
  # One loop whose body may end a round is as fast as nested loops over rounds and over their steps.
  stack, last = _Stack(own.key), spec.problem.max_steps - 1
  empty = jax.tree.map(lambda leaf: jnp.zeros((last + 1, *leaf.shape), leaf.dtype), _zeros(spec, stack.size))

  def end_round(loop: tuple[LoopState, RoundSums]) -> tuple[LoopState, RoundSums]:
    state, ended = loop
    sums = _validate_all(spec, stack, state, val, val_pool)
    state, train = _end_round(spec, stack, state, sums, val)
    write = lambda buffer, new: buffer.at[ended.num].set(new)
    return state, RoundSums(ended.num + 1, state.done, jax.tree.map(write, ended.train, train),
                            jax.tree.map(write, ended.val, sums), ended.first)

  def take(r: Array) -> Any:
    return stack.map(lambda where: spec.problem.take(pool, *where), _taken(batches, jnp.minimum(r, last)))

  def body(loop: Any) -> Any:
    r, examples, state, ended = loop
    train = lambda member, mine, batch, *count: member._replace(**_train_step(
        spec, trained_of(member), mine, batch, batches, r, pool, *count)._asdict())
    state = stack.update(train, state, own, examples, *_own_counts(spec, batches, r))
    following = take(r + 1)  # can run while the step is computed
    state, ended = jax.lax.cond(batches.ends_round[r], end_round, lambda loop: loop, (state, ended))
    return r + 1, following, state, ended

  zero = jnp.int32(0)
  start = (zero, take(zero), stack.unpack(state), RoundSums(zero, state.done, empty, empty, state.epoch))
  _, _, state, ended = jax.lax.while_loop(lambda loop: (loop[0] < batches.num_steps) & ~loop[2].done, body, start)
  return stack.pack(state), ended


def _taken(batches: TrainBatches, r: Array) -> tuple[Array, Array | None]:
  """What the problem's `take` needs for step r: indices [M, B], and factors of the losses [M, B] or None."""
  return batches.examples[r], None if batches.weight is None else batches.weight[r]


def _own_counts(spec: FitSpec, batches: TrainBatches, r: Array) -> tuple[Array, ...]:
  """([M] numbers of examples of each member in step r,) if they may differ, otherwise ()."""
  return (batches.num_examples[r],) if spec.own_examples else ()


def _train_step(spec: FitSpec, member: Stepped, mine: Own, batch: Tree, batches: TrainBatches, r: Array,
                pool: Tree, own_count: Array | None = None) -> Stepped:
  """One optimiser step of one member with its batch of step r; a member without examples stays as it is."""
  count, size = batches.num_examples[r] if own_count is None else own_count, jax.tree.leaves(batch)[0].shape[0]
  offset = jax.lax.axis_index(DATA) * size
  mask = jnp.arange(size) + offset < count
  key = jax.random.wrap_key_data(mine.key)
  key = jax.random.fold_in(jax.random.fold_in(key, batches.epoch[r]), batches.step[r])
  x = spec.problem.train_inputs(pool, batch, key, offset, spec.padded_batch)

  norm = spec.problem.norm(batch, mask, count)

  def loss(params: Tree, x: Tree, batch: Tree, mask: Array) -> tuple[Array, tuple[Tree, Tree]]:
    output, stats = spec.network.apply(
        Variables(params, member.now.stats), x, mask, train=True, key=jax.random.fold_in(key, 2))
    sums = spec.problem.sums(output, batch, mask)
    return spec.problem.objective(output, batch, mask, sums, norm), (sums, stats)

  def grads_of(part: Tree) -> tuple[tuple[Tree, Tree], Tree]:
    grads, (sums, stats) = jax.grad(loss, has_aux=True)(member.now.params, *part)
    return (grads, sums), stats

  (grads, sums), stats = _accumulate(grads_of, (x, batch, mask), spec.at_once)
  grads, sums = sharding.psum((grads, sums), DATA)
  params, scale = member.now.params, None if batches.scale is None else batches.scale[r]
  factors = [factor for factor in (scale, mine.rate) if factor is not None]
  updates, opt = optimizers.of(spec.train, mine.decay, factors).update(grads, member.opt, params)
  now = Variables(optax.apply_updates(params, updates), stats)
  sums = jax.tree.map(jnp.add, member.sums, sums)
  if own_count is not None:
    now, opt, sums = jax.tree.map(functools.partial(jnp.where, count > 0), (now, opt, sums),
                                  (member.now, member.opt, member.sums))
  average = member.average
  if average is not None and batches.blend is not None:  # also of a member that stays: it is averaged over all steps
    average = jax.tree.map(functools.partial(_blended, batches.blend[r]), average, now)
  return Stepped(now, opt, sums, average)


def _blended(share: Array, old: Array, new: Array) -> Array:
  """The average after a step. What is no floating-point number is never averaged."""
  return old + share * (new - old) if jnp.issubdtype(new.dtype, jnp.floating) else new


def _accumulate(grads_of: Callable[[Tree], tuple[Tree, Tree]], batch: Tree, at_once: int) -> tuple[Tree, Tree]:
  """(grads, sums) added over micro-batches of `at_once` examples, and the statistics of the last one."""
  size = jax.tree.leaves(batch)[0].shape[0]
  if size == at_once:
    return grads_of(batch)
  parts = jax.tree.map(lambda leaf: leaf.reshape(size // at_once, at_once, *leaf.shape[1:]), batch)
  shapes, _ = jax.eval_shape(grads_of, members.index(parts, 0))

  def add(total: Tree, part: Tree) -> tuple[Tree, Tree]:
    new, stats = grads_of(part)
    return jax.tree.map(jnp.add, total, new), stats

  # Start from zeros: starting from the first part's gradients would compile `grads_of` twice.
  total, stats = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, shapes), parts)
  return total, members.index(stats, -1)


def _validate_all(spec: FitSpec, stack: _Stack, state: LoopState, val: ValBatches, pool: Tree) -> Tree:
  """Validation sums [M] over all of `val`."""
  def validate(member: Member, own: ValBatches = val) -> Tree:
    num, variables = (own.num_examples + spec.val_batch - 1) // spec.val_batch, predicting(spec, member)
    add = lambda v, sums: jax.tree.map(jnp.add, sums, _val_sums(spec, variables, own, v, pool))
    return jax.lax.fori_loop(0, num, add, spec.problem.zeros(spec.network))

  return stack.read(validate, state, *((val,) if spec.own_examples else ()))


def _val_sums(spec: FitSpec, variables: Variables, val: ValBatches, v: Array, pool: Tree) -> Tree:
  """One network's sums over validation batch v."""
  index_B = val.examples[v]
  offset = v * spec.val_batch + jax.lax.axis_index(DATA) * index_B.shape[0]
  mask = jnp.arange(index_B.shape[0]) + offset < val.num_examples
  batch = spec.problem.take(pool, index_B)
  output, _ = spec.network.apply(variables, spec.problem.inputs(pool, batch), mask, train=False)
  return sharding.psum(spec.problem.sums(output, batch, mask), DATA)


def _end_round(spec: FitSpec, stack: _Stack, state: LoopState, sums: Tree, val: ValBatches) -> tuple[LoopState, Tree]:
  """Selection and patience (docs/algorithms.md §1), from validation sums [M].

  A member's first round is selected, and every later one that is better than the best so far by δ. If the problem does
  not select, it is always the last round.

  Returns:
    (the state, the sums [M] over the round's training batches).
  """
  selects = spec.problem.selects
  best = stack.read(lambda member: member.best_val, state)
  better = jnp.full(stack.size, state.epoch == 0) | (spec.problem.better(sums, best, val) if selects else True)

  def select(member: Member, sums: Tree, better: Array) -> Member:
    new = dict(best=predicting(spec, member) if selects else None, best_val=sums,
               best_opt=member.opt if spec.keep_opt else None,
               best_last=member.now if selects and spec.keep_last else None)
    old = {name: getattr(member, name) for name in new}
    kept = jax.lax.cond(better, lambda: new, lambda: old)
    return member._replace(**kept, sums=jax.tree.map(jnp.zeros_like, member.sums))

  train = stack.read(lambda member: member.sums, state)
  improved = sharding.psum(jnp.sum(better, dtype=jnp.int32), MEMBER) > 0
  since = jnp.where(improved, 0, state.since + 1)
  done = (since >= spec.train.patience) if spec.train.patience else jnp.zeros((), bool)
  state = stack.update(select, state, sums, better)
  return state._replace(epoch=state.epoch + 1, since=since, done=done), train


def _zeros(spec: FitSpec, size: int) -> Tree:
  """The problem's sums over no examples for each of `size` members, [size, ...]."""
  return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), spec.problem.zeros(spec.network))
