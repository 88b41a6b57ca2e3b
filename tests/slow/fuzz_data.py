"""Fuzz targets of the readers of data: arrays, images, Parquet files, texts, entries of live streams, lists of tasks.

A target is made by a function of a folder. Its examples are drawn by hypothesis, and `use` gives one to the readers.
"""
import functools
import pathlib
import sys
import types
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import damage
import fuzz_files
import numpy as np
from hypothesis import strategies as st
from PIL import Image

from alma_jax.data import (
  datasets,
  examples,
  feed,
  inbox,
  live_entries,
  task_file,
  task_sources,
  text_files,
  tokens,
)
from alma_jax.errors import BadInput
from alma_jax.predictors import description, inputs, texts

FORMS = tuple(description.of(dict(example_shape=shape, dtype=dtype, image_size=size, classes=num, class_names=names,
                                  sha256={})) for shape, dtype, size, num, names in (
    ([6, 6, 1], "uint8", 0, 2, ["cat", "dog"]), ([4], "float32", 0, 3, None), ([8, 8, 3], "float32", 8, 3, None)))


class Target(NamedTuple):
  """What is fuzzed.

  Attributes:
    examples: strategy of hypothesis.
    use: gives an example to a reader; returns, or raises BadInput.
    bombs: () -> examples that unpack to hundreds of MB, which `use` refuses.
  """
  examples: st.SearchStrategy[Any]
  use: Callable[[Any], None]
  bombs: Callable[[], list[Any]] = list


def each(*readers: Callable[[], Any]) -> None:
  """Calls all readers; raises the last BadInput if all of them raised one."""
  refused, worked = None, False
  for reader in readers:
    try:
      reader()
      worked = True
    except BadInput as error:
      check_sentence(error)
      refused = error
  if refused is not None and not worked:
    raise refused


def given(path: pathlib.Path, known: Any, labelled: bool) -> None:
  """Reads a file as `alma evaluate` or, without labels, `alma predict` does."""
  reader = examples.Reader(known.form, labelled, "test", classes=known.classes)
  for _ in inputs.read([str(path)], reader, 5):
    pass


def entry_of(path: pathlib.Path, size: int = 0) -> None:
  """Reads a file or folder as the first mega-batch of a live stream."""
  live_entries.ImageReader(path.parent / "none", 0, size).read(path, [])


def check_sentence(error: BadInput) -> None:
  """Raises AssertionError unless the message is one line for a terminal."""
  text = str(error)
  assert text.strip(), "an empty message"
  assert not {"\n", "\x1b", "\r"} & set(text), f"not one line: {text[:300]!r}"


def npz(folder: pathlib.Path) -> Target:
  """Data sets, entries and inputs in .npz files."""
  rng = np.random.default_rng(0)
  images, labels = rng.integers(0, 256, (12, 6, 6), np.uint8), np.arange(12) % 2
  plain = dict(x=images, y=labels, x_train=images, y_train=labels, x_test=images, y_test=labels)
  named = dict(plain, x=rng.random((12, 4), np.float32), y=np.array(["cat", "dog"] * 6))
  seeds = [fuzz_files.npz(plain), fuzz_files.npz(named),
           fuzz_files.npz(plain, zipfile.ZIP_DEFLATED), fuzz_files.npy(images)]
  path = folder / "given.npz"

  def use(data: bytes) -> None:
    path.write_bytes(data)
    each(lambda: datasets.load(f"npz:{path}"), lambda: entry_of(path),
         *(functools.partial(given, path, known, labelled) for known in FORMS[:2] for labelled in (False, True)))

  return Target(st.one_of(st.sampled_from(seeds).flatmap(lambda seed: damage.damaged(seed, tuple(seeds))),
                          fuzz_files.archives(list(plain))), use, fuzz_files.npz_bombs)


