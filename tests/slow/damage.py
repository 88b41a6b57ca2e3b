"""Strategies of hypothesis that damage files: mutated bytes, edited JSON, values that no field expects.

`tests/slow/fuzz.py` and `tests/slow/test_fuzz.py` draw from them.
"""
import copy
import json
import re
import struct
import zlib
from typing import Any

from hypothesis import strategies as st

_EDGES = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1,
          2**64 - 1)
_NUMBERS = (b"0", b"-1", b"1", b"3", b"65536", b"99999", b"2147483648", b"9223372036854775808", b"1e999", b"0.5",
            b"9" * 40, b"9" * 5000, b"NaN", b"null")
_NEAR = 96  # bytes at both ends of a file, where most headers and indices are
_DEEP = b"[" * 100_000
DEEP_JSON = (_DEEP, b'{"a":' * 100_000, b"[" * 900 + b"]" * 900)

numbers = st.one_of(
    st.integers(-3, 300), st.sampled_from([2**31, 2**53, 2**63, -2**63, 10**40, 10**400]), st.floats(),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e308, -1e308, 5e-324]))
words = st.one_of(
    st.text(max_size=8), st.sampled_from(["", "0", "-1", "nan", "\ud800", "a\nb", "\x00", "..", "/", "a" * 5000,
                                          "é" * 300, "../../etc/passwd", "%s", "{0}", "1e999", "True", "None", "[]"]))
scalars = st.one_of(st.none(), st.booleans(), numbers, words)
values = st.recursive(scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)), max_leaves=6)


@st.composite
def damaged(draw: Any, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
  """The bytes with one to four changes: flips, cuts, insertions, splices, edits of numbers in headers and in text."""
  for _ in range(draw(st.integers(1, 4))):
    data = draw(_changed(data, others))
  return data


@st.composite
def _changed(draw: Any, data: bytes, others: tuple[bytes, ...]) -> bytes:
  if not data:
    return draw(st.binary(max_size=16))
  place = draw(st.one_of(st.integers(0, len(data) - 1), st.integers(0, min(_NEAR, len(data)) - 1),
                         st.integers(max(0, len(data) - _NEAR), len(data) - 1)))
  kind = draw(st.sampled_from(("flip", "number", "number", "digits", "digits", "cut", "drop", "insert", "repeat",
                               "splice")))
  if kind == "flip":
    return data[:place] + bytes([data[place] ^ (1 << draw(st.integers(0, 7)))]) + data[place + 1:]
  if kind == "number":
    width, order = draw(st.sampled_from("BHIQ")), draw(st.sampled_from("<>"))
    value = draw(st.sampled_from(_EDGES)) % 2**(8 * struct.calcsize(width))
    written = struct.pack(order + width, value)
    return data[:place] + written + data[place + len(written):]
  if kind == "digits":
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data[:100_000]))
    if found:
      match = draw(st.sampled_from(found))
      return data[:match.start()] + draw(st.sampled_from(_NUMBERS)) + data[match.end():]
  if kind == "cut":
    return data[:place]
  if kind == "drop":
    return data[:place] + data[place + draw(st.integers(1, 64)):]
  if kind == "repeat":
    return data[:place] + data[place:place + draw(st.integers(1, 64))] * draw(st.integers(2, 9)) + data[place:]
  if kind == "splice":
    other = draw(st.sampled_from(others or (data,)))
    return data[:place] + other[draw(st.integers(0, len(other))):]
  return data[:place] + draw(st.binary(min_size=1, max_size=16)) + data[place:]


def json_of(tree: Any, indent: int | None = None) -> bytes:
  """The tree as JSON; NaN and infinite numbers are written as Python does."""
  return json.dumps(tree, indent=indent).encode()


@st.composite
def edited(draw: Any, tree: Any) -> Any:
  """A copy of a JSON tree in which one to three values are replaced, removed or added."""
  tree = copy.deepcopy(tree)
  for _ in range(draw(st.integers(1, 3))):
    inside, key = draw(st.sampled_from(_places(tree) or [(None, None)]))
    if inside is None:
      return draw(values)
    kind = draw(st.sampled_from(("near", "near", "near", "other", "replace", "replace", "remove", "add")))
    if kind == "near":
      inside[key] = draw(_near(inside[key]))
    elif kind == "other":
      there, name = draw(st.sampled_from(_places(tree)))
      inside[key] = copy.deepcopy(there[name])
    elif kind == "replace":
      inside[key] = draw(values)
    elif kind == "remove":
      del inside[key]
    elif isinstance(inside, dict):
      inside[draw(words)] = draw(values)
    else:
      inside.insert(key, draw(values))
  return tree


def _near(value: Any) -> st.SearchStrategy[Any]:
  """Values of the same type, many of which may be allowed in the place of this one."""
  if isinstance(value, bool):
    return st.just(not value)
  if isinstance(value, int) and abs(value) < 2**64:
    return st.sampled_from([value + 1, value - 1, -value, 0, 1, 2 * value, 10 * value, value // 2, float(value)])
  if isinstance(value, float):
    return st.sampled_from([value / 2, 2 * value, -value, 0.0, 1.0, 1e-30, 1 - value])
  if isinstance(value, list):
    return st.sampled_from([value[:1], value[:-1], value * 2, value[::-1], []])
  return st.sampled_from(["", f"{value}s", value, "all", "adaptive", "power", "vgg", "uniform", "vote"])


def edited_json(tree: Any) -> st.SearchStrategy[bytes]:
  """Bytes of a JSON file with edited values, damaged bytes, or lists in lists without end."""
  return st.one_of(edited(tree).map(json_of), damaged(json_of(tree)), st.sampled_from(DEEP_JSON))


def edited_lines(entries: list[Any]) -> st.SearchStrategy[bytes]:
  """Bytes of a .jsonl file, of which lines are edited, damaged, removed or torn."""
  text = b"".join(json_of(entry) + b"\n" for entry in entries)
  whole = edited(entries).map(lambda made: b"".join(
      json_of(entry) + b"\n" for entry in (made if isinstance(made, list) else [made])))
  return st.one_of(whole, damaged(text), st.sampled_from(DEEP_JSON).map(lambda deep: text + deep + b"\n"))


def with_png_sums(data: bytes) -> bytes:
  """A PNG file whose chunks have right checksums, as far as its chunks can be found."""
  fixed, place = bytearray(data), 8
  while place + 12 <= len(fixed):
    end = place + 8 + int.from_bytes(fixed[place:place + 4], "big")
    if end + 4 > len(fixed):
      break
    fixed[end:end + 4] = zlib.crc32(fixed[place + 4:end]).to_bytes(4, "big")
    place = end + 4
  return bytes(fixed)


def _places(tree: Any) -> list[tuple[Any, Any]]:
  """(container, key) of all values in a JSON tree."""
  items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
  return [place for key, value in items for place in ((tree, key), *_places(value))]
