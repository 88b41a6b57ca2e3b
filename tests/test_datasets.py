"""Data sets: what is accepted, what is refused, what is cached."""
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import alma_jax
from alma_jax import config as configs
from alma_jax import files, keys
from alma_jax.data import cache, datasets, image_file, labels, tfds_folder
from alma_jax.data.sets import tfds_images
from alma_jax.errors import BadInput
from alma_jax.problems import classification


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(path, **changes):
  x, y = np.zeros((6, 4, 4), np.uint8), np.array([0, 1, 2, 0, 1, 2])
  arrays = dict(x_train=x, y_train=y, x_test=x, y_test=y) | changes
  np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
  return f"npz:{path}"


def test_digits_are_split_80_20_with_all_classes_alike():
  data = datasets.load("digits")
  assert data.x_train.shape == (1437, 8, 8, 1)
  assert data.x_test.shape == (360, 8, 8, 1)
  assert data.x_train.dtype == np.uint8
  assert data.num_classes == 10
  shares = [np.bincount(y, minlength=10) / len(y) for y in (data.y_train, data.y_test)]
  assert np.abs(shares[0] - shares[1]).max() < 1 / 360  # stratified: off by less than one image
  assert data.fingerprint == datasets.load("digits").fingerprint


def test_the_seed_decides_the_stream_and_not_the_test_set(tmp_path, make_config):
  for label, name in enumerate("ab"):
    for i in range(50):
      pictures_of(tmp_path / "images" / name, {f"{i:02d}.png": 100 * label + i})
  for name in ("digits", f"folder:{tmp_path}/images"):
    made = [classification.Images(configs.parse(make_config(dataset__name=name, seed=seed))) for seed in (0, 1)]
    assert made[0].fingerprint == made[1].fingerprint
    assert (made[0].memory.stage((2,)).train != made[1].memory.stage((2,)).train).any()
  # What seed 0 always drew: the first fifth of a permutation of each class.
  drawn = [100 * label + keys.rng(0, keys.STREAM, label).permutation(50)[:10] for label in (0, 1)]
  assert sorted(made[0].dataset.x_test[:, 0, 0, 0]) == sorted(np.concatenate(drawn))


X = np.zeros((6, 4, 4), np.float32)


@pytest.mark.parametrize(("y_train", "y_test", "sentence"), [
    ("abcabc", [0, 1, 2, 0, 1, 2], "the training label 'a' and the test label '0', but"),
    ("abcabc", "abdabd", "the class d only in its test part")])
def test_labels_of_both_parts_go_together(y_train, y_test, sentence):
  with pytest.raises(BadInput, match=sentence):
    datasets.from_arrays("data", dict(x_train=X, y_train=list(y_train), x_test=X, y_test=list(y_test)))


@pytest.mark.parametrize("named", [list, tuple, np.array, lambda y: np.array(y, object), lambda y: np.array(y, "S")])
def test_names_of_classes_in_python(named):
  data = datasets.from_arrays("data", dict(x_train=X, y_train=named([*"bcabca"]), x_test=X[:2], y_test=named([*"ca"])))
  assert (data.class_names, data.y_train.tolist()) == (("a", "b", "c"), [1, 2, 0, 1, 2, 0])
  assert (data.num_classes, data.y_test.tolist()) == (3, [2, 0])  # the test set lacks b


def test_names_that_are_the_same_are_one_class():
  named = ["cat", "cat ", "\u00e9t\u00e9", "e\u0301te\u0301", "cat", "\u00e9t\u00e9"]
  y_test = np.array(named[2:4], np.dtypes.StringDType())
  data = datasets.from_arrays("data", dict(x_train=X, y_train=named, x_test=X[:2], y_test=y_test))
  assert (data.class_names, data.y_train.tolist()) == (("cat", "\u00e9t\u00e9"), [0, 0, 1, 1, 0, 1])
  assert data.y_test.tolist() == [1, 1]


