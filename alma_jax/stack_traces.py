"""Hides stack traces of failures in tasks and threads of libraries that also reach the caller, as exceptions.

asyncio logs a failure of a task that nobody waited for, and Python prints one that it cannot raise.
"""
import logging
import sys
from collections.abc import Callable
from typing import Any

Known = Callable[[str, BaseException | None], bool]  # (the logged text or "", the exception) -> whether to hide it

_known: list[Known] = []
_others: list[Callable[[Any], Any]] = []  # hooks that were there before


def hide(is_known: Known) -> None:
  """Hides these failures from now on, in this process; those that are hidden already stay so."""
  if is_known not in _known:
    _known.append(is_known)
  logging.getLogger("asyncio").addFilter(_is_logged)  # the same filter is added once
  if sys.unraisablehook is not _unraisable:
    _others.append(sys.unraisablehook)
    sys.unraisablehook = _unraisable


def _is_logged(record: logging.LogRecord) -> bool:
  error = record.exc_info[1] if record.exc_info else None
  return not any(is_known(record.getMessage(), error) for is_known in _known)


def _unraisable(args: Any) -> None:
  if not any(is_known("", args.exc_value) for is_known in _known):
    _others[-1](args)
