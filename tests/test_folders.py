"""Which files of a folder are examples: splits, classes, depths, suffixes, and how images are turned."""
import json
import warnings

import numpy as np
import pyarrow
import pytest
from PIL import ExifTags, Image, features
from pyarrow import parquet
from runs import blobs, launch, small_config
from test_text import config, write

from alma_jax import config as configs
from alma_jax.data import datasets, examples, folders, image_file, live_entries, text, text_files
from alma_jax.data.form import Form
from alma_jax.data.labels import Classes
from alma_jax.errors import BadInput
from alma_jax.predictors import inputs, texts
from alma_jax.runs import settings

FORM = Form((4, 6, 3), np.dtype(np.uint8))
READER = examples.Reader(FORM, part="test", classes=Classes("the predictor", ("a", "b", "c"), 3))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp("cache")
  monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
  return folder


def draw(root, *paths, num=2, mode="RGB"):
  """`num` images of noise in every folder of `paths`, named PATH/*.SUFFIX; others are files without contents."""
  rng = np.random.default_rng(sum(map(ord, "".join(paths))))
  for path in paths:
    folder, _, suffix = path.rpartition("/*.")
    (root / folder).mkdir(parents=True, exist_ok=True)
    for i in range(num):
      place = root / folder / f"{i}.{suffix}"
      if f".{suffix.lower()}" in image_file.suffixes():
        Image.fromarray(rng.integers(0, 256, (4, 6, 3)).astype(np.uint8)).save(place)
      else:
        place.write_bytes(b"unread")
  return root


def as_run(root):
  data = datasets.load(f"folder:{root}")
  return data.class_names, len(data.x_train), len(data.x_test)


def as_entry(root):
  entry = examples.Reader().whole(root)
  return entry.labels.names, len(entry.x)


def as_labelled(root):
  (batch,) = inputs.read([str(root)], READER, 100)
  return sorted({"abc"[label] for label in batch.labels.numbers}), len(batch.x)


@pytest.mark.parametrize(("train", "test"), [
    ("Training", "Testing"), ("TRAIN", "test"), ("train_set", "test-images"), ("seg_train", "seg_test"),
    ("images-training2", "images-testing2"), ("seg_train/seg_train", "seg_test/seg_test"),
    ("train/images", "test/images")])
def test_folders_that_are_called_splits_are_splits(tmp_path, train, test):
  """Also if their names contain a split, and with a folder around all classes."""
  draw(tmp_path, *(f"{train}/{c}/*.png" for c in "abc"), num=3)
  draw(tmp_path, *(f"{test}/{c}/*.png" for c in "abc"), num=2)
  assert as_run(tmp_path) == (("a", "b", "c"), 9, 6)
  assert as_labelled(tmp_path) == (["a", "b", "c"], 6)  # the test split
  with pytest.raises(BadInput, match=f"{train}.* look like splits where the folders of classes should be"):
    as_entry(tmp_path)


@pytest.mark.parametrize("images", [
    ("train station/*.png", "test tube/*.png"), ("train station/x/*.png", "test tube/x/*.png", "cat/x/*.png")])
def test_names_that_contain_a_split_are_classes_if_they_hold_images_or_others_are_beside_them(tmp_path, images):
  draw(tmp_path, *images)
  assert as_run(tmp_path)[0] == tuple(sorted(path.partition("/")[0] for path in images))


def test_folders_that_share_most_of_their_folders_may_be_splits(tmp_path):
  draw(tmp_path, *(f"x1/{c}/*.png" for c in "abc"), *(f"x2/{c}/*.png" for c in "abcd"))
  for read in (as_run, as_entry):
    with pytest.raises(BadInput, match="x1 and x2 hold the folders a, b and c, so it is unclear"):
      read(tmp_path)
  draw(tmp_path, *(f"x{i}/{c}/*.png" for i in "34" for c in "abe"))  # more folders than splits
  assert as_run(tmp_path)[0] == ("x1", "x2", "x3", "x4")


@pytest.mark.parametrize("images", [
    ("train/*.png", "bus/*.png"), ("valid/*.png", "invalid/*.png"), ("val/*.png", "dev_board/*.png"),
    ("tested/*.png", "contest/*.png"), ("a/images/*.png", "b/images/*.png"), ("a/1/*.png", "b/2/*.png")])
def test_classes_that_are_no_splits(tmp_path, images):
  names = tuple(sorted(path.split("/")[0] for path in images))
  assert as_run(draw(tmp_path, *images)) == (names, 2, 2)
  assert as_entry(tmp_path) == (names, 4)


