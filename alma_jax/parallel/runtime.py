"""Process-wide settings that make jax start and run fast. Call `setup` before jax is used."""
import ctypes
import functools
import importlib.util
import mmap
import os
import sys

import jax

from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.parallel import environment, sharding

_HEAP = 3 * 2**29  # bytes of the heap that lie in large pages

_compile_seconds = 0.0
_listening = False
_num_devices = -1  # of the CPU, as this module has set it
_alone = False  # whether this process does nothing but run


def setup(config: schema.RunConfig | None = None, alone: bool = False) -> None:
  """Sets up jax; harmless when repeated.

  Args:
    config: RunConfig of what will run. Before jax is used for the first time
      it decides about determinism on a GPU and virtual devices on a CPU; later
      these stay as they are.
    alone: whether nothing else will run in this process. Then XLA's threads and
      the C library's memory are set up for this config, and compiled programs that
      will not run again are cleared.
  """
  global _listening, _alone
  _alone |= alone
  if _alone:
    _keep_freed_memory()
  if config and config.deterministic and "xla_gpu_deterministic_ops" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
  environment.keep_programs()
  if not _listening:
    jax.monitoring.register_event_duration_secs_listener(_count_compilation)
    _listening = True
  if config:
    _set_up_cpu(config, alone)


def check_platform() -> None:
  """Raises BadInput if jax has no device of the platform that it was told to use.

  With several processes the devices are used later: the first use connects the processes.
  """
  if jax.distributed.is_initialized():
    return
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    reason = str(error).split("\n")[0]
    raise BadInput(f"jax finds no device of JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}"
                   f"{f' ({reason})' if reason else ''}; leave the variable unset, or install jax for that "
                   "platform.") from error


def forget_programs() -> None:
  """Clears compiled programs if this process is alone. In a notebook they may belong to other code."""
  if _alone:
    jax.clear_caches()


def compile_seconds() -> float:
  """Seconds this process has spent tracing, lowering and compiling."""
  return _compile_seconds


def _count_compilation(event: str, duration_secs: float, **kwargs: str | int) -> None:
  global _compile_seconds
  del kwargs
  if event.startswith("/jax/core/compile/"):
    _compile_seconds += duration_secs


def _set_up_cpu(config: schema.RunConfig, alone: bool) -> None:
  """Virtual devices and threads of the CPU platform, if jax has not been used yet.

  Members are spread over one virtual device per core; a learner leaves devices idle that do
  not make it faster. A process that is `alone` makes only those it needs, because XLA makes
  a thread for each. It gives small networks one thread: XLA hands even a kernel of
  a microsecond to another thread, which takes many microseconds to wake up. A training step of an MLP
  of width 32 (MNIST, batch 128) took 0.12 ms in one thread and 0.19 in two, one of
  width 256 1.05 ms and 0.75.

  If the user has set the number of virtual devices, it stays, and sharding.make_mesh chooses among them.
  """
  global _num_devices
  platform = (jax.config.jax_platforms or "").split(",")[0]  # type: ignore[attr-defined]
  if platform not in ("", "cpu") or jax.distributed.is_initialized():
    return
  only_cpu = platform == "cpu" or not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
  if only_cpu:
    sharding.check_virtual(config.devices)
  cores = sharding.num_cores()
  count = config.devices or (min(cores, config.learner.num_trained) if alone else cores)
  set_before = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
  is_users = set_before not in (-1, _num_devices) or environment.NUM_DEVICES in os.environ.get("XLA_FLAGS", "")
  if not is_users and count > max(1, set_before):
    try:
      jax.config.update("jax_num_cpu_devices", count)
      _num_devices = count
    except RuntimeError:
      pass  # jax is in use already; sharding.make_mesh says how many devices there are
  model, growing = config.model, config.learner.adds_experts
  size = model.num_experts * model.width * config.train.batch_size  # 0 if train.budget decides, which needs the data
  small = not growing and 0 < size <= model.one_thread
  if alone and only_cpu and small and "NPROC" not in os.environ:
    os.environ["NPROC"] = "1"  # XLA reads it when it makes its thread pool, and has no other setting
    try:
      jax.devices()
    finally:
      del os.environ["NPROC"]


@functools.cache
def _keep_freed_memory() -> None:
  """Tells glibc to keep freed memory instead of returning it, in large pages.

  XLA on a CPU allocates its temporaries anew in every call. Above 32 MB glibc
  maps and unmaps them each time, and the page faults take as long as the
  arithmetic: a training step of VGG19 at width 16 took 57 ms instead of 36.
  Without large pages one process in three was slower by another third, depending
  on where its memory was placed.
  """
  if not sys.platform.startswith("linux"):
    return
  try:
    libc = ctypes.CDLL("libc.so.6")
    mallopt, malloc, free, madvise = libc.mallopt, libc.malloc, libc.free, libc.madvise
  except (OSError, AttributeError):
    return  # another C library, another allocator
  trim_threshold, mmap_max, arena_max = -1, -4, -8  # malloc.h
  mallopt(mmap_max, 0)
  mallopt(trim_threshold, -1)  # never
  mallopt(arena_max, 1)
  malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
  madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
  # After `free` the heap keeps this block. Physical memory is taken only for pages that are used.
  block = malloc(_HEAP)
  if block:
    start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    madvise(start, block + _HEAP - start, mmap.MADV_HUGEPAGE)
    free(block)
