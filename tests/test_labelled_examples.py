"""One reader of examples: every command accepts the same files, with the same arrays, or refuses them alike."""
import argparse
import io
import itertools
import json
import types
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from runs import without_program

from alma_jax import evaluate
from alma_jax.data import datasets, examples, live_entries, text_files, tokens
from alma_jax.data.form import Form
from alma_jax.errors import BadInput
from alma_jax.predictors import description, inputs, texts

N = 12
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (N, 6, 6), np.uint8)
COLOUR = RNG.integers(0, 256, (N, 6, 6, 3), np.uint8)
ROWS = RNG.normal(size=(N, 4))
WHOLE = RNG.integers(-9, 999, (N, 4))
Y = np.arange(N) % 3
NAMES = ("bird", "cat", "dog")
NAMED = np.array(NAMES)[Y]
NUMBERS = ("0", "1", "2")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


# ---------------------------------------------------------------- files


def npz(**arrays):
  def make(root):
    np.savez(root / "a.npz", **arrays)
    return root / "a.npz"
  return make


def parquet(info=None, **columns):
  def make(root):
    table = pa.table(columns)
    if info:
      features = {"info": {"features": {"label": {"names": info}}}}
      table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, root / "a.parquet", row_group_size=5)
    return root / "a.parquet"
  return make


def content(name, data):
  def make(root):
    (root / name).write_bytes(data)
    return root / name
  return make


