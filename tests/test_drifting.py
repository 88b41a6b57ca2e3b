"""Streams that change: each does what it says to its mega-batches, and to the test set that goes with them."""
import json
import re

import numpy as np
import pytest
from runs import ROOT, alma, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.config.registry import DRIFTS, IMAGES
from alma_jax.data import datasets, drifting
from alma_jax.problems import changing

NUM, SIZE, K = 6, 200, 4
Y = np.arange(80) % K
# The pixel in place p of an image of class k is 15 p + k, so that it says where it comes from.
X = (15 * np.arange(16).reshape(4, 4) + Y[:, None, None]).astype(np.uint8)


def data_of(x=X, y=Y):
  return datasets.from_arrays("data", dict(x_train=x, y_train=y, x_test=x[:40], y_test=y[:40]))


def made(name, num=NUM, size=SIZE, seed=0, data=None, **fields):
  return drifting.Drawn(DRIFTS[IMAGES][name](**fields), data or data_of(), num, size, seed)


def parts(stream, num=NUM):
  """(x, y) of each mega-batch, then of the test set of each."""
  x, y = stream.dataset.x_train, stream.dataset.y_train
  return [*zip(np.split(x, num), np.split(y, num)), *(stream.test(t) for t in range(1, num + 1))]


BEFORE = parts(made("stationary"))


@pytest.mark.parametrize(("name", "fields", "moved"), [
    ("stationary", {}, [0, 0, 0, 0, 0, 0]), ("relabel", {}, [0, 0, 0, 1, 1, 1]),
    ("relabel", {"change_at": 0.8}, [0, 0, 0, 0, 0, 1]), ("recur_labels", {"phases": 3}, [0, 0, 1, 1, 0, 0]),
    ("concepts", {}, [0, 1, 2, 0, 1, 2])])
def test_labels_move_on(name, fields, moved):
  for (x, y), (x_before, y_before), number in zip(parts(made(name, **fields)), BEFORE, 2 * moved, strict=True):
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(y, (y_before + number) % K)


def test_random_labels_are_a_cycle_of_all_classes():
  cycles = set()
  for seed in range(8):
    (_, before), (_, after) = (parts(made(name, seed=seed, **fields))[-1] for name, fields in (
        ("stationary", {}), ("relabel", {"labels": "random"})))
    following = dict(zip(before.tolist(), after.tolist()))
    assert [following[k] for k in before] == after.tolist()
    cycles.add((first := following[0], second := following[first], third := following[second]))
    assert {first, second, third} == {1, 2, 3}  # one after the other, and then 0 again
    assert following[third] == 0
  assert len(cycles) > 1


@pytest.mark.parametrize(("name", "fields", "changed"), [
    ("permute", {}, [0, 0, 0, 1, 1, 1]), ("recur_inputs", {"phases": 2}, [0, 0, 0, 1, 1, 1]),
    ("recur_inputs", {}, [0, 1, 0, 1, 0, 1])])
