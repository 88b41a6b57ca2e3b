"""What the results of a run may depend on besides its config and data, and what they must not depend on.

`fixed` is a context in which jax's settings that change numbers have their defaults, whatever a notebook or the
environment says. `made_with` names what remains: versions, devices and the flags of compilers.
"""
import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental
import numpy as np

from alma_jax import files
from alma_jax.version import __version__

if hasattr(jax, "enable_x64"):
  _enable_x64 = jax.enable_x64
else:  # before jax 0.8
  _enable_x64 = jax.experimental.enable_x64  # type: ignore[attr-defined]

# Packages whose version may change a result.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
# What changes how a program is compiled, hence how sums are rounded. jax has no context for these.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
_SETTINGS = {"jax_disable_most_optimizations": False, "jax_optimization_level": "UNKNOWN",
             "jax_exec_time_optimization_effort": 0.0, "jax_use_direct_linearize": True}
_FLAX = ("flax_fix_rng_separator", "flax_return_frozendict", "flax_preserve_adopted_names")  # they change networks
_NO_MESH = jax.sharding.Mesh(np.empty((), object), ())
NUM_DEVICES = "--xla_force_host_platform_device_count"  # a flag of XLA


@contextlib.contextmanager
def fixed() -> Iterator[None]:
  """A context or decorator in which the user's jax settings change no number; afterwards they are restored.

  Every public function that computes with jax runs inside it. The settings of jax belong to a thread, so a new thread
  must enter the context itself. Settings that only check, such as jax_debug_nans and jax_numpy_rank_promotion, stay as
  set.
  """
  with (_enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.default_prng_impl("threefry2x32"),
        jax.threefry_partitionable(True), jax.default_matmul_precision(None), jax.disable_jit(False),
        jax.default_device(None), jax.transfer_guard("allow"), jax.set_mesh(_NO_MESH)):
    flags: Any = getattr(sys.modules.get("flax.configurations"), "config", None)  # None: a predictor, without Flax
    users = {name: getattr(flags, name) for name in _FLAX if flags}
    for name in users:
      flags.update(name, False)
    try:
      yield
    finally:
      for name, value in users.items():
        flags.update(name, value)


def keep_programs() -> None:
  """Lets jax keep compiled programs for the next process, in a folder of this package unless the user names one."""
  if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
    jax.config.update("jax_compilation_cache_dir", str(files.cache_home() / "xla"))
  # By default the cache skips programs that compile quickly, which are nearly all programs here.
  for name, value in (("min_compile_time_secs", 0.0), ("min_entry_size_bytes", -1)):
    if f"JAX_PERSISTENT_CACHE_{name.upper()}" not in os.environ:
      jax.config.update(f"jax_persistent_cache_{name}", value)


def versions() -> dict[str, str]:
  """Versions of Python, of this package and of those whose numbers may change a result."""
  return dict(alma_jax=__version__, python=platform.python_version(),
              **{name: importlib.metadata.version(name) for name in _PACKAGES})


def flags() -> dict[str, str]:
  """The variables and settings in this process that change how programs are compiled, {name: value}."""
  found = {name: _without_number(os.environ.get(name, "")) for name in _VARIABLES}
  for name, usual in _SETTINGS.items():
    value = getattr(jax.config, name, usual)
    found[name] = "" if value == usual else str(value)
  return {name: value for name, value in found.items() if value}


def made_with(devices: str) -> dict[str, str]:
  """What the rounding of a run's numbers depends on, by name; `devices` describes those that it uses."""
  return versions() | dict(devices=devices) | flags()


def _without_number(text: str) -> str:
  """Flags without the number of virtual devices, which `devices` already contains."""
  return " ".join(flag for flag in text.split() if not flag.startswith(NUM_DEVICES))
