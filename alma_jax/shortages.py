"""What a command does when the threads of libraries find the disk full or get no memory. Imports nothing slow.

Their failures also reach the main thread, as exceptions, for which the command has one sentence.
"""
import threading
from typing import Any

from alma_jax import stack_traces
from alma_jax.errors import disk_problem, is_out_of_memory

_PATIENCE = 120.0  # seconds; a thread begins within milliseconds, on a busy machine within seconds
_begin = threading.Thread.start


def install() -> None:
  """Suppresses stack traces of shortages for this process, and ends waiting for threads that cannot begin."""
  def excepthook(args: Any) -> None:
    if not _is_shortage("", args.exc_value):
      threading.__excepthook__(args)

  stack_traces.hide(_is_shortage)
  threading.excepthook = excepthook
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


def _is_shortage(text: str, error: BaseException | None) -> bool:
  del text
  return disk_problem(error) is not None or is_out_of_memory(error)
