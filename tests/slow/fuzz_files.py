"""Files for the fuzz targets of readers of data: valid ones, crafted ones, and small ones that unpack to much."""
import io
import struct
import zipfile
import zlib
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from PIL import Image

_DTYPES = ("|u1", "<f4", "<f8", ">f8", "<i8", "|b1", "<U3", "|S0", "<U0", "|V0", "|O", "<M8[D]", "<c8", "<f2",
           "[('a','<i4')]")


# ---------------------------------------------------------------- arrays


def npz(arrays: dict[str, np.ndarray], compression: int = zipfile.ZIP_STORED) -> bytes:
  return _zip({f"{name}.npy": npy(array) for name, array in arrays.items()}, compression)


def npy(array: np.ndarray) -> bytes:
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


def archives(names: list[str]) -> st.SearchStrategy[bytes]:
  """Archives with right checksums whose arrays have any header: other dtypes, shapes, and too little data."""
  shape = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 12, -1, 2**31, 2**62, 10**30]), max_size=5).map(tuple)
  header = st.one_of(
      st.builds(lambda dtype, order, shape: str({"descr": dtype, "fortran_order": order, "shape": shape}),
                st.sampled_from(_DTYPES), st.booleans(), shape),
      damage.damaged(b"{'descr': '|u1', 'fortran_order': False, 'shape': (12, 6, 6), }").map(
          lambda data: data.decode("latin1")),
      st.sampled_from(["(" * 5000, "{" * 9000, "'" * 9000, "1" * 9999]))
  member = st.one_of(
      st.builds(_member, header, st.sampled_from([b"", bytes(12), bytes(432), bytes(3456)]),
                st.sampled_from([1, 1, 2, 3])),
      st.builds(lambda dtype, shape: npy(np.zeros(shape, dtype)),
                st.sampled_from(("u1", "f4", "f8", "f2", "i4", "U2", "?", "c8", "M8[s]")),
                st.sampled_from(((12, 6, 6), (12, 4), (12,), (12, 6, 6, 1), (0,), (), (0, 6, 6), (12, 0)))),
      st.builds(lambda values: npy(np.array(values)), st.lists(st.floats(), min_size=12, max_size=12)),
      st.binary(max_size=8))
  return st.dictionaries(st.sampled_from([f"{name}.npy" for name in names]), member, max_size=6).map(_zip)


def npz_bombs() -> list[bytes]:
  """A few kB that unpack to a gigabyte, or say so."""
  zeros = _member("{'descr': '|u1', 'fortran_order': False, 'shape': (30000000, 6, 6), }", bytes(36))
  packed = zlib.compressobj(9, zlib.DEFLATED, -15)
  head = _member(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**30 // 36}, 6, 6), }}", b"")
  body = packed.compress(head) + b"".join(packed.compress(bytes(2**22)) for _ in range(64)) + packed.flush()
  labels = npy(np.arange(12) % 2)
  honest = _raw_zip("x.npy", body, len(head) + 2**28)
  return [_zip({"x.npy": zeros, "y.npy": labels}), honest, _raw_zip("x.npy", body, 500)]


def _raw_zip(name: str, packed: bytes, size: int) -> bytes:
  """A zip file of one deflated member with a wrong checksum, which says that it unpacks to `size` bytes."""
  encoded = name.encode()
  fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), size, len(encoded), 0)
  local = b"PK\x03\x04" + fields + encoded + packed
  labels = npy(np.arange(12) % 2)
  other = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 33, zlib.crc32(labels), len(labels), len(labels), 5, 0)
  second = b"PK\x03\x04" + other + b"y.npy" + labels
  central = (b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + encoded +
             b"PK\x01\x02\x14\x00" + other + struct.pack("<HHHII", 0, 0, 0, 0, len(local)) + b"y.npy")
  return local + second + central + b"PK\x05\x06" + struct.pack(
      "<HHHHIIH", 0, 0, 2, 2, len(central), len(local) + len(second), 0)


# ---------------------------------------------------------------- images


def images() -> dict[str, bytes]:
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


