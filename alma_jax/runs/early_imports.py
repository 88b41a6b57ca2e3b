"""Imports the slow packages that a run needs at its end, while it begins; for a process that does nothing but run."""
import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator

from alma_jax.config import schema


def start(config: schema.RunConfig) -> None:
  """Imports tensorboardX at once, and matplotlib in a thread, beside the first compilation.

  tensorboardX imports torch where it is installed, for tensors that a run never gives to it. That takes seconds, so it
  is kept from finding torch. Other code of the process that gives torch's tensors to tensorboardX would miss it.
  """
  if config.log.tensorboard:
    with _hidden("torch"):
      import tensorboardX  # noqa: F401
  threading.Thread(target=_import_plots, name="import of matplotlib").start()


def _import_plots() -> None:
  with contextlib.suppress(Exception):  # the end of the run imports it again, and tells what is wrong
    importlib.import_module("alma_jax.runs.plots")


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
  """Imports of a package fail in this block, unless it is imported already."""
  if package in sys.modules:
    yield
    return
  sys.modules[package] = None  # type: ignore[assignment]  # as Python's documentation of import allows
  try:
    yield
  finally:
    del sys.modules[package]
