"""The stream: parts, stages, replay; properties over random sizes."""
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alma_jax.config import image_sections
from alma_jax.config.stream import Every
from alma_jax.data import memory
from alma_jax.data.megabatches import Arrived, Megabatches, permuted
from alma_jax.errors import BadInput


class Made(NamedTuple):
  """A stream: its section of the config, and what follows from it."""
  config: Any
  megabatches: Megabatches
  memory: memory.Memory

  @property
  def ends(self):
    return self.config.expected_ends

  @property
  def spans(self):
    return [memory.span(self.ends[:s + 1]) for s in range(len(self.ends))]


def make(n, b, w=1, replay=0.0, val=0.1, seed=0, **fields):
  fields = {"schedule": Every(waiting_time=w), **fields}
  config = image_sections.Stream(b, replay, val_fraction=val, **fields)
  megabatches = permuted(n, b, val, seed)
  return Made(config, megabatches, memory.make(config, megabatches, seed))


def stages_of(stream):
  return [stream.memory.stage(stream.ends[:s + 1]) for s in range(len(stream.ends))]


def assert_sizes(stream, stages):
  """The sizes that a memory predicts are those of its stages."""
  grown = stream.memory.sizes(stream.ends).grown.tolist()
  assert grown == [stage.grown for stage in stages]
  assert grown[0] == 1.0
  sizes = stream.memory.sizes(stream.ends)
  assert sizes.train.tolist() == [len(stage.train) for stage in stages]
  assert sizes.val.tolist() == [len(stage.val) for stage in stages]
  assert sizes.share.tolist() == [stage.share for stage in stages]


@st.composite
def sizes(draw):
  b = draw(st.integers(1, 12))
  n = draw(st.integers(10 * b, 40 * b))
  return n, b, draw(st.integers(1, b))


@given(sizes(), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_stages_partition_the_training_set(size, seed):
  n, b, w = size
  stream = make(n, b, w, seed=seed)
  stages = stages_of(stream)
  everything = np.concatenate([part for s in stages for part in (s.train, s.val)])
  assert sorted(everything) == list(range(n))  # disjoint and covering, val apart from train
  assert [(s[0], s[-1]) for s in stream.spans] == [(i * w + 1, min((i + 1) * w, b)) for i in range(-(-b // w))]
  parts = [stream.megabatches.part(t) for t in range(1, b + 1)]
  lengths = [len(train) + len(val) for train, val in parts]
  assert max(lengths) - min(lengths) <= 1
  assert [len(val) for _, val in parts] == [length // 10 for length in lengths]
  assert stream.megabatches.num == b
  assert stream.megabatches.seen.tolist() == [[sum(len(part[side]) for part in parts[:t]) for side in (0, 1)]
                                              for t in range(b + 1)]
  assert_sizes(stream, stages)
  assert stream.memory.most_val(stream.ends) == max(len(stage.val) for stage in stages)
  assert stream.memory.needed(stream.ends).tolist() == []
  assert all(len(stage.memory) == stage.share == 0 for stage in stages)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=12), st.sampled_from([0.0, 0.01, 0.3]))
@settings(deadline=None, max_examples=60)
def test_entries_are_numbered_in_the_order_of_their_arrival(lengths, val):
  feed = types.SimpleNamespace(lines=[])
  megabatches = Arrived(feed, val)
  assert megabatches.num == 0
  for known, length in enumerate(lengths, 1):
    feed.lines.append(dict(num=length))
    assert megabatches.num == known
    train, held_out = megabatches.part(known)
    both = np.concatenate([train, held_out])
    assert both.tolist() == [*range(sum(lengths[:known - 1]), sum(lengths[:known]))]
    assert len(held_out) == (max(1, int(val * length + 1e-9)) if val else 0)
    assert megabatches.seen[-1].tolist() == [sum(len(megabatches.part(t)[side]) for t in range(1, known + 1))
                                             for side in (0, 1)]


def test_the_sizes_of_a_stage_that_has_not_arrived_are_a_guess():
  feed = types.SimpleNamespace(lines=[dict(num=10), dict(num=11)])
  kept = memory.make(image_sections.Stream(0), Arrived(feed, 0.1), 0)
  found = lambda sizes: [side.tolist() for side in (sizes.train, sizes.val, sizes.share, sizes.grown)]
  assert found(kept.sizes((2,))) == [[19], [2], [0.0], [1.0]]
  assert found(kept.sizes((5,))) == [[48], [5], [0.0], [1.0]]  # 2.5 times as many, rounded up
  apart = memory.make(image_sections.Stream(0), Arrived(feed, 0.0, np.arange(7, dtype=np.int32)), 0)
  assert found(apart.sizes((5,))) == [[53], [7], [0.0], [1.0]]


@given(sizes(), st.sampled_from([0.3, 0.5, 1.0]))
@settings(deadline=None, max_examples=40)
def test_replay_keeps_a_share_of_the_memory(size, replay):
  n, b, w = size
  stream, fresh = make(n, b, w, replay), make(n, b, w)
  stages = stages_of(stream)
  assert_sizes(stream, stages)
  for s, (now, own) in enumerate(zip(stages, stages_of(fresh))):
    assert not set(now.train) & set(now.val)
    for union, new, previous in ((now.train, own.train, stages[s - 1].train if s else ()),
                                 (now.val, own.val, stages[s - 1].val if s else ())):
      assert len(set(union)) == len(union)  # without replacement
      assert len(union) == len(new) + int(replay * len(previous) + 1e-9)
      assert set(new) <= set(union) <= set(new) | set(previous)


def test_the_seed_decides_the_order():
  same, other = make(100, 5, seed=0).memory.stage((1,)).train, make(100, 5, seed=1).memory.stage((1,)).train
  np.testing.assert_array_equal(same, make(100, 5, seed=0).memory.stage((1,)).train)
  assert set(same) != set(other)


def test_long_streams_with_replay_do_not_recurse():
  stream = make(30_000, 3_000, 1, 0.5)
  assert len(stream.memory.stage(stream.ends).val) >= 1


def test_a_small_megabatch_holds_out_one_example():
  stages = stages_of(make(50, 10, val=0.02))
  assert [len(stage.val) for stage in stages] == [1] * len(stages)


@pytest.mark.parametrize(("n", "b", "val", "sentence"), [
    (9, 10, 0.1, "exceeds the 9 training examples"),
    (10, 10, 0.001, "of 1 examples leaves no training example"),
    (1000, 10, 1 - 1e-12, "leaves no training example"),
])
def test_streams_that_cannot_be(n, b, val, sentence):
  with pytest.raises(BadInput, match=sentence):
    make(n, b, val=val)