def damaged_image(data: bytes, others: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
  found = damage.damaged(data, others)
  return st.one_of(found, found.map(damage.with_png_sums)) if data[:4] == b"\x89PNG" else found


def image_bombs() -> list[bytes]:
  """Small files of many pixels: of one colour, or that only say so."""
  found = []
  for size, mode in ((5_000, "RGBA"), (12_000, "1")):
    file = io.BytesIO()
    Image.new(mode, (size, size)).save(file, "png")
    found.append(file.getvalue())
  file = io.BytesIO()
  Image.new("RGB", (5000, 5000)).save(file, "webp")
  found.append(file.getvalue())
  whole = images()["png-1"]
  for width, height in ((2**31 - 1, 2**31 - 1), (2**16, 2**15), (1, 2**31 - 1), (0, 6)):
    found.append(damage.with_png_sums(whole[:16] + struct.pack(">II", width, height) + whole[24:]))
  return found


# ---------------------------------------------------------------- Parquet


def _parquet(table: pa.Table, **options: Any) -> bytes:
  file = io.BytesIO()
  pq.write_table(table, file, **options)
  return file.getvalue()


def parquets() -> list[bytes]:
  pictures = [images()[name] for name in ("png-0", "png-0", "jpg-0")]
  lists = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[0, 0], [0, 0]]]
  huggingface = {"huggingface": '{"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}'}
  structs = pa.table({"image": [dict(bytes=each, path="a.png") for each in pictures], "label": [0, 1, 0]})
  return [_parquet(structs.replace_schema_metadata(huggingface)), _parquet(pa.table({"img": pictures, "y": [0, 1, 1]})),
          _parquet(pa.table({"x": lists, "label": ["cat", "dog", "cat"]}), compression="gzip"),
          _parquet(pa.table({"x": [[0.5, 1.0, 2.0, 3.0]] * 3, "y": [0, 1, 2]}), use_dictionary=False)]


def tables() -> st.SearchStrategy[bytes]:
  """Parquet files of columns of any type."""
  def made(x: list[Any], y: list[Any], names: tuple[str, str], meta: bytes) -> bytes:
    try:
      columns = {name: pa.array(values) for name, values in zip(names, (x, y))}
      return _parquet(pa.table(columns).replace_schema_metadata({b"huggingface": meta}))
    except (pa.ArrowException, OverflowError, TypeError, ValueError, UnicodeEncodeError):
      return b""

  png = images()["png-0"]
  cells = st.sampled_from([png, b"", b"no", [], [[]], [[], [1]], [1, 2], [[1, 2], [3]], [[1, 2], [3, 4]], [[[[1]]]],
                           [[300]], [[-1]], [0.5], None, {"bytes": png}, {"bytes": None}, {"path": "a"}, "text", 3,
                           [["a"]], [None, 1], [[True]], [1.0, 2.0, 3.0, float("nan")], [1.0] * 4, [[2**60]]])
  two = lambda values: st.lists(values, min_size=2, max_size=2)
  column = st.one_of(cells.flatmap(lambda cell: two(st.just(cell))), two(cells))
  label = st.one_of(two(st.integers(-2, 3)), two(damage.words), two(st.floats()),
                    st.sampled_from([[True, False], [None, 1], [[1], [2]], [b"a", b"b"], [{"a": 1}, {"a": 2}],
                                     [2**60, 1]]))
  meta = st.sampled_from([{"info": {"features": {"label": {"names": ["cat", "dog"]}}}}, {"info": []}, None]).flatmap(
      damage.edited_json)
  names = st.sampled_from([("image", "label"), ("x", "y"), ("x", "x_test"), ("img", "a")])
  return st.builds(made, column, label, names, meta)


def parquet_bombs() -> list[bytes]:
  """A picture and a name that are stored once for many rows, and pages of zeros."""
  rows = 20_000
  same = np.zeros(rows, np.int32)
  picture = pa.DictionaryArray.from_arrays(pa.array(same), pa.array([bytes(100_000)]))
  name = pa.DictionaryArray.from_arrays(pa.array(same), pa.array(["a" * 100_000]))
  zeros = pa.table({"image": [bytes(2**27)] * 2, "label": np.zeros(2, np.int8)})
  return [_parquet(pa.table({"image": picture, "label": same})),
          _parquet(pa.table({"image": pa.array([b""] * rows), "label": name})),
          _parquet(zeros, compression="zstd", use_dictionary=False, write_statistics=False)]
