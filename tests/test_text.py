"""Text: what is read, how it is divided, encoded and cached, and the windows cut from it."""
import itertools
import json
import os
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alma_jax.config import registry
from alma_jax.data import text, text_files, tfds_folder, tokens
from alma_jax.errors import BadInput

BYTES = 257  # a vocabulary without merges: every byte is a token


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp("cache")
  monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
  return folder / "alma_jax"


def config(name, vocab_size=BYTES, tokenizer="", **fields):
  cls = registry.DATA_SETS["text"].of(name, "dataset.name")
  return cls(name=name, vocab_size=vocab_size, tokenizer=str(tokenizer), **fields)


def write(folder, **splits):
  """Files a.txt, b.txt, ... of each split; returns the config's name of the text."""
  for split, contents in splits.items():
    (folder / split).mkdir(parents=True, exist_ok=True)
    for i, content in enumerate(contents):
      content = content if isinstance(content, bytes) else content.encode()
      (folder / split / f"{chr(ord('a') + i)}.txt").write_bytes(content)
  return f"text:{folder}"


def small(folder, train=("aaaa", "bbbb", "cccc", "dddd"), **splits):
  return write(folder, **dict(train=train, valid=["vv"], test=["tt"]) | splits)


def texts(corpus, split):
  """The documents of a split, decoded."""
  bounds = [*corpus.splits[split].starts, len(corpus.splits[split].ids) - 1]
  tokenizer = tokens.parse(corpus.tokenizer)
  return [tokenizer.decode(corpus.splits[split].ids[start + 1:stop].tolist(), skip_special_tokens=False)
          for start, stop in itertools.pairwise(bounds)]


def everything(corpus):
  return [document for split in text.SPLITS for document in texts(corpus, split)]


def test_a_corpus_by_hand(tmp_path):
  name = small(tmp_path, valid=["\ufeffé", " \n\t"], test=["x\r\ny"])
  corpus = text.load(config(name), 2, seed=0)
  assert (corpus.name, corpus.vocab_size, corpus.end) == (name, 257, 0)
  assert {split: each.ids.dtype for split, each in corpus.splits.items()} == dict.fromkeys(text.SPLITS, np.uint16)
  assert sorted(texts(corpus, "train")) == ["aaaa", "bbbb", "cccc", "dddd"]
  assert texts(corpus, "valid") == ["é"]  # the byte order mark is dropped, the blank file skipped
  assert texts(corpus, "test") == ["x\r\ny"]
  assert corpus.splits["train"].starts.tolist() == [0, 5, 10, 15]
  assert np.flatnonzero(corpus.splits["train"].ids == corpus.end).tolist() == [0, 5, 10, 15, 20]
  assert corpus.parts.tolist() == [0, 2, 4]  # of 4 equal documents


@pytest.mark.parametrize("other", ["val", "validation"])
def test_names_of_splits(tmp_path, other):
  name = write(tmp_path, train=["aaaa", "bbbb"], test=["tt"], **{other: ["w"]})
  assert texts(text.load(config(name), 2, 0), "valid") == ["w"]


def test_files_without_folders_are_split_90_5_5_and_held_out_alike_for_every_seed(tmp_path):
  train = [f"{i:03d}\n" * 2 for i in range(100)]
  for i, content in enumerate(train):
    (tmp_path / f"{i:03d}.txt").write_text(content)
  first, second = (text.load(config(f"text:{tmp_path}"), 3, seed) for seed in (0, 7))
  assert [len(first.splits[split].starts) for split in text.SPLITS] == [90, 5, 5]
  assert sorted(everything(first)) == sorted(everything(second)) == train
  for split in ("valid", "test"):
    assert texts(first, split) == texts(second, split)
  assert texts(first, "train") != texts(second, "train")


def test_one_file_is_cut_at_line_ends_before_it_is_split(tmp_path):
  lines = [f"line {i}\n" for i in range(1000)]
  (tmp_path / "all.txt").write_text("".join(lines))
  corpus = text.load(config(f"text:{tmp_path}"), 2, 0)
  pieces = everything(corpus)
  assert all(piece.endswith("\n") and piece.startswith("line ") for piece in pieces)
  assert sorted("".join(pieces).splitlines(True)) == sorted(lines)
  assert 0.03 < len("".join(texts(corpus, "test"))) / len("".join(lines)) < 0.07


@given(st.lists(st.text(st.sampled_from("aé😀\n "), max_size=60), max_size=5), st.integers(0, 40), st.integers(0, 30))
@settings(deadline=None)
def test_cut_documents_are_the_same_text(contents, longest, piece):
  whole = [content.encode() for content in contents]
  cut = text.cut_long(whole, longest, piece)
  assert b"".join(cut) == b"".join(whole)
  assert all(cut)
  assert all(len(part.decode().encode()) <= max(longest, piece, 4) for part in cut)  # 4: one character


