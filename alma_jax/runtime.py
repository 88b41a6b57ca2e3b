"""Process-wide settings that make jax start warm and run fast. Call once, first."""
import ctypes
import os
import pathlib
import sys

import jax

_compile_seconds = 0.0
_listening = False


def setup(devices=0, deterministic=False):
  """Sets up jax for a run; harmless when repeated.

  Args:
    devices: virtual CPU devices to make, if the platform is the CPU and jax has
      not been used yet (0: leave it).
    deterministic: bit-identical repeats on a GPU, at some cost in speed.
  """
  global _listening
  _keep_freed_memory()
  if deterministic and "xla_gpu_deterministic_ops" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
  if not jax.config.jax_compilation_cache_dir:
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    jax.config.update("jax_compilation_cache_dir", str(home / "alma_jax" / "xla"))
    # Without these the cache stays empty: it skips what compiles quickly.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  _limit_devices(devices)
  if not _listening:
    jax.monitoring.register_event_duration_secs_listener(_count_compilation)
    _listening = True


def compile_seconds():
  """Seconds this process has spent tracing, lowering and compiling."""
  return _compile_seconds


def _count_compilation(event, seconds, **kwargs):
  global _compile_seconds
  del kwargs
  if event.startswith("/jax/core/compile/"):
    _compile_seconds += seconds


def _limit_devices(count):
  platform = (jax.config.jax_platforms or "").split(",")[0]
  alone = not jax.distributed.is_initialized()
  if count > max(1, jax.config.jax_num_cpu_devices) and platform in ("", "cpu") and alone:
    try:
      jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
      pass  # jax is in use already; sharding.make_mesh says how many devices there are


def _keep_freed_memory():
  """Tells glibc to keep freed memory instead of returning it to the system.

  XLA on a CPU allocates its temporaries anew in every call. Above 32 MB glibc
  maps and unmaps them each time, and the page faults take as long as the
  arithmetic: a training step of VGG19 at width 16 took 57 ms instead of 36.
  """
  if not sys.platform.startswith("linux"):
    return
  try:
    mallopt = ctypes.CDLL("libc.so.6").mallopt
  except (OSError, AttributeError):
    return  # another C library, another allocator
  trim_threshold, mmap_max, arena_max = -1, -4, -8  # malloc.h
  mallopt(mmap_max, 0)
  mallopt(trim_threshold, 2**31 - 1)
  mallopt(arena_max, 1)
