"""The CPU cores and GPUs that this process may use. Does not import jax."""
import os
import pathlib


def usable_cores() -> list[int]:
  """Numbers of the cores that this process may run on, ascending."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def num_cores() -> int:
  """How many cores this process may run on, at least 1."""
  return len(usable_cores())


def num_gpus() -> int:
  """Number of NVIDIA GPUs that this process may use."""
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is not None:
    return len([part for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")])
  return len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))
