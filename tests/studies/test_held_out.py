"""Held-out images that are changed (benchmarks/held_out.py)."""
import numpy as np
import pytest
from made_studies import _path  # noqa: F401

pytestmark = pytest.mark.slow


def changed(name, num=2000, channels=3):
  import held_out
  rng = np.random.default_rng(0)
  draw = lambda num: (rng.integers(256, size=(num, 28, 28, channels), dtype=np.uint8), np.arange(num) % 10)
  split = held_out.Split(*draw(num), *draw(num // 2))
  return split, held_out.CHANGES[name](split, np.random.default_rng(0))


def test_labels_are_drawn_at_random():
  before, after = changed("noise40")
  other = (before.y_train != after.y_train).mean()  # a tenth of the random labels are the old ones
  assert other == pytest.approx(0.9 * 0.4, abs=4 * np.sqrt(0.36 * 0.64 / 2000))
  np.testing.assert_array_equal(before.y_test, after.y_test)


def test_colours_are_weighed():
  before, after = changed("grey")
  assert after.x_train.shape == (2000, 28, 28, 1)
  r, g, b = map(int, before.x_train[0, 0, 0])
  assert after.x_train[0, 0, 0, 0] == round(0.299 * r + 0.587 * g + 0.114 * b)


def test_images_are_enlarged():
  _, after = changed("large", 20)
  assert (after.x_train.shape, after.x_test.shape) == ((20, 64, 64, 3), (10, 64, 64, 3))


def test_pairs_have_the_labels_of_both_halves():
  before, after = changed("pairs", channels=1)
  assert after.x_train.shape == (2000, 28, 40, 1)
  label = {image[:, 4:-4].tobytes(): int(y) for image, y in zip(before.x_train, before.y_train)}
  for image, y in zip(after.x_train[:50], after.y_train):
    halves = [label[np.ascontiguousarray(half).tobytes()] for half in np.split(image, 2, axis=1)]
    assert y == 10 * halves[0] + halves[1]