def test_pixels_are_permuted_always_alike(name, fields, changed):
  orders = set()
  for (x, y), (_, y_before), is_changed in zip(parts(made(name, **fields)), BEFORE, 2 * changed, strict=True):
    np.testing.assert_array_equal(y, y_before)
    places = (x // 15).reshape(len(x), 16)
    assert (places == places[0]).all()
    np.testing.assert_array_equal(x.reshape(len(x), 16) - 15 * places, np.tile(y[:, None], 16))
    orders.add((is_changed, *places[0].tolist()))
  assert len(orders) == 2
  assert (0, *range(16)) in orders
  assert all(sorted(places) == [*range(16)] for _, *places in orders)


def test_contrast_is_inverted():
  for (x, _), (before, _), is_changed in zip(parts(made("invert")), BEFORE, 2 * [0, 0, 0, 1, 1, 1], strict=True):
    np.testing.assert_array_equal(x, 15 * 15 + 3 - before if is_changed else before)


def test_images_turn_counter_clockwise():
  stream = parts(made("rotate", 3, 2 * SIZE, degrees=180.0), 3)
  for (x, _), (before, _), turns in zip(stream, parts(made("stationary", 3, 2 * SIZE), 3), 2 * [0, 1, 2], strict=True):
    np.testing.assert_array_equal(x, np.rot90(before, turns, axes=(1, 2)))
  line = np.zeros((1, 5, 5, 1), np.float32)
  line[:, 2] = 1
  half = drifting.rotated(line, 45, 0)[0, ..., 0]
  assert half[2, 2] == 1
  np.testing.assert_allclose(half, half[::-1, ::-1], atol=1e-6)  # a line through the centre
  assert half[1, 3] == half[3, 1] > 0.5 > 0.1 > half[1, 1]  # from the lower left to the upper right


def test_classes_arrive_and_are_tested():
  seen = [set(y.tolist()) for _, y in parts(made("classes", phases=3))]
  assert seen == 2 * [{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3}]
  assert len(made("classes", phases=3).test(1)[1]) == 20  # all test examples of these classes


def near(count, num, share):
  """Whether it is within four standard errors."""
  return abs(count / num - share) <= 4 * np.sqrt(share * (1 - share) / num)


def test_labels_are_noisy_in_training_alone():
  for i, ((x, y), (x_before, y_before)) in enumerate(zip(parts(made("noise", strength=0.5)), BEFORE, strict=True)):
    np.testing.assert_array_equal(x, x_before)
    assert near((y != y_before).sum(), SIZE, 0.5 * (K - 1) / K) if i < NUM else (y == y_before).all()


def test_classes_are_imbalanced_in_training_alone():
  shares = np.array([27, 9, 3, 1]) / 40
  for i, (_, y) in enumerate(parts(made("imbalance", ratio=27.0))):
    counts = np.bincount(y, minlength=K)
    assert all(map(near, counts, [SIZE] * K, shares)) if i < NUM else counts.tolist() == [10] * K


def test_shares_change_and_are_tested():
  for i, (_, y) in enumerate(parts(made("shares", ratio=8.0, phases=2))):
    counts = np.bincount(y, minlength=K)[::-1 if i % NUM >= 3 else 1]
    assert all(map(near, counts, [SIZE] * K, np.array([8, 4, 2, 1]) / 15)) if i < NUM else (
        counts.tolist() == [10, 5, 3, 2])  # of ten, rounded up


@pytest.mark.parametrize("name", ["mix", "mix_inputs"])
def test_a_slow_mixture(name):
  shares = [1 / (1 + np.exp(-4 * (t - 3.5) / 3)) for t in range(1, NUM + 1)]  # the width is half of six
  assert shares[1::3] == pytest.approx([0.12, 0.88], abs=0.001)
  for (x, y), (x_before, y_before), share in zip(parts(made(name)), BEFORE, 2 * shares, strict=True):
    is_new = (x != x_before).any((1, 2, 3)) | (y != y_before)
    assert near(is_new.sum(), len(y), share)


@pytest.mark.parametrize("name", sorted(DRIFTS[IMAGES]))
def test_a_stream_follows_from_its_seed(name):
  first, again, other = (made(name, seed=seed) for seed in (5, 5, 6))
  for (x, y), (x_again, y_again) in zip(parts(first), parts(again), strict=True):
    np.testing.assert_array_equal(x, x_again)
    np.testing.assert_array_equal(y, y_again)
  assert (first.dataset.y_train != other.dataset.y_train).any()


def test_examples_come_again_only_when_their_class_is_used_up():
  x = np.arange(80, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
  stream = made("stationary", 4, 40, data=data_of(x))
  counts = np.bincount(stream.dataset.x_train[:, 0].astype(int), minlength=80)
  for k in range(K):
    of_class = counts[k == Y]
    assert of_class.max() - of_class.min() <= 1
  assert counts.sum() == 160


def test_as_many_test_examples_as_allowed():
  stream = drifting.Drawn(drifting.Relabel(), data_of(), NUM, SIZE, 0, test_size=10)
  assert len(stream.test(1)[1]) == 10


def changing_config(tmp_path, arrays, learner="gens", **changes):
  np.savez(tmp_path / "a.npz", **dict(zip(datasets.ARRAYS, arrays)))
  return small_config(learner, **{
      "dataset__name": f"drift:npz:{tmp_path / 'a.npz'}", "dataset__change": "relabel", "dataset__megabatch_size": 30,
      "stream__num_megabatches": 6, "stream__waiting_time": 2, **changes})


def test_every_line_is_about_the_test_set_of_its_mega_batch(tmp_path, arrays):
  """Also of learners whose members' predictions are kept, and where the learner waits."""
  config = changing_config(tmp_path, arrays, dataset__change="invert", dataset__change_at=0.4, train__epochs=20,
                           checkpoint__keep_every=1)
  run, source = alma_jax.run(config, tmp_path / "run"), changing.Changing(configs.parse(config))
  for line in run.lines[1:]:
    x, y = source.test_arrays(line["t"])
    assert line["error"] == pytest.approx((run.predict(x, stage=line["stage"]).argmax(1) != y).mean())
    x, y = source.arrays(line["t"])
    if line["t"] > 2:
      before = run.lines[line["t"] - 2]["stage"]
      assert line["prequential_error"] == pytest.approx((run.predict(x, stage=before).argmax(1) != y).mean())
  assert [line["updated"] for line in run.lines] == [False, True] * 3
  assert run.lines[2]["error"] > 0.5 > run.lines[1]["error"]  # the images change, and it waits
  done = alma("evaluate", "--workdir", tmp_path / "run", "--out", tmp_path / "scores.json")
  assert done.returncode == 0, done.stderr
  scored = json.loads((tmp_path / "scores.json").read_text())
  assert scored["error"] == pytest.approx(run.summary["final_error"])


def test_the_same_mega_batches_as_a_live_stream(tmp_path, arrays):
  config = changing_config(tmp_path, arrays)
  source, fields = changing.Changing(configs.parse(config)), [
      f"--config.dataset.name={config.dataset.name}", "--config.dataset.megabatch_size=30",
      "--config.stream.num_megabatches=6"]
  done = alma("stream", tmp_path / "live", "--config=drift:sm,relabel", *fields)
  assert done.returncode == 0, done.stderr
  assert sorted(path.name for path in (tmp_path / "live").iterdir()) == ["end", "stream"]
  files = sorted((tmp_path / "live" / "stream").iterdir())
  assert [path.name for path in files] == [f"000{t}.npz" for t in range(1, 7)]
  for t, path in enumerate(files, 1):
    with np.load(path) as entry:
      for one, other in zip((entry["x"], entry["y"]), source.arrays(t), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
  done = alma("stream", tmp_path / "fixed", "--config=drift:sm,noise", *fields)
  with np.load(tmp_path / "fixed" / "test.npz") as entry:
    np.testing.assert_array_equal(entry["x"], source.test_arrays(1)[0])


def test_the_concepts_of_river():
  tree = configs.load_file("configs/drift.py", "sm,river:SEA")
  tree["dataset"] |= dict(concepts=(2, 0), megabatch_size=50)
  tree["stream"]["num_megabatches"] = 4
  source = changing.Changing(configs.parse(tree))
  assert [source.test_at(t) for t in range(1, 5)] == [2, 2, 0, 0]
  for t, most in enumerate([7, 7, 8, 8], 1):  # the class is 1 if the first two columns are larger together
    for x, y in (source.arrays(t), source.test_arrays(t)):
      np.testing.assert_array_equal(y, x[:, 0] + x[:, 1] > most)
  assert (source.arrays(1)[0] != source.arrays(3)[0]).all()
  tree["dataset"] |= dict(name="river:Hyperplane", concepts=())
  source = changing.Changing(configs.parse(tree))
  assert [source.test_at(t) for t in range(1, 5)] == [1, 2, 3, 4]
  assert len({len(source.test_arrays(t)[1]) for t in range(1, 5)}) == 1


def test_the_stream_of_the_page(tmp_path):
  (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/changing-streams.md").read_text(), re.DOTALL)
  (tmp_path / "dusk.py").write_text(code)
  tree = configs.load_file(str(tmp_path / "dusk.py"), "sm")
  source = changing.Changing(configs.parse(tree))
  dark, bright = (source.test_arrays(t)[0].astype(float) for t in (20, 1))
  np.testing.assert_allclose(dark, np.floor(0.2 * bright), atol=1)
  assert "\n    alma run --config=dusk.py:sm" in (ROOT / "docs/changing-streams.md").read_text()


def test_the_config_has_every_stream():
  page = (ROOT / "docs/changing-streams.md").read_text()
  about = (ROOT / "configs/drift.py").read_text()
  for name in DRIFTS[IMAGES]:
    assert f"| `{name}` |" in page
    assert re.search(rf"\b{name}\b", about)
    assert configs.load_file("configs/drift.py", f"anytime,{name}")["dataset"]["change"] == name
