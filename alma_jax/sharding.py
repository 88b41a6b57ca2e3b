"""Devices: the mesh, placing host arrays on it, collectives, several processes.

A mesh has a `member` and a `data` axis. Members in training are sharded over
the first, their batches over the second; everything else is replicated. Code
inside `shard_map` sees its own members and its own part of the batch.
"""
import math
import os

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from alma_jax.errors import BadInput

MEMBER, DATA = "member", "data"
REPLICATED = P()
# Variables of the launchers that jax.distributed can read the cluster from.
_MOST_VIRTUAL = 32  # XLA's collectives among many virtual devices do not end
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def initialize(coordinator=None, num_processes=None, process_id=None):
  """Joins the other processes of the run, if there are any; first use of jax.

  Args:
    coordinator: "host:port" of process 0, or None to detect SLURM, Open MPI
      and Kubernetes from their environment.
    num_processes: how many processes there are (with `coordinator`).
    process_id: this one's number, from 0 (with `coordinator`).

  Raises:
    BadInput: only some of the three were given.
  """
  given = [v is not None for v in (coordinator, num_processes, process_id)]
  if any(given) and not all(given):
    raise BadInput("--coordinator, --num_processes and --process_id go together.")
  if all(given) and not 0 <= process_id < num_processes:
    raise BadInput(f"--process_id={process_id} should be at least 0 and below --num_processes={num_processes}.")
  if all(given):
    jax.distributed.initialize(coordinator, num_processes, process_id)
  elif any(int(os.environ.get(name) or 1) > 1 for name in _TASK_COUNTS) or (
      "KUBERNETES_SERVICE_HOST" in os.environ and int(os.environ.get("JOBSET_REPLICAS") or 1) > 1):
    jax.distributed.initialize()


def make_mesh(num_members, num_devices=0, spread=True):
  """Mesh [member, data] with gcd(members, devices) along `member`.

  The virtual devices of a CPU are another matter: they share its cores, and
  collectives in every step cost more than a second core gains. Unless their
  number is given, they take whole members (`spread`) or stay idle.

  Args:
    num_members: stacked members of the learner.
    num_devices: how many devices to use, of all processes; 0: all.
    spread: whether members gain from a CPU core each.

  Raises:
    BadInput: there are fewer devices.
  """
  devices = jax.devices()
  if num_devices > len(devices):
    raise BadInput(f"devices={num_devices}, but there are {len(devices)}.")
  if jax.process_count() > 1 and num_devices not in (0, len(devices)):
    raise BadInput(f"devices={num_devices}, but several processes use all {len(devices)} of their devices together; "
                   "leave it at 0.")
  if not num_devices and devices[0].platform == "cpu" and jax.process_count() == 1:
    workers = min(num_members, len(devices), num_cores()) if spread else 1
    rows = -(-num_members // -(-num_members // workers))  # as few as do it in the same time
    return Mesh(np.array(devices[:rows]).reshape(rows, 1), (MEMBER, DATA))
  devices = devices[:num_devices or None]
  rows = math.gcd(num_members, len(devices))
  return Mesh(np.array(devices).reshape(rows, -1), (MEMBER, DATA))


def check_virtual(num_devices):
  """Raises BadInput for more virtual devices of a CPU than can work together."""
  most = max(_MOST_VIRTUAL, num_cores())
  if num_devices > most:
    raise BadInput(f"devices={num_devices} should be at most {most} on a CPU, whose cores they share.")


def num_cores():
  """CPU cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def put(tree, mesh, spec=REPLICATED):
  """Host arrays that every process holds whole -> arrays on the mesh.

  Args:
    tree: pytree of arrays.
    mesh: where to.
    spec: PartitionSpec, or a prefix of `tree` with PartitionSpecs as leaves.
  """
  def place(spec, subtree):
    sharding = NamedSharding(mesh, spec)
    if mesh.is_multi_process:
      piece = lambda x: jax.make_array_from_callback(np.shape(x), sharding, lambda i: np.asarray(x)[i])
      return jax.tree.map(piece, subtree)
    return jax.device_put(subtree, sharding)
  return jax.tree.map(place, spec, tree, is_leaf=lambda x: isinstance(x, P))


def fetch(tree):
  """Arrays on a mesh -> numpy arrays, whole in every process."""
  def whole(x):
    if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
      return multihost_utils.process_allgather(x, tiled=True)
    return x
  return jax.device_get(jax.tree.map(whole, tree))


def psum(tree, axis):
  """Sum over a mesh axis; nothing to do without one, or on one of length 1."""
  if axis is None or jax.lax.axis_size(axis) == 1:
    return tree
  return jax.lax.psum(tree, axis)


def needs_waiting(mesh):
  """Unawaited collectives dead-lock on several virtual CPU devices."""
  return mesh.size > 1 and mesh.devices.flat[0].platform == "cpu"


def is_main():
  """Whether this process writes the run folder."""
  return jax.process_index() == 0


def agree(number):
  """Process 0's view of a number that may differ between processes, in all of them."""
  if jax.process_count() == 1:
    return number
  return type(number)(multihost_utils.broadcast_one_to_all(np.asarray(number)))


def agree_on(tree):
  """Process 0's host arrays in all processes: what they decide from must be equal to the bit."""
  if jax.process_count() == 1:
    return tree
  return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))


def check_same(digest, what):
  """Raises BadInput, in all processes, unless a hexadecimal digest is the same in all of them."""
  number = int(digest[:7], 16)
  if any_process(number != agree(number)):
    raise BadInput(f"the processes of this run hold different {what}.")


def any_process(flag):
  """Whether a host-side condition holds in any process."""
  if jax.process_count() == 1:
    return bool(flag)
  return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def barrier(name):
  """Waits for the other processes."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
