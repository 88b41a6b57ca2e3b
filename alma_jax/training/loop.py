"""The training loop: stacked members are trained on a stage, round by round (docs/algorithms.md §1).

A round ends with a validation. For images it is an epoch, for text a number of training steps.

A stage is `begin`, then `advance` until patience ends it or its steps are done, then `finish`. Between two calls of
`advance` everything is in `FitState`: it can be saved, stopped, resumed and reported. A call is one dispatch of many
training steps, with the validations and selections among them. How the steps of a stage are cut into dispatches changes
no bit of the result. Shapes do not depend on the stage, hence a fixed architecture is compiled once for the whole
stream.

The loop exists twice. By default it runs on the devices (`program.advance`). With `FitSpec.stepwise` it runs on the
host, which dispatches every step of every member (`_advance_stepwise`): on a CPU a convolution inside a loop of XLA
takes many times longer than outside, and the steps of language models are so long that the time of dispatching them
does not matter. For small networks the host's loop is slower.

  stage.py       the types that learners exchange with the loop; they can be imported from here
  state.py       what the devices hold
  batching.py    which examples a step reads
  program.py     what the devices compute
  optimizers.py  optimisers
"""
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax import keys
from alma_jax.parallel import sharding, threads
from alma_jax.parallel.sharding import MEMBER
from alma_jax.training import batching, program
from alma_jax.training import state as states
from alma_jax.training.stage import Examples, FitReport, FitSpec, RoundReport, StageData, Trained, Training
from alma_jax.training.state import LoopState, Own, RoundSums, TrainBatches, ValBatches
from alma_jax.types import Tree, Variables

__all__ = ["Examples", "FitReport", "FitSpec", "FitState", "RoundReport", "StageData", "Trained", "Training", "advance",
           "begin", "finish", "num_steps", "read", "restore", "save", "template"]


@dataclasses.dataclass(frozen=True)
class FitState:
  """A stage in training.

  Attributes:
    training: Training.
    state: LoopState on the devices; `advance` consumes it.
    own: state.Own [padded_members, ...].
    cursor: number of training steps dispatched so far, which may include some after patience has ended the stage.
  """
  training: Training
  state: LoopState
  own: Own
  cursor: int

  @property
  def spec(self) -> FitSpec:
    """Of the training."""
    return self.training.spec

  @property
  def data(self) -> StageData:
    """Of the training."""
    return self.training.data

  @property
  def examples(self) -> Examples:
    """Of the training."""
    return self.training.examples


def begin(training: Training) -> FitState:
  """Starts a stage; no round is selected yet."""
  state = program.initial_state(training.spec, training.variables, training.opt)
  return FitState(training, state, _own(training), 0)


def save(fit: FitState) -> LoopState:
  """What `restore` needs besides the cursor: numpy arrays of M members, which do not depend on the devices."""
  state = sharding.fetch(fit.state)
  return state._replace(members=jax.tree.map(lambda leaf: leaf[:fit.spec.num_members], state.members))


def template(spec: FitSpec, variables: Variables) -> LoopState:
  """Shapes and dtypes of what `save` returns, as jax.ShapeDtypeStruct; `variables` are arrays or shapes [M, ...]."""
  state = jax.eval_shape(functools.partial(program.initial_state, spec), variables)
  cut = lambda leaf: jax.ShapeDtypeStruct((spec.num_members, *leaf.shape[1:]), leaf.dtype)
  return state._replace(members=jax.tree.map(cut, state.members))


def restore(training: Training, state: LoopState, cursor: int) -> FitState:
  """FitState from what `save` returned, and from the cursor at that time."""
  state = state._replace(members=states.pad_members(training.spec, state.members))
  state = sharding.put(state, training.spec.mesh, states.STATE_SPEC)
  return FitState(training, state, _own(training), cursor)


def num_steps(fit: FitState) -> int:
  """Number of training steps of the whole stage, unless patience ends it."""
  return fit.training.plan.steps


def advance(fit: FitState, steps: int) -> tuple[FitState, RoundSums]:
  """Runs up to `steps` further training steps as one dispatch, without waiting for it.

  Args:
    fit: the stage; its `state` is consumed.
    steps: how many steps at most. There are never more than the problem's `max_steps`.

  Returns:
    (FitState, RoundSums for `read`).
  """
  spec = fit.spec
  stop = min(fit.cursor + min(steps, spec.problem.max_steps), num_steps(fit))
  batches, val = batching.train_batches(fit.training, fit.cursor, stop), batching.val_batches(fit.training)
  pool, examples = spec.problem.load(fit.data.pool, np.asarray(batches.examples))
  pool = pool if pool is fit.data.pool else sharding.put(pool, spec.mesh)
  where = states.train_batches_spec(spec), states.val_batches_spec(spec)
  placed: tuple[TrainBatches, ValBatches] = sharding.put((batches._replace(examples=examples), val), spec.mesh, where)
  if spec.stepwise:
    state, ended = _advance_stepwise(fit, batches, val, *placed, pool)
  else:
    state, ended = _awaited(spec, program.advance(spec, fit.state, fit.own, *placed, pool, fit.data.val_pool))
  return dataclasses.replace(fit, state=state, cursor=stop), ended


