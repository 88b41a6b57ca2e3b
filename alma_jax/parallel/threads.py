"""Dispatches side by side: XLA on a CPU runs those of one thread one after the other, a convolution on one core."""
from collections.abc import Callable, Hashable, Sequence
from multiprocessing.pool import ThreadPool
from typing import Any

from jax.sharding import Mesh

from alma_jax.parallel import environment
from alma_jax.parallel.machine import num_cores

_compiled: set[Hashable] = set()


def side_by_side(mesh: Mesh, calls: Sequence[Callable[[], Any]], programs: Hashable = None) -> list[Any]:
  """The results of `calls`, which run in threads if the mesh is one device of a CPU.

  Args:
    mesh: of the programs that they dispatch.
    calls: functions that dispatch the same programs, and wait for the results.
    programs: what these depend on. If they were compiled for an earlier call of this function, all of `calls` start at
      once; otherwise, and if it is None, the first one compiles them alone.
  """
  is_one = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
  threads = min(num_cores(), len(calls)) if is_one else 1
  if threads == 1:
    return [call() for call in calls]
  alone = 0 if programs in _compiled else 1
  first = [call() for call in calls[:alone]]
  if programs is not None:
    _compiled.add(programs)
  with ThreadPool(threads) as pool:
    return first + pool.map(environment.fixed()(lambda call: call()), calls[alone:], chunksize=1)
