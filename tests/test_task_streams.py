"""Streams of tasks as data: what is drawn, and from what."""
import dataclasses

import numpy as np
import pytest
from task_data import PARTS, images, make, parts, same

from alma_jax.data import image_changes, stand_ins, task_sources


@pytest.mark.parametrize("name", ["s_minus", "s_in", "digits"])
def test_arrays_are_what_the_infos_say(name):
  stream = make(name)
  assert len({info.name for info in stream.infos}) == len(stream) == dict(s_minus=6, s_in=6, digits=8)[name]
  for t, info in enumerate(stream.infos):
    seen = []
    for part, num in zip(PARTS, info[3:]):
      x, y = parts(stream.task(t))[part]
      assert x.shape == (num, *stream.image_shape)
      assert (x.dtype, y.dtype) == (np.uint8, np.int32)
      per_class = np.bincount(y, minlength=len(info.class_names))
      assert len(per_class) == len(info.class_names)
      assert len(set(per_class)) == 1
      seen += [image.tobytes() for image in x]
    if name == "s_minus" or t == 0:  # on a colour, light and dark pixels of noise coincide
      assert len(set(seen)) == len(seen)  # no example is in two parts, or twice in one


@pytest.mark.parametrize("name", ["s_plus", "digits"])
def test_a_task_depends_on_name_seed_and_number_alone(name):
  stream, again, other = make(name), make(name), make(name, seed=1)
  assert stream.fingerprint == again.fingerprint != other.fingerprint
  backwards = {t: again.task(t) for t in reversed(range(len(again)))}
  for t in range(len(stream)):
    assert same(stream.task(t), backwards[t])
    assert not same(stream.task(t), other.task(t))
  short = make(name, num_tasks=2, test_per_class=5)  # instead of 6
  assert len(short) == 2
  assert short.fingerprint != stream.fingerprint
  assert same(short.task(1)[:4], stream.task(1)[:4])
  assert short.infos[1].num_test == 5 * len(short.infos[1].class_names) == len(short.task(1).x_test)


def test_tasks_are_kept_for_a_while_and_cannot_be_written_to():
  stream = make("digits")
  first = stream.task(0)
  assert stream.task(0) is first
  with pytest.raises(ValueError, match="read-only"):
    first.x_train[0] = 0
  stream.task(1)
  stream.task(2)
  assert stream.task(0) is not first


def test_the_short_streams():
  small, large = (400, 200), (4000, 2000)
  names = ["cifar10", "mnist", "dtd-like", "fashion-like", "svhn-like", "cifar10"]
  for name, sizes in {"s_minus": [large, *[small] * 5], "s_plus": [*[small] * 5, large],
                      "s_out": [large, *[small] * 5], "s_pl": [*[small] * 4, large]}.items():
    stream = make(name)
    assert [info[3:5] for info in stream.infos] == sizes
    assert [info.name.split()[1] for info in stream.infos] == (names if name != "s_pl" else names[1:])
    assert stream.image_shape == (32, 32, 3)
  first, last = (make("s_minus").task(t) for t in (0, 5))
  assert not {image.tobytes() for image in last.x_train} <= {image.tobytes() for image in first.x_train}


def test_labels_that_are_shifted():
  stream = make("s_out")
  first, last = stream.task(0), stream.task(5)
  assert (first.x_train[:, 0, 0, 0] == first.y_train).all()
  for x, y in parts(last).values():
    np.testing.assert_array_equal(y, (x[:, 0, 0, 0].astype(int) + 9) % 10)  # class 0 has label 9, class 1 label 0
    assert [stream.infos[5].class_names[label] for label in y] == [str(label) for label in x[:, 0, 0, 0]]


def test_colours_of_backgrounds():
  stream = make("s_in")
  assert [info[3:5] for info in stream.infos] == [(4000, 2000), *[(400, 200)] * 4, (50, 30)]
  colours = [stream.task(t).x_train[0, 0, 0] for t in (0, 5)]  # MNIST is padded, so this pixel was black
  assert np.abs(colours[0].astype(int) - colours[1]).max() > 50
  assert [stream.is_normalized(t) for t in range(6)] == [False, True, True, True, True, False]
  x = np.array([0, 100, 255], np.uint8)[None, None, :, None].repeat(3, -1)
  changed = image_changes.apply(x, [("colour", 1.0, 0.5, 0.0)], 0)
  assert changed.tolist() == [[[[255, 128, 0], [255, 178, 100], [255, 255, 255]]]]  # 100 + 155 / 2 = 177.5


def test_the_long_stream():
  stream = make("s_long", given=images(1500, 100, blank=True))
  assert len(stream) == 100
  assert {info.name.split()[1] for info in stream.infos} == {
      "mnist", "cifar10", "svhn-like", "fashion-like", "cifar100-like"}
  assert {len(set(info.class_names)) for info in stream.infos} == {5}
  large = [info[3:5] == (5000, 2500) for info in stream.infos]
  assert all(big or info[3:5] == (25, 15) for big, info in zip(large, stream.infos))
  assert sum(large[66:]) == 0
  seeds = [[info.num_train > 25 for info in make("s_long", seed, given=images(1500, 100, blank=True)).infos]
           for seed in range(40)]
  for part, expected in (slice(33), 1 / 2), (slice(33, 66), 1 / 4):  # 1,320 draws: 0.014 is one standard deviation
    assert abs(np.mean([of_seed[part] for of_seed in seeds]) - expected) < 0.06


