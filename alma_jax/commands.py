"""What the commands share: arguments, warnings, error messages and exit codes. Imports nothing slow."""
import argparse
import contextlib
import contextvars
import errno
import functools
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from alma_jax import messages
from alma_jax.errors import BadInput, Diverged, Unsaved, lacking

_SHOWN = 200  # characters of a path in a message
NO_READER = 141  # the code that a shell reports after SIGPIPE, as for `report runs | head`
_called_as = contextvars.ContextVar("called_as", default="")  # "alma run" where that was typed


def written(command: str) -> str:
  """A command in the form that was typed: "alma report" or "python -m alma_jax.report"."""
  return f"alma {command}" if _called_as.get() else f"python -m alma_jax.{command}"


class Parser(argparse.ArgumentParser):
  """Parser of a command's arguments. --help prints the docstring of the command's module."""

  def __init__(self, command: str, description: str | None) -> None:
    super().__init__(prog=_called_as.get() or f"python {command}", description=(description or "").strip(),
                     allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

  def error(self, message: str) -> NoReturn:
    """Raises BadInput; argparse would print its usage and exit."""
    raise BadInput(f"{message}; {self.prog} --help lists the arguments.")

  def parse_with_fields(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str | None]]:
    """Parses a command line that may also change fields of the config.

    "--config.a.b VALUE" is "--config.a.b=VALUE"; "--config.a.b" alone, at the end or before an option, has the text
    None.

    Args:
      argv: see `command`.

    Returns:
      (the options, {field: text}); of a field that is given several times the last counts.

    Raises:
      BadInput: an option is unknown or has no value.
    """
    overrides: dict[str, str | None] = {}
    others: list[str] = []
    args = list(sys.argv[1:] if argv is None else argv)
    while args:
      arg = args.pop(0)
      option, equals, given = arg.lstrip("-").partition("=")
      if arg.startswith("-") and option.startswith("config."):
        text = given if equals else args.pop(0) if args and not re.match("-[^0-9.]", args[0]) else None
        overrides[option.removeprefix("config.")] = text
      else:
        others.append(arg)
    options, rest = self.parse_known_args(others)
    if rest:
      kind = ("unknown option {!r}; fields of the config are --config.FIELD=VALUE" if rest[0].startswith("--") else
              "unexpected argument {!r}; options start with --, as in --config=configs/digits.py:ens")
      raise BadInput(f"{kind.format(rest[0])}, and {self.prog} --help lists the options.")
    return options, overrides


@contextlib.contextmanager
def called_as(command: str) -> Iterator[None]:
  """A context in which messages name the command as it was typed, e.g. "alma run"."""
  token = _called_as.set(command)
  try:
    yield
  finally:
    _called_as.reset(token)


def warn(sentences: Iterable[str]) -> None:
  """Prints each sentence to stderr as a warning."""
  for sentence in sentences:
    messages.say(f"warning: {sentence}")


def quiet() -> None:
  """Prints each warning as one line, and hides the logs of Orbax and TFDS, whose failures arrive as exceptions."""
  from absl import logging as absl_logging

  def show(message: Warning | str, *unused: Any, **named: Any) -> None:
    del unused, named
    warn([str(message)])

  def unraisable(failure: Any, hook: Any = sys.unraisablehook) -> None:
    if str(failure.exc_value) != "Event loop is closed":  # after a failure tensorstore's threads still call Orbax back
      hook(failure)

  absl_logging.set_verbosity(absl_logging.FATAL)
  logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it logs failures in Orbax's tasks, with stack traces
  warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)  # of Orbax, after an exception
  warnings.showwarning = show
  sys.unraisablehook = unraisable


def show(text: str) -> None:
  """Prints the result of a command on stdout.

  Raises:
    BrokenPipeError: the pipe or the terminal was closed.
  """
  try:
    print(text, flush=True)
  except OSError as error:
    if error.errno == errno.EIO:
      raise BrokenPipeError(error.errno, error.strerror) from error
    raise


def command(work: Callable[[Sequence[str] | None], int | None]) -> Callable[..., int]:
  """Makes the `main` of a command, which returns its exit code, see `exit_code`.

  Args:
    work: the command. It takes the arguments of the command line; None: the process's own.
  """
  @functools.wraps(work)
  def main(argv: Sequence[str] | None = None) -> int:
    return exit_code(lambda: work(argv))

  return main


def exit_code(work: Callable[[], int | None]) -> int:
  """Runs a command, and turns its exceptions into messages and exit codes.

  Args:
    work: the command; it returns an exit code, or None for 0.

  Returns:
    What `work` returns; 2 after BadInput, 1 after Diverged, Unsaved or a lack of memory, which get a message; 130 after
    Ctrl-C; NO_READER if the reader of standard output has closed it. A closed stderr does not change the code.
  """
  hook = sys.unraisablehook

  def unraisable(failure: Any) -> None:
    if issubclass(failure.exc_type, KeyboardInterrupt):  # in jax's callback of the garbage collector: it would be lost
      os._exit(130)
    hook(failure)

  sys.unraisablehook = unraisable
  try:
    code = _code(work)
    if sys.stdout is not None:
      sys.stdout.flush()  # a broken pipe can still be caught here
    return code
  except BrokenPipeError:
    return NO_READER
  finally:
    if sys.unraisablehook is unraisable:  # not that of `quiet`, for threads that end later
      sys.unraisablehook = hook
    _discard_output()


def _code(work: Callable[[], int | None]) -> int:
  try:
    return work() or 0
  except (BadInput, Diverged, Unsaved) as error:
    messages.say(f"error: {error}")
    return 2 if isinstance(error, BadInput) else 1
  except Exception as error:
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
      messages.say(f"error: {str(error.filename or 'a file')[:_SHOWN]} cannot be opened or written: "
                   f"{(error.strerror or 'no permission').lower()}; name another one, or change its permissions.")
      return 2
    if not (what := lacking(error)):
      raise
    messages.say(f"error: this process gets no more {what} ({str(error) or type(error).__name__}).")
    return 1
  except KeyboardInterrupt:
    return 130
  except SystemExit as done:  # argparse raises it after --help
    return done.code if isinstance(done.code, int) else int(bool(done.code))


def _discard_output() -> None:
  """Redirects closed output streams to os.devnull. Otherwise Python exits with 120 when it flushes them at the end."""
  for stream in filter(None, (sys.stdout, sys.stderr)):
    try:
      stream.flush()
    except OSError as error:
      if stream is sys.stdout and error.errno not in (errno.EPIPE, errno.EIO):
        continue  # results are lost, e.g. on a full disk: Python says so
      with contextlib.suppress(OSError, AttributeError):  # the stream may not be a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
