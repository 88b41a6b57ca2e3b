"""Fuzz targets of the readers of data: arrays, images, Parquet files, texts, entries of live streams, lists of tasks.

A target is made by a function of a folder. Its examples are drawn by hypothesis, and `use` gives one to the readers.
"""
import functools
import io
import pathlib
import struct
import sys
import types
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

from alma_jax.data import datasets, entry_file, feed, inbox, live_images, live_texts, task_file, task_sources, tokens
from alma_jax.data import text_source
from alma_jax.errors import BadInput
from alma_jax.predictors import inputs, texts

FORMS = (inputs.Form((6, 6, 1), np.dtype("uint8"), 0, ("cat", "dog"), 2),
         inputs.Form((4,), np.dtype("float32"), 0, (), 3),
         inputs.Form((8, 8, 3), np.dtype("float32"), 8, (), 3))
_DTYPES = ("|u1", "<f4", "<f8", ">f8", "<i8", "|b1", "<U3", "|S0", "<U0", "|V0", "|O", "<M8[D]", "<c8", "<f2", "[('a','<i4')]")


class Target(NamedTuple):
  """What is fuzzed.

  Attributes:
    examples: strategy of hypothesis.
    use: gives an example to a reader; returns, or raises BadInput.
  """
  examples: st.SearchStrategy[Any]
  use: Callable[[Any], None]


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


def check_sentence(error: BadInput) -> None:
  """Raises AssertionError unless the message is one line for a terminal."""
  text = str(error)
  assert text and "\n" not in text and "\x1b" not in text, f"not one line: {text[:300]!r}"
  assert len(text) < 4000, f"{len(text)} characters: {text[:300]!r}"


def npz(folder: pathlib.Path) -> Target:
  """Data sets, entries and inputs in .npz files."""
  rng = np.random.default_rng(0)
  images, labels = rng.integers(0, 256, (12, 6, 6), np.uint8), np.arange(12) % 2
  plain = dict(x=images, y=labels, x_train=images, y_train=labels, x_test=images, y_test=labels)
  seeds = [_npz(plain), _npz(dict(plain, x=rng.random((12, 4), np.float32), y=np.array(["cat", "dog"] * 6))),
           _npz(plain, zipfile.ZIP_DEFLATED), _npy(images)]
  path = folder / "given.npz"

  def use(data: bytes) -> None:
    path.write_bytes(data)
    each(lambda: datasets.load(f"npz:{path}"), lambda: entry_file.read(path).digest(),
         *(functools.partial(lambda form, labelled: list(inputs.read([str(path)], form, 5, labelled)), form, labelled)
           for form in FORMS[:2] for labelled in (False, True)))

  return Target(st.one_of(st.sampled_from(seeds).flatmap(lambda seed: damage.damaged(seed, tuple(seeds))),
                          _archives(list(plain)), st.sampled_from(_npz_bombs())), use)


def images(folder: pathlib.Path) -> Target:
  """Image files, folders of them as data sets, entries and inputs."""
  seeds = _images()
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
      each(lambda: entry_file.read(entry, size), lambda: list(inputs.read([str(places[0])], FORMS[0], 4)),
           lambda: list(inputs.read([str(entry)], FORMS[2], 4, labelled=True)),
           lambda: datasets.load(f"folder:{root}", image_size=size))
    finally:
      for place in places:
        place.unlink()

  pool = tuple(seeds.values())
  fuzzed = st.sampled_from(list(seeds.items())).flatmap(lambda seed: st.tuples(
      st.just(f".{seed[0].partition('-')[0]}"), _damaged_image(seed[1], pool), st.sampled_from((0, 6))))
  return Target(st.one_of(fuzzed, st.sampled_from([(".png", data, size) for data in _image_bombs()
                                                   for size in (0, 6)])), use)


