"""Lines for the person at the terminal. Imports nothing slow."""
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_BARS = "▁▂▃▄▅▆▇█"
_BRIEF = 60  # characters of a value in a message
_LONG, _AGAIN = 5.0, 60.0  # seconds until `sign` announces a block that still runs, and until it does so again
_hearing: list[Callable[[str, float], None]] = []
_long: list[tuple[str, float]] = []  # (name, when it began) of blocks that take long now, outer blocks first
UNSEEN = contextlib.suppress(OSError)  # a closed terminal or pipe must not end a run


@contextlib.contextmanager
def sign(name: str, shown: bool = True, ends: bool = True, more: Callable[[], str] = str) -> Iterator[None]:
  """Prints `name` if the block takes long, again once a minute, and at the end how long it took.

  Args:
    name: of the activity, e.g. "compiling".
    shown: whether to print it; functions passed to `heard` are called in any case.
    ends: whether to print that it takes long and how long it took; False if other lines say so.
    more: what to add to a line that says it still runs.
  """
  began, ended, is_long = time.monotonic(), threading.Event(), threading.Event()
  mine = (name, began)

  def mention() -> None:
    wait = _LONG
    while not ended.wait(wait):
      if shown and is_long.is_set():
        say(f"{name}, for {duration(time.monotonic() - began)} so far{more()}")
      elif shown and ends:
        say(name)
      if not is_long.is_set():
        is_long.set()
        _long.append(mine)
        _tell()
      wait = _AGAIN

  thread = threading.Thread(target=mention, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()  # from here on it does not change
    if is_long.is_set():
      _long.remove(mine)
      _tell()
  if is_long.is_set() and shown and ends:
    say(f"{name} took {duration(time.monotonic() - began)}")


def _tell() -> None:
  name, began = _long[-1] if _long else ("", time.monotonic())
  for hear in _hearing:
    hear(name, time.monotonic() - began)


@contextlib.contextmanager
def heard(hear: Callable[[str, float], None]) -> Iterator[None]:
  """A context in which `hear(name, seconds)` is called when a block takes long, and with "" when none does any more."""
  _hearing.append(hear)
  try:
    yield
  finally:
    _hearing.remove(hear)


def say(text: str) -> None:
  """Prints a line to stderr. If the terminal or pipe is closed, nothing happens."""
  with UNSEEN:
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
  """E.g. "0.04 s", "4.2 s", "48 s", "14 min", "2.5 h"."""
  if 0 < seconds < 0.095:
    return f"{seconds:.1g} s" if seconds >= 0.005 else "0 s"
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
  power = _power(size, len(_UNITS) - 1)
  return f"{size / 10**(3 * power):.3g} {_UNITS[power]}"


def brief_number(number: float) -> str:
  """E.g. "950", "18.2 k", "2.2 G"."""
  power = _power(number, 6)
  return f"{number:.4g}" if not power else f"{number / 10**(3 * power):.3g} {' kMGTPE'[power]}"


def _power(number: float, most: int) -> int:
  """The power of 1000, at most `most`, with which three digits of a number lie between 1 and 999."""
  power = min(int(math.log10(max(number, 1))) // 3, most)
  return power + (power < most and float(f"{number / 10**(3 * power):.3g}") >= 1000)


def spark(values: Sequence[float], top: float = 0.0, width: int = 24) -> str:
  """Bars that show how values change, e.g. "█▃▁▁"; the highest bar is the largest value, or `top` if that is larger.

  Args:
    values: at least one, none negative, a full bar if not finite; of more than `width`, neighbours are averaged.
    top: value of the highest bar at least.
    width: number of bars at most.
  """
  num = min(len(values), width)
  parts = [values[i * len(values) // num:(i + 1) * len(values) // num] for i in range(num)]
  means = [sum(part) / len(part) for part in parts]
  scale = (len(_BARS) - 1) / (max([top, 0.0, *filter(math.isfinite, means)]) or 1)
  return "".join(_BARS[round(mean * scale)] if math.isfinite(mean) else _BARS[-1] for mean in means)