def images(folder: pathlib.Path) -> Target:
  """Image files, folders of them as data sets, entries and inputs."""
  seeds = fuzz_files.images()
  root = folder / "given"
  for split in ("", "train", "test"):
    for name in ("cat", "dog"):
      (root / split / name).mkdir(parents=True, exist_ok=True)
      for i in range(2):
        if split:
          Image.new("L", (6, 6), 40 * i).save(root / split / name / f"{i}.png")
  entry = folder / "entry"
  for name in ("cat", "dog"):
    (entry / name).mkdir(parents=True)
    Image.new("L", (6, 6)).save(entry / name / "0.png")

  def use(example: tuple[str, bytes, int]) -> None:
    suffix, data, size = example
    places = [entry / f"cat/1{suffix}", root / f"train/dog/9{suffix}"]
    for place in places:
      place.write_bytes(data)
    try:
      each(lambda: entry_of(entry, size), lambda: given(places[0], FORMS[0], False),
           lambda: given(entry, FORMS[2], True),
           lambda: datasets.load(f"folder:{root}", image_size=size))
    finally:
      for place in places:
        place.unlink()

  pool = tuple(seeds.values())
  fuzzed = st.sampled_from(list(seeds.items())).flatmap(lambda seed: st.tuples(
      st.just(f".{seed[0].partition('-')[0]}"), fuzz_files.damaged_image(seed[1], pool), st.sampled_from((0, 6))))
  return Target(fuzzed, use, lambda: [(".png", data, size) for data in fuzz_files.image_bombs() for size in (0, 6)])


def parquet(folder: pathlib.Path) -> Target:
  """Entries and inputs in Parquet files."""
  seeds = tuple(fuzz_files.parquets())
  path = folder / "given.parquet"

  def use(data: bytes) -> None:
    path.write_bytes(data)
    each(lambda: entry_of(path), lambda: entry_of(path, 6),
         *(functools.partial(given, path, known, labelled) for known in FORMS for labelled in (False, True)))

  examples = st.sampled_from(seeds).flatmap(lambda seed: damage.damaged(seed, seeds))
  return Target(st.one_of(examples, fuzz_files.tables()), use, fuzz_files.parquet_bombs)


def text(folder: pathlib.Path) -> Target:
  """Texts of data sets, entries and inputs, and tokenizers."""
  lines = [{"text": "the cat sat"}, {"text": "on a mat\n\nand ran"}, "a plain string"]
  plain = "the cat sat on a mat. Ein Kätzchen — 猫。\n" .encode() * 8
  tokenizer = tokens.train([plain], 280)
  stored = tokenizer.to_str().encode()
  root = folder / "texts"
  root.mkdir()

  def use(example: tuple[str, bytes]) -> None:
    name, data = example
    path = root / name
    path.write_bytes(data)
    try:
      if name == "tokenizer.json":
        found = tokens.read(str(path), 1000)
        tokens.encode(found, [plain, "\u0301é".encode()], in_sections=False)
        return
      each(lambda: tokens.encode(tokenizer, [document.text for document in text_files.read(path)], in_sections=True),
           lambda: [texts.windows(tokenizer, [document.text.decode()], 8) for document in texts.read([str(root)])],
           lambda: text_files.source(root).read())
    finally:
      path.unlink()

  return Target(st.one_of(
      st.tuples(st.just("a.jsonl"), damage.edited_lines(lines)),
      st.tuples(st.just("a.txt"), st.one_of(damage.damaged(plain), st.binary(max_size=64))),
      st.tuples(st.just("tokenizer.json"), damage.damaged(stored))), use)


