"""Runs dispatches in parallel threads: on a CPU, XLA runs those of one thread one after the other."""
from collections.abc import Callable, Hashable, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

import jax
from jax.sharding import Mesh

from alma_jax.parallel import environment
from alma_jax.parallel.machine import num_cores

_compiled: set[Hashable] = set()


def side_by_side(mesh: Mesh, calls: Sequence[Callable[[], Any]], programs: Hashable = None) -> list[Any]:
  """Runs `calls` and returns their results in order; in threads if the mesh is one CPU device.

  A convolution uses only one core, so evaluations are nearly twice as fast on two.

  Args:
    mesh: the devices that the calls run on.
    calls: functions that dispatch the same programs and return arrays.
    programs: a key of the compiled programs. If it is new, or None, the first call runs alone; otherwise each thread
      would compile the same programs.
  """
  is_one = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
  checked = jax.config.jax_debug_nans  # type: ignore[attr-defined]  # a setting of this thread
  threads = min(num_cores(), len(calls)) if is_one and not checked else 1
  if threads == 1:
    return [call() for call in calls]
  alone = 0 if programs in _compiled else 1
  first = [call() for call in calls[:alone]]
  if programs is not None:
    _compiled.add(programs)
  with ThreadPool(threads) as pool:
    return first + pool.map(environment.fixed()(lambda call: jax.block_until_ready(call())), calls[alone:], chunksize=1)