def test_nevis_mini():
  stream = make("nevis_mini", given=images(5400, 100, blank=True))
  assert len(stream) == 24
  assert len({info.family for info in stream.infos}) == 5
  assert (min(info.num_train for info in stream.infos), max(info.num_train for info in stream.infos)) == (50, 50_000)
  assert len({len(info.class_names) for info in stream.infos}) >= 4
  returning = {t: info.returns for t, info in enumerate(stream.infos) if info.name.endswith(" again")}
  assert returning == {t: info.returns for t, info in enumerate(stream.infos) if info.returns is not None}
  assert len(returning) == 2
  for t, first in returning.items():
    assert stream.infos[t][1:-1] == stream.infos[first][1:-1]


def test_the_digits_stream():
  stream = make("digits", given=None, test_per_class=0)
  assert stream.image_shape == (8, 8, 1)
  assert same(stream.task(0), stream.task(4))
  assert not same(stream.task(0), stream.task(6))
  assert stream.task(0).x_train.max() == 255
  rotated, shifted = stream.task(3), stream.task(6)
  known = {image.tobytes(): label for t in (1, 3) for image, label in zip(
      np.rot90(stream.task(t).x_test, {1: 1, 3: 0}[t], (1, 2)), stream.task(t).y_test)}
  assert [known[image.tobytes()] for image in rotated.x_test] == rotated.y_test.tolist()
  plain = {image.tobytes(): label for image, label in zip(stream.task(0).x_test, stream.task(0).y_test)}
  assert [(plain[image.tobytes()] - 1) % 5 for image in shifted.x_test] == shifted.y_test.tolist()


def test_changes():
  x = np.random.default_rng(0).integers(256, size=(4, 8, 8, 3), dtype=np.uint8)
  apply = lambda *changes, seed=0: image_changes.apply(x, changes, seed)
  assert (apply(*[("rotate", 1)] * 4) == x).all()
  assert (apply(("invert",), ("invert",)) == x).all()
  assert len(np.unique(apply(("grey",)), axis=-1)[0, 0, 0]) == 1
  for name in ("permute", "tiles"):
    moved = apply((name, 1))
    assert (moved != x).any()
    pixels = [np.sort(a.reshape(4, 64, 3).view([("", "u1")] * 3), axis=1) for a in (moved, x)]
    assert (pixels[0] == pixels[1]).all()  # the same pixels at other places
    assert (moved != apply((name, 2))).any()
    assert (moved != apply((name, 1), seed=1)).any()
  tile = apply(("tiles", 1))[0, :2, :2]  # 16 tiles of 2x2 pixels
  assert sum((tile == x[0, i:i + 2, j:j + 2]).all() for i in range(0, 8, 2) for j in range(0, 8, 2)) == 1


@pytest.mark.parametrize("name", ["svhn", "fashion", "dtd", "cifar100", "digits32"])
def test_stand_ins_depend_on_the_index_alone(name):
  one, two = (task_sources.Sources("", "stand_ins", images())[name] for _ in range(2))
  index = np.random.default_rng(0).permutation(150)
  for split in one.labels:
    known = index[index < len(one.labels[split])]  # of mnist, cifar10 and digits there are 60 to 360 test images
    x = one.images(split, known)
    assert x.shape == (len(known), 32, 32, 3)
    assert (two.images(split, known[::-1])[::-1] == x).all()
    assert (one.images(split, known[7:8]) == x[7:8]).all()
  assert (one.images("train", index[:5]) != one.images("test", index[:5] % 50)).any()


def test_edges():
  x = np.zeros((2, 32, 32, 3), np.uint8)
  x[1, :, 16:] = 200
  found = stand_ins.edges(x)
  assert not found[0].any()
  assert found[1, 3, :, 0].tolist() == [0] * 15 + [255] * 2 + [0] * 15  # on both sides of the step


def test_digits_on_photos():
  data = images(60)
  black = data["mnist"].x_train * 0
  mnist = dataclasses.replace(data["mnist"], x_train=black)
  grey = dataclasses.replace(data["cifar10"], x_train=data["cifar10"].x_train * 0 + 90)
  assert (stand_ins.Numbers(mnist, grey).images("train", np.arange(70)) == 90).all()  # nothing is written
  black[:, 10:18, 10:18] = 255
  drawn = stand_ins.Numbers(mnist, grey).images("train", np.arange(70)).astype(int)
  assert (np.abs(drawn[:, 16, 16] - 90).max(-1) > 0.14 * 255).all()  # contrast of 0.35 at least, less a tint of 0.2
  assert (drawn[:, :6] == 90).all()


def test_textures_have_classes_that_pixels_alone_do_not_tell():
  made, rng = stand_ins.Textures(), np.random.default_rng(0)
  x, y = {}, {}
  for split in PARTS[::2]:
    index = rng.permutation(len(made.labels[split]))[:600]
    x[split], y[split] = made.images(split, index).astype(np.float32).mean(-1), made.labels[split][index]

  def accuracy(feature):
    features = {split: feature(of_split).reshape(len(of_split), -1) for split, of_split in x.items()}
    means = np.stack([features["train"][y["train"] == label].mean(0) for label in range(10)])
    distances = ((features["test"][:, None] - means[None])**2).sum(-1)
    return (distances.argmin(1) == y["test"]).mean()

  assert accuracy(lambda x: x) < 0.2
  normed = lambda x: np.abs(x - x.mean((1, 2), keepdims=True)) / x.std((1, 2), keepdims=True)
  assert 0.5 < accuracy(lambda x: np.sort(normed(x).reshape(len(x), -1))) < 0.9  # how much is dark, light or between
