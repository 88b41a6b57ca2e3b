"""What a command does when the threads of libraries find the disk full or get no memory. Imports nothing slow.

Their failures also reach the main thread, as exceptions, for which the command has one sentence. Python and asyncio
would print them before, with stack traces.
"""
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from alma_jax.errors import disk_problem, is_out_of_memory

_PATIENCE = 120.0  # seconds; a thread begins within milliseconds, on a busy machine within seconds
_begin = threading.Thread.start


def install() -> None:
  """Suppresses stack traces of shortages for this process, and ends waiting for threads that cannot begin."""
  def unless_shortage(before: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda args: None if _is_shortage(args.exc_value) else before(args)

  threading.excepthook = unless_shortage(threading.__excepthook__)
  sys.unraisablehook = unless_shortage(sys.unraisablehook)
  logging.getLogger("asyncio").addFilter(_is_of_no_shortage)  # the same filter is added once
  threading.Thread.start = _start  # type: ignore[assignment, method-assign]


class _Begun(threading.Event):
  """Event that a thread has begun, for which Thread.start waits without a limit."""

  def wait(self, timeout: float | None = None) -> bool:
    begun = super().wait(_PATIENCE if timeout is None else timeout)
    if not begun and timeout is None:
      raise MemoryError("a thread ended before it began")
    return begun


def _start(thread: threading.Thread) -> None:
  """Thread.start, which would wait for ever if there is no memory for the new thread to begin (CPython issue 140746).

  Raises:
    MemoryError: the thread has not begun within two minutes.
  """
  if not thread._started.is_set():  # type: ignore[attr-defined]
    thread._started = _Begun()  # type: ignore[attr-defined]
  _begin(thread)


def _is_shortage(error: BaseException | None) -> bool:
  return disk_problem(error) is not None or is_out_of_memory(error)


def _is_of_no_shortage(record: logging.LogRecord) -> bool:
  return not (record.exc_info and _is_shortage(record.exc_info[1]))
