"""Where alma_jax keeps files of its own, and how it replaces files. This module imports neither jax nor numpy."""
import os
import pathlib


def cache_home() -> pathlib.Path:
  """The folder that holds all caches: $XDG_CACHE_HOME/alma_jax, or ~/.cache/alma_jax. It need not exist."""
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "alma_jax"


def write_bytes(path: pathlib.Path, data: bytes) -> None:
  """Replaces a file's contents, whole or not at all."""
  temporary = path.with_name(f".{path.name}.tmp")
  with open(temporary, "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)