def test_pieces_end_at_line_ends_where_they_can():
  assert text.cut_long([b"ab\ncd\nef\n"], 5, 4) == [b"ab\n", b"cd\n", b"ef\n"]
  assert text.cut_long([b"abcdefgh"], 7, 4) == [b"abcd", b"efgh"]
  assert text.cut_long([b"abcdefgh"], 8, 4) == [b"abcdefgh"]


def test_a_document_longer_than_a_megabatch_becomes_many(tmp_path):
  name = small(tmp_path, ["".join(f"{i}\n" for i in range(2000)), "short\n"])
  corpus = text.load(config(name), 4, 0)
  assert len(corpus.splits["train"].starts) > 32
  sizes = np.diff(corpus.splits["train"].starts[corpus.parts[:-1]])
  assert sizes.max() < 1.2 * sizes.min()


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.data())
@settings(deadline=None)
def test_parts_are_disjoint_cover_and_are_in_order(sizes, data):
  num_parts = data.draw(st.integers(1, len(sizes)))
  bounds = text.nearest_bounds(sizes, num_parts)
  assert bounds.dtype == np.int64
  assert (bounds[0], bounds[-1], len(bounds)) == (0, len(sizes), num_parts + 1)
  assert (np.diff(bounds) > 0).all()


def test_parts_by_hand():
  assert text.nearest_bounds([1, 1, 1, 1, 4], 2).tolist() == [0, 4, 5]
  assert text.nearest_bounds([4, 1, 1, 1, 1], 3).tolist() == [0, 1, 2, 5]  # near 8/3: 4; near 16/3: 5
  assert text.nearest_bounds([2, 2, 2], 2).tolist() == [0, 1, 3]  # 2 and 4 are as near to 3: the shorter
  assert text.nearest_bounds([9, 1, 1], 3).tolist() == [0, 1, 2, 3]


def stream_order(folder, contents):
  """Numbers of the contents as the stream of seed 0 orders them."""
  prepared = text.prepare(text.complete(config(small(folder, contents)).source().read()), 2, 0)
  return [contents.index(document.decode()) for document in prepared["train"]]


def test_the_tokenizer_knows_only_the_first_megabatch(tmp_path):
  # Documents of one length, so that their order in the stream does not depend on their contents.
  order = stream_order(tmp_path / "order", [f"{i:06d}\n" * 8 for i in range(8)])
  early, late, changed = "window\n" * 8, "zephyr\n" * 8, "mirage\n" * 8
  made = []
  for i, later in enumerate((late, changed)):
    contents = [""] * 8
    for place, number in enumerate(order):
      contents[number] = early if place < 4 else later
    corpus = text.load(config(small(tmp_path / str(i), contents, valid=[later]), 262), 2, 0)
    assert corpus.parts.tolist() == [0, 4, 8]
    made.append(corpus)
  assert made[0].tokenizer == made[1].tokenizer
  assert made[0].fingerprint != made[1].fingerprint
  encode = lambda word: tokens.parse(made[0].tokenizer).encode(word, add_special_tokens=False).ids
  assert len(encode("window")) == 1  # 257 units and 5 merges
  assert len(encode("zephyr")) == len(encode("mirage")) == 6


def test_a_small_vocabulary_gives_a_warning(tmp_path):
  with pytest.warns(UserWarning, match="has 259 units instead of dataset.vocab_size=50000, because no other pair"):
    corpus = text.load(config(small(tmp_path, ["abab"] * 4), 50000), 2, 0)
  assert corpus.vocab_size == 259  # the bytes, END, "ab" and "abab"


TOKENIZER = tokens.train([b"the theory of the thing, \r\n\r\n and 12 12 others  others"] * 2, 280)


@given(st.lists(st.text(min_size=1), max_size=5))
@settings(deadline=None)
def test_decoding_gives_back_any_text(contents):
  ids, starts = tokens.encode(TOKENIZER, [content.encode() for content in contents], in_sections=True)
  assert np.flatnonzero(ids == 0).tolist() == [*starts, len(ids) - 1]
  bounds = [*starts, len(ids) - 1]
  assert [TOKENIZER.decode(ids[start + 1:stop].tolist()) for start, stop in itertools.pairwise(bounds)] == contents


