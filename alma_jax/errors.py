"""The failures that a user can act on. Their messages are one sentence each."""
import errno
import os
from collections.abc import Iterator

_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EFBIG)
_IN_TEXTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # other messages are ambiguous: "Permission denied"
_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", os.strerror(errno.ENOMEM),
              "can't start new thread")  # Python says this, if a limit is reached or memory is short


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


def is_out_of_memory(error: BaseException | None) -> bool:
  """Whether an exception reports that the process gets no more memory; causes as in `disk_problem`."""
  return any(isinstance(cause, MemoryError) or any(text in str(cause) for text in _OF_MEMORY)
             for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
