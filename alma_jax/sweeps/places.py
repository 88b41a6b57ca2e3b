"""The cores and GPUs of this machine, divided among workers. Does not import jax."""
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from alma_jax.parallel.machine import usable_cores

T = TypeVar("T")


class Place(NamedTuple):
  """What one worker may use.

  Attributes:
    environment: variables that select its GPUs; empty without GPUs.
    cores: numbers of its CPU cores.
  """
  environment: dict[str, str]
  cores: list[int]


def num_gpus() -> int:
  """Number of NVIDIA GPUs that this process may use."""
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is not None:
    return len([part for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")])
  return len(list(pathlib.Path("/proc/driver/nvidia/gpus").glob("*")))


def places(num_workers: int) -> list[Place]:
  """A Place for each worker. If there are more workers than cores or GPUs, several workers share one."""
  cores, num = usable_cores(), num_gpus()
  gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num)))).split(",")
  shares = []
  for i in range(num_workers):
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(_share(gpus, i, num_workers))} if num else {}
    if num and num_workers > num:  # several workers on a GPU, whose memory the first one would take
      environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    shares.append(Place(environment, _share(cores, i, num_workers)))
  return shares


def _share(every: Sequence[T], i: int, num: int) -> list[T]:
  """The i-th of `num` equal parts; at least one item."""
  return list(every[i * len(every) // num:(i + 1) * len(every) // num]) or [every[i % len(every)]]