@given(st.text(st.sampled_from("the 12,\n\r\t\u00a0\u2028\u180e\x1c'sé"), max_size=200))
@settings(deadline=None)
def test_sections_change_no_token(content):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tokens, "_SECTION", 3)
    patch.setattr(tokens, "_BATCH", 20)
    cut = tokens.encode(TOKENIZER, [content.encode()] * 2, in_sections=True)
  whole = tokens.encode(TOKENIZER, [content.encode()] * 2, in_sections=False)
  np.testing.assert_array_equal(cut[0], whole[0])
  np.testing.assert_array_equal(cut[1], whole[1])


def test_end_in_a_document_is_text(tmp_path):
  content = f"a{text.END}b {text.END}"
  corpus = text.load(config(small(tmp_path, [content] * 4)), 2, 0)
  assert np.flatnonzero(corpus.splits["train"].ids == corpus.end).tolist() == [*corpus.splits["train"].starts, 4 * 30]
  assert texts(corpus, "train") == [content] * 4  # 29 bytes each


def save(tokenizer, path):
  path.write_text(tokenizer.to_str())
  return path


def test_a_given_tokenizer(tmp_path):
  from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
  other = Tokenizer(models.BPE())
  other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  other.decoder = decoders.ByteLevel()
  other.train_from_iterator(["ab"], trainers.BpeTrainer(
      show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  other.add_tokens([text.END])  # an ordinary unit; the last id
  other.enable_truncation(2)
  other.enable_padding(length=9)
  end = other.token_to_id(text.END)
  other.post_processor = processors.TemplateProcessing(
      single=f"$A {text.END}", special_tokens=[(text.END, end)])
  corpus = text.load(config(small(tmp_path, ["abc" + text.END] + ["abc"] * 3), 300, save(other, tmp_path / "t")), 3, 0)
  assert (corpus.end, corpus.vocab_size) == (end, end + 1)
  assert np.count_nonzero(corpus.splits["train"].ids == end) == len(corpus.splits["train"].starts) + 1
  assert "".join(sorted("".join(texts(corpus, "train")))) == "".join(sorted("abc" * 4 + text.END))


def test_large_vocabularies_are_int32(tmp_path):
  from tokenizers import Tokenizer, models, pre_tokenizers
  vocabulary = {text.END: 70000, "aa": 1, "vv": 2, "tt": 65536}
  words = Tokenizer(models.WordLevel(vocabulary, unk_token="aa"))
  words.pre_tokenizer = pre_tokenizers.Whitespace()
  corpus = text.load(config(small(tmp_path, ["aa vv", "aa"]), 80000, save(words, tmp_path / "t")), 1, 0)
  assert corpus.splits["test"].ids.dtype == np.int32
  assert corpus.splits["test"].ids.tolist() == [70000, 65536, 70000]
  assert corpus.vocab_size == 70001


def test_the_second_load_reads_the_cache(tmp_path, cache, monkeypatch):
  name = small(tmp_path)
  first = text.load(config(name), 2, 0)
  for module, attribute in ((tokens, "train"), (tokens, "encode"), (text_files, "of_file")):
    monkeypatch.setattr(module, attribute, lambda *unused, **also: pytest.fail("made again"))
  start = time.monotonic()
  second = text.load(config(name), 2, 0)
  assert time.monotonic() - start < 1
  assert (second.fingerprint, second.tokenizer, second.vocab_size) == (first.fingerprint, first.tokenizer, 257)
  for split in text.SPLITS:
    assert isinstance(second.splits[split].ids, np.memmap)
    np.testing.assert_array_equal(second.splits[split].ids, first.splits[split].ids)
    np.testing.assert_array_equal(second.splits[split].starts, first.splits[split].starts)
  np.testing.assert_array_equal(second.parts, first.parts)
  assert len(list(cache.iterdir())) == 1  # nothing temporary is left


def test_another_text_seed_or_vocabulary_is_encoded_again(tmp_path, cache):
  name = small(tmp_path)
  text.load(config(name), 2, 0)
  text.load(config(name), 2, 1)
  text.load(config(name), 4, 0)
  with pytest.warns(UserWarning, match="has 2.. units instead of dataset.vocab_size=1000"):
    text.load(config(name, 1000), 2, 0)
  text.load(config(name, 1000, save(TOKENIZER, tmp_path / "t")), 2, 0)
  file = tmp_path / "train" / "a.txt"
  before = file.stat()
  os.utime(file)
  text.load(config(name), 2, 0)
  assert len(list(cache.glob("tokens-*"))) == 5
  file.write_text("abcd")  # of the same size and, from the next line on, time
  os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
  assert "abcd" in texts(text.load(config(name), 2, 0), "train")
  assert len(list(cache.glob("tokens-*"))) == 6


def test_a_cache_that_is_damaged_or_older_is_made_again(tmp_path, cache):
  name = small(tmp_path)
  text.load(config(name), 2, 0)
  (folder,) = cache.glob("tokens-*")
  good = {path.name: path.read_bytes() for path in folder.iterdir()}

  def spoil(file, content):
    for path, old in good.items():
      (folder / path).write_bytes(old)
    (folder / file).write_bytes(content)

  older = json.loads(good["meta.json"]) | {"format": 2}
  for file, content in (("valid.npy", good["test_starts.npy"]), ("train.npy", good["train.npy"][:-1]),
                        ("meta.json", good["meta.json"][:-1]), ("meta.json", b""),
                        ("meta.json", json.dumps(older).encode())):
    spoil(file, content)
    assert text.load(config(name), 2, 0).vocab_size == 257
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good


def test_without_a_cache_folder_the_tokens_stay_in_memory(tmp_path, cache):
  cache.write_text("a file where the folder would be")
  corpus = text.load(config(small(tmp_path)), 2, 0)
  assert not isinstance(corpus.splits["train"].ids, np.memmap)
  assert sorted(texts(corpus, "train")) == ["aaaa", "bbbb", "cccc", "dddd"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 7), st.booleans(), st.integers(0, 5))
@settings(deadline=None)
def test_every_token_is_a_target_once(sizes, length, cross_documents, offset):
  starts = offset + np.cumsum([0, *np.array(sizes) + 1])[:-1]
  end = int(starts[-1] + sizes[-1] + 1)
  documents = tokens.Encoded(np.zeros(end + 1, np.uint16), starts)
  if end - offset < length:
    with pytest.raises(BadInput, match=f"the text of it has only {end - offset + 1} tokens"):
      text.windows(documents, length, cross_documents, "it")
    return
  windows = text.windows(documents, length, cross_documents, "it")
  assert (windows.start.dtype, windows.length.dtype) == (np.int64, np.int32)
  assert windows.length.min() >= 1
  assert windows.length.max() <= length
  targets = [s + i for s, n in zip(*windows) for i in range(1, n + 1)]
  assert targets == list(range(offset + 1, end + 1))
  if not cross_documents:  # between the first and the last target of a window begins no document
    assert not any(s < d < s + n for s, n in zip(*windows) for d in starts)
  elif len(windows.length) > 1:
    assert set(windows.length[:-1]) == {length}


def test_windows_by_hand():
  # END a a a END b END, of which the mega-batch is all; L = 2
  ids = np.array([0, 7, 7, 7, 0, 8, 0], np.uint16)
  run = text.windows(tokens.Encoded(ids, np.array([0, 4])), 2, True, "it")
  assert run.start.tolist() == [0, 2, 4]
  assert run.length.tolist() == [2, 2, 2]
  alone = text.windows(tokens.Encoded(ids, np.array([0, 4])), 3, False, "it")
  assert alone.start.tolist() == [0, 3, 4]
  assert alone.length.tolist() == [3, 1, 2]
  rows = text.gather(ids, alone.start, 3)
  assert rows.dtype == np.int32
  assert rows.tolist() == [[0, 7, 7, 7], [7, 0, 8, 0], [0, 8, 0, 0]]  # padded with END at the end


@pytest.mark.parametrize("cross_documents", [True, False])
def test_megabatches_and_splits_have_all_targets_once(tmp_path, cross_documents):
  corpus = text.load(config(small(tmp_path, [chr(97 + i) * (i + 3) for i in range(8)])), 3, 0)
  reached = []
  for t in (1, 2, 3):
    windows = text.megabatch_windows(corpus, t, 4, cross_documents)
    reached += [s + i for s, n in zip(*windows) for i in range(1, n + 1)]
    rows = text.gather(corpus.splits["train"].ids, windows.start, 4)
    assert type(rows) is np.ndarray
    np.testing.assert_array_equal(rows[0], corpus.splits["train"].ids[windows.start[0]:windows.start[0] + 5])
  assert reached == list(range(1, len(corpus.splits["train"].ids)))
  assert text.split_windows(corpus, "valid", 3, cross_documents).length.tolist() == [3]  # v v END


@pytest.mark.parametrize("cross_documents", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 30, 250, 10**6])
def test_a_limited_split_is_spread_evenly(tmp_path, cross_documents, max_tokens):
  valid = ["v" * n for n in (50, 1, 1, 1, 1, 1, 1, 120, 60)]
  corpus = text.load(config(small(tmp_path, valid=valid)), 2, 0)
  every = text.split_windows(corpus, "valid", 8, cross_documents)
  some = text.split_windows(corpus, "valid", 8, cross_documents, max_tokens)
  again = text.split_windows(corpus, "valid", 8, cross_documents, max_tokens)
  assert some.start.tolist() == again.start.tolist()
  assert set(zip(*map(np.ndarray.tolist, some))) <= set(zip(*map(np.ndarray.tolist, every)))
  assert len(set(some.start.tolist())) == len(some.start) >= 1
  assert some.length.sum() <= max_tokens or len(some.start) == 1
  assert some.length.sum() >= min(max_tokens - 16, every.length.sum())  # and as much as that, nearly
  if len(some.start) > 2:
    places = np.searchsorted(every.start, some.start)
    assert np.ptp(np.diff(places)) <= 1


