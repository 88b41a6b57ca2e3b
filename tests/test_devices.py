"""Meshes: the same step and evaluation on any number of devices, runs on each."""
import os
import pathlib
import subprocess
import sys
import types

import jax
import pytest
from runs import blobs, slow, small_config
from stages import Stages, begin

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.parallel import peers, sharding
from alma_jax.runs import settings
from alma_jax.training import loop

ROOT = pathlib.Path(__file__).parents[1]


def test_meshes():
  shapes = {(m, d): dict(sharding.make_mesh(m, d).shape) for m in (1, 4, 5) for d in (1, 2, 4, 8)}
  assert shapes[1, 8] == {"member": 1, "data": 8}
  assert shapes[4, 2] == {"member": 2, "data": 1}
  assert shapes[4, 8] == {"member": 4, "data": 2}
  assert shapes[5, 4] == {"member": 1, "data": 4}
  with pytest.raises(BadInput, match="devices=9, but there are only 8"):
    sharding.make_mesh(1, 9)


@pytest.fixture
def unlaunched(monkeypatch):
  for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_", "PMI_", "KUBERNETES_")):
      monkeypatch.delenv(name)


@pytest.mark.usefixtures("unlaunched")
def test_launchers_that_jax_does_not_know(monkeypatch):
  monkeypatch.setenv("PMI_SIZE", "2")
  begun = []
  monkeypatch.setattr(jax.distributed, "initialize", lambda *args: begun.append(args))
  with pytest.raises(BadInput, match="this one has; give --coordinator=HOST:PORT of process 0, and --num"):
    sharding.initialize()
  assert not begun


@pytest.mark.usefixtures("unlaunched")
def test_a_launcher_says_the_numbers_and_the_user_says_where(monkeypatch):
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
  monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
  met, begun = [], []
  monkeypatch.setattr(sharding.peers, "meet", lambda *args: met.append(args))
  monkeypatch.setattr(sharding.peers, "share_of", lambda seen: [2, 3])
  monkeypatch.setattr(jax.config, "update", lambda *unused: None)
  monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **named: begun.append((args, named)))
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
  sharding.initialize("node1:1234", seconds=7.0)
  assert met == [("node1", 1234, 3, 2, 7.0)]
  ((args, named),) = begun
  assert args == ("node1:1234", 3, 2)
  assert named["local_device_ids"] == [2, 3]
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "x")
  with pytest.raises(BadInput, match="OMPI_COMM_WORLD_SIZE='x', which should be a number"):
    sharding.initialize()


def test_the_processes_of_a_machine_share_its_gpus(monkeypatch):
  def shares(num_gpus, num, others=0):
    """Of `num` processes that see the same GPUs, and of `others` on another machine."""
    found, seen = [], [str(i) for i in range(num_gpus)]
    for me in range(num):
      gather = lambda what, here: [here] * num + [["another", *seen]] * others
      monkeypatch.setattr(peers, "_channel", types.SimpleNamespace(me=me, gather=gather))
      found.append(peers.share_of(seen))
    return found

  assert shares(4, 1, others=2) == [None]  # all: no other process sees them
  assert shares(4, 2) == [[0, 1], [2, 3]]
  assert shares(1, 2) == [None, None]
  assert shares(4, 3) == [[0], [1], [2]]
  assert shares(0, 2) == [None, None]


@pytest.mark.usefixtures("unlaunched")
def test_one_launcher_inside_another(monkeypatch):
  for name, value in {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_SIZE": "4",
                      "OMPI_COMM_WORLD_RANK": "3"}.items():
    monkeypatch.setenv(name, value)
  assert sharding._launched() == (4, 3)
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
  monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
  assert sharding._launched() == (2, 0)


def test_machines_that_do_not_reach_each_other(monkeypatch):
  def fail(name):
    raise RuntimeError("UNKNOWN: Gloo context initialization failed: Connect timeout [127.0.0.1]")

  monkeypatch.setattr(sharding, "barrier", fail)
  with pytest.raises(BadInput, match="cannot connect to each other. This machine is .* /etc/hosts"):
    sharding.connect()


def test_members_share_the_cores_of_a_cpu(monkeypatch):
  monkeypatch.setattr(sharding, "num_cores", lambda: 4)
  shape = lambda *args, **kwargs: tuple(sharding.make_mesh(*args, **kwargs).shape.values())
  assert [shape(members) for members in (1, 2, 3, 4, 5, 6, 7, 20)] == [
      (1, 1), (2, 1), (3, 1), (4, 1), (3, 1), (3, 1), (4, 1), (4, 1)]  # 5 on 3: two each, and one copy
  assert shape(5, spread=False) == (1, 1)


@pytest.mark.skipif(sharding.num_cores() < 2 or sys.platform != "linux", reason="needs two cores and /proc")
@pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="XLA does not name its threads yet")
@pytest.mark.parametrize(("width", "alone", "single"), [(32, True, True), (32, False, False), (512, True, False)])
def test_small_networks_alone_in_a_process_take_one_thread(width, alone, single):
  code = f"""
import pathlib
from alma_jax import config as configs
from alma_jax.parallel import runtime
config = configs.base("sm")
config.model.width = {width}
runtime.setup(configs.parse(config), alone={alone})
import jax
jax.jit(lambda x: x @ x)(jax.numpy.ones((300, 300))).block_until_ready()
print(sum("XLAEigen" in p.read_text() for p in pathlib.Path("/proc/self/task").glob("*/comm")))
"""
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
  assert (int(done.stdout) == 1) == single


def test_members_lie_on_their_devices():
  setting = settings.prepare(configs.parse(small_config("ens", learner__num_members=4, devices=4)),
                                (*blobs(240), *blobs(60, seed=1)))
  learner, data = setting.learner, Stages(setting)[0]
  kernel = begin(learner, learner.init(), data).state.members.now.params["hidden0"]["kernel"]
  assert {shard.data.shape[0] for shard in kernel.addressable_shards} == {1}
  assert len({shard.device for shard in kernel.addressable_shards}) == 4


@pytest.mark.parametrize(("learner", "devices"), [
    ("gens", 8), ("boosting", 2), slow("bagging", 4), slow("gmoe", 8), slow("ff", 2)])
def test_a_run_works_on_any_number_of_devices(tmp_path, arrays, learner, devices):
  run = alma_jax.run(small_config(learner, devices=devices, train__epochs=12, model__width=16), tmp_path, data=arrays)
  assert len(run.metrics["t"]) == 4
  assert run.summary["final_error"] < 0.5


def test_rows_of_a_dispatch_are_padded_to_the_data_axis():
  config = small_config("sm", devices=8, train__batch_size=30)
  setting = settings.prepare(configs.parse(config), (*blobs(240), *blobs(60, seed=1)))
  assert setting.learner.mesh.shape["data"] == 8
  spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 1, 1, setting.learner.mesh, False)
  assert (spec.padded_batch, spec.val_batch) == (32, 512)
