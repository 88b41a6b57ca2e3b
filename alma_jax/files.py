"""Where alma_jax keeps files of its own. This module imports neither jax nor numpy."""
import os
import pathlib


def cache_home() -> pathlib.Path:
  """The folder that holds all caches: $XDG_CACHE_HOME/alma_jax, or ~/.cache/alma_jax. It need not exist."""
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "alma_jax"
