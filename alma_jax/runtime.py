"""Process-wide settings that make jax start warm and run fast. Call once, first."""
import ctypes
import functools
import importlib.util
import mmap
import os
import pathlib
import sys

import jax

from alma_jax import sharding

_ONE_THREAD = 128 * 128  # width times batch size up to which an MLP is faster in one thread
_HEAP = 3 * 2**29  # bytes of the heap that lie in large pages

_compile_seconds = 0.0
_listening = False


def setup(config=None, alone=False):
  """Sets up jax; harmless when repeated.

  Args:
    config: RunConfig of what will run. Before jax is used for the first time
      it decides about determinism on a GPU and virtual devices on a CPU; later
      these stay as they are.
    alone: whether nothing else will run in this process, so that the number of
      XLA's threads, too, may be what suits this config.
  """
  global _listening
  _keep_freed_memory()
  if config and config.deterministic and "xla_gpu_deterministic_ops" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
  if not jax.config.jax_compilation_cache_dir:
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    jax.config.update("jax_compilation_cache_dir", str(home / "alma_jax" / "xla"))
  # Without these the cache stays all but empty, wherever it lies: it skips what compiles quickly.
  for name, value in (("min_compile_time_secs", 0.0), ("min_entry_size_bytes", -1)):
    if f"JAX_PERSISTENT_CACHE_{name.upper()}" not in os.environ:
      jax.config.update(f"jax_persistent_cache_{name}", value)
  if not _listening:
    jax.monitoring.register_event_duration_secs_listener(_count_compilation)
    _listening = True
  if config:
    _set_up_cpu(config, alone)


def compile_seconds():
  """Seconds this process has spent tracing, lowering and compiling."""
  return _compile_seconds


def _count_compilation(event, seconds, **kwargs):
  global _compile_seconds
  del kwargs
  if event.startswith("/jax/core/compile/"):
    _compile_seconds += seconds


def _set_up_cpu(config, alone):
  """Virtual devices and threads of the CPU platform, if jax has not been used yet.

  A virtual device per core, for members to share; learners leave idle what does
  not help them. A process that is `alone` makes only those it needs, as XLA makes
  a thread for each, and gives small networks one thread: XLA hands even a kernel of
  a microsecond to another, which takes many to wake up. A training step of an MLP
  of width 32 (MNIST, batch 128) took 0.12 ms in one thread and 0.19 in two, one of
  width 256 1.05 ms and 0.75.
  """
  platform = (jax.config.jax_platforms or "").split(",")[0]
  if platform not in ("", "cpu") or jax.distributed.is_initialized():
    return
  only_cpu = platform == "cpu" or not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
  if only_cpu:
    sharding.check_virtual(config.devices)
  cores = sharding.num_cores()
  count = config.devices or (min(cores, config.learner.num_trained) if alone else cores)
  if count > max(1, jax.config.jax_num_cpu_devices):
    try:
      jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
      pass  # jax is in use already; sharding.make_mesh says how many devices there are
  small = (config.model.name == "mlp" and config.learner.name != "gmoe"
           and config.model.num_experts * config.model.width * config.train.batch_size <= _ONE_THREAD)
  if alone and only_cpu and small and "NPROC" not in os.environ:
    os.environ["NPROC"] = "1"  # XLA reads it when it makes its thread pool, and has no other setting
    try:
      jax.devices()
    finally:
      del os.environ["NPROC"]


@functools.cache
def _keep_freed_memory():
  """Tells glibc to keep freed memory instead of returning it, in large pages.

  XLA on a CPU allocates its temporaries anew in every call. Above 32 MB glibc
  maps and unmaps them each time, and the page faults take as long as the
  arithmetic: a training step of VGG19 at width 16 took 57 ms instead of 36.
  Without large pages one process in three was slower by another third, by the
  luck of where its memory lay.
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
  # What the heap has grown by stays its own after `free`; memory is taken only as it is used.
  block = malloc(_HEAP)
  if block:
    start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
    madvise(start, block + _HEAP - start, mmap.MADV_HUGEPAGE)
    free(block)