def read(fit: FitState, ended: RoundSums) -> tuple[list[RoundReport], bool]:
  """Waits for a dispatch, and reports the rounds that ended in it.

  Args:
    fit: the stage, before or after the dispatch.
    ended: what `advance` returned.

  Returns:
    (a RoundReport for every round, whether patience has ended the stage).
  """
  ended, training = sharding.fetch(ended), fit.training
  val, reports = training.val_sizes, []
  for i in range(int(ended.num)):
    report, train = RoundReport({}, {}), batching.round_sizes(training, int(ended.first) + i)
    sides = (("train", ended.train, train, train), ("val", ended.val, val, _num_validated(training)))
    for side, sums, own, nums in sides:
      mine = jax.tree.map(lambda leaf, i=i: leaf[i, :fit.spec.num_members], sums)
      joint, members = fit.spec.problem.report(mine, own, nums)
      report.joint.update({f"{side}_{name}": value for name, value in joint.items()})
      report.members.update({f"{side}_{name}": value for name, value in members.items()})
    report.joint.update(training.notes)
    if training.may_diverge:
      report.joint.update({name: None for name, value in report.joint.items() if not np.isfinite(value).all()})
    reports.append(report)
  return reports, bool(ended.done)


def finish(fit: FitState) -> Trained:
  """The selected members on every device, and what the training cost and reached."""
  training, spec = fit.training, fit.spec
  rounds, best_val = sharding.fetch((fit.state.epoch, fit.state.members.best_val))
  sums = jax.tree.map(lambda leaf: leaf[:spec.num_members], best_val)
  own, plan = training.val_sizes, training.plan
  val = spec.problem.report(sums, own, own)[0][spec.problem.metric]
  members = spec.problem.report(sums, own, _num_validated(training))[1]
  variables, opt, last = _awaited(spec, program.selected(spec, fit.state))
  samples = batching.num_samples(training, min(int(rounds) * plan.per_round, plan.steps))
  return Trained(variables, opt, FitReport(int(rounds), samples, val), members, last)


def _num_validated(training: Training) -> np.ndarray:
  """int64 [M], number of validation examples that each member is selected by."""
  return np.where(training.val_sizes > 0, training.val_sizes, len(training.data.val))


def _own(training: Training) -> Own:
  spec, data = training.spec, training.data
  raw = keys.member_keys(data.seed, data.stage, keys.AUGMENT, spec.num_members)
  own = Own(np.asarray(raw), training.rates, training.decays)
  return sharding.put(states.pad_members(spec, own), spec.mesh, P(MEMBER))


def _advance_stepwise(fit: FitState, batches: TrainBatches, val: ValBatches, placed_batches: TrainBatches,
                      placed_val: ValBatches, pool: Tree) -> tuple[LoopState, RoundSums]:
  """program.advance with its loops on the host.

  Args:
    fit: the stage.
    batches: of the dispatch, on the host.
    val: of the stage, on the host.
    placed_batches: `batches` on the devices.
    placed_val: `val` on the devices.
    pool: that `placed_batches` refer to.
  """
  spec, ended, r = fit.spec, [], 0
  parts = _awaited(spec, program.take_apart(spec, states.trained_of(fit.state.members)))
  rest, first = states.without_trained(fit.state), np.array(sharding.fetch(fit.state.epoch))
  num, num_val = int(batches.num_steps), -(-int(val.num_examples.max()) // spec.val_batch)
  done = _is_done(spec, rest)

  def train(i: int, part: states.Stepped, stop: int) -> tuple[states.Stepped, Tree]:
    """Steps r..stop of part i, and its validation sums if they end a round."""
    number, sums = np.int32(i), None
    for s in range(r, stop):
      part = _awaited(spec, program.step(spec, part, number, fit.own, placed_batches, np.int32(s), pool))
    if batches.ends_round[stop - 1]:
      sums = _zero_sums(spec, len(parts))
      for v in range(num_val):
        sums = _awaited(spec, program.validate(
            spec, part, number, sums, placed_val, np.int32(v), fit.data.val_pool))
    return part, sums

  while r < num and not done:
    ends = np.flatnonzero(batches.ends_round[r:num])
    stop = r + int(ends[0]) + 1 if len(ends) else num
    programs = spec, bool(len(ends))
    # Members in threads of their own train as fast as in a program for all of them: 0.9 to 1.05 of its time (VGG of
    # widths 8 and 16, two cores).
    results = threads.side_by_side(
        spec.mesh, [functools.partial(train, i, part, stop) for i, part in enumerate(parts)], programs)
    parts, r = [part for part, _ in results], stop
    if len(ends):
      rest, *sums = _awaited(spec, program.select(spec, parts, rest, [sums for _, sums in results], placed_val))
      parts = [part._replace(sums=_zero_sums(spec, len(parts))) for part in parts]
      ended.append(sums)
      done = _is_done(spec, rest)
  trained = _awaited(spec, program.put_together(spec, parts))
  state = rest._replace(members=rest.members._replace(**trained._asdict()))
  if not ended:  # a copy of `done`, because the next dispatch consumes the state
    return state, RoundSums(np.array(0), jnp.logical_or(state.done, False), None, None, first)
  train_sums, val_sums = (jax.tree.map(lambda *s: np.stack(s), *side) for side in zip(*sharding.fetch(ended)))
  return state, RoundSums(np.array(len(ended)), np.array(done), train_sums, val_sums, first)


def _is_done(spec: FitSpec, state: LoopState) -> bool:
  """Whether patience has ended the stage; waits for the devices only if there is patience."""
  return bool(spec.train.patience) and bool(sharding.fetch(state.done))


def _awaited(spec: FitSpec, results: Any) -> Any:
  """Results of a dispatch. Waits for them where further dispatches would dead-lock their collectives."""
  return jax.block_until_ready(results) if sharding.needs_waiting(spec.mesh) else results


def _zero_sums(spec: FitSpec, num_parts: int) -> Tree:
  """The problem's sums over no examples for a part of the members, [padded_members / num_parts, ...] on the devices."""
  one = jax.device_get(spec.problem.zeros(spec.network))
  zeros = jax.tree.map(lambda leaf: np.zeros((spec.padded_members // num_parts, *leaf.shape), leaf.dtype), one)
  return sharding.put(zeros, spec.mesh, P(MEMBER))