def parquet(folder: pathlib.Path) -> Target:
  """Entries and inputs in Parquet files."""
  seeds = tuple(_parquets())
  path = folder / "given.parquet"

  def use(data: bytes) -> None:
    path.write_bytes(data)
    each(lambda: entry_file.read(path).digest(), lambda: entry_file.read(path, 6),
         *(functools.partial(lambda form, labelled: list(inputs.read([str(path)], form, 5, labelled)), form, labelled)
           for form in FORMS for labelled in (False, True)))

  return Target(st.one_of(st.sampled_from(seeds).flatmap(lambda seed: damage.damaged(seed, seeds)), _tables(),
                          st.sampled_from(_parquet_bombs())), use)


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
      each(lambda: tokens.encode(tokenizer, live_texts.read_documents(path), in_sections=True),
           lambda: [texts.windows(tokenizer, [document.text], 8) for document in texts.read([str(root)])],
           lambda: text_source.find(f"text:{root}").read())
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
  entries = [_npz(dict(x=rng.integers(0, 256, (6, 4, 4), np.uint8), y=np.arange(6) % 3)) for _ in range(3)]
  _write(stream / "stream", {f"{i}.npz": data for i, data in enumerate(entries)})
  _write(stream, {"test.npz": entries[0], "classes.txt": b"cat\ndog\ncow\n", "end": b""})

  def opened(path: pathlib.Path | None) -> feed.Feed:
    reader = live_images.ImageReader(stream, 0, 0)
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
  arrays = tuple(made for num in (6, 3, 3) for made in (rng.integers(0, 256, (num, 4, 4), np.uint8), np.arange(num) % 2))
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


# ---------------------------------------------------------------- arrays


def _npz(arrays: dict[str, np.ndarray], compression: int = zipfile.ZIP_STORED) -> bytes:
  return _zip({f"{name}.npy": _npy(array) for name, array in arrays.items()}, compression)


def _npy(array: np.ndarray) -> bytes:
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def _zip(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", compression) as archive:
    for name, data in members.items():
      archive.writestr(name, data)
  return file.getvalue()


def _member(header: str, data: bytes, version: int = 1) -> bytes:
  """An .npy file with any header."""
  text = header.encode("latin1", "replace") + b"\n"
  size = struct.pack("<H" if version == 1 else "<I", len(text) % 2**16)
  return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def _archives(names: list[str]) -> st.SearchStrategy[bytes]:
  """Archives with right checksums whose arrays have any header: other dtypes, shapes, and too little data."""
  shape = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 12, -1, 2**31, 2**62, 10**30]), max_size=5).map(tuple)
  header = st.one_of(
      st.builds(lambda dtype, order, shape: str({"descr": dtype, "fortran_order": order, "shape": shape}),
                st.sampled_from(_DTYPES), st.booleans(), shape),
      damage.damaged(b"{'descr': '|u1', 'fortran_order': False, 'shape': (12, 6, 6), }").map(
          lambda data: data.decode("latin1")),
      st.sampled_from(["(" * 5000, "{" * 9000, "'" * 9000, "1" * 9999]))
  member = st.one_of(
      st.builds(_member, header, st.sampled_from([b"", bytes(12), bytes(432), bytes(3456)]), st.sampled_from([1, 1, 2, 3])),
      st.builds(lambda dtype, shape: _npy(np.zeros(shape, dtype)),
                st.sampled_from(("u1", "f4", "f8", "f2", "i4", "U2", "?", "c8", "M8[s]")),
                st.sampled_from(((12, 6, 6), (12, 4), (12,), (12, 6, 6, 1), (0,), (), (0, 6, 6), (12, 0)))),
      st.builds(lambda values: _npy(np.array(values)), st.lists(st.floats(), min_size=12, max_size=12)),
      st.binary(max_size=8))
  return st.dictionaries(st.sampled_from([f"{name}.npy" for name in names]), member, max_size=6).map(_zip)


