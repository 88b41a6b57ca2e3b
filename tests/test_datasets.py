"""Data sets: what is accepted, what is refused, what is cached."""
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from alma_jax.data import array_cache, datasets, folder_arrays, tfds_arrays
from alma_jax.errors import BadInput


def save(path, **changes):
  x, y = np.zeros((6, 4, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2])
  arrays = dict(x_train=x, y_train=y, x_test=x, y_test=y) | changes
  np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
  return f"npz:{path}"


def test_digits_are_split_80_20_with_all_classes_alike():
  data = datasets.load("digits", seed=3)
  assert data.x_train.shape == (1437, 8, 8, 1)
  assert data.x_test.shape == (360, 8, 8, 1)
  assert data.x_train.dtype == np.uint8
  assert data.num_classes == 10
  shares = [np.bincount(y, minlength=10) / len(y) for y in (data.y_train, data.y_test)]
  assert np.abs(shares[0] - shares[1]).max() < 1 / 360  # stratified: off by less than one image
  assert data.fingerprint == datasets.load("digits", seed=3).fingerprint
  assert data.fingerprint != datasets.load("digits", seed=4).fingerprint


@pytest.mark.parametrize(("shape", "kept"), [((4, 4), (4, 4, 1)), ((4, 4, 3), (4, 4, 3)), ((5,), (5,))])
@pytest.mark.parametrize(("given", "dtype"), [(np.uint8, np.uint8), (np.float32, np.float32), (np.float64, np.float32)])
def test_npz_shapes_and_dtypes(tmp_path, shape, kept, given, dtype):
  x = np.ones((6, *shape), given)
  data = datasets.load(save(tmp_path / "a.npz", x_train=x, x_test=x))
  assert data.x_train.shape == (6, *kept)
  assert data.x_train.dtype == dtype
  assert data.y_train.dtype == np.int32
  assert data.num_classes == 3
  assert data.normalization is None


