"""The memory that batches are drawn from: `stream.replay_share` and `stream.memory_size`; properties of the stream."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream import Made, assert_sizes, make, stages_of

from alma_jax.config import text_sections
from alma_jax.config.stream import Adaptive, Geometric, Power
from alma_jax.data import memory
from alma_jax.data.megabatches import Megabatches

SCHEDULES = [{}, dict(schedule=Geometric(factor=1.5)), dict(schedule=Power(num_trainings=3))]


@st.composite
def remembering(draw):
  """A stream with a memory, of any schedule and share."""
  b = draw(st.integers(3, 12))
  n = draw(st.integers(10 * b, 40 * b))
  return make(n, b, draw(st.integers(1, b)), seed=draw(st.integers(0, 5)), val=draw(st.sampled_from([0.1, 0.3])),
              memory_size=draw(st.sampled_from([0, 1, 2, 17, n // 3])),
              replay_share=draw(st.sampled_from(["uniform", 0.1, 0.5, 0.9])), **draw(st.sampled_from(SCHEDULES)))


@given(remembering())
@settings(deadline=None, max_examples=60)
def test_the_memory_holds_examples_of_earlier_stages_only(stream):
  size, stages = stream.config.memory_size, stages_of(stream)
  assert_sizes(stream, stages)
  for stage, span in zip(stages, stream.spans):
    seen = [stream.megabatches.part(t) for t in range(1, span[0])]
    train, val = (np.concatenate([np.zeros(0, int), *side]) for side in (zip(*seen) if seen else ((), ())))
    new_train, new_val = (np.concatenate(side) for side in zip(*map(stream.megabatches.part, span)))
    np.testing.assert_array_equal(stage.train, new_train)  # the stage's examples are the new ones alone
    assert stage.num_new == len(stage.train)
    np.testing.assert_array_equal(stage.val[:len(new_val)], new_val)
    old_val = stage.val[len(new_val):]
    assert set(stage.memory) <= set(train)  # none of the present and later mega-batches, none for validation
    assert set(old_val) <= set(val)
    assert len(set(stage.memory)) == len(stage.memory)
    assert len(set(old_val)) == len(old_val)
    num_val = int(stream.config.val_fraction * size + 1e-9)
    assert len(stage.memory) == (min(len(train), size - num_val) if size else len(train))
    assert len(old_val) <= (min(len(val), num_val) if size else len(val))
    assert not size or len(stage.memory) + len(old_val) <= size
    if stream.config.replay_share == "uniform":
      assert stage.share == pytest.approx(len(stage.memory) / (len(stage.memory) + len(stage.train)))
      assert len(old_val) == (min(len(val), num_val) if size else len(val))
    else:
      wanted = stream.config.replay_share
      assert stage.share == (wanted if len(stage.memory) else 0.0)
      # So many that their share of the validation examples is the batch's, if there are so many.
      exact = wanted / (1 - wanted) * len(new_val)
      assert len(old_val) == min(len(val), num_val if size else len(val), round(exact))
  assert stages[0].share == len(stages[0].memory) == 0
  assert stream.memory.most_val(stream.ends) == max(len(stage.val) for stage in stages)


@given(remembering())
@settings(deadline=None, max_examples=40)
def test_what_the_memory_has_dropped_never_comes_back(stream):
  seen, before, size = set(), set(), stream.config.memory_size
  for stage in stages_of(stream):
    assert set(stage.memory) & seen <= before
    if before - set(stage.memory):  # it drops examples only when it is full
      assert len(stage.memory) == size - int(stream.config.val_fraction * size + 1e-9)
    seen |= set(stage.memory) | set(stage.train)
    before = set(stage.memory) | set(stage.train)


def places(stream, indices):
  """Where examples stand in the stream."""
  return np.argsort(np.concatenate([np.concatenate(stream.megabatches.part(t))
                                    for t in range(1, stream.megabatches.num + 1)]))[indices]


def test_the_memory_depends_on_nothing_but_the_seed_and_what_was_seen():
  fields = dict(memory_size=40, replay_share="uniform")
  short, long = make(200, 10, seed=3, **fields), make(400, 20, seed=3, **fields)  # mega-batches of 20 examples each
  for t in range(2, 10):
    by_one, at_once = short.memory.stage(range(1, t + 1)), short.memory.stage((t - 1, t))
    np.testing.assert_array_equal(by_one.memory, at_once.memory)  # nor on the stages before
    np.testing.assert_array_equal(places(short, by_one.memory), places(long, long.memory.stage((t - 1, t)).memory))
  last = lambda seed: set(places(make(200, 10, seed=seed, **fields), make(
      200, 10, seed=seed, **fields).memory.stage((9, 10)).memory))
  assert last(3) == last(3) != last(4)


@pytest.mark.parametrize("fields", [dict(replay=0.5), dict(memory_size=60, replay_share=0.3, val=0.2)])
def test_a_stage_does_not_depend_on_earlier_calls(fields):
  forward, backward = make(300, 10, 2, **fields), make(300, 10, 2, **fields)
  first = stages_of(forward)
  for s in (4, 0, 3, 1, 2):
    again = backward.memory.stage(backward.ends[:s + 1])
    for name in ("train", "memory", "val"):
      np.testing.assert_array_equal(getattr(first[s], name), getattr(again, name))


@pytest.mark.parametrize("wanted", ["uniform", 0.5])
def test_the_memory_is_a_uniform_sample_of_all_examples_seen(wanted):
  """Over 600 seeds every place is kept equally often: places of 4 mega-batches of 25, 5 of each for validation."""
  seeds, counts = 600, np.zeros(125)
  val_counts = np.zeros(125)
  for seed in range(seeds):
    stream = make(125, 5, val=0.2, seed=seed, memory_size=30, replay_share=wanted)
    stage = stream.memory.stage((1, 2, 3, 4, 5))
    assert len(stage.memory) == 24
    counts[places(stream, stage.memory)] += 1
    val_counts[places(stream, stage.val[5:])] += 1
  is_val = np.arange(125) % 25 >= 20
  assert counts[is_val].sum() == counts[100:].sum() == 0
  for found, seen, num in ((counts, ~is_val, 24), (val_counts, is_val, val_counts.sum() / seeds)):
    found = found[:100][seen[:100]]
    share = num / len(found)
    # Each count is binomial; the sum of their squared deviations has about a chi-square distribution.
    chi = ((found - seeds * share)**2).sum() / (seeds * share * (1 - share))
    assert abs(chi - len(found)) < 5 * np.sqrt(2 * len(found))
    early = found[:len(found) // 4].sum()  # examples of the first mega-batch are kept as often as others
    assert abs(early - seeds * num / 4) < 5 * np.sqrt(seeds * num * 3 / 16)


def test_windows_of_text_are_remembered():
  config = text_sections.Stream(num_megabatches=4, replay_share="uniform", memory_size=7)
  megabatches = Megabatches([0, 5, 9, 20, 30], held_out=np.arange(6, dtype=np.int32))
  stream = Made(config, megabatches, memory.make(config, megabatches, 0))
  stages = stages_of(stream)
  assert_sizes(stream, stages)
  assert [len(stage.memory) for stage in stages] == [0, 5, 7, 7]
  assert [stage.share for stage in stages] == [0, 5 / 9, 7 / 18, 7 / 17]
  assert [stage.val.tolist() for stage in stages] == [list(range(6))] * 4  # a text of their own, always all of them
  assert stream.memory.most_val(stream.ends) == stream.memory.most_val(None) == 6
  assert set(stages[1].memory) == set(range(5))
  assert set(stages[3].memory) <= set(range(20))


def test_the_largest_validation_set_of_an_undecided_schedule():
  """How many stages there will be is not known: at most all validation examples are used."""
  stream, every = (make(300, 10, 1, replay_share="uniform", **fields)
                   for fields in (dict(schedule=Adaptive(price=1.0)), {}))
  assert stream.memory.most_val(None) == 30
  assert stream.memory.most_val(None) >= every.memory.most_val(every.ends)
