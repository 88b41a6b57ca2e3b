"""Which examples a step reads: passes over the new examples, and examples drawn from the memory."""
import itertools
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stages import batches_of

from alma_jax.config import image_sections, stream, text_sections
from alma_jax.parallel import sharding
from alma_jax.problems import classification
from alma_jax.training import batching, loop

OLD = 10_000  # the memory's examples have numbers from here on


def training_of(train, num_new=30, num_memory=0, share=0.0, members=1, own=None, own_memory=None, stage=1, seed=0,
                average=0.0, in_passes=False, **examples):
  """A Training of examples 0, 1, ... and of a memory OLD, OLD + 1, ...; nothing in it can be computed.

  `own` and `own_memory` are the members' shards, in which members have validation examples of their own.
  """
  text = types.SimpleNamespace(in_epochs=False, max_steps=50, group=1, eval_batch=8)
  task = text if isinstance(train, text_sections.Train) else classification.Classification(3, False)
  data = loop.StageData(stage, seed, None, None, np.arange(num_new, dtype=np.int32), np.zeros(1, np.int32), num_new,
                        OLD + np.arange(num_memory, dtype=np.int32), share, in_passes=in_passes)
  spec = loop.FitSpec(None, task, train, members, 1, sharding.make_mesh(members, 1), False, own is not None,
                      average=average)
  if own is not None:
    examples = dict(own=own, own_val=[data.val] * members, memory=own_memory, **examples)
  return loop.Training(spec, None, data, loop.Examples(**examples))


@st.composite
def trainings(draw):
  """Of one or two members that share examples and memory, in epochs or in steps."""
  size = draw(st.integers(1, 12))
  num_memory = draw(st.sampled_from([0, 1, 5, 60]))
  steps = draw(st.sampled_from([0, 1, 7, 40]))
  train = image_sections.Train(epochs=draw(st.integers(1, 4)), steps=steps, batch_size=size,
                       eval_every=draw(st.sampled_from([0, 1, 6, 100])) if steps else 0)
  return training_of(train, draw(st.integers(1, 50)), num_memory, num_memory and draw(st.floats(0.01, 0.99)),
                     draw(st.integers(1, 2)), stage=draw(st.integers(0, 2)), in_passes=draw(st.booleans()))