@pytest.mark.parametrize(("images", "sentence"), [
    (("A/x/*.png", "A/y/*.png", "B/x/*.png", "B/y/*.png"), "A and B hold the folders x and y, so it is unclear"),
    (("a/train/*.png", "a/test/*.png", "b/train/*.png"), "a and b hold the folders test and train, so it is"),
    (("a/*.png", "a/more/*.png", "b/*.png"), "holds images at different depths, such as 'a/0.png' and 'a/more/0.png'"),
    (("a/*.png", "b/c/*.png"), "holds images at different depths, such as 'a/0.png' and 'b/c/0.png'"),
    (("a/*.png", "b/*.png", "/*.png"), "holds images at different depths, such as '0.png' and 'a/0.png'"),
    (("a/*.png", "b/*.png", "c/*.heic"), r"its class 'c' has no images, but files that are not read \(2 .heic\)"),
    (("train/a/*.png", "training/a/*.png", "test/a/*.png"), "has the folders train and training for the same split"),
])
def test_what_is_unclear_is_refused_everywhere(tmp_path, images, sentence):
  draw(tmp_path / "data", *images)
  for read in (as_run, as_entry, as_labelled):
    with pytest.raises(BadInput, match=sentence):
      read(tmp_path / "data")


def test_a_half_of_the_splits_is_refused(tmp_path):
  draw(tmp_path, "Training/a/*.png", "Training/b/*.png")
  with pytest.raises(BadInput, match="has a folder Training, but no folder test; give both"):
    as_run(tmp_path)
  with pytest.raises(BadInput, match="it has the folder Training, but no folder test; name the folder that holds"):
    as_labelled(tmp_path)
  draw(tmp_path, "holdout/a/*.png", "holdout/b/*.png")
  with pytest.raises(BadInput, match="has the folders .*, but no folder test; rename holdout to test"):
    as_run(tmp_path)


def test_files_that_are_not_read_are_counted_by_suffix(tmp_path):
  draw(tmp_path, "a/*.png", "b/*.PNG", "a/*.heic", num=4)
  draw(tmp_path, "b/*.TXT", "b/.hidden/*.png", num=1)
  (tmp_path / "b/Thumbs.db").write_bytes(b"")
  (tmp_path / "c").mkdir()
  sentence = rf"^5 files of '{tmp_path}' are not read \(4 .heic, 1 .txt\)$"
  with pytest.warns(UserWarning, match="not read|empty") as record:
    assert as_run(tmp_path) == (("a", "b"), 6, 2)
  assert [str(each.message) for each in record] == [
      f"5 files of '{tmp_path}' are not read (4 .heic, 1 .txt)", f"c of '{tmp_path}' is empty and not used as a class"]
  assert examples.Reader().whole(tmp_path).remarks == tuple(str(each.message) for each in record)
  with pytest.warns(UserWarning, match=sentence) as record:
    assert as_labelled(tmp_path) == (["a", "b"], 8)
  with pytest.warns(UserWarning, match=sentence) as record:
    (batch,) = inputs.read([str(tmp_path)], examples.Reader(FORM, labelled=False), 100)
  assert (len(record), len(batch.x)) == (1, 8)


def test_a_live_stream_says_what_it_does_not_read(tmp_path):
  draw(tmp_path, "test/a/*.png", "test/b/*.png", "test/b/*.heic", num=1)
  draw(tmp_path, "stream/n/a/*.png", "stream/n/b/*.png", "stream/n/b/*.svg", num=3)
  with pytest.warns(UserWarning, match=r"^1 file of '.*test' is not read \(1 .heic\)$"):
    reader = live_entries.ImageReader(tmp_path, 0, 0)
  assert reader.read(tmp_path / "stream/n", []).remarks == (
      f"3 files of '{tmp_path / 'stream/n'}' are not read (3 .svg)",)
  np.savez(tmp_path / "test/more.npz", x=np.zeros((2, 4, 6, 3), np.uint8), y=[0, 1])
  with pytest.raises(BadInput, match="test' cannot be used: it holds both images and files such as 'more.npz'; keep"):
    live_entries.ImageReader(tmp_path, 0, 0)


