"""What the devices hold in a stage: its state, the batches of a dispatch, and sums; and how it is sharded.

"With own examples" means that FitSpec.own_examples is set. R is the problem's `max_steps`.
"""
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from alma_jax.parallel.sharding import DATA, MEMBER
from alma_jax.training.stage import FitSpec
from alma_jax.types import AnyArray, Tree, Variables

_P: Any = P  # PartitionSpecs take the places of arrays


class Own(NamedTuple):
  """What sets a member's training apart from the others'. All leaves have a leading axis of length padded_members.

  It follows from the training, and is never saved.

  Attributes:
    key: uint32 [2], raw PRNG key of augmentation and of networks that draw random numbers.
    rate: float32 [], factor of the learning rate; None: 1.
    decay: float32 [], coefficient of an L2 penalty besides that of FitSpec.train; None: 0.
  """
  key: Any
  rate: AnyArray | None = None
  decay: AnyArray | None = None


class Member(NamedTuple):
  """One member in training. All leaves have a leading axis of length padded_members. Checkpoints use these names.

  Attributes:
    now: Variables.
    opt: optimiser state.
    best: Variables after the best round so far; None if the problem keeps the last round.
    best_val: the problem's validation sums of the best round.
    sums: the problem's sums over this round's training batches so far.
    best_opt: optimiser state after the best round; None without FitSpec.keep_opt.
    average: averaged Variables, by which rounds are validated; None without FitSpec.average. Then `best` is the average
      after the best round.
    best_last: Variables after the best round; None without FitSpec.keep_last, or if the problem keeps the last round.
  """
  now: Variables
  opt: Tree
  best: Variables | None
  best_val: Tree
  sums: Tree
  best_opt: Tree = None
  average: Variables | None = None
  best_last: Variables | None = None


class Stepped(NamedTuple):
  """What a training step changes of a Member; see there."""
  now: Variables
  opt: Tree
  sums: Tree
  average: Variables | None = None


class LoopState(NamedTuple):
  """State of a stage on the devices. Checkpoints use these names.

  Attributes:
    members: Member.
    epoch: int32 [], number of finished rounds.
    since: int32 [], number of rounds since the last improvement of any member.
    done: bool [], whether patience has ended the stage.
  """
  members: Member
  epoch: AnyArray
  since: AnyArray
  done: AnyArray


class TrainBatches(NamedTuple):
  """Batches of the R training steps of a dispatch.

  Attributes:
    examples: int32 [R, padded_members, padded_batch], indices into the pool.
    num_examples: int32 [R], number of examples of the batch that are not padding; [R, padded_members] with own
      examples.
    epoch: int32 [R], number of the epoch from 0, for random keys.
    step: int32 [R], number of the step in its epoch, for random keys.
    ends_round: bool [R], whether a validation follows the step.
    num_steps: int32 [], number of steps; what follows is padding.
    weight: float32 [R, padded_members, padded_batch], factors of the examples' losses; None: 1.
    scale: float32 [R], factor of the learning rate; None: 1.
    blend: float32 [R], share of the new weights in their average; None: there is none.
  """
  examples: AnyArray
  num_examples: AnyArray
  epoch: AnyArray
  step: AnyArray
  ends_round: AnyArray
  num_steps: AnyArray
  weight: AnyArray | None = None
  scale: AnyArray | None = None
  blend: AnyArray | None = None


class ValBatches(NamedTuple):
  """Validation batches of a stage. With own examples all leaves have a leading axis of length padded_members.

  Attributes:
    examples: int32 [num_val_batches, val_batch], indices into the pool.
    num_examples: int32 [], number of examples of all batches; what follows is padding.
    min_gain: int32 []. A round is an improvement if its number of correct examples is higher by more than this.
  """
  examples: AnyArray
  num_examples: AnyArray
  min_gain: AnyArray


class RoundSums(NamedTuple):
  """Sums of the rounds that ended in a dispatch: arrays [R, padded_members], of which the first `num` rows count.

  Attributes:
    num: int32 [], number of rounds that ended.
    done: bool [], whether patience has ended the stage.
    train: the problem's sums over the training batches of each round; None if no round can end.
    val: the problem's sums over the validation batches after each round; likewise.
    first: int32 [], number of rounds that had ended before the dispatch.
  """
  num: AnyArray
  done: AnyArray
  train: Tree
  val: Tree
  first: AnyArray


def trained_of(member: Member) -> Stepped:
  """What a training step changes."""
  return Stepped(member.now, member.opt, member.sums, member.average)


def predicting(spec: FitSpec, member: Member | Stepped) -> Variables:
  """The Variables of one member that are validated and selected."""
  if member.average is not None:
    return member.average
  return member.now._replace(params=spec.train.optimizer.evaluated(member.opt, member.now.params))


def without_trained(state: LoopState) -> LoopState:
  """The state with None in place of what a training step changes."""
  none: Any = None
  return state._replace(members=state.members._replace(now=none, opt=none, sums=none, average=none))


STATE_SPEC = LoopState(_P(MEMBER), _P(), _P(), _P())
SUMS_SPEC = RoundSums(_P(), _P(), _P(None, MEMBER), _P(None, MEMBER), _P())


def train_batches_spec(spec: FitSpec) -> TrainBatches:
  """PartitionSpecs of TrainBatches."""
  batch = _P(None, MEMBER, DATA)
  return TrainBatches(batch, _P(None, MEMBER) if spec.own_examples else _P(), _P(), _P(), _P(), _P(), batch, _P(), _P())


def val_batches_spec(spec: FitSpec) -> ValBatches:
  """PartitionSpecs of ValBatches."""
  if spec.own_examples:
    return ValBatches(_P(MEMBER, None, DATA), _P(MEMBER), _P(MEMBER))
  return ValBatches(_P(None, DATA), _P(), _P())


def pad_members(spec: FitSpec, tree: Tree) -> Tree:
  """Leaves [M, ...] -> [padded_members, ...]; arrays of the host stay there."""
  which = np.minimum(np.arange(spec.padded_members), spec.num_members - 1)
  same = spec.padded_members == spec.num_members
  return tree if same else jax.tree.map(lambda leaf: leaf[which], tree)
