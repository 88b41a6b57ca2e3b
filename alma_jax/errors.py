"""The failures a user can act on."""


class BadInput(ValueError):
  """What was given cannot be run. One sentence; exit code 2."""


class InUse(BadInput):
  """A live process holds the run folder."""


class Diverged(RuntimeError):
  """The training loss is no longer finite. One sentence; exit code 1."""


class Stopped(RuntimeError):
  """The run was asked to stop, and has saved everything so far."""