def test_a_class_may_be_a_link_but_links_inside_are_not_followed(tmp_path):
  """As pathlib.Path.rglob has it in Python 3.11 to 3.13, so that existing data sets keep their fingerprints."""
  draw(tmp_path, "elsewhere/*.png", "data/b/*.png")
  (tmp_path / "data/a").symlink_to(tmp_path / "elsewhere")
  for name, to in ("circle", "data/b"), ("more", "elsewhere"):
    (tmp_path / "data/b" / name).symlink_to(tmp_path / to)
  entry = examples.Reader().whole(tmp_path / "data")
  assert (entry.labels.names, len(entry.x)) == (("a", "b"), 4)
  assert entry.remarks == (f"2 files of '{tmp_path / 'data'}' are not read (2 linked folder(s))",)
  visible = lambda name: {path for path in folders.visible(tmp_path / "data" / name) if path.suffix}
  assert all(visible(name) == {*(tmp_path / "data" / name).rglob("*.png")} for name in "ab")


@pytest.mark.parametrize("folder", ["test", "val", "training"])
def test_inside_a_split_or_an_entry_one_name_of_a_split_is_a_class(tmp_path, folder):
  draw(tmp_path, *(f"{split}/{c}/*.png" for split in ("train", "test") for c in (folder, "control")))
  names = tuple(sorted((folder, "control")))
  assert as_run(tmp_path) == (names, 4, 4)
  assert as_entry(tmp_path / "train") == (names, 4)
  draw(tmp_path, f"alone/{folder}/*.png", f"halves/{folder}/*.png", f"splits/{folder}/a/*.png",
       f"halves/{'train' if folder == 'test' else 'test'}/*.png")
  assert as_entry(tmp_path / "alone") == ((folder,), 2)
  for refused in "halves", "splits":
    with pytest.raises(BadInput, match="look.* like .*split.* where the folders of classes should be"):
      as_entry(tmp_path / refused)


