"""The failures that a user can act on. Their messages are one sentence each."""
import errno
import os
from collections.abc import Iterator

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EFBIG)
_IN_TEXTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # other messages are ambiguous: "Permission denied"
_LACKING = {"RESOURCE_EXHAUSTED": "memory", "Out of memory": "memory", os.strerror(errno.ENOMEM): "memory",
            "can't start new thread": "threads"}  # {part of a message: what is lacking}


class BadInput(ValueError):
  """A config, an argument or a file cannot be used. Commands print the message and exit with code 2."""


class InUse(BadInput):
  """Another live process uses the run folder."""


class Diverged(RuntimeError):
  """The training loss is no longer finite. Commands print the message and exit with code 1."""


class Stopped(RuntimeError):
  """The run was asked to stop. The message says whether everything so far is saved."""


class Unsaved(RuntimeError):
  """A run could not go on for lack of disk or memory; what it saved before is kept. Commands exit with code 1."""


def reason(error: BaseException) -> str:
  """The first line of an exception's message, without a full stop; its type if it has none."""
  line = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
  return line or type(error).__name__


def disk_problem(error: BaseException | None) -> str | None:
  """The problem of the disk that an exception reports, e.g. "no space left on device", or None.

  Libraries wrap errors of the operating system in exceptions of their own. Therefore the
  causes of an exception are examined as well. For an exception that is not an OSError, its message is searched. A
  context that `raise ... from None` suppresses does not count.
  """
  for cause in _causes(error):
    if isinstance(cause, OSError):
      found = [number for number in _OF_DISKS if cause.errno == number]
    else:
      found = [number for number in _IN_TEXTS if os.strerror(number) in str(cause)]
    if found:
      return os.strerror(found[0]).lower()
  return None


def lacking(error: BaseException | None) -> str | None:
  """What the process gets no more of, as an exception reports: "memory", "threads", or None. Causes: `disk_problem`."""
  return next(("memory" if isinstance(cause, MemoryError) else what for cause in _causes(error)
               for text, what in _LACKING.items() if isinstance(cause, MemoryError) or text in str(cause)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