def test_two_declared_classes_of_one_name_stay_apart():
  names = ("crane", "dog", "crane")
  parts = labels.of_parts(*(labels.Labels(np.array(numbers), names, True) for numbers in ([0, 1, 2], [2, 0, 1])))
  assert [part.numbers.tolist() for part in parts] == [[0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize("rows", [[[1, 0], [0, 1]] * 3, [[1, 0], [0]] * 3])
def test_labels_that_are_lists_are_refused(rows):
  y = np.empty(6, object)
  y[:] = rows
  with pytest.raises(BadInput, match=r"labels are \[N\], one for each example"):
    datasets.from_arrays("data", dict(x_train=X, y_train=y, x_test=X, y_test=[*"abcabc"]))


@pytest.mark.parametrize("y", [
    [*"abcab", 2], [*[b"a"] * 5, 2], np.array([*"abcab", 2], object), np.array([*"abcab", None], object)])
def test_labels_are_of_one_kind(y):
  with pytest.raises(BadInput, match="y_train of data .* has labels that are names and others that are not"):
    datasets.from_arrays("data", dict(x_train=X, y_train=y, x_test=X, y_test=[*"abcabc"]))


def test_a_class_without_training_examples_gives_a_warning(tmp_path):
  y = np.array([1, 2, 3, 1, 2, 3])
  with pytest.warns(UserWarning, match="no training example of class 0; labels count classes from 0"):
    datasets.load(save(tmp_path / "a.npz", y_train=y, y_test=y))


@pytest.mark.parametrize(("name", "shape"), [
    ("mnist", (28, 28, 1)), ("cifar10", (32, 32, 3)), ("tfds:mnist", (28, 28, 1))])
def test_prepared_tfds_folders(tfds_dir, name, shape):
  data = datasets.load(name, str(tfds_dir))
  assert data.x_train.shape == (120, *shape)
  assert data.x_test.shape == (30, *shape)
  assert np.bincount(data.y_train).tolist() == [40, 40, 40]
  assert data.normalization is not None
  assert data.class_names is None  # the stand-ins have numbers alone
  if name == "cifar10":  # §0, in units of the pixels
    np.testing.assert_allclose(data.normalization[0] / 255, [0.4914, 0.4822, 0.4465], rtol=1e-6)


@pytest.mark.parametrize("version", ["3.0.1", "3.*.*", "*.*.*"])
def test_tfds_names_may_pin_a_version(tfds_dir, tmp_path, version):
  """As TFDS has it: of several prepared versions the newest that fits."""
  (newest,) = (tfds_dir / "mnist").glob("*")
  shutil.copytree(newest, tmp_path / "mnist/3.0.1")
  (tmp_path / "mnist/2.9.9").mkdir()
  (tmp_path / "mnist/2.9.9/dataset_info.json").touch()
  assert tfds_folder.prepared(f"mnist:{version}", str(tmp_path)).name == "3.0.1"
  assert tfds_folder.prepared("mnist:2.*.*", str(tmp_path)).name == "2.9.9"
  data = datasets.load(f"tfds:mnist:{version}", str(tmp_path))
  assert data.normalization is not None  # that of mnist is known
  assert data.fingerprint == datasets.load("mnist", str(tmp_path)).fingerprint
  with pytest.raises(BadInput, match=r"holds the versions 2.9.9, 3.0.1 of the TFDS data set 'mnist', but none"):
    datasets.load("tfds:mnist:4.0.0", str(tmp_path))
  with pytest.raises(BadInput, match=r"'mnist:three' does not end in a version; write it as in mnist:3.0.1 or mnist"):
    datasets.load("tfds:mnist:three", str(tmp_path))


@pytest.mark.parametrize(("factor", "dtype", "sentence"), [
    (1e38, np.float32, r"has values up to 3e\+38 in its column 1, .* divide them by a constant"),
    (1e300, np.float64, r"has values up to 3e\+300 in its column 1, .* divide them by a constant"),
    (1e-40, np.float32, None), (1e29, np.float64, None), (0.0, np.float32, None)])
def test_values_that_float32_cannot_normalise_are_refused(factor, dtype, sentence):
  x, y, usual = np.array([[1, -3], [2, 1]], dtype) * np.array([1, factor], dtype), [0, 1], np.ones((2, 2), dtype)
  load = lambda x_train, x_test: datasets.from_arrays("mine", dict(x_train=x_train, y_train=y, x_test=x_test, y_test=y))
  if sentence is None:
    assert load(x, x).x_train.dtype == np.float32
    return
  for arrays in (x, usual), (usual, x):
    with pytest.raises(BadInput, match=sentence):
      load(*arrays)


def test_a_label_may_have_any_number_of_digits():
  assert labels.Index(["0", "7", "x"]).find("0" * 5000 + "7") == 1  # Python refuses to parse so many digits
  assert labels.Index(["0", "7", "x"]).find("000") == 0


def test_classes_of_folders_that_resemble_each_other_give_a_warning(tmp_path):
  pictures(tmp_path / "a", {"cat": 10, "dog": 20, "Cat": 30, "7": 40, "07": 50})
  with pytest.warns(UserWarning, match="have similar names") as warned:
    datasets.load(f"folder:{tmp_path / 'a'}")
  said = [str(each.message) for each in warned]
  assert len(said) == 2
  assert "the classes '07' and '7' of" in said[0]
  assert "the classes 'Cat' and 'cat' of" in said[1]


def test_tfds_names_of_classes(tfds_dir, tmp_path):
  (folder,) = (tfds_dir / "mnist").glob("*")
  copied = tmp_path / "mnist" / folder.name
  shutil.copytree(folder, copied)
  (copied / "label.labels.txt").write_text("zero\none\ntwo\n")
  assert datasets.load("mnist", str(tmp_path)).class_names == ("zero", "one", "two")


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (3, np.float32), (4, np.uint8)])
def test_channels_first_are_refused(tmp_path, make_config, dtype, channels):
  x, y = np.zeros((6, channels, 8, 8), dtype), np.arange(6) % 3
  sentence = rf".* shape \(6, {channels}, 8, 8\), which looks like .* with numpy.moveaxis\(x, 1, -1\)"
  with pytest.raises(BadInput, match=f"a.npz.*{sentence}"):
    datasets.load(save(tmp_path / "a.npz", x_train=x, x_test=x))
  with pytest.raises(BadInput, match=f"x_train of data.*{sentence}"):
    alma_jax.run(make_config(), tmp_path / "run", data=(x, y, x, y))
  for shape in ((4, 4, 512), (1, 1, 512), (3, 3, 8), (4, 2, 8)):  # feature maps
    maps = np.zeros((6, *shape), dtype)
    assert datasets.load(save(tmp_path / "a.npz", x_train=maps, x_test=maps)).x_train.shape[1:] == shape
  last = np.moveaxis(x, 1, -1)
  assert datasets.load(save(tmp_path / "a.npz", x_train=last, x_test=last)).x_train.shape == (6, 8, 8, channels)