def archive(**members):
  """The bytes of a ZIP archive."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as made:
    for name, data in members.items():
      made.writestr(name, data)
  return file.getvalue()


def folder(x, labels, damaged=None, **more):
  def make(root):
    for i, (image, label) in enumerate(zip(x, labels)):
      path = root / f"images/{label}/{i:02d}.png"
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(png(image))
    for name, data in (damaged or {}).items():
      (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
      (root / "images" / name).write_bytes(data)
    return root / "images"
  return make


def tables(root):
  (root / "tables").mkdir()
  np.savez(root / "tables/1.npz", x=GREY[:5], y=Y[:5])
  pq.write_table(pa.table({"image": cells(GREY[5:]), "label": Y[5:]}), root / "tables/2.parquet")
  return root / "tables"


def png(image):
  file = io.BytesIO()
  Image.fromarray(image).save(file, "png")
  return file.getvalue()


def cells(images):
  return [dict(bytes=png(image), path=None) for image in images]


def list_of(values, kind):
  for _ in range(values.ndim - 1):
    kind = pa.list_(kind)
  return pa.array(values.tolist(), kind)


def whole(make):
  """What a file holds, once it is written."""
  def read(root):
    return make(root).read_bytes()
  return read


# {name: (file, examples as they are read, names of their classes)}
GOOD = {
    "arrays": (npz(x=GREY, y=Y), GREY[..., None], NUMBERS),
    "arrays like columns": (npz(image=COLOUR, label=Y, x=GREY, y=Y[::-1]), COLOUR, NUMBERS),
    "labels of one kind": (npz(img=COLOUR, fine_label=Y), COLOUR, NUMBERS),
    "names of classes": (npz(x=GREY, y=NAMED), GREY[..., None], NAMES),
    "bytes of names": (npz(x=GREY, y=NAMED.astype("S")), GREY[..., None], NAMES),
    "labels that are floats": (npz(images=GREY, labels=Y.astype(float)), GREY[..., None], NUMBERS),
    "rows": (npz(x=ROWS, y=Y), ROWS.astype(np.float32), NUMBERS),
    "half floats": (npz(x=ROWS.astype(np.float16), y=Y), ROWS.astype(np.float16).astype(np.float32), NUMBERS),
    "rows of whole numbers": (npz(x=WHOLE, y=Y), WHOLE.astype(np.float32), NUMBERS),
    "images of whole numbers": (npz(x=GREY.astype(np.int64), y=Y), GREY[..., None], NUMBERS),
    "images of floats": (npz(x=COLOUR / 255, y=Y), (COLOUR / 255).astype(np.float32), NUMBERS),
    "order of Fortran": (npz(x=np.asfortranarray(COLOUR), y=Y), COLOUR, NUMBERS),
    "images of Hugging Face": (parquet(image=cells(GREY), label=Y), GREY[..., None], NUMBERS),
    "names of Hugging Face": (parquet(NAMES, img=cells(COLOUR), label=Y), COLOUR, NAMES),
    "bytes of images": (parquet(images=[png(image) for image in GREY], labels=NAMED), GREY[..., None], NAMES),
    "lists of images": (parquet(x=list_of(GREY, pa.int64()), y=Y), GREY[..., None], NUMBERS),
    "lists in colour": (parquet(x=list_of(COLOUR, pa.float32()), y=Y), COLOUR.astype(np.float32), NUMBERS),
    "lists of floats": (parquet(x=list_of(ROWS, pa.float64()), coarse_label=Y), ROWS.astype(np.float32), NUMBERS),
    "lists of whole numbers": (parquet(x=list_of(WHOLE, pa.int64()), y=Y), WHOLE.astype(np.float32), NUMBERS),
    "lists of bytes": (parquet(x=list_of(GREY.reshape(N, -1), pa.uint8()), y=Y), GREY.reshape(N, -1), NUMBERS),
    "folder": (folder(GREY, NAMED), GREY[..., None], NAMES),
    "folder of numbers": (folder(COLOUR, Y), COLOUR, NUMBERS),
    "folder of grey and colour": (folder([GREY[0], *COLOUR[1:]], NAMED),
                                  np.concatenate([GREY[:1, ..., None].repeat(3, -1), COLOUR[1:]]), NAMES),
    "folder of 16 bits": (folder([GREY[0].astype(np.uint16) * 257, *GREY[1:]], NAMED),
                          GREY[..., None].astype(np.float32), NAMES),
    "folder of tables": (tables, GREY[..., None], NUMBERS),
}

NAN, LARGE = ROWS * [1, 1, 1, np.nan], np.sign(ROWS) * [1, 1e31, 1, 1]
# {name: (file, part of the sentence, whether `alma predict`, which reads no labels, refuses it, too)}
BAD = {
    "no file": (lambda root: root / "none.npz", "there is no", True),
    "another kind": (content("a.csv", b"1,2\n"), "of a kind that cannot be read here; give an .npz", True),
    "no archive": (content("a.npz", b"no"), "is not an .npz file of plain arrays", True),
    "an archive of texts": (content("a.npz", archive(x=b"no array", y=b"no array")), "not an .npz file", True),
    "a torn archive": (lambda root: content("b.npz", whole(npz(x=GREY, y=Y))(root)[:-200])(root),
                       "is not an .npz file of plain arrays", True),
    "objects": (npz(x=np.array([{}] * N), y=Y), "(Object arrays cannot be loaded", True),
    "no examples": (npz(z=GREY, y=Y), "it has no array image, img, images or x; its arrays are y, z", True),
    "one dimension": (npz(x=GREY[:, 0, 0], y=Y), "x has examples", True),
    "complex numbers": (npz(x=ROWS + 1j, y=Y), "dtype complex128; give numbers, uint8", True),
    "truth values": (npz(x=ROWS > 0, y=Y), "dtype bool; give numbers, uint8 or floats", True),
    "negative pixels": (npz(x=GREY.astype(int) - 1, y=Y), "whole numbers outside of 0 to 255", True),
    "large pixels": (parquet(x=list_of(GREY.astype(int) + 9, pa.int64()), y=Y), "outside of 0 to 255", True),
    "not finite": (npz(x=NAN, y=Y), "x holds NaN or infinite values; replace or remove them", True),
    "a list that is not finite": (parquet(x=list_of(NAN, pa.float64()), y=Y), "it holds NaN or infinite", True),
    "too large": (npz(x=LARGE, y=Y), "in its column 1, but float32 can normalise values up to 1e+30", True),
    "a list too large": (parquet(x=list_of(LARGE, pa.float64()), y=Y), "in its column 1, but float32", True),
    "empty": (npz(x=GREY[:0], y=Y[:0]), "x is empty; give at least one example", True),
    "an empty table": (parquet(image=pa.array([], pa.binary()), label=pa.array([], pa.int64())), "it is empty", True),
    "no table": (content("a.parquet", b"no"), "is not a readable Parquet file", True),
    "a torn table": (lambda root: content("b.parquet", whole(parquet(x=list_of(ROWS, pa.float64()), y=Y))(root)[:-50])(
        root), "is not a readable Parquet file", True),
    "no column": (parquet(text=["a"], y=[0]), "it has no column image, img, images or x; its columns are text", True),
    "no images": (parquet(image=[b"no"] * 2, label=[0, 1]),
                  "it has 2 examples that cannot be read, row 0 (no image), row 1 (no image); repair", True),
    "texts": (parquet(image=["no"] * 2, label=[0, 1]), "row 0 (neither an image nor numbers)", True),
    "ragged lists": (parquet(image=[[[1, 2], [3]]], label=[0]), "row 0 (lists of different lengths", True),
    "lists of two lengths": (parquet(x=[[1., 2.], [3.]], y=[0, 1]), "'row 0' has 2 numbers, 'row 1' 1 numbers", True),
    "two numbers of channels": (parquet(x=[[[[1, 2]]], [[[1, 2, 3]]]], y=[0, 1]), "examples of 2 and 3 channels", True),
    "several sizes": (folder([GREY[0], *GREY[1:, :5]], NAMED), "'bird/00.png' has 6x6 pixels, 'bird/03.png' 6x5", True),
    "a damaged image": (folder(GREY, NAMED, {"cat/x.png": b"no"}),
                        "it has 1 example that cannot be read, cat/x.png (no image); repair", True),
    "images and tables": (folder(GREY, NAMED, {"a.parquet": b"no"}), "it holds both images and files such as", True),
    "no images in a folder": (folder([], [], {"cat/x.txt": b"no"}), "not read (1 .txt)", False),
    "no labels": (npz(x=GREY), "it has no array label, labels, y or class; its arrays are x; choose it with", False),
    "two kinds of labels": (npz(x=GREY, a_label=Y, b_label=Y),
                            "it has the arrays a_label and b_label, and any of them may be the label", False),
    "two columns of labels": (parquet(image=cells(GREY), a_label=Y, b_label=Y), "any of them may be the label", False),
    "fewer labels": (npz(x=GREY, y=Y[1:]), "it has 12 examples but 11 labels", False),
    "a matrix of labels": (npz(x=GREY, y=Y[:, None]), "labels of shape (12, 1); labels are [N]", False),
    "a negative label": (npz(x=GREY, y=Y - 1), "y has the negative label -1", False),
    "half a label": (npz(x=GREY, y=Y / 2), "labels that are not whole numbers and not names", False),
    "a label that is not finite": (npz(x=GREY, y=np.where(Y, Y, np.nan)), "not whole numbers and not names", False),
    "a huge label": (npz(x=GREY, y=Y + 10**9), "y has the label 1000000002, but labels count classes from 0", False),
    "an empty name": (npz(x=GREY, y=np.where(Y, NAMED, " ")), "an empty label; name their class", False),
    "a missing label": (parquet(image=cells(GREY[:3]), label=[0, None, 1]), "examples without a label", False),
    "a number without a name": (parquet(NAMES[:2], image=cells(GREY), label=Y), "the label 2, but names only 2", False),
    "lists of labels": (parquet(image=cells(GREY), label=Y[:, None].tolist()), "neither whole numbers nor", False),
    "bytes of labels": (parquet(image=cells(GREY), label=[b"\xff"] * N), "neither whole numbers nor names", False),
}


# ---------------------------------------------------------------- readers


def by_run(path, form, names):
  data = datasets.load(f"{'folder' if path.is_dir() else 'npz'}:{path}")
  classes = data.class_names or tuple(map(str, range(data.num_classes)))
  return (np.concatenate([data.x_train, data.x_test]),
          [classes[label] for label in np.concatenate([data.y_train, data.y_test])])


def by_first_entry(path, form, names, lines=()):
  reader = live_entries.ImageReader(path.parent / "no stream", 0, 0)
  read = reader.read(path, list(lines))
  classes = reader.classes([*lines, read.notes])
  return read.arrays["x"], [classes[label] for label in read.arrays["y"]]


def by_later_entry(path, form, names):
  line = dict(example_shape=list(form.shape), dtype=str(form.dtype), new_classes=list(names))
  return by_first_entry(path, form, names, [line])


def by_entry_after_a_test_set(path, form, names):
  live = path.parent / "live"
  live.mkdir(exist_ok=True)
  x = np.full((2, *form.shape), 7).astype(form.dtype)
  np.savez(live / "test.npz", x=x, y=np.array(names[:2]))
  read = live_entries.ImageReader(live, 0, 0).read(path, [])
  return read.arrays["x"], [read.notes["new_classes"][label] for label in read.arrays["y"]]


def by_test_set(path, form, names):
  live = path.parent / "tested"
  live.mkdir(exist_ok=True)
  path.rename(live / f"test{path.suffix}")
  try:
    test = live_entries.ImageReader(live, 0, 0).test
  finally:
    (live / f"test{path.suffix}").rename(path)
  return test.x, test.names.tolist()


def by_evaluate(path, form, names):
  args = argparse.Namespace(data=str(path), data_dir="", image_column="", label_column="")
  batches = [*evaluate._batches(args, without_program(known(form, names), 5))]
  return (np.concatenate([batch.x for batch in batches]),
          [names[label] for batch in batches for label in batch.labels.numbers])


def by_predict(path, form, names):
  reader = examples.Reader(known(form, names).form, labelled=False, part=examples.TEST)
  return np.concatenate([batch.x for batch in inputs.read([str(path)], reader, 5)]), None


def known(form, names):
  return description.of(dict(
      image_size=form.image_size, example_shape=list(form.shape), dtype=str(form.dtype), classes=len(names),
      class_names=None if names == NUMBERS else list(names), sha256={}))


LABELLED = (by_run, by_first_entry, by_later_entry, by_entry_after_a_test_set, by_test_set, by_evaluate)


def rows(x, classes):
  """The examples in an order that does not depend on their order."""
  return sorted((row.tobytes(), name) for row, name in zip(np.ascontiguousarray(x), classes or [""] * len(x)))


def test_a_chosen_column_counts_before_the_parts(tmp_path):
  np.savez(tmp_path / "a.npz", x_test=ROWS, y_test=Y, other=ROWS + 1)
  read = examples.Reader(part=examples.TEST, image_column="other").whole(tmp_path / "a.npz")
  np.testing.assert_array_equal(read.x, (ROWS + 1).astype(np.float32))
  np.testing.assert_array_equal(read.labels.numbers, Y)


@pytest.mark.parametrize("x", [np.ones((4, 1)), np.ones(4)])
def test_one_number_is_no_row_of_three(x):
  with pytest.raises(BadInput, match="it has examples of shape"):
    Form((3,), np.dtype(np.float32), owner="the predictor takes").fit(x)


@pytest.mark.filterwarnings("ignore:x, y of .* are not used")  # training warns of the others
@pytest.mark.parametrize("name", GOOD)
def test_good_files_are_the_same_examples_everywhere(tmp_path, name):
  make, x, names = GOOD[name]
  path, form = make(tmp_path), Form(x.shape[1:], x.dtype)
  wanted = rows(x, [names[label] for label in Y])
  for reader in LABELLED:
    found, classes = reader(path, form, names)
    assert (found.dtype, found.shape) == (x.dtype, x.shape), reader
    assert rows(found, classes) == wanted, reader
  found, _ = by_predict(path, form, names)
  assert (found.dtype, rows(found, None)) == (x.dtype, rows(x, None))


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_one_sentence_everywhere(tmp_path, name):
  make, part, of_examples = BAD[name]
  path, sentences = make(tmp_path), {}
  form = Form((6, 6, 1), np.dtype(np.uint8))
  if "NaN" in part or "float32" in part:
    form = Form((4,), np.dtype(np.float32))
  for reader in (*LABELLED, *([by_predict] if of_examples else [])):
    if reader is by_test_set and name in ("no file", "another kind"):
      continue  # a live stream may have other files beside it than a test set
    with pytest.raises(BadInput) as error:
      reader(path, form, NAMES if path.is_dir() else NUMBERS)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    sentences[reader.__name__] = str(error.value).rpartition(" cannot be used: ")[2]
    assert part in sentences[reader.__name__]
  if name not in ("no file", "another kind", "one dimension"):  # they name the kinds, or the shape that is needed
    assert len({*sentences.values()}) == 1, sentences


# ---------------------------------------------------------------- texts

# {name: ({file: contents}, documents)}
TEXTS = {
    "a document": ({"a.txt": b"one\r\ntwo\n"}, ["one\r\ntwo\n"]),
    "a byte order mark": ({"a.TXT": "\ufeffé".encode()}, ["é"]),
    "lines": ({"a.jsonl": b'"one"\n\n{"text": "a\\ud800b"}\n" "\n'}, ["one", "a?b"]),
    "a folder": ({"t/b/c.txt": b"two", "t/a.txt": b"one", "t/blank.txt": b" \n", "t/d.jsonl": b'"three"'},
                 ["one", "two", "three"]),
}
BAD_TEXTS = {
    "no file": ({}, "there is no"),
    "no text": ({"a.png": b""}, "it is of a kind that cannot be read here; give a .txt file, a .jsonl file, or a "
                "folder of them."),
    "blank": ({"a.txt": b" \n\xe2\x80\x83"}, "holds no text: every document is blank."),
    "no UTF-8": ({"a.txt": b"a\xff"}, "it is not UTF-8: byte 1 is 0xff; convert it to UTF-8."),
    "no JSON": ({"a.jsonl": b'"a"\n{'}, "its line 2 is not JSON"),
    "no string": ({"a.jsonl": b'"a"\n{"txt": "b"}'}, "its line 2 is neither a string nor an object with"),
}


def written(root, files):
  """The file, or the folder of the files."""
  for name, data in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
  return root / next(iter(files), "none.txt").partition("/")[0]


def text_of_a_run(path):
  return text_files.source(path).read()["train"]


def text_of_an_entry(path):
  config = types.SimpleNamespace(vocab_size=257, tokenizer="", sequence_length=1, cross_documents=True)
  reader = live_entries.TextReader(path.parent / "none", config)
  arrays = reader.read(path, [dict(tokenizer=tokens.train([b"a"], 257).to_str())]).arrays
  bounds, tokenizer = [*arrays["starts"], len(arrays["ids"]) - 1], reader.tokenizer([])
  return [tokenizer.decode(arrays["ids"][a + 1:b].tolist()).encode() for a, b in itertools.pairwise(bounds)]


def text_of_a_held_out_split(path):
  live = path.parent / "live"
  live.mkdir()
  path.rename(live / f"test{path.suffix.lower()}")
  config = types.SimpleNamespace(vocab_size=257, tokenizer="")
  return live_entries.TextReader(live, config).held_out["test"]


def text_for_a_predictor(path):
  return [document.text for document in texts.read([str(path)])]


TEXT_READERS = (text_of_a_run, text_of_an_entry, text_for_a_predictor, text_of_a_held_out_split)


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_the_same_documents_everywhere(tmp_path, name):
  files, documents = TEXTS[name]
  path = written(tmp_path, files)
  for reader in TEXT_READERS:
    assert [text.decode() for text in reader(path)] == documents, reader


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_texts_are_refused_everywhere(tmp_path, name):
  files, part = BAD_TEXTS[name]
  path = written(tmp_path, files)
  # A live stream may have other files beside it than a test set.
  for reader in TEXT_READERS[:-1] if name in ("no file", "no text") else TEXT_READERS:
    with pytest.raises(BadInput) as error:
      reader(path)
    assert part in str(error.value)
    assert str(error.value).endswith(".")