def _npz_bombs() -> list[bytes]:
  """A few kB that unpack to a gigabyte, or say so."""
  zeros = _member("{'descr': '|u1', 'fortran_order': False, 'shape': (30000000, 6, 6), }", bytes(36))
  packed = zlib.compressobj(9, zlib.DEFLATED, -15)
  head = _member(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**30 // 36}, 6, 6), }}", b"")
  body = packed.compress(head) + b"".join(packed.compress(bytes(2**22)) for _ in range(64)) + packed.flush()
  labels = _npy(np.arange(12) % 2)
  honest = _raw_zip("x.npy", body, len(head) + 2**28)
  return [_zip({"x.npy": zeros, "y.npy": labels}), honest, _raw_zip("x.npy", body, 500)]


def _raw_zip(name: str, packed: bytes, size: int) -> bytes:
  """A zip file of one deflated member with a wrong checksum, which says that it unpacks to `size` bytes."""
  encoded = name.encode()
  fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), size, len(encoded), 0)
  local = b"PK\x03\x04" + fields + encoded + packed
  labels = _npy(np.arange(12) % 2)
  other = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 33, zlib.crc32(labels), len(labels), len(labels), 5, 0)
  second = b"PK\x03\x04" + other + b"y.npy" + labels
  central = (b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + encoded +
             b"PK\x01\x02\x14\x00" + other + struct.pack("<HHHII", 0, 0, 0, 0, len(local)) + b"y.npy")
  return local + second + central + b"PK\x05\x06" + struct.pack(
      "<HHHHIIH", 0, 0, 2, 2, len(central), len(local) + len(second), 0)


# ---------------------------------------------------------------- images