def test_decoded_arrays_are_cached_and_tfds_is_not_imported_again(tfds_dir, monkeypatch):
  first = datasets.load("mnist", str(tfds_dir))
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # to import it is an error
  assert datasets.load("mnist", str(tfds_dir)).fingerprint == first.fingerprint == cache.hash_arrays(
      {key: getattr(first, key) for key in ("x_train", "y_train", "x_test", "y_test")})


def test_a_read_only_folder_is_cached_elsewhere(tfds_dir, tmp_path, monkeypatch):
  folder = tmp_path / "root" / "mnist"
  folder.mkdir(parents=True)
  (folder / "1.0.0").symlink_to(next((tfds_dir / "mnist").glob("*")))
  real = cache.write
  monkeypatch.setattr(cache, "write", lambda folder, *rest: (
      False if folder.name == tfds_images._CACHE else real(folder, *rest)))
  monkeypatch.setattr(tfds_images, "_CACHE", "not_there_yet")
  first = datasets.load("mnist", str(tmp_path / "root"))
  (written,) = (tmp_path / "cache" / "alma_jax").iterdir()
  assert (written / "x_train.npy").exists()
  monkeypatch.setattr(tfds_images, "_decode", lambda *unused: pytest.fail("decoded again"))
  assert datasets.load("mnist", str(tmp_path / "root")).fingerprint == first.fingerprint


