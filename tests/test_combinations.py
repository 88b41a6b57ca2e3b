"""Combinations of digit, colour and rotation; which experts answer for an image."""
import numpy as np
import pytest
from runs import ROOT, blobs, slow, small_config

import alma_jax
from alma_jax.data import datasets
from alma_jax.errors import BadInput


@pytest.fixture(scope="module")
def combinations():
  """The module benchmarks/combinations.py."""
  with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(ROOT / "benchmarks")
    import combinations
    yield combinations


@pytest.fixture(scope="module")
def made(combinations):
  return combinations.make(datasets.load("digits", ""), 0, 1400, 200)


def test_a_third_is_held_out_and_every_digit_is_seen_in_every_colour_and_rotation(combinations):
  out = combinations.held_out(3)
  assert out.shape == (10, 6, 4)
  assert out.sum((1, 2)).tolist() == [8] * 10  # of 24
  assert (out.sum(1) == 2).all()
  assert not out.all(2).any()
  assert len({grid.tobytes() for grid in out}) > 1
  assert not np.array_equal(out, combinations.held_out(4))


def test_images_are_in_combinations_that_are_allowed(made):
  for images, held_out in ((made.train, False), (made.seen, False), (made.unseen, True)):
    assert (made.held_out[images.y, images.colour, images.rotation] == held_out).all()
  np.testing.assert_array_equal(made.seen.y, made.unseen.y)
  seen = {(y, c, r) for y, c, r in zip(made.train.y, made.train.colour, made.train.rotation)}
  assert len(seen) == 160  # of 1,400 draws: all of 240 less a third


def test_images_have_their_colour_and_rotation(combinations, made):
  data = datasets.load("digits", "")
  again = combinations.make(data, 0, 1400, 200)
  np.testing.assert_array_equal(again.train.x, made.train.x)
  background = np.rint(255 * np.array(combinations.COLOURS))
  corner = made.unseen.x[:, 0, 0][made.unseen.rotation == 1]  # of a turned image: black before it is coloured
  np.testing.assert_array_equal(corner, background[made.unseen.colour[made.unseen.rotation == 1]])
  # By 0 and by 90 degrees no pixel is interpolated. The brightest pixel, 16 of 16, is white.
  for number, quarters in ((0, 0), (3, 1)):
    place = np.flatnonzero(made.seen.rotation == number)[0]
    first = background[made.seen.colour[place]]
    grey = (made.seen.x[place, ..., 2] - first[2]) / (255 - first[2])
    images = np.rot90(data.x_test[..., 0] / 16, quarters, (1, 2))
    assert np.abs(images - grey[None]).max((1, 2)).min() < 0.01


def test_coloured_images_are_refused(combinations):
  x, y = blobs(60, (6, 6, 3))
  data = datasets.from_arrays("photos", dict(x_train=x, y_train=y, x_test=x, y_test=y))
  with pytest.raises(BadInput, match=r"photos has images of shape \(6, 6, 3\) and dtype uint8; combinations are made"):
    combinations.make(data, 0)


@pytest.mark.parametrize(("learner", "changes", "mixtures"), [
    slow("moe", {"learner__gating": "hard", "model__num_experts": 3}, ["hidden0", "hidden1"]),
    ("hmoe", {"model__num_experts": 2}, ["experts"])])
def test_the_expert_that_answers(tmp_path, learner, changes, mixtures):
  x, y = blobs(120)
  config = small_config(learner, stream__num_megabatches=1, stream__waiting_time=1, **changes)
  run = alma_jax.run(config, tmp_path / "run", data=(x, y, *blobs(30, seed=1)))
  found = run.routes(x)
  assert list(found) == mixtures
  for weights in found.values():
    assert weights.shape == (120, changes["model__num_experts"])
    np.testing.assert_array_equal(np.sort(weights, 1)[:, :-1], 0)  # one expert answers
    np.testing.assert_array_equal(weights.sum(1), 1)
  if learner == "hmoe":  # a cluster for each image: the counts of the training examples say how many
    counts = np.array(run.spec()["counts"])
    assert counts.sum() == 108  # without those for validation
    assert ((found["experts"].sum(0) >= counts) & (found["experts"].sum(0) <= counts + 12)).all()


def test_a_learner_without_experts_is_refused(tmp_path):
  x, y = blobs(120)
  run = alma_jax.run(small_config(), tmp_path / "run", data=(x, y, *blobs(30, seed=1)))
  with pytest.raises(BadInput, match="has no experts to choose from; give a run of moe, gmoe or hmoe"):
    run.routes(x)