def _images() -> dict[str, bytes]:
  """Files of all formats and modes, by their suffix and a number."""
  rng, found = np.random.default_rng(0), {}
  grey = Image.fromarray(rng.integers(0, 256, (6, 6), np.uint8))
  colour = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8))
  deep = Image.fromarray(rng.integers(0, 2**16, (6, 6), np.uint16))
  for suffix, modes in {"png": (grey, colour, colour.convert("RGBA"), colour.quantize(7), deep, grey.convert("1")),
                        "jpg": (grey, colour, colour.convert("CMYK")), "bmp": (grey, colour), "gif": (colour,),
                        "webp": (colour, colour.convert("RGBA")), "tif": (grey, colour, deep), "ppm": (colour,),
                        "pgm": (grey, deep)}.items():
    for i, image in enumerate(modes):
      file = io.BytesIO()
      image.save(file, {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm"}.get(suffix, suffix))
      found[f"{suffix}-{i}"] = file.getvalue()
  for suffix, kind in (("png", "ppm"), ("png", "icns"), ("png", "tga"), ("png", "eps"), ("jpg", "pdf"), ("png", "pcx")):
    file = io.BytesIO()
    (colour.resize((16, 16)) if kind == "icns" else colour).save(file, kind)
    found[f"{suffix}-{kind}"] = file.getvalue()
  file = io.BytesIO()
  colour.save(file, "tiff", compression="tiff_deflate")
  found["tif-deflate"] = file.getvalue()
  return found


def _damaged_image(data: bytes, others: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
  found = damage.damaged(data, others)
  return st.one_of(found, found.map(damage.with_png_sums)) if data[:4] == b"\x89PNG" else found


def _image_bombs() -> list[bytes]:
  """Small files of many pixels: of one colour, or that only say so."""
  found = []
  for size, mode in ((11_000, "L"), (9_000, "RGB"), (12_000, "1")):
    file = io.BytesIO()
    Image.new(mode, (size, size)).save(file, "png")
    found.append(file.getvalue())
  file = io.BytesIO()
  Image.new("RGB", (6000, 6000)).save(file, "webp")
  found.append(file.getvalue())
  whole = _images()["png-1"]
  for width, height in ((2**31 - 1, 2**31 - 1), (2**16, 2**15), (1, 2**31 - 1), (0, 6)):
    found.append(damage.with_png_sums(whole[:16] + struct.pack(">II", width, height) + whole[24:]))
  return found


# ---------------------------------------------------------------- Parquet


def _parquet(table: pa.Table, **options: Any) -> bytes:
  file = io.BytesIO()
  pq.write_table(table, file, **options)
  return file.getvalue()


def _parquets() -> list[bytes]:
  pictures = [_images()[name] for name in ("png-0", "png-0", "jpg-0")]
  lists = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[0, 0], [0, 0]]]
  huggingface = {"huggingface": '{"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}'}
  structs = pa.table({"image": [dict(bytes=each, path="a.png") for each in pictures], "label": [0, 1, 0]})
  return [_parquet(structs.replace_schema_metadata(huggingface)), _parquet(pa.table({"img": pictures, "y": [0, 1, 1]})),
          _parquet(pa.table({"x": lists, "label": ["cat", "dog", "cat"]}), compression="gzip"),
          _parquet(pa.table({"x": [[0.5, 1.0, 2.0, 3.0]] * 3, "y": [0, 1, 2]}), use_dictionary=False)]


def _tables() -> st.SearchStrategy[bytes]:
  """Parquet files of columns of any type."""
  def made(x: list[Any], y: list[Any], names: tuple[str, str], meta: bytes) -> bytes:
    try:
      columns = {name: pa.array(values) for name, values in zip(names, (x, y))}
      return _parquet(pa.table(columns).replace_schema_metadata({b"huggingface": meta}))
    except (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeEncodeError):
      return b""

  png = _images()["png-0"]
  cells = st.sampled_from([png, b"", b"no", [], [[]], [[], [1]], [1, 2], [[1, 2], [3]], [[1, 2], [3, 4]], [[[[1]]]], [[300]],
                           [[-1]], [0.5], None, {"bytes": png}, {"bytes": None}, {"path": "a"}, "text", 3, [["a"]],
                           [None, 1], [[True]], [1.0, 2.0, 3.0, float("nan")], [1.0] * 4, [[2**60]]])
  column = st.one_of(cells.flatmap(lambda cell: st.lists(st.just(cell), min_size=2, max_size=2)),
                     st.lists(cells, min_size=2, max_size=2))
  label = st.one_of(st.lists(st.integers(-2, 3), min_size=2, max_size=2), st.lists(damage.words, min_size=2, max_size=2),
                    st.lists(st.floats(), min_size=2, max_size=2),
                    st.sampled_from([[True, False], [None, 1], [[1], [2]], [b"a", b"b"], [{"a": 1}, {"a": 2}], [2**60, 1]]))
  meta = st.sampled_from([{"info": {"features": {"label": {"names": ["cat", "dog"]}}}}, {"info": []}, None]).flatmap(
      damage.edited_json)
  return st.builds(made, column, label, st.sampled_from([("image", "label"), ("x", "y"), ("x", "x_test"), ("img", "a")]), meta)


def _parquet_bombs() -> list[bytes]:
  """A picture that is stored once for a million rows, and pages that are zeros."""
  picture = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, np.int32)), pa.array([bytes(100_000)]))
  label = pa.array(np.zeros(300_000, np.int8))
  many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300_000, np.int32)), pa.array(["a" * 100_000]))
  zeros = pa.array([bytes(2**27)] * 8)
  return [_parquet(pa.table({"image": picture, "label": label})),
          _parquet(pa.table({"image": pa.array([b""] * 300_000), "label": many})),
          _parquet(pa.table({"image": zeros, "label": np.zeros(8, np.int8)}), compression="zstd", use_dictionary=False)]


TARGETS: dict[str, Callable[[pathlib.Path], Target]] = {
    "npz": npz, "images": images, "parquet": parquet, "text": text, "live": live, "tasks": tasks}