def test_a_changed_folder_is_decoded_anew(tfds_dir, monkeypatch):
  datasets.load("mnist", str(tfds_dir))
  (folder,) = (tfds_dir / "mnist").glob("*")
  decoded = []
  real = tfds_images._decode
  monkeypatch.setattr(tfds_images, "_decode", lambda *args: decoded.append(1) or real(*args))
  info = folder / "dataset_info.json"
  os.utime(info)
  datasets.load("mnist", str(tfds_dir))
  assert decoded == []
  rewrite(info, info.read_bytes().replace(b"\n", b" ", 1))
  datasets.load("mnist", str(tfds_dir))
  assert decoded == [1]


def test_a_damaged_cache_of_images_is_made_again(tfds_dir):
  first = datasets.load("mnist", str(tfds_dir))
  (written,) = (tfds_dir / "mnist").glob("*/alma_jax_arrays")
  good = (written / "x_test.npy").read_bytes()
  for damage in (lambda: (written / "x_test.npy").write_bytes(good[:-1]), (written / "x_test.npy").unlink,
                 lambda: (written / "meta.json").write_text("{")):
    damage()
    assert datasets.load("mnist", str(tfds_dir)).fingerprint == first.fingerprint
    assert (written / "x_test.npy").read_bytes() == good


def test_the_first_of_two_processes_that_write_a_cache_is_kept(tmp_path):
  folder, entry = tmp_path / "home" / "entry", cache.Entry({"a": np.arange(3)}, {"name": "x"})
  assert cache.read(folder, ["text", 1]) is None
  assert cache.write(folder, ("text", 1), entry)
  found = cache.read(folder, ["text", 1], mapped=True)
  assert cache.write(folder, ["text", 1], cache.Entry({"a": np.arange(4)}, {}))
  assert isinstance(found.arrays["a"], np.memmap)
  for again in (found, cache.read(folder, ["text", 1])):
    assert (again.arrays["a"].tolist(), again.facts) == ([0, 1, 2], {"name": "x"})
  assert cache.read(folder, ["text", 2]) is None
  assert cache.write(folder, ["text", 2], cache.Entry({"b": np.arange(2)}, {}))  # made from something else: replaced
  assert sorted(path.name for path in folder.iterdir()) == ["b.npy", "meta.json"]
  assert [path.name for path in folder.parent.iterdir()] == ["entry"]  # nothing temporary is left