def test_what_the_installed_pillow_reads_is_read(tmp_path):
  wanted = {".png", ".jpg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".ppm", ".pnm", ".tga", ".ico"}
  assert wanted <= image_file.suffixes()
  assert not image_file.suffixes() & {".eps", ".ps", ".wmf", ".pdf", ".mpg", ".h5", ".grib", ".bufr"}
  for suffix in ("tga", "pcx", "sgi", "jp2") + ("avif",) * features.check("avif"):
    pixels = image_file.read(draw(tmp_path, f"a/*.{suffix}") / f"a/0.{suffix}").pixels
    assert pixels.shape == (4, 6, 3), suffix
  (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\nshowpage\n")
  with pytest.raises(BadInput, match="^no image$"):  # Ghostscript is not started
    image_file.read(tmp_path / "a.png")


def turned(path, orientation, mode="RGB", **options):
  """Stores an image of noise so that a viewer that knows EXIF shows it upright; returns what it shows."""
  pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
  deep = mode == "I;16"
  image = Image.fromarray(pixels[..., 0] * np.uint16(257)) if deep else Image.fromarray(pixels).convert(mode)
  x = np.asarray(image)  # of a palette its places
  stored = {1: x, 2: x[:, ::-1], 3: x[::-1, ::-1], 4: x[::-1], 5: x.swapaxes(0, 1), 6: np.rot90(x),
            7: x[::-1, ::-1].swapaxes(0, 1), 8: np.rot90(x, -1)}[orientation]
  made, exif = Image.fromarray(np.ascontiguousarray(stored)), Image.Exif()
  if mode == "P":
    made.putpalette(image.getpalette())
  exif[ExifTags.Base.Orientation] = orientation
  made.save(path, exif=exif, **options)
  return pixels[..., 0] if deep else np.asarray(image.convert("RGB") if mode == "P" else image)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("suffix", "mode", "options"), [
    ("png", "RGB", {}), ("png", "L", {}), ("png", "P", {}), ("png", "I;16", {}), ("webp", "RGB", dict(lossless=True)),
    ("tif", "RGB", {}), ("tif", "L", dict(compression="tiff_lzw"))])
def test_images_are_turned_as_their_metadata_say(tmp_path, suffix, mode, options, orientation):
  wanted = turned(tmp_path / f"a.{suffix}", orientation, mode, **options)
  np.testing.assert_array_equal(image_file.read(tmp_path / f"a.{suffix}").pixels.squeeze(), wanted)


def test_a_turned_photo_is_the_same_example_everywhere(tmp_path):
  upright = turned(tmp_path / "upright.png", 1)
  tmp_path = draw(tmp_path / "data", "a/*.png", "b/*.png")
  for place in ("a/x.jpg", "b/x.jpg"):
    turned(tmp_path / place, 6, quality=95, subsampling=0)
  shape = (32, 48, 3)
  for name in "ab":
    for old in (tmp_path / name).glob("*.png"):
      Image.open(old).resize(shape[1::-1]).save(old)
  photo = image_file.read(tmp_path / "a/x.jpg").pixels
  assert photo.shape == shape  # and not 48x32 pixels, as it is stored
  assert np.abs(photo.astype(int) - upright).max() < 32  # JPEG is not exact; another turn differs by up to 255
  is_photo = lambda x: (x == photo).all((1, 2, 3)).sum()
  data = datasets.load(f"folder:{tmp_path}")
  assert is_photo(data.x_train) + is_photo(data.x_test) == 2
  assert is_photo(examples.Reader().whole(tmp_path).x) == 2
  content = (tmp_path / "a/x.jpg").read_bytes()
  table = pyarrow.table({"image": [dict(bytes=content, path=None)], "label": [0]})
  parquet.write_table(table, tmp_path.parent / "x.PARQUET")
  assert is_photo(examples.Reader().whole(tmp_path.parent / "x.PARQUET").x) == 1
  reader = examples.Reader(FORM._replace(shape=shape), labelled=False)
  (batch,) = inputs.read([str(tmp_path / "a/x.jpg")], reader, 9)
  assert is_photo(batch.x) == 1
  assert is_photo(reader.image(content, image_file.SERVED)) == 1  # as `alma serve` does


def test_pixels_that_an_earlier_version_decoded_are_decoded_again(tmp_path, monkeypatch):
  draw(tmp_path, "a/*.png", "b/*.png")
  old = datasets.load(f"folder:{tmp_path}")
  monkeypatch.setattr("alma_jax.data.sets.example_files._DECODER", 0)
  monkeypatch.setattr(image_file, "read", lambda *_: image_file.Decoded(np.zeros((4, 6, 3), np.uint8), False, False))
  assert datasets.load(f"folder:{tmp_path}").fingerprint != old.fingerprint


@pytest.mark.parametrize("damage", [b"Exif\0\0MM", b"Exif\0\0nothing of this kind", b""])
def test_damaged_metadata_turn_nothing(tmp_path, damage):
  pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
  Image.fromarray(pixels).save(tmp_path / "a.png", exif=damage)
  np.testing.assert_array_equal(image_file.read(tmp_path / "a.png").pixels, pixels)


def test_the_first_frame_is_read_and_others_are_counted(tmp_path):
  draw(tmp_path, "a/*.png", "b/*.png")
  frames = [Image.new("RGB", (6, 4), colour) for colour in ("red", "green", "blue")]
  frames[0].save(tmp_path / "a/x.gif", save_all=True, append_images=frames[1:])
  frames[0].save(tmp_path / "a/x.tif", save_all=True, append_images=frames[1:])
  sentence = f"2 of the images of '{tmp_path}' have several frames or pages, and only the first is read"
  for _ in range(2):  # the second time from the cache
    with pytest.warns(UserWarning, match=f"^{sentence}$"):
      data = datasets.load(f"folder:{tmp_path}")
  x = np.concatenate([data.x_train, data.x_test])
  assert (x == (255, 0, 0)).all((1, 2, 3)).sum() == 2
  reader = live_entries.ImageReader(tmp_path / "none", 0, 0)
  assert reader.read(tmp_path, []).remarks == (sentence,)


def save(path, x_train, x_test, **more):
  y = lambda x: np.arange(len(x)) % 3
  np.savez(path, x_train=x_train, y_train=y(x_train), x_test=x_test, y_test=y(x_test), **more)
  return f"npz:{path}"


def test_test_examples_that_are_training_examples_are_counted(tmp_path):
  (x, _), (other, _) = blobs(120), blobs(30, seed=1)
  leaky = np.concatenate([other[:23], x[50:57]])
  sentence = "7 of 30 test examples of {} are also in the training set, so the test error is too low"
  name = save(tmp_path / "a.npz", x, leaky)
  done = launch("configs/npz.py:sm", f"--config.dataset.name={name}", "--config.train.epochs=1",
                "--config.stream.num_megabatches=1", "--config.stream.waiting_time=1", "--config.model.width=4",
                "--config.train.batch_size=64", f"--workdir={tmp_path}/run")
  assert done.returncode == 0, done.stderr
  assert done.stderr.count("warning: " + sentence.format(name)) == 1
  y = np.arange(120) % 3
  with pytest.warns(UserWarning, match=f"^{sentence.format('data')}$"):
    settings.prepare(configs.parse(small_config()), (x, y, leaky, y[:30]))
  with warnings.catch_warnings(action="error"):
    datasets.warn_of_overlap(datasets.load(save(tmp_path / "b.npz", x, other)))


def test_arrays_of_an_npz_file_that_are_not_used_are_named(tmp_path):
  (x, y), (other, _) = blobs(120), blobs(30, seed=1)
  name = save(tmp_path / "a.npz", x, other, x_val=x, y_val=y)
  with pytest.warns(UserWarning, match="^x_val, y_val of '.*a.npz' are not used: only x_train, y_train, x_test,"):
    datasets.load(name)


def test_files_of_text(tmp_path):
  """.TXT is read, and others are counted; splits are found by their names."""
  write(tmp_path / "a", Training=["aaaa", "bbbb", "cccc"], Val=["vv"], testing=["tt"])
  (tmp_path / "a/Training/a.txt").rename(tmp_path / "a/Training/a.TXT")
  (tmp_path / "a/Training/._a.txt").write_bytes(b"\xff")
  for name in ("b.md", "c.md", "README"):
    (tmp_path / "a/Training" / name).write_text("unread")
  sentence = r"^3 files of '.*Training' are not read \(2 .md, 1 without a suffix\)"
  with pytest.warns(UserWarning, match=sentence + "; only .txt and .jsonl files are text$"):
    found = text_files.source(tmp_path / "a").read()
  assert found == dict(train=[b"aaaa", b"bbbb", b"cccc"], valid=[b"vv"], test=[b"tt"])
  with pytest.warns(UserWarning, match=sentence):
    assert [each.text for each in texts.read([f"{tmp_path}/a/Training"])] == [b"aaaa", b"bbbb", b"cccc"]
  (tmp_path / "a/testing/a.txt").rename(tmp_path / "a/testing/a.md")
  with pytest.warns(UserWarning, match=sentence), pytest.raises(
      BadInput, match="testing' cannot be used: it is of a kind that cannot be read here; give a .txt file"):
    text_files.source(tmp_path / "a")


def test_names_of_splits_of_text_may_be_topics(tmp_path):
  write(tmp_path / "b", training=["a"], setup=["b"])  # chapters of a manual
  assert text_files.source(tmp_path / "b").read() == dict(train=[b"b", b"a"])
  write(tmp_path / "c", training=["a"], testing=["b"], deployment=["c"])
  with pytest.warns(UserWarning, match="^testing and training of .* are read as topics of one text, .*; if they are "
                    "splits, rename them to train, valid and test$"):
    assert text_files.source(tmp_path / "c").read() == dict(train=[b"c", b"b", b"a"])
  write(tmp_path / "d", training=["a"], testing=["b"])  # nothing but splits
  with pytest.raises(BadInput, match="it has no folder valid; give train, valid and test, or rename testing and t"):
    text_files.source(tmp_path / "d")


def test_text_beside_the_splits_is_named(tmp_path):
  write(tmp_path, train=["a"], valid=["b"], test=["c"], extra=["d"], notes=[])
  (tmp_path / "loose.txt").write_text("e")
  (tmp_path / "notes/README.md").write_text("f")
  with pytest.warns(UserWarning, match="^extra and loose.txt of .* are not used: only train, valid and test are read$"):
    found = text_files.source(tmp_path).read()
  assert found == dict(train=[b"a"], valid=[b"b"], test=[b"c"])


def test_test_documents_that_are_training_documents_are_counted(tmp_path):
  name = write(tmp_path, train=["aaaa", "bbbb", "cccc"], valid=["vv"], test=["tt", "bbbb\n"])
  for _ in range(2):  # the second time from the cache
    with pytest.warns(UserWarning, match="^1 of 2 test documents of text:.* is also in the training text, so the "
                      "test perplexity is too low$"):
      text.load(config(name), 2, 0)


def test_a_live_text_whose_documents_are_tested_is_told(tmp_path):
  write(tmp_path, stream=["aaaa bbbb", "tt"], test=["tt"])
  (tmp_path / "stream/c.jsonl").write_text("\n".join(map(json.dumps, ("aaaa bbbb", "tt", "cc"))))
  reader = live_entries.TextReader(tmp_path, config("live:DIR", sequence_length=2))
  with pytest.raises(BadInput, match="^all its documents are also in the test text.$"):
    reader.read(tmp_path / "stream/b.txt", [])
  found = reader.read(tmp_path / "stream/c.jsonl", [])
  assert found.remarks == ("1 of 3 documents is also in the test text, so its perplexity is too low",)


@pytest.mark.parametrize(("name", "split"), [
    ("Training", "train"), ("TEST", "test"), ("val", "valid"), ("train_set", "train"), ("Test Data", "test"),
    ("dev", "valid"), ("hold-out", "valid"), ("trainer", None), ("tests", None), ("invalid", None), ("device", None),
    ("set", None), ("trn", "train"), ("tst", "test")])
def test_names_of_splits(name, split):
  assert folders.split_of(name) == split
