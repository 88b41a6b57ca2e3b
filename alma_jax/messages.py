"""Lines for the person at the terminal. Imports nothing slow."""
import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_BRIEF = 60  # characters of a value in a message
_LONG = 5.0  # seconds after which `sign` announces a block that still runs
UNSEEN = contextlib.suppress(OSError)  # a closed terminal or pipe must not end a run


@contextlib.contextmanager
def sign(name: str, shown: bool = True) -> Iterator[None]:
  """Prints `name` if the block takes long, and then also how long it took."""
  began, printed = time.monotonic(), threading.Event()

  def mention() -> None:
    printed.set()
    say(name)

  timer = threading.Timer(_LONG, mention)
  timer.daemon = True
  if shown:
    timer.start()
  try:
    yield
  finally:
    timer.cancel()
  if printed.is_set():
    say(f"{name} took {duration(time.monotonic() - began)}")


def say(text: str) -> None:
  """Prints a line to stderr. If the terminal or pipe is closed, nothing happens."""
  with UNSEEN:
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
  """E.g. "4 s", "4.2 s", "48 s", "14 min", "2.5 h"."""
  if seconds < 9.95:
    return f"{round(seconds, 1):g} s"
  if seconds < 99.5:
    return f"{seconds:.0f} s"
  return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def brief(value: object) -> str:
  """A value as Python writes it, in one line of at most 60 characters."""
  text = " ".join(repr(value).split())
  return text if len(text) <= _BRIEF else f"{text[:_BRIEF - 3]}..."


def num_bytes(size: float) -> str:
  """E.g. "1.5 GB"."""
  power = min(int(math.log10(max(size, 1))) // 3, len(_UNITS) - 1)
  return f"{size / 10**(3 * power):.3g} {_UNITS[power]}"