X = np.zeros((6, 4, 4), np.float32)
BAD = [
    (dict(y_test=None), "lacks the arrays y_test; it holds x_test, x_train, y_train"),
    (dict(y_train=np.zeros(5, int)), "6 examples but 5 labels in its train split"),
    (dict(y_train=np.array([0, 1, -1, 0, 1, 2])), "y_train of .* negative label -1"),
    (dict(y_test=np.array([0, 1, 0.5, 0, 1, 2])), "y_test of .* not whole"),
    (dict(y_test=np.array(list("abcabc"))), "not whole"),
    (dict(y_test=np.array([0, 1, np.nan, 0, 1, 2])), "not whole"),
    (dict(x_train=np.where(np.arange(96).reshape(6, 4, 4) == 7, np.nan, X), x_test=X), "x_train of .* NaN"),
    (dict(x_test=np.zeros((0, 4, 4), np.uint8), y_test=np.zeros(0, int)), "x_test of .* is empty"),
    (dict(x_train=np.zeros((0, 4, 4), np.uint8), y_train=np.zeros(0, int)), "x_train of .* is empty"),
    (dict(x_train=np.zeros((6, 4, 4), np.int64)), "dtype int64; uint8 and float32"),
    (dict(x_train=np.zeros(6, np.uint8)), r"shape \(6,\)"),
    (dict(x_test=np.zeros((6, 4, 5), np.uint8)), "test examples of shape"),
    (dict(y_train=np.zeros((6, 1), int)), r"labels are \[N\]"),
    (dict(y_train=np.zeros(6, int), y_test=np.zeros(6, int)), "a single class"),
    (dict(y_train=np.array([0, 1, 2, 0, 1, 10**9])), "would mean as many classes"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_unusable_arrays_are_refused(tmp_path, changes, sentence):
  with pytest.raises(BadInput, match=sentence):
    datasets.load(save(tmp_path / "a.npz", **changes))


def test_a_class_without_training_examples_is_told(tmp_path):
  y = np.array([1, 2, 3, 1, 2, 3])
  with pytest.warns(UserWarning, match="no training example of class 0; labels count classes from 0"):
    datasets.load(save(tmp_path / "a.npz", y_train=y, y_test=y))


def test_files_that_are_no_npz(tmp_path):
  with pytest.raises(BadInput, match="there is no file"):
    datasets.load(f"npz:{tmp_path}/none.npz")
  (tmp_path / "text.npz").write_text("hello")
  with pytest.raises(BadInput, match="is not an .npz file"):
    datasets.load(f"npz:{tmp_path}/text.npz")
  np.savez(tmp_path / "objects.npz", **{name: np.array([{}, {}]) for name in datasets.ARRAYS})
  with pytest.raises(BadInput, match="is not an .npz file of plain arrays"):
    datasets.load(f"npz:{tmp_path}/objects.npz")


@pytest.mark.parametrize("name", ["imagenet", "npz:", "tfds:", ""])
def test_unknown_names_list_the_known(name):
  with pytest.raises(BadInput, match="there are digits, mnist, cifar10, tfds:NAME, npz:PATH and folder:DIR"):
    datasets.load(name)


@pytest.mark.parametrize(("name", "shape", "known"), [
    ("mnist", (28, 28, 1), True), ("cifar10", (32, 32, 3), True), ("tfds:mnist", (28, 28, 1), True)])
def test_prepared_tfds_folders(tfds_dir, name, shape, known):
  data = datasets.load(name, str(tfds_dir))
  assert data.x_train.shape == (120, *shape)
  assert data.x_test.shape == (30, *shape)
  assert np.bincount(data.y_train).tolist() == [40, 40, 40]
  assert (data.normalization is not None) == known
  assert data.class_names is None  # the stand-ins have numbers alone
  if name == "cifar10":  # §0, in units of the pixels
    np.testing.assert_allclose(data.normalization[0] / 255, [0.4914, 0.4822, 0.4465], rtol=1e-6)


def test_tfds_names_of_classes(tfds_dir, tmp_path):
  (folder,) = (tfds_dir / "mnist").glob("*")
  copied = tmp_path / "mnist" / folder.name
  shutil.copytree(folder, copied)
  (copied / "label.labels.txt").write_text("zero\none\ntwo\n")
  assert datasets.load("mnist", str(tmp_path)).class_names == ("zero", "one", "two")


def test_decoded_arrays_are_cached_and_tfds_is_not_imported_again(tfds_dir):
  first = datasets.load("mnist", str(tfds_dir))
  code = ("import sys\nfrom alma_jax.data import datasets\n"
          f"data = datasets.load('mnist', {str(tfds_dir)!r})\n"
          "assert 'tensorflow_datasets' not in sys.modules\nprint(data.fingerprint)")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == first.fingerprint == datasets.fingerprint_of(
      {key: getattr(first, key) for key in ("x_train", "y_train", "x_test", "y_test")})


def test_a_read_only_folder_is_cached_elsewhere(tfds_dir, tmp_path, monkeypatch):
  folder = tmp_path / "root" / "mnist"
  folder.mkdir(parents=True)
  (folder / "1.0.0").symlink_to(next((tfds_dir / "mnist").glob("*")))
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  real = array_cache._write
  monkeypatch.setattr(array_cache, "_write", lambda cache, *rest: (
      False if cache.name == tfds_arrays._CACHE else real(cache, *rest)))
  monkeypatch.setattr(tfds_arrays, "_CACHE", "not_there_yet")
  first = datasets.load("mnist", str(tmp_path / "root"))
  (cache,) = (tmp_path / "cache" / "alma_jax").iterdir()
  assert (cache / "x_train.npy").exists()
  monkeypatch.setattr(tfds_arrays, "_decode", lambda *unused: pytest.fail("decoded again"))
  assert datasets.load("mnist", str(tmp_path / "root")).fingerprint == first.fingerprint


def test_a_changed_folder_is_decoded_anew(tfds_dir, monkeypatch):
  datasets.load("mnist", str(tfds_dir))
  (folder,) = (tfds_dir / "mnist").glob("*")
  info = folder / "dataset_info.json"
  os.utime(info, ns=(info.stat().st_atime_ns, info.stat().st_mtime_ns + 1))
  decoded = []
  real = tfds_arrays._decode
  monkeypatch.setattr(tfds_arrays, "_decode", lambda *args: decoded.append(1) or real(*args))
  datasets.load("mnist", str(tfds_dir))
  assert decoded == [1]


def test_a_given_data_dir_is_never_downloaded_into(tmp_path, monkeypatch):
  monkeypatch.setattr(tfds_arrays, "_download", lambda *unused: pytest.fail("tried to download"))
  with pytest.raises(BadInput, match="holds no prepared TFDS data set 'mnist'"):
    datasets.load("mnist", str(tmp_path))
  assert not list(tmp_path.iterdir())


def pictures(root, colours, size=(3, 2), mode="L", num=5):
  """`num` pictures of one colour for every class {folder: colour}."""
  from PIL import Image
  for name, colour in colours.items():
    (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(num):
      Image.new(mode, size, colour).save(root / name / f"{i}.png")
  return root


def test_folders_of_images(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  pictures(tmp_path / "a/train", {"dog": 10, "cat": 20})
  pictures(tmp_path / "a/test", {"dog": 30, "cat": 40}, num=2)
  data = datasets.load(f"folder:{tmp_path}/a")
  assert data.x_train.shape == (10, 2, 3, 1)
  assert data.class_names == ("cat", "dog")
  assert (data.x_train[:, 0, 0, 0].tolist(), data.y_train.tolist()) == ([20] * 5 + [10] * 5, [0] * 5 + [1] * 5)
  assert (data.x_test[:, 1, 2, 0].tolist(), data.y_test.tolist()) == ([40, 40, 30, 30], [0, 0, 1, 1])
  monkeypatch.setattr(folder_arrays, "_decode", lambda *unused: pytest.fail("decoded again"))
  assert datasets.load(f"folder:{tmp_path}/a").fingerprint == data.fingerprint


def test_folders_without_a_test_set(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  pictures(tmp_path / "a", {"red": (255, 0, 0), "blue": (0, 0, 255)}, mode="RGB", num=10)
  pictures(tmp_path / "a", {"grey": 9}, num=4)
  data = datasets.load(f"folder:{tmp_path}/a", seed=1)
  assert data.x_train.shape == (8 + 8 + 3, 2, 3, 3)  # one colour picture makes all of them colour
  assert np.bincount(data.y_test).tolist() == [2, 1, 2]  # blue, grey, red
  assert data.x_train[data.y_train == 2][0, 0, 0].tolist() == [255, 0, 0]
  assert datasets.load(f"folder:{tmp_path}/a", seed=1).fingerprint == data.fingerprint


def test_folders_that_cannot_be_used(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  cases = {}
  cases["half"] = (pictures(tmp_path / "half/train", {"a": 1, "b": 2}).parent, "has a folder train and not the other")
  cases["one"] = (pictures(tmp_path / "one", {"a": 1}), "holds images of 1 classes; each class wants a folder")
  pictures(tmp_path / "odd/train", {"a": 1, "b": 2, "c": 3})
  cases["odd"] = (pictures(tmp_path / "odd/test", {"a": 1, "b": 2}).parent, "the classes c of .* are not in both")
  pictures(tmp_path / "sizes", {"a": 1})
  cases["sizes"] = (pictures(tmp_path / "sizes", {"b": 1}, size=(4, 4)), "a/0.png' has 3x2 pixels, .*b/0.png' 4x4")
  cases["few"] = (pictures(tmp_path / "few", {"a": 1, "b": 1}, num=1), "a class has a single image")
  cases["deep"] = (pictures(tmp_path / "deep", {"a": 1, "b": 1}, mode="I;16"), "pixels of the kind 'I;16'")
  cases["torn"] = (pictures(tmp_path / "torn", {"a": 1, "b": 2}), "b/0.png' is no image that can be read")
  (tmp_path / "torn/b/0.png").write_bytes(b"\x89PNG")
  cases["none"] = (tmp_path / "none", "there is no folder .* to read images from")
  for folder, sentence in cases.values():
    with pytest.raises(BadInput, match=sentence):
      datasets.load(f"folder:{folder}")
