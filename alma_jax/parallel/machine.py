"""The CPU cores, the GPUs and the memory that this process may use. Does not import jax."""
import os
import pathlib
import resource
from collections.abc import Iterator


def usable_cores() -> list[int]:
  """Numbers of the cores that this process may run on, ascending."""
  if hasattr(os, "sched_getaffinity"):
    return sorted(os.sched_getaffinity(0))
  return list(range(os.cpu_count() or 1))


def num_cores() -> int:
  """How many cores this process may run on, at least 1."""
  return len(usable_cores())


def gpus() -> list[str]:
  """Names of the NVIDIA GPUs that this process may use."""
  visible = os.environ.get("CUDA_VISIBLE_DEVICES")
  if visible is not None:
    return [name for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
  return sorted(place.name for place in pathlib.Path("/dev").glob("nvidia[0-9]*"))


def num_gpus() -> int:
  """Number of NVIDIA GPUs that this process may use."""
  return len(gpus())


def host_memory(root: str | pathlib.Path = "/") -> int:
  """Bytes of memory that this process may use: those of the machine, or the limit of a control group or RLIMIT_AS.

  `root` is the folder that holds /proc and /sys.
  """
  found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits(pathlib.Path(root))]
  soft, _ = resource.getrlimit(resource.RLIMIT_AS)
  return min(found if soft == resource.RLIM_INFINITY else [*found, soft])


def _group_limits(root: pathlib.Path) -> Iterator[int]:
  """Limits of the control groups (versions 1 and 2) that this process is in, and of those above them."""
  try:
    lines = (root / "proc/self/cgroup").read_text().splitlines()
  except OSError:
    return
  for line in lines:
    _, controllers, path = line.split(":", 2)
    if not controllers:
      mount, name = root / "sys/fs/cgroup", "memory.max"
    elif "memory" in controllers.split(","):
      mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
    else:
      continue
    group = pathlib.PurePath(path.lstrip("/"))
    for folder in (group, *group.parents):  # a container may see its own group as the root
      try:
        text = (mount / folder / name).read_text().strip()
      except OSError:
        continue
      if text.isdigit():  # else "max"
        yield int(text)