def live(folder: pathlib.Path) -> Target:
  """A live stream whose files, test set, class names and journal are damaged."""
  stream, run = folder / "live", folder / "run"
  rng = np.random.default_rng(0)
  entries = [fuzz_files.npz(dict(x=rng.integers(0, 256, (6, 4, 4), np.uint8), y=np.arange(6) % 3)) for _ in range(3)]
  _write(stream / "stream", {f"{i}.npz": data for i, data in enumerate(entries)})
  _write(stream, {"test.npz": entries[0], "classes.txt": b"cat\ndog\ncow\n", "end": b""})

  def opened(path: pathlib.Path | None) -> feed.Feed:
    reader = live_entries.ImageReader(stream, 0)
    return feed.Feed(stream, reader, settle=0, idle=0, limit=0, run=path)

  run.mkdir()
  first = opened(None)
  while first.poll(len(first.lines) + 1):
    pass
  first.attach(run)
  lines = list(first.lines)
  notice = [dict(notice="changed", name="0.npz", t=1)]
  rejected = [dict(name="x.npz", reason="no", sha256="0" * 64, signature=[1, 2, 3])]
  whole = {path: path.read_bytes() for path in (*stream.rglob("*"), *run.rglob("*")) if path.is_file()}

  def use(example: tuple[str, bytes]) -> None:
    for path, data in whole.items():
      if path.parent == run or not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    for name in (feed.REJECTED, feed.NOTICES):
      (run / name).unlink(missing_ok=True)
    name, data = example
    (folder / name).write_bytes(data)
    again = opened(run if name.startswith("run") else None)
    while again.poll(len(again.lines) + 1):
      pass
    for t in range(1, len(again.lines) + 1):
      again.arrays(t)
    again.recheck()
    if name.startswith("run"):
      again.attach(run)
    assert inbox.digest(stream / "stream")

  file = lambda name, made: st.tuples(st.just(name), made)
  return Target(st.one_of(
      file("live/stream/1.npz", damage.damaged(entries[1])), file("live/test.npz", damage.damaged(entries[0])),
      file("live/classes.txt", damage.damaged(b"cat\ndog\ncow\n")),
      file(f"run/{feed.LEDGER}", damage.edited_lines(lines)), file(f"run/{feed.COPIES}/000002.npz",
                                                                  damage.damaged(entries[1])),
      file(f"run/{feed.REJECTED}", damage.edited_lines(rejected)),
      file(f"run/{feed.NOTICES}", damage.edited_lines(notice))), use)


def tasks(folder: pathlib.Path) -> Target:
  """Lists of tasks: files, and what their get_tasks returns."""
  rng = np.random.default_rng(0)
  arrays = tuple(made for num in (6, 3, 3)
                 for made in (rng.integers(0, 256, (num, 4, 4), np.uint8), np.arange(num) % 2))
  source = b"""import numpy as np


def get_tasks(seed):
  return [dict(name="first", data="digits", classes=[0, 1], train=5, val=2, test=9, changes=[("rotate", 1)]),
          dict(name="second", family="own", data="digits", train=3, val=1, label_shift=1, draw=2)]
"""
  good = [dict(name="first", family="own", data="digits", classes=[0, 1], train=5, val=2, test=9, draw=1,
               changes=[["rotate", 1], ["colour", 0.1, 0.2, 0.3], ["invert"]], label_shift=1, shuffled=True),
          dict(name="second", arrays=list(arrays), class_names=["a", "b"])]
  sources = task_sources.Sources("", "auto")
  path = folder / "tasks.py"

  def use(example: Any) -> None:
    if isinstance(example, bytes):
      path.write_bytes(example)
    else:
      path.write_text("from fuzz_given import GIVEN\n\n\ndef get_tasks(seed):\n  return GIVEN\n")
      _give(example)
    found = task_file.load(str(path), 0)
    _, planned = task_file.plan(found, sources, 0, 3, 0)
    for task in planned:
      task.make()

  return Target(st.one_of(damage.damaged(source), damage.edited(good)), use)


def _give(value: Any) -> None:
  """Lets a file import the value as fuzz_given.GIVEN."""
  module = types.ModuleType("fuzz_given")
  module.GIVEN = value  # type: ignore[attr-defined]
  sys.modules["fuzz_given"] = module


def _write(folder: pathlib.Path, files: dict[str, bytes]) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  for name, data in files.items():
    (folder / name).write_bytes(data)


TARGETS: dict[str, Callable[[pathlib.Path], Target]] = {
    "npz": npz, "images": images, "parquet": parquet, "text": text, "live": live, "tasks": tasks}