def test_the_folder_of_all_caches(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  assert files.cache_home() == tmp_path / "alma_jax"
  assert cache.home_folder("arrays", "a/b c", 1).parent == files.cache_home()
  monkeypatch.setenv("XDG_CACHE_HOME", "")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert files.cache_home() == tmp_path / ".cache/alma_jax"
  code = "import sys, alma_jax.files; print({'jax', 'numpy'} & set(sys.modules))"
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  assert done.stdout.strip() == "set()"


def rewrite(path, content):
  """Changes a file, but neither its size nor its time, as unpacking an archive over it may."""
  before = path.stat()
  assert len(content) == before.st_size
  path.write_bytes(content)
  os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_folders_that_differ_in_contents_alone_are_told_apart(tmp_path):
  for name, colours in (("a", (10, 20)), ("b", (30, 40))):
    for label, colour in enumerate(colours):  # BMP: all files have one size
      pictures_of(tmp_path / name / str(label), {f"{i}.bmp": colour for i in range(5)})
  for path in tmp_path.rglob("*.bmp"):
    os.utime(path, ns=(10**18, 10**18))
  first = datasets.load(f"folder:{tmp_path}/a")
  for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
    (tmp_path / old).rename(tmp_path / new)
  swapped = datasets.load(f"folder:{tmp_path}/a")
  assert (set(first.x_train.flat), set(swapped.x_train.flat)) == ({10, 20}, {30, 40})
  for label in "01":
    for i in range(5):
      rewrite(tmp_path / "a" / label / f"{i}.bmp", (tmp_path / "b" / label / f"{i}.bmp").read_bytes())
  assert datasets.load(f"folder:{tmp_path}/a").fingerprint == first.fingerprint


def test_a_given_data_dir_is_never_downloaded_into(tmp_path, monkeypatch):
  monkeypatch.setattr(tfds_folder, "download", lambda *unused: pytest.fail("tried to download"))
  with pytest.raises(BadInput, match="holds no prepared TFDS data set 'mnist'"):
    datasets.load("mnist", str(tmp_path))
  assert not list(tmp_path.iterdir())


def pictures_of(folder, colours, size=(3, 2), mode="L"):
  """Pictures of one colour each, {name: colour}."""
  folder.mkdir(parents=True, exist_ok=True)
  for name, colour in colours.items():
    Image.new(mode, size, colour).save(folder / name)
  return folder


def pictures(root, colours, size=(3, 2), mode="L", num=5):
  """`num` pictures of one colour for every class {folder: colour}."""
  for name, colour in colours.items():
    pictures_of(root / name, {f"{i}.png": colour for i in range(num)}, size, mode)
  return root


def test_folders_of_images(tmp_path, monkeypatch):
  pictures(tmp_path / "a/train", {"dog": 10, "cat": 20})
  pictures(tmp_path / "a/test", {"dog": 30, "cat": 40}, num=2)
  data = datasets.load(f"folder:{tmp_path}/a")
  assert data.x_train.shape == (10, 2, 3, 1)
  assert data.class_names == ("cat", "dog")
  assert (data.x_train[:, 0, 0, 0].tolist(), data.y_train.tolist()) == ([20] * 5 + [10] * 5, [0] * 5 + [1] * 5)
  assert (data.x_test[:, 1, 2, 0].tolist(), data.y_test.tolist()) == ([40, 40, 30, 30], [0, 0, 1, 1])
  monkeypatch.setattr(image_file, "read", lambda *unused: pytest.fail("decoded again"))
  assert datasets.load(f"folder:{tmp_path}/a").fingerprint == data.fingerprint


def test_pixels_that_do_not_fit_are_refused(tmp_path):
  pictures(tmp_path / "deep", {"a": 1, "b": 1})
  pictures_of(tmp_path / "deep/b", {"x.tif": 0.5}, mode="F")
  pictures_of(tmp_path / "deep/b", {"y.tif": 2**16}, mode="I")
  with pytest.raises(BadInput, match=r"it has 2 examples that cannot be read, b/x.tif \(pixels of the kind 'F'\), "
                     r"b/y.tif \(values beyond 16 bits\); repair, convert"):
    datasets.load(f"folder:{tmp_path}/deep")


def test_all_bad_files_are_listed(tmp_path):
  pictures(tmp_path / "a", {"x": 1, "y": 2}, num=9)
  for i in range(6):
    (tmp_path / f"a/x/{i}.png").write_bytes(b"")
    (tmp_path / f"a/y/{i}.png").write_bytes((tmp_path / "a/y/8.png").read_bytes()[:45])  # in the middle of its pixels
  with pytest.raises(BadInput, match="it has 12 examples that cannot be read, ") as error:
    datasets.load(f"folder:{tmp_path}/a")
  sentence = str(error.value)
  assert [f"{name}/{i}.png (" in sentence for name in "xy" for i in range(9)] == [True] * 6 + [False] * 3 + [
      True] * 4 + [False] * 5
  assert " and 2 more; " in sentence
  assert "x/0.png (no image), " in sentence
  pictures_of(tmp_path / "a/x", {"7.png": 1}, size=(4, 4))  # only files that can be read have a size
  with pytest.raises(BadInput, match="it has 12 examples that cannot be read, "):
    datasets.load(f"folder:{tmp_path}/a")


@pytest.mark.parametrize("name", ["val", "extra"])
def test_a_folder_beside_train_and_test_is_named(tmp_path, name):
  for split in ("train", "test", name):
    pictures(tmp_path / "a" / split, {"x": 1, "y": 2})
  (tmp_path / "a/notes").mkdir()  # without images
  pictures(tmp_path / "a/.cache", {"x": 1})
  with pytest.warns(UserWarning, match=f"^{name} of '.*a' is not used: only train and test are read, and validation "
                    r"examples are held out of every mega-batch \(stream.val_fraction\)$") as record:
    data = datasets.load(f"folder:{tmp_path}/a")
  assert len(record) == 1
  assert (len(data.x_train), len(data.x_test)) == (10, 10)


def test_files_and_folders_with_a_dot_in_front_are_ignored(tmp_path):
  pictures(tmp_path / "a", {"x": 1, "y": 2, ".z": 3, "x/.thumbnails": 4})
  (tmp_path / "a/x/._0.png").write_bytes(b"Mac OS X")
  data = datasets.load(f"folder:{tmp_path}/a")
  assert data.class_names == ("x", "y")
  assert len(data.x_train) + len(data.x_test) == 10


def test_images_are_resized_on_demand(tmp_path, monkeypatch):
  pictures(tmp_path / "a", {"x": 10, "y": 20}, size=(12, 5))
  pictures_of(tmp_path / "a/y", {"large.png": 30, "deep.png": 40}, size=(4, 40))
  pictures_of(tmp_path / "a/x", {"deep.png": 257 * 50}, size=(8, 8), mode="I;16")
  small, large = (datasets.load(f"folder:{tmp_path}/a", image_size=size) for size in (4, 6))
  assert (small.x_train.shape[1:], large.x_train.shape[1:]) == ((4, 4, 1), (6, 6, 1))
  for data in (small, large):  # flat colours do not change
    assert set(np.concatenate([data.x_train, data.x_test]).flat) == {10, 20, 30, 40, 50}
  monkeypatch.setattr(image_file, "read", lambda *unused: pytest.fail("decoded again"))
  for size, data in ((4, small), (6, large)):  # each has a cache of its own
    assert datasets.load(f"folder:{tmp_path}/a", image_size=size).fingerprint == data.fingerprint


def test_resizing_averages_and_keeps_what_fits(tmp_path):
  pixels = np.random.default_rng(0).integers(0, 256, (40, 80, 3)).astype(np.uint8)
  Image.fromarray(pixels).save(tmp_path / "a.png")
  assert abs(int(image_file.read(tmp_path / "a.png", 1).pixels[0, 0, 0]) - pixels[..., 0].mean()) < 20  # of ± 74
  Image.fromarray(pixels[:, :40]).save(tmp_path / "b.png")
  np.testing.assert_array_equal(image_file.read(tmp_path / "b.png", 40).pixels, pixels[:, :40])
  Image.fromarray(np.repeat(np.uint16([[0, 65535]]), 8, 1).repeat(8, 0)).save(tmp_path / "c.png")
  steep = image_file.read(tmp_path / "c.png", 12).pixels
  assert (steep.min(), steep.max()) == (0, 255)


@pytest.mark.parametrize(("mode", "suffix"), [("I;16", "png"), ("I;16", "tif"), ("I", "tif")])
def test_greys_of_16_bits_are_floats(tmp_path, mode, suffix):
  pictures_of(tmp_path / "a/x", {f"0.{suffix}": 0, f"1.{suffix}": 100}, mode=mode)
  pictures_of(tmp_path / "a/y", {f"0.{suffix}": 514, f"1.{suffix}": 65535}, mode=mode)
  data = datasets.load(f"folder:{tmp_path}/a")
  assert data.x_train.dtype == data.x_test.dtype == np.float32
  assert set(np.concatenate([data.x_train, data.x_test]).flat) == {0, np.float32(100) / np.float32(257), 2, 255}


def half_clear(mode, kind):
  """(a picture of 2x1 black pixels of which the first is transparent, options of saving it)."""
  image = Image.new(mode, (2, 1), 0)
  if kind == "alpha":
    image.putalpha(Image.frombytes("L", (2, 1), bytes([0, 255])))
    return image, {}
  image.putpixel((0, 0), {"RGB": (0, 0, 9), "1": 255}.get(mode, 9))
  if mode == "P":
    image.putpalette([0] * 30)
  if kind == "palette":
    return image, dict(transparency=bytes([255] * 9 + [0]))
  return image, dict(transparency=image.getpixel((0, 0)))


@pytest.mark.parametrize(("mode", "kind", "num_channels"), [
    ("RGB", "alpha", 3), ("L", "alpha", 3), ("P", "palette", 3), ("P", "colour", 3), ("L", "colour", 1),
    ("RGB", "colour", 3), ("1", "colour", 1), ("I;16", "colour", 1)])
def test_transparent_parts_become_white(tmp_path, mode, kind, num_channels):
  image, options = half_clear(mode, kind)
  image.save(tmp_path / "a.png", **options)
  picture = image_file.read(tmp_path / "a.png")
  assert picture.had_transparency
  assert picture.pixels.tolist() == [[[255] * num_channels, [0] * num_channels]]


def test_a_shape_in_the_alpha_channel_is_kept_and_gives_a_warning(tmp_path):
  for label, alpha in (("x", [0, 255]), ("y", [255, 51])):
    (tmp_path / "a" / label).mkdir(parents=True)
    image = Image.new("RGB", (2, 1), 0)
    image.putalpha(Image.frombytes("L", (2, 1), bytes(alpha)))
    for i in range(3):
      image.save(tmp_path / "a" / label / f"{i}.png")
  with pytest.warns(UserWarning, match="^6 of the images of '.*a' have transparent parts, which become "
                    "white$") as record:
    data = datasets.load(f"folder:{tmp_path}/a")
  assert len(record) == 1
  with pytest.warns(UserWarning, match="^6 of the images of '.*a' have transparent parts"):  # from the cache as well
    assert datasets.load(f"folder:{tmp_path}/a").fingerprint == data.fingerprint
  # 51 of 255: a fifth of black on white.
  assert [data.x_train[data.y_train == label][0, 0, :, 0].tolist() for label in (0, 1)] == [[255, 0], [0, 204]]


def test_opaque_alpha_changes_nothing(tmp_path):
  pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3)).astype(np.uint8)
  images = [Image.fromarray(pixels), Image.fromarray(pixels).convert("RGBA"), Image.fromarray(pixels).convert("P"),
            Image.fromarray(pixels[..., 0]).convert("LA")]
  (tmp_path / "a").mkdir()
  for i, image in enumerate(images):
    image.save(tmp_path / f"a/{i}.png", **dict(transparency=bytes([255] * 256)) if image.mode == "P" else {})
    picture = image_file.read(tmp_path / f"a/{i}.png")
    assert not picture.had_transparency
    np.testing.assert_array_equal(picture.pixels, np.asarray(image.convert("RGB")))
  pictures(tmp_path / "b", {"x": (1, 2, 3, 255), "y": (4, 5, 6, 255)}, mode="RGBA")
  assert datasets.load(f"folder:{tmp_path}/b").x_train[0, 0, 0].tolist() == [1, 2, 3]
