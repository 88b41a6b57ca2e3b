"""Which examples each training step and each validation reads: index arithmetic on the host.

All of it is a function of the seed, the stage and the number of the step. How the steps of a stage are cut into
dispatches therefore changes nothing.

The first places of a batch are for examples of the stage: one pass over them after another, each in an order of its
own. For images a pass ends with a partial batch; for text the passes are one endless sequence. The other places are for
the memory, from which every example is drawn uniformly, or also in an endless sequence of passes.
"""
import functools
from collections.abc import Callable, Iterator

import jax
import numpy as np

from alma_jax import keys
from alma_jax.config import stream
from alma_jax.training.stage import Training
from alma_jax.training.state import TrainBatches, ValBatches, pad_members

_BLOCK = 256  # steps whose memory examples are drawn at once


def train_batches(training: Training, start: int, stop: int) -> TrainBatches:
  """The batches of steps start..stop of a stage, numpy arrays padded to the problem's `max_steps`."""
  spec, plan = training.spec, training.plan
  examples = np.zeros((spec.problem.max_steps, spec.num_members, spec.padded_batch), np.int32)
  weight = None if training.examples.weight is None else np.ones(examples.shape, np.float32)
  fill = _fill_passes if spec.problem.in_epochs else _fill_endless
  for member in range(spec.num_members):
    fill(training, member, start, stop, examples[:, member], None if weight is None else weight[:, member])
  examples, weight = pad_members(spec, (examples.swapaxes(0, 1), weight if weight is None else weight.swapaxes(0, 1)))
  steps = np.arange(start, start + spec.problem.max_steps, dtype=np.int32)
  epoch, step = (steps // plan.per_pass, steps % plan.per_pass) if spec.problem.in_epochs else (0 * steps, steps)
  ends_round = ((steps + 1) % plan.per_round == 0) | (steps + 1 == plan.steps)
  counts = pad_members(spec, _counts(training, steps)).astype(np.int32)
  counts = counts.swapaxes(0, 1) if spec.own_examples else counts[0]
  factors, blend = spec.train.factors(training.data.stage, steps.tolist(), plan.steps), None
  if spec.average:  # a plain mean until the horizon is reached
    blend = (1 / np.minimum(steps + 1, max(1.0, spec.average * plan.steps))).astype(np.float32)
  return TrainBatches(examples.swapaxes(0, 1), counts, epoch, step, ends_round, np.array(stop - start, np.int32),
                      weight if weight is None else weight.swapaxes(0, 1),
                      None if factors is None else np.array(factors, np.float32), blend)


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


def num_samples(training: Training, steps: int) -> int:
  """Training examples that each member processes in the first `steps` steps; all together with own examples."""
  counts = _counts(training, np.arange(steps))
  return int(counts.sum() if training.spec.own_examples else counts[0].sum())


def round_sizes(training: Training, number: int) -> np.ndarray:
  """int64 [M], number of training examples that each member processes in a round, which count from 0."""
  plan = training.plan
  return _counts(training, np.arange(number * plan.per_round, min((number + 1) * plan.per_round, plan.steps))).sum(1)


def _parts(training: Training) -> tuple[int, int]:
  """(new, old): how many examples of a batch come from the stage, and how many from the memory."""
  size = training.spec.train.batch_size
  old = stream.memory_part(size, training.data.share)
  return size - old, old


def _per_pass(training: Training) -> np.ndarray:
  """int64 [M], steps of a pass of each member over its examples of the stage.

  With `train.epochs` a member with fewer examples waits for the largest. With `train.steps` it starts its next pass.
  """
  new, sizes = _parts(training)[0], training.train_sizes
  own = np.maximum(-(-sizes // new), 1)
  in_steps = training.spec.problem.in_epochs and training.spec.train.steps
  return own if in_steps else np.full_like(own, own.max())


def _counts(training: Training, steps: np.ndarray) -> np.ndarray:
  """int64 [M, R], number of examples of each step that are not padding."""
  spec, (new, old) = training.spec, _parts(training)
  if not spec.problem.in_epochs:
    full = (new + old) * (training.train_sizes > 0)  # every batch is full
    return np.repeat(full[:, None], len(steps), 1)
  place = steps[None] % _per_pass(training)[:, None]
  count = np.clip(training.train_sizes[:, None] - place * new, 0, new)
  has_memory = np.array([len(_memory(training, member)) > 0 for member in range(spec.num_members)])
  return count + old * ((count > 0) & has_memory[:, None])


def _memory(training: Training, member: int) -> np.ndarray:
  """The memory of a member, indices into the pool."""
  own = training.examples.memory
  return training.data.memory if own is None else own[member]


def _recalled(training: Training, member: int, start: int, stop: int) -> np.ndarray:
  """int32 [stop - start, old], examples of the memory in each step."""
  memory, old, data = _memory(training, member), _parts(training)[1], training.data
  if not len(memory):
    return np.zeros((stop - start, 0), np.int32)
  if data.in_passes:
    order = lambda number: _permutation(keys.RECALL, data.seed, data.stage, number, member, len(memory))
    return memory[_in_passes(order, len(memory), start * old, stop * old)].reshape(-1, old)
  blocks = range(start // _BLOCK, -(-stop // _BLOCK))
  places = [_drawn(data.seed, data.stage, block, member, len(memory), old) for block in blocks]
  first = start - blocks[0] * _BLOCK
  return memory[np.concatenate(places)[first:first + stop - start]]


def _fill_passes(training: Training, member: int, start: int, stop: int, examples: np.ndarray,
                 weights: np.ndarray | None) -> None:
  """Writes the batches of steps start..stop of a member into `examples` [R, B], factors of losses into `weights`."""
  own, (new, old), per_pass = training.examples.own, _parts(training), int(_per_pass(training)[member])
  mine = training.data.train if own is None else own[member]
  recalled = _recalled(training, member, start, stop) if old else None
  for first, last in _within_passes(start, stop, per_pass):
    number = first // per_pass
    place = _order(training, member, number, len(mine))[(first - number * per_pass) * new:
                                                        (last - number * per_pass) * new]
    here = slice(first - start, last - start)
    _cut(examples[here], mine[place], new)
    if weights is not None and training.examples.weight is not None:
      _cut(weights[here], training.examples.weight[place], new)
    if recalled is not None:
      for row in range(first - start, last - start):  # behind the new examples, of which a pass's last batch has fewer
        num = min(max(len(place) - (row - here.start) * new, 0), new)
        examples[row, num:num + recalled.shape[1]] = recalled[row]


def _fill_endless(training: Training, member: int, start: int, stop: int, examples: np.ndarray,
                  weights: np.ndarray | None) -> None:
  """As `_fill_passes`, where the order is one endless sequence of permutations; weights are not supported."""
  del weights
  own, data, (new, old) = training.examples.own, training.data, _parts(training)
  mine = data.train if own is None else own[member]
  num = len(mine)
  if not num:
    return
  order = lambda number: _permutation(keys.EPOCH, data.seed, data.stage, number, member, num)
  examples[:stop - start, :new] = mine[_in_passes(order, num, start * new, stop * new)].reshape(-1, new)
  if old:
    examples[:stop - start, new:new + old] = _recalled(training, member, start, stop)


def _in_passes(order: Callable[[int], np.ndarray], num: int, start: int, stop: int) -> np.ndarray:
  """Places start..stop of an endless sequence of passes over `num` places; order(k): those of the k-th pass."""
  first = start // num
  places = np.concatenate([order(number) for number in range(first, -(-stop // num))])
  return places[start - first * num:stop - first * num]


def _cut(batches: np.ndarray, values: np.ndarray, size: int) -> None:
  """Writes values [N] into `batches` [R, B], `size` of them into each; the last ones may get fewer."""
  full, rest = divmod(len(values), size)
  batches[:full, :size] = values[:full * size].reshape(full, size)
  if rest:
    batches[full, :rest] = values[full * size:]


def _within_passes(start: int, stop: int, per_pass: int) -> Iterator[tuple[int, int]]:
  """Cuts the steps start..stop at the ends of passes."""
  while start < stop:
    end = min(stop, (start // per_pass + 1) * per_pass)
    yield start, end
    start = end


def _order(training: Training, member: int, number: int, num: int) -> np.ndarray:
  """int64 [num], the order of a member's examples in a pass."""
  data, probability = training.data, training.examples.probability
  if probability is None:
    return _permutation(keys.EPOCH, data.seed, data.stage, number, member, num)
  return keys.rng(data.seed, keys.EPOCH, data.stage, number, member).choice(num, num, p=probability)


@functools.lru_cache(maxsize=16)  # a pass spans several dispatches
def _permutation(purpose: int, seed: int, stage: int, number: int, member: int, num: int) -> np.ndarray:
  return keys.rng(seed, purpose, stage, number, member).permutation(num)


@functools.lru_cache(maxsize=16)
def _drawn(seed: int, stage: int, block: int, member: int, num: int, old: int) -> np.ndarray:
  """int64 [_BLOCK, old], places in the memory."""
  return keys.rng(seed, keys.RECALL, stage, block, member).integers(num, size=(_BLOCK, old))
