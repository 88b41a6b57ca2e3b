"""Devices: the mesh, placing host arrays on it, collectives, several processes.

A mesh has a `member` and a `data` axis. Members in training are sharded over
the first, their batches over the second; everything else is replicated. Code
inside `shard_map` sees its own members and its own part of the batch.
"""
import math
import os
import signal
import socket
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from alma_jax import messages
from alma_jax.errors import BadInput
from alma_jax.parallel import peers
from alma_jax.parallel.machine import gpus, num_cores
from alma_jax.types import Tree

MEMBER, DATA = "member", "data"
REPLICATED = P()
EXAMPLES = P((MEMBER, DATA))  # a batch that is divided among all devices
_MOST_VIRTUAL = 32  # XLA's collectives among many virtual devices do not end
# Environment variables in which launchers give the number of processes, and the number of this one.
_LAUNCHERS = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK",
              "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}
# Set where the user or SLURM has given each process its GPUs.
_DIVIDED = ("JAX_LOCAL_DEVICE_IDS", "SLURM_GPUS_PER_TASK")
# Seconds without a word from a process after which jax aborts the others. peers.py notices a dead process before that,
# and ends with a sentence; a process that is suspended for less goes on.
_HEARTBEAT = 600


def initialize(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None,
               seconds: float = 300.0) -> None:
  """Joins the other processes of the run, if there are any. This has to be the first use of jax.

  Args:
    coordinator: "host:port" of process 0, or None to detect SLURM and Open MPI 4
      from their environment.
    num_processes: how many processes there are (with `coordinator`; or as the
      launcher's environment says).
    process_id: this one's number, from 0 (as `num_processes`).
    seconds: how long to wait for the others.

  Raises:
    BadInput: only some of the three were given, one is not valid, or the other
      processes do not connect in time.
  """
  launched = _launched()
  if coordinator is not None and num_processes is None and process_id is None and launched is not None:
    num_processes, process_id = launched
  given = [v is not None for v in (coordinator, num_processes, process_id)]
  if any(given) and not all(given):
    raise BadInput("--coordinator, --num_processes and --process_id should be given together.")
  if not any(given):
    if not _in_cluster(launched):
      return
    from jax._src import clusters  # jax has no public function for what it finds in the environment
    found = clusters.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, int(seconds))[:3]
    if None in found:
      raise BadInput("a launcher has started several processes, but its environment does not say where process 0 is, "
                     "how many there are and which number this one has; give --coordinator=HOST:PORT of process 0, and "
                     "--num_processes and --process_id if it does not say these either.")
    coordinator, num_processes, process_id = found
  assert coordinator is not None
  assert num_processes is not None
  assert process_id is not None
  if not 0 <= process_id < num_processes:
    raise BadInput(f"--process_id={process_id} should be at least 0 and below --num_processes={num_processes}.")
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit() or not 0 < int(port) < 2**16:
    raise BadInput(f"--coordinator={coordinator!r} should be HOST:PORT with a port from 1 to 65535.")
  own = None
  if num_processes > 1:
    peers.meet(host.strip("[]"), int(port), num_processes, process_id, seconds)
    share = peers.share_of(gpus())
    own = None if any(name in os.environ for name in _DIVIDED) else share
  if hasattr(jax.config, "jax_enable_preemption_service"):  # main.py saves the run at SIGTERM
    jax.config.update("jax_enable_preemption_service", False)
  # Without "deactivate" jax would look for a launcher again, and take one GPU alone where there is one.
  jax.distributed.initialize(coordinator, num_processes, process_id, local_device_ids=own,
                             cluster_detection_method="deactivate", heartbeat_timeout_seconds=_HEARTBEAT)
  signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # jax 0.7 has replaced it behind Python's back


def connect() -> None:
  """The first collective, in which the processes connect. They have to call it at about the same time.

  Raises:
    BadInput: the processes cannot reach each other.
  """
  try:
    barrier("the processes connect")
  except RuntimeError as error:
    if "Gloo context initialization failed" not in str(error):
      raise
    raise BadInput(f"the processes of this run cannot connect to each other. This machine is {socket.gethostname()}, "
                   "a name that the other machines have to be able to reach; on some systems /etc/hosts gives it the "
                   "address 127.0.1.1, which only the machine itself reaches.") from error


def _launched() -> tuple[int, int | None] | None:
  """(number of processes, number of this one) as the environment of a launcher says, which may lack the second."""
  found = [(_number(count) or 1, _number(number)) for count, number in _LAUNCHERS.items() if count in os.environ]
  return max(found, key=lambda one: one[0] > 1, default=None)  # one launcher may have started the other


