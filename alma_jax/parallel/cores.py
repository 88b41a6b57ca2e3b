"""The CPU cores that this process may use. Does not import jax."""
import os


def usable_cores() -> list[int]:
  """Numbers of the cores that this process may run on, ascending."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def num_cores() -> int:
  """How many cores this process may run on, at least 1."""
  return len(usable_cores())