def test_other_bad_input(tmp_path):
  corpus = text.load(config(small(tmp_path)), 2, 0)
  with pytest.raises(BadInput, match="the text of mega-batch 1 has only 11 tokens, but one window needs 12; "
                     "give more text, or lower dataset.sequence_length=11"):
    text.megabatch_windows(corpus, 1, 11, True)
  assert text.megabatch_windows(corpus, 1, 10, True).length.tolist() == [10]
  with pytest.raises(BadInput, match="the text of the split valid has only 4 tokens"):
    text.split_windows(corpus, "valid", 4, False)
  (tmp_path / "one").mkdir()
  (tmp_path / "one" / "a.txt").write_text("a")
  with pytest.raises(BadInput, match="too little training text to hold out valid and test: 1 piece"):
    text.load(config(f"text:{tmp_path / 'one'}"), 2, 0)


def prepare_tfds(root, features, splits, builder_name="tiny_shakespeare"):
  """A TFDS text data set in array_record format, as TFDS's own builder structures it."""
  import tensorflow_datasets as tfds

  class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name, VERSION = builder_name, tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(
          {key: tfds.features.Text() if kind == "text" else np.int64 for key, kind in features.items()}))

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(contents) for split, contents in splits.items()}

    def _generate_examples(self, contents):
      for i, content in enumerate(contents):
        yield i, {key: content if kind == "text" else i for key, kind in features.items()}

  Tiny(data_dir=str(root), file_format="array_record").download_and_prepare()