def _number(name: str) -> int | None:
  """The value of a launcher's environment variable."""
  value = os.environ.get(name)
  if value and not value.isdigit():
    raise BadInput(f"the environment has {name}={value!r}, which should be a number; unset it if no launcher has "
                   "started this process.")
  return int(value) if value else None


def _in_cluster(launched: tuple[int, int | None] | None) -> bool:
  """Whether a launcher that jax.distributed knows has started several processes."""
  return (launched is not None and launched[0] > 1) or (
      "KUBERNETES_SERVICE_HOST" in os.environ and (os.environ.get("JOBSET_REPLICAS") or "1") != "1")


def make_mesh(num_members: int, num_devices: int = 0, spread: bool = True) -> Mesh:
  """Mesh [member, data] with gcd(members, devices) along `member`.

  The virtual devices of a CPU are treated differently: they share its cores, and
  collectives in every step cost more than a second core gains. Unless their
  number is given, they hold whole members (`spread`) or stay idle.

  Args:
    num_members: stacked members of the learner.
    num_devices: how many devices to use, of all processes; 0: all.
    spread: whether members run faster with a CPU core each.

  Raises:
    BadInput: there are fewer devices.
  """
  devices = jax.devices()
  if num_devices > len(devices):
    raise BadInput(f"devices={num_devices}, but there are only {len(devices)}; lower it.")
  if jax.process_count() > 1 and num_devices not in (0, len(devices)):
    raise BadInput(f"devices={num_devices}, but several processes use all {len(devices)} of their devices together; "
                   "leave it at 0.")
  if not num_devices and devices[0].platform == "cpu" and jax.process_count() == 1:
    workers = min(num_members, len(devices), num_cores()) if spread else 1
    rows = -(-num_members // -(-num_members // workers))  # the fewest devices that take the same time
    return Mesh(np.array(devices[:rows]).reshape(rows, 1), (MEMBER, DATA))
  devices = devices[:num_devices or None]
  rows = math.gcd(num_members, len(devices))
  return Mesh(np.array(devices).reshape(rows, -1), (MEMBER, DATA))


def check_virtual(num_devices: int) -> None:
  """Raises BadInput for more virtual devices of a CPU than can work together."""
  most = max(_MOST_VIRTUAL, num_cores())
  if num_devices > most:
    raise BadInput(f"devices={num_devices} should be at most {most} on a CPU, whose cores they share.")


def put(tree: Tree, mesh: Mesh, spec: Tree = REPLICATED) -> Tree:
  """Host arrays, of which every process has all -> arrays on the mesh.

  Args:
    tree: pytree of arrays.
    mesh: the devices.
    spec: PartitionSpec, or a prefix of `tree` with PartitionSpecs as leaves.
  """
  def place(spec: P, subtree: Tree) -> Tree:
    sharding = NamedSharding(mesh, spec)
    if mesh.is_multi_process:
      piece = lambda x: jax.make_array_from_callback(np.shape(x), sharding, lambda i: np.asarray(x)[i])
      return jax.tree.map(piece, subtree)
    return jax.device_put(subtree, sharding)
  return jax.tree.map(place, spec, tree, is_leaf=lambda x: isinstance(x, P))


def fetch(tree: Tree) -> Tree:
  """Arrays on a mesh -> numpy arrays, whole in every process."""
  def whole(x: Any) -> Any:
    if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
      return multihost_utils.process_allgather(x, tiled=True)
    return x
  return jax.device_get(jax.tree.map(whole, tree))


def dividing(mesh: Mesh, inputs: Tree) -> Mesh | None:
  """The mesh that a batch is divided over; None if it is not divided: on one device, or inside another program."""
  inside = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(inputs))
  return None if mesh.size == 1 or inside else mesh


def psum(tree: Tree, axis: str | None) -> Tree:
  """Sum over a mesh axis; `tree` itself if the axis is None or has length 1."""
  if axis is None or jax.lax.axis_size(axis) == 1:
    return tree
  return jax.lax.psum(tree, axis)


def needs_waiting(mesh: Mesh) -> bool:
  """Whether to wait for each dispatch: collectives of two dispatches can dead-lock on virtual CPU devices."""
  return mesh.size > 1 and mesh.devices.flat[0].platform == "cpu"


def say(message: str) -> None:
  """Prints one line for the person at the terminal, from process 0."""
  if is_main():
    messages.say(message)


def is_main() -> bool:
  """Whether this process writes the run folder."""
  return jax.process_index() == 0


def agree(tree: Tree) -> Tree:
  """The host numbers or arrays of process 0, in all processes, which decide by them and therefore need equal bits."""
  if jax.process_count() == 1:
    return tree
  return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))


def any_process(flag: Any) -> bool:
  """Whether a host-side condition holds in any process."""
  if jax.process_count() == 1:
    return bool(flag)
  return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def barrier(name: str) -> None:
  """Waits for the other processes."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