@given(trainings())
@settings(deadline=None, max_examples=80)
def test_a_batch_has_its_part_of_new_examples_and_its_part_of_the_memory(training):
  plan, size, data = training.plan, training.spec.train.batch_size, training.data
  old = min(round(size * data.share), size - 1)
  new = size - old
  assert stream.memory_part(size, data.share) == old
  assert plan.per_pass == -(-len(data.train) // new)
  assert plan.steps == (training.spec.train.steps or training.spec.train.epochs * plan.per_pass)
  found, total = batches_of(training, 0, plan.steps), 0
  for batches in found:
    seen = []
    for step, batch in enumerate(batches):
      fresh, recalled = batch[batch < OLD], batch[batch >= OLD]
      place = step % plan.per_pass
      assert len(fresh) == min(new, len(data.train) - place * new)
      assert len(recalled) == old
      np.testing.assert_array_equal(batch, [*fresh, *recalled])  # the memory's stand behind the new ones
      assert set(recalled) <= set(data.memory)
      seen += [*fresh]
      total += len(batch)
    for start in range(0, len(seen), len(data.train)):  # every pass has every example once; the last may be cut
      one = seen[start:start + len(data.train)]
      assert len(set(one)) == len(one)
  # What the cost counts.
  total //= training.spec.num_members
  assert plan.samples == total == batching.num_samples(training, plan.steps)
  rounds = [batching.round_sizes(training, number) for number in range(plan.rounds)]
  bounds = [*range(0, plan.steps, plan.per_round), plan.steps]
  assert len(bounds) == plan.rounds + 1
  for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
    assert rounds[number].tolist() == [sum(map(len, batches[start:stop])) for batches in found]


@given(trainings(), st.integers(1, 9))
@settings(deadline=None, max_examples=30)
def test_cutting_a_stage_into_dispatches_changes_no_batch(training, rows):
  steps = training.plan.steps
  whole = batches_of(training, 0, steps)
  for start in range(0, steps, rows):
    stop = min(start + rows, steps)
    part = batching.train_batches(training, start, stop)
    assert int(part.num_steps) == stop - start
    ends = part.ends_round[:stop - start]
    per_round = training.plan.per_round
    assert ends.tolist() == [(s + 1) % per_round == 0 or s + 1 == steps for s in range(start, stop)]
    for member, batches in enumerate(batches_of(training, start, stop)):
      for mine, other in zip(batches, whole[member][start:stop], strict=True):
        np.testing.assert_array_equal(mine, other)
    # No two steps of a stage draw random numbers for the same (epoch, step).
  everything = [batching.train_batches(training, s, s + 1) for s in range(min(steps, 20))]
  assert len({(int(part.epoch[0]), int(part.step[0])) for part in everything}) == len(everything)


def test_a_long_stage_of_recall_is_the_same_in_any_cut():
  """The memory is drawn in blocks of 256 steps: dispatches that begin and end inside of them agree."""
  training = training_of(image_sections.Train(steps=600, batch_size=6), 40, 30, 0.5)
  whole = batches_of(training, 0, 600)[0]
  for start, stop in ((0, 256), (250, 260), (255, 257), (256, 512), (500, 600)):
    for mine, other in zip(batches_of(training, start, stop)[0], whole[start:stop], strict=True):
      np.testing.assert_array_equal(mine, other)


def drawn(training, member=0):
  """The examples of the memory in all steps of a stage, in their order."""
  batches = batches_of(training, 0, training.plan.steps)[member]
  return np.concatenate(batches)[np.concatenate(batches) >= OLD]


def test_in_passes_each_old_example_has_its_turn():
  training = training_of(image_sections.Train(steps=70, batch_size=20), 100, 50, 0.8, members=2, in_passes=True)
  first, other = (drawn(training, member) - OLD for member in range(2))
  passes = first[:50 * (len(first) // 50)].reshape(-1, 50)
  assert len(passes) == 22
  assert (np.sort(passes) == np.arange(50)).all()
  assert len({tuple(each) for each in passes}) == 22  # each in an order of its own
  assert not np.array_equal(first, other)


def test_the_memory_is_drawn_uniformly_with_replacement():
  train = image_sections.Train(steps=1000, batch_size=20)
  training = training_of(train, 100, 50, 0.8, members=2)
  counts = np.bincount(drawn(training) - OLD, minlength=50)
  assert counts.sum() == 16_000  # 320 of each, with a binomial deviation of 17.7
  chi = ((counts - 320)**2).sum() / 320
  assert abs(chi - 49) < 5 * np.sqrt(2 * 49)
  batches = batches_of(training, 0, 1000)[0]
  repeated = np.mean([len(set(batch[4:])) < 16 for batch in batches])
  expected = 1 - np.prod(1 - np.arange(16) / 50)  # .94: 16 draws of 50 repeat an example
  assert repeated == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 1000))
  others = [drawn(training, 1), drawn(training_of(train, 100, 50, 0.8, stage=2)),
            drawn(training_of(train, 100, 50, 0.8, seed=1))]
  for other in others:  # every member, stage and seed draws its own
    assert np.mean(drawn(training) == other) == pytest.approx(1 / 50, abs=4 * np.sqrt(1 / 50 / 16_000))
  alone = training_of(train, 100, 50, 0.8)
  np.testing.assert_array_equal(drawn(alone), drawn(training))  # a member draws as it would alone


SHARDS = [np.arange(0, 3), np.arange(3, 13), np.zeros(0, int), np.arange(13, 30)]
MEMORIES = [OLD + np.arange(4), OLD + np.arange(0), OLD + np.arange(4, 9), OLD + np.arange(9, 10)]


def test_with_steps_every_expert_makes_its_own_passes():
  """4 new and 4 old examples a batch: shards of 3, 10, 0 and 17 examples have passes of 1, 3, 1 and 5 steps."""
  training = training_of(image_sections.Train(steps=11, batch_size=8), 30, 10, 0.5, 4, SHARDS, MEMORIES)
  found = batches_of(training, 0, 11)
  for batches, shard, memory, sizes in zip(found, SHARDS, MEMORIES, ([3], [4, 4, 2], [0], [4, 4, 4, 4, 1])):
    seen = []
    for step, batch in enumerate(batches):
      fresh, recalled = batch[batch < OLD], batch[batch >= OLD]
      assert len(fresh) == sizes[step % len(sizes)]
      assert len(recalled) == (4 if len(memory) and len(shard) else 0)  # without new examples there is no step
      assert set(recalled) <= set(memory)
      seen += [*fresh]
    for start in range(0, len(seen), max(len(shard), 1)):
      one = seen[start:start + len(shard)]
      assert set(one) <= set(shard)
      assert len(set(one)) == len(one)
  # 11 passes of 3; 3 of 10 and two batches; nothing; 2 of 17 and a batch. Memory: 4 a step, not for the second.
  new = [11 * 3, 3 * 10 + 8, 0, 2 * 17 + 4]
  assert [sum(map(len, batches)) for batches in found] == [new[0] + 44, new[1], 0, new[3] + 44]
  assert batching.num_samples(training, 11) == sum(new) + 2 * 44
  assert training.plan.rounds == 3  # a round is a pass of the largest shard: 5, 5 and 1 steps
  sizes = [batching.round_sizes(training, number).tolist() for number in range(3)]
  assert np.sum(sizes, 0).tolist() == [sum(map(len, batches)) for batches in found]
  assert sizes[2] == [len(batches[10]) for batches in found]


def test_with_epochs_smaller_experts_wait_for_the_largest():
  training = training_of(image_sections.Train(epochs=2, batch_size=8), 30, 10, 0.5, 4, SHARDS, MEMORIES)
  found = batches_of(training, 0, 10)
  assert training.plan.steps == 10
  fresh = [[int((batch < OLD).sum()) for batch in batches] for batches in found]
  assert fresh == [[3, 0, 0, 0, 0] * 2, [4, 4, 2, 0, 0] * 2, [0] * 10, [4, 4, 4, 4, 1] * 2]
  assert [len(batch) for batch in found[0]] == [7, 0, 0, 0, 0] * 2  # no step without a new example
  assert batching.num_samples(training, 10) == 2 * (3 + 4 + 10 + 17 + 5 * 4)


def test_weights_are_those_of_the_new_examples_and_one_in_the_memory():
  weight = np.arange(1, 11, dtype=np.float32) / 7
  training = training_of(image_sections.Train(steps=9, batch_size=6), 10, 20, 1 / 3, weight=weight)
  rows = batching.train_batches(training, 0, 9)
  for r in range(9):
    count = rows.num_examples[r]
    examples, weights = rows.examples[r, 0, :count], rows.weight[r, 0, :count]
    np.testing.assert_array_equal(weights, [weight[i] if i < OLD else 1 for i in examples])
    assert (examples >= OLD).sum() == 2


def test_drawn_passes_and_own_orders_are_joined_by_the_memory():
  """Boosting draws the new part by probabilities, bagging has a sample for each member; both recall alike."""
  probability = np.zeros(10)
  probability[[2, 5]] = 0.75, 0.25
  training = training_of(image_sections.Train(steps=200, batch_size=6), 10, 20, 0.5, probability=probability)
  fresh = np.concatenate(batches_of(training, 0, 200)[0])
  fresh = fresh[fresh < OLD]
  assert set(fresh) == {2, 5}
  assert np.mean(fresh == 2) == pytest.approx(0.75, abs=4 * np.sqrt(0.1875 / len(fresh)))
  samples = np.int32([[1, 1, 2, 3], [4, 4, 4, 5]])
  bagged = training_of(image_sections.Train(steps=8, batch_size=4), 4, 20, 0.5, 2)
  bagged = loop.Training(bagged.spec, None, bagged.data, loop.Examples(own=samples))
  for member, batches in enumerate(batches_of(bagged, 0, 8)):
    for start in range(0, 8, 2):
      one = np.concatenate(batches[start:start + 2])
      assert sorted(one[one < OLD]) == sorted(samples[member])
      assert (one >= OLD).sum() == 4


def test_text_goes_on_from_one_permutation_to_the_next():
  train = text_sections.Train(steps=70, batch_size=8, eval_every=32)
  training = training_of(train, 11, 6, 0.3, members=2)  # 6 new and 2 old windows a step
  whole = batches_of(training, 0, 70)
  for batches in whole:
    assert [len(batch) for batch in batches] == [8] * 70
    fresh = np.concatenate([batch[:6] for batch in batches])
    assert fresh.max() < OLD
    for start in range(0, len(fresh) - 11, 11):
      assert sorted(fresh[start:start + 11]) == list(range(11))
    assert set(np.concatenate([batch[6:] for batch in batches])) == set(training.data.memory)
  assert training.plan.samples == batching.num_samples(training, 70) == 70 * 8
  assert [batching.round_sizes(training, number).tolist() for number in range(3)] == [[256] * 2, [256] * 2, [48] * 2]


def test_factors_of_the_rate_and_of_the_average_belong_to_the_step():
  """10 steps of a decay of 40 %: 1 up to step 6, then 4/4, 3/4, 2/4, 1/4. A horizon of 3 steps."""
  training = training_of(image_sections.Train(steps=10, batch_size=8, decay=0.4), average=0.3)
  for start, stop in ((0, 10), (3, 9), (9, 10)):
    rows = batching.train_batches(training, start, stop)
    expected = np.float32([1] * 7 + [0.75, 0.5, 0.25])[start:stop]
    np.testing.assert_allclose(rows.scale[:stop - start], expected, rtol=1e-6)
    expected = np.float32([1, 1 / 2] + [1 / 3] * 8)[start:stop]
    np.testing.assert_allclose(rows.blend[:stop - start], expected, rtol=1e-6)
  none = batching.train_batches(training_of(image_sections.Train(steps=10)), 0, 10)
  assert none.scale is None
  assert none.blend is None
  short = batching.train_batches(training_of(image_sections.Train(steps=10), average=0.01), 0, 10)
  assert short.blend[:10].tolist() == [1] * 10  # a horizon below a step: the last weights