PLAY = "".join(f"First Citizen:\nSpeak {i}, speak.\n\n" for i in range(200))


def test_tiny_shakespeare(tmp_path, monkeypatch):
  prepare_tfds(tmp_path, {"text": "text"}, {"train": [PLAY], "validation": ["All:\nSpeak"], "test": ["MENENIUS:\n"]})
  monkeypatch.setattr(tfds_folder, "download", lambda *unused: pytest.fail("tried to download"))
  dataset = config("tfds:tiny_shakespeare", 270, data_dir=str(tmp_path))
  corpus = text.load(dataset, 4, 0)
  assert texts(corpus, "valid") == ["All:\nSpeak"]
  assert texts(corpus, "test") == ["MENENIUS:\n"]
  pieces = texts(corpus, "train")
  assert len(pieces) >= 32
  assert sorted("".join(pieces).splitlines()) == sorted(PLAY.splitlines())
  monkeypatch.setattr(tfds_folder, "import_tfds", lambda: pytest.fail("imported again"))
  assert text.load(dataset, 4, 0).fingerprint == corpus.fingerprint


def test_tfds_without_validation_or_test(tmp_path):
  prepare_tfds(tmp_path, {"id": "number", "story": "text"}, {"train": [f"{i:04d}" for i in range(100)], "val": ["w"]})
  corpus = text.load(config("tfds:tiny_shakespeare", data_dir=str(tmp_path)), 2, 0)
  assert [len(corpus.splits[split].starts) for split in text.SPLITS] == [95, 1, 5]
  assert texts(corpus, "valid") == ["w"]


@pytest.mark.parametrize(("features", "splits", "sentence"), [
    ({"id": "number"}, {"train": ["a"]}, "is not plain text: it has no text features among id"),
    ({"a": "text", "b": "text"}, {"train": ["a"]}, "is not plain text: it has several text features among a, b"),
    ({"text": "text"}, {"test": ["a"]}, "has no split train; it has test"),
    ({"text": "text"}, {"train": ["a", b"\xff"]}, "example [01] of the split train of .* it is not UTF-8: byte 0"),
])
def test_tfds_that_is_no_text(tmp_path, features, splits, sentence):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TFDS
    prepare_tfds(tmp_path, features, splits)
  with pytest.raises(BadInput, match=sentence):
    text.load(config("tfds:tiny_shakespeare", data_dir=str(tmp_path)), 1, 0)
