"""Where alma_jax keeps files of its own, and how it reads and replaces files. Imports neither jax nor numpy."""
import json
import os
import pathlib
import re
from typing import Any

from alma_jax.errors import BadInput

# The start of an address such as gs://bucket/run. pathlib reduces its two slashes to one. The colon of C:/run on
# Windows follows a single letter.
ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")
MOST_OF_NAME, _MOST_OF_PATH = 255, 4096 - 200  # bytes that Linux allows; the longest path in a run folder has 200
_SHOWN = 60  # characters of a path that is too long


def cache_home() -> pathlib.Path:
  """The folder that holds all caches: $XDG_CACHE_HOME/alma_jax, or ~/.cache/alma_jax. It need not exist."""
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "alma_jax"


def usable(path: str | os.PathLike[str]) -> pathlib.Path:
  """The path of a file or a folder that a user names, with ~ expanded.

  Raises:
    BadInput: a name, or the path of what is written into the folder, would be longer than file systems allow.
  """
  found = pathlib.Path(path).expanduser()
  longest = max((len(os.fsencode(name)) for name in found.parts), default=0)
  length = len(os.fsencode(os.path.abspath(found)))
  if longest > MOST_OF_NAME or length > _MOST_OF_PATH:
    raise BadInput(f"{str(path)[:_SHOWN]}... is too long: it has {length} bytes, of which at most {_MOST_OF_PATH} are "
                   f"allowed, and a name of {longest} bytes; use at most {MOST_OF_NAME}.")
  return found


def write_bytes(path: pathlib.Path, data: bytes) -> None:
  """Replaces a file's contents, whole or not at all."""
  temporary = path.with_name(f".{path.name}.tmp")
  with open(temporary, "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)


def parse_json(text: str | bytes, halves: bool = False) -> Any:
  """The value of a JSON text.

  Args:
    text: str, or bytes in UTF-8, UTF-16 or UTF-32.
    halves: whether strings may hold halves of characters, as "\\ud800", which cannot be printed or written.

  Raises:
    ValueError: it is not JSON, or not text; or its lists are nested too deeply.
  """
  try:
    value = json.loads(text)
  except RecursionError as error:
    raise ValueError("its lists and objects are nested too deeply") from error
  if not halves and ("\\u" if isinstance(text, str) else b"\\u") in text:  # type: ignore[operator]
    json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
  return value
