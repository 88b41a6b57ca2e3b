"""Which examples each training step and each validation reads: index arithmetic on the host.

All of it is a function of the seed, the stage and the number of the step. How the steps of a stage are cut into
dispatches therefore changes nothing.
"""
import functools
from collections.abc import Iterator

import jax
import numpy as np

from alma_jax import keys
from alma_jax.training.stage import Training
from alma_jax.training.state import TrainBatches, ValBatches, pad_members


def train_batches(training: Training, start: int, stop: int) -> TrainBatches:
  """The batches of steps start..stop of a stage, numpy arrays padded to the task's `max_steps`."""
  spec, plan, size = training.spec, training.plan, training.spec.train.batch_size
  examples = np.zeros((spec.task.max_steps, spec.padded_members, spec.padded_batch), np.int32)
  weight, weights = np.zeros(examples.shape, np.float32), training.examples.weight
  for first, last in _within_rounds(start, stop, plan.per_round):
    order_MN, place_MN = _examples(training, first * size, last * size)
    here = slice(first - start, last - start)
    _cut(examples[here], order_MN, size)
    if weights is not None:
      _cut(weight[here], weights[place_MN], size)
  steps = np.arange(start, start + spec.task.max_steps, dtype=np.int32)
  epoch, step = (steps // plan.per_round, steps % plan.per_round) if spec.task.in_epochs else (0 * steps, steps)
  ends_round = ((steps + 1) % plan.per_round == 0) | (steps + 1 == plan.steps)
  return TrainBatches(examples, _counts(training, steps), epoch, step, ends_round, np.array(stop - start, np.int32),
                      None if weights is None else weight)


def val_batches(training: Training) -> ValBatches:
  """The validation batches of a stage, numpy arrays padded to FitSpec.num_val_batches."""
  spec, data, own_val = training.spec, training.data, training.examples.own_val
  own = [data.val]
  if spec.own_examples and own_val is not None:
    own = [mine if len(mine) else data.val for mine in own_val]
  nums = np.array([len(mine) for mine in own])
  examples = np.zeros((len(own), spec.num_val_batches * spec.val_batch), np.int32)
  for member, mine in enumerate(own):
    examples[member, :len(mine)] = mine
  gain = (spec.train.patience_delta * nums + 1e-9).astype(np.int32)
  val = ValBatches(examples.reshape(len(own), spec.num_val_batches, spec.val_batch), nums.astype(np.int32), gain)
  return pad_members(spec, val) if spec.own_examples else jax.tree.map(lambda leaf: leaf[0], val)


def padded(which: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """(int32 [size], bool [size]) of every batch of `which` int [N]: examples, and which of them are not padding.

  Copies of the last example fill the last batch.
  """
  for start in range(0, len(which), size):
    place = np.arange(start, start + size)
    yield which[np.minimum(place, len(which) - 1)].astype(np.int32), place < len(which)


def _counts(training: Training, steps: np.ndarray) -> np.ndarray:
  """int32 [R], number of examples of each step that are not padding; [R, padded_members] with own examples."""
  spec, per_round, size = training.spec, training.plan.per_round, training.spec.train.batch_size
  nums = pad_members(spec, training.train_sizes) if spec.own_examples else training.train_sizes[:1]
  if not spec.task.in_epochs:
    nums = np.full_like(nums, per_round * size)  # every batch is full
  count = np.clip(nums[None] - (steps % per_round)[:, None] * size, 0, size).astype(np.int32)
  return count if spec.own_examples else count[:, 0]


def _within_rounds(start: int, stop: int, per_round: int) -> Iterator[tuple[int, int]]:
  """Cuts the steps start..stop at the ends of rounds."""
  while start < stop:
    end = min(stop, (start // per_round + 1) * per_round)
    yield start, end
    start = end


def _cut(batches: np.ndarray, values_MN: np.ndarray, size: int) -> None:
  """Writes values [M, N] into `batches` [R, M, padded_batch], `size` of them into each."""
  for r, batch in enumerate(batches):
    part = values_MN[:, r * size:(r + 1) * size]
    batch[:, :part.shape[1]] = part


def _examples(training: Training, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
  """Examples start..stop of every member's order in the stage, within one round.

  Returns:
    (int32 [padded_members, N] indices into the pool, int64 [padded_members, N] places in the member's examples).
  """
  if not training.spec.task.in_epochs:
    return _endless_order(training, start, stop)
  length = training.plan.per_round * training.spec.train.batch_size
  epoch = start // length
  here = slice(start - epoch * length, stop - epoch * length)
  order_MN, place_MN = _epoch_order(training, epoch)
  return order_MN[:, here], place_MN[:, here]


def _endless_order(training: Training, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
  """As `_examples`, where an order is one permutation of the stage's examples after another."""
  data, num, places = training.data, len(training.data.train), []
  for again in range(start // num, -(-stop // num)):
    place_MN = _permutations(data.seed, data.stage, again, (num,) * training.spec.num_members)
    places.append(place_MN[:, max(start - again * num, 0):stop - again * num])
  place_MN = np.concatenate(places, 1)
  return pad_members(training.spec, (data.train[place_MN], place_MN))


def _epoch_order(training: Training, epoch: int) -> tuple[np.ndarray, np.ndarray]:
  """As `_examples`, for a whole epoch. N is the largest number of examples of a member; shorter orders are padded."""
  data, examples, sizes = training.data, training.examples, training.train_sizes
  if examples.probability is None:
    place_MN = _permutations(data.seed, data.stage, epoch, tuple(sizes.tolist()))
  else:
    draw = lambda member, num: keys.rng(data.seed, keys.EPOCH, data.stage, epoch, member).choice(
        num, num, p=examples.probability)
    place_MN = np.stack([draw(member, num) for member, num in enumerate(sizes)])
  if examples.own is None:
    order_MN = data.train[place_MN]
  else:
    own = np.zeros_like(place_MN)
    for member, mine in enumerate(examples.own):
      own[member, :len(mine)] = mine
    order_MN = np.take_along_axis(own, place_MN, 1)
  return pad_members(training.spec, (order_MN, place_MN))


@functools.lru_cache(maxsize=2)  # an epoch spans several dispatches
def _permutations(seed: int, stage: int, epoch: int, sizes: tuple[int, ...]) -> np.ndarray:
  """int64 [M, N], a permutation of each member's examples; zeros follow if it has fewer than N."""
  orders = np.zeros((len(sizes), max(sizes)), np.int64)
  for member, num in enumerate(sizes):
    orders[member, :num] = keys.rng(seed, keys.EPOCH, stage, epoch, member).permutation(num)
  return orders
