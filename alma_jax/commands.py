"""What the commands have in common: arguments, sentences and exit codes. Imports nothing slow."""
import argparse
import sys
import warnings

from alma_jax.errors import BadInput, Diverged


class Parser(argparse.ArgumentParser):
  """Arguments of a command; --help tells its module's docstring."""

  def __init__(self, command, description):
    super().__init__(prog=f"python {command}", description=description.strip(), allow_abbrev=False,
                     formatter_class=argparse.RawDescriptionHelpFormatter)

  def error(self, message):
    """Raises BadInput, where argparse would print its usage."""
    raise BadInput(f"{message}; {self.prog} --help tells more.")


def quiet():
  """A warning is one line; Orbax and TFDS keep to themselves what is no concern of the user's."""
  from absl import logging
  logging.set_verbosity(logging.ERROR)
  warnings.showwarning = lambda message, *unused, **named: print(f"warning: {message}", file=sys.stderr)


def exit_code(work):
  """Runs a command.

  Args:
    work: () -> exit code, or None for 0.

  Returns:
    What `work` returns; 2 after BadInput and 1 after Diverged, told in their sentence.
  """
  try:
    return work() or 0
  except (BadInput, Diverged) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2 if isinstance(error, BadInput) else 1
