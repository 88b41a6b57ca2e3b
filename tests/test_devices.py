"""Meshes: the same step and evaluation on any number of devices, runs on each."""
import os
import pathlib
import socket
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import FOUNDATION, blobs, one_step_a_dispatch, slow, small_config
from stages import Stages, begin, contribution

import alma_jax
from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.parallel import peers, sharding
from alma_jax.runs import settings
from alma_jax.store import checkpoint
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


def test_launchers_that_jax_does_not_know(monkeypatch):
  for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_")):
      monkeypatch.delenv(name)
  monkeypatch.setenv("PMI_SIZE", "2")
  begun = []
  monkeypatch.setattr(jax.distributed, "initialize", lambda *args: begun.append(args))
  with pytest.raises(BadInput, match="this one has; give --coordinator=HOST:PORT of process 0, and --num"):
    sharding.initialize()
  assert not begun


def test_a_launcher_says_the_numbers_and_the_user_says_where(monkeypatch):
  for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_", "PMI_")):
      monkeypatch.delenv(name)
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


def test_one_launcher_inside_another(monkeypatch):
  for name in list(os.environ):
    if name.startswith(("SLURM_", "OMPI_", "PMI_")):
      monkeypatch.delenv(name)
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


ALONE = """
import sys
import types
import alma_jax
from alma_jax import config as configs
for learner in ("sm", "ens"):
  config = configs.base(learner)
  config.update_from_flattened_dict({"train.epochs": 1, "log.progress": False, "log.tensorboard": False})
  run = alma_jax.run(config, f"{sys.argv[1]}/{learner}")
  print(run.summary["device"])
"""


@pytest.mark.slow
def test_members_share_the_cores_by_default(tmp_path):
  """Also after a run that did not need them. This needs a fresh process."""
  cores = sharding.num_cores()
  workers = -(-5 // -(-5 // min(5, cores)))
  expected = f"{workers} x cpu" if workers > 1 else "cpu"
  command = [sys.executable, "-c", ALONE, str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  assert done.stdout.split("\n")[:2] == ["cpu", expected]
  command = [sys.executable, "-m", "alma_jax.main", f"--config={ROOT}/configs/digits.py:ens",
             "--config.train.epochs=1", f"--workdir={tmp_path}/main"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  assert f"on {expected}\n" in done.stdout


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


@pytest.mark.parametrize("patience", [0, 2])
def test_members_that_do_not_divide_evenly_train_as_on_one_device(monkeypatch, tmp_path, arrays, patience):
  monkeypatch.setattr(sharding, "num_cores", lambda: 2)
  stops = iter([False] * 5 + [True] * 9)
  one_step_a_dispatch(monkeypatch)
  runs = []
  for devices in (1, 0):
    config = small_config("ens", learner__num_members=5, devices=devices, train__patience=patience, train__epochs=6,
                          checkpoint__seconds=0.0 if devices == 0 else 30.0)
    path = tmp_path / str(devices)
    if devices == 0:
      setting = settings.prepare(configs.parse(config), arrays)
      assert dict(setting.learner.mesh.shape) == {"member": 2, "data": 1}
      with pytest.raises(alma_jax.Stopped):
        alma_jax.run(config, path, data=arrays, should_stop=lambda: next(stops))
      assert checkpoint.Checkpoints(path, 2).newest().meta["cursor"] == 3  # inside a stage
    runs.append(alma_jax.run(config, path, data=arrays))
  one, two = runs
  assert [e["stage"] for e in one.train] == [e["stage"] for e in two.train]
  for a, b in zip(one.train, two.train):
    assert a["members"] == b["members"]
  assert one.metrics["error"].tolist() == two.metrics["error"].tolist()
  x = arrays[2]
  np.testing.assert_allclose(one.predict(x), two.predict(x), atol=1e-6)


def one_step(model, members, devices, shape, batch_size=24):
  """Parameters, statistics, momentum and sums after a step on a partial batch, and an evaluation."""
  config = small_config("ens", learner__num_members=members, devices=devices, model__name=model,
                        model__width=3, train__batch_size=batch_size, train__optimizer="sgd", train__learning_rate=1.0,
                        train__epochs=1, stream__num_megabatches=2, stream__waiting_time=1,
                        train__augment=model == "vgg")
  # 21 training examples: a batch of 24 is padded, unevenly over 4 and 8 devices.
  x, y = blobs(48, shape)
  setting = settings.prepare(configs.parse(config), (x, y, *blobs(30, shape, seed=1)))
  learner, data = setting.learner, Stages(setting)[0]
  data = data._replace(train=data.train[:21])
  state = learner.init()
  fitting = begin(learner, state, data)
  fitting, records = loop.advance(fitting, 1)
  sums = jax.device_get(records)
  contributed = contribution(setting, state, 0, setting.protocol.source.test_pool(learner.mesh))
  member = fitting.state.members
  return jax.device_get((member.now, member.opt)), sums.train, contributed


@pytest.mark.parametrize(("model", "shape", "members"), [
    ("mlp", (6, 6), 4), slow("mlp", (6, 6), 5), slow("vgg", (32, 32, 3), 5)])
def test_a_step_and_an_evaluation_agree_on_all_device_counts(model, shape, members):
  expected = one_step(model, members, 1, shape)
  for devices in (2, 4, 8):
    found = one_step(model, members, devices, shape)
    # SGD at rate 1: the parameters' change is the gradient, which is up to 30 for the VGG.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(a).max())), expected, found)


@pytest.mark.parametrize("gating", ["soft", "hard"])
def test_a_mixture_trains_alike_on_all_device_counts(gating):
  ends = []
  for devices in (1, 4):
    config = small_config("moe", devices=devices, learner__gating=gating, model__num_experts=3, train__batch_size=24,
                          train__optimizer="sgd", train__learning_rate=1.0)
    setting = settings.prepare(configs.parse(config), (*blobs(48), *blobs(30, seed=1)))
    learner, data = setting.learner, Stages(setting)[0]
    fitting, _ = loop.advance(begin(learner, learner.init(), data), 1)
    ends.append(jax.device_get(fitting.state.members.now))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(a).max())), *ends)


@pytest.mark.slow
def test_a_padded_step_is_the_step_without_padding():
  padded, whole = (one_step("vgg", 1, 1, (32, 32, 3), batch_size)[0] for batch_size in (24, 21))
  (now, _), (expected, _) = padded, whole
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(a).max())), expected, now)


def test_members_lie_on_their_devices():
  setting = settings.prepare(configs.parse(small_config("ens", learner__num_members=4, devices=4)),
                                (*blobs(240), *blobs(60, seed=1)))
  learner, data = setting.learner, Stages(setting)[0]
  kernel = begin(learner, learner.init(), data).state.members.now.params["hidden0"]["kernel"]
  assert {shard.data.shape[0] for shard in kernel.addressable_shards} == {1}
  assert len({shard.device for shard in kernel.addressable_shards}) == 4


@pytest.mark.parametrize(("learner", "devices"), [
    ("sm", 1), ("gens", 1), slow("ens", 1), slow("umix", 1), *[(learner, 8) for learner in FOUNDATION],
    *[slow(learner, devices) for learner in FOUNDATION for devices in (2, 4)],
    slow("bagging", 4), ("boosting", 2), ("moe", 4), ("gmoe", 8), slow("hmoe", 4), ("ff", 2)])
def test_a_run_works_on_any_number_of_devices(tmp_path, arrays, learner, devices):
  run = alma_jax.run(small_config(learner, devices=devices, train__epochs=12, model__width=16), tmp_path, data=arrays)
  assert len(run.metrics["t"]) == 4
  assert run.summary["final_error"] < 0.5


def test_a_run_goes_on_with_another_number_of_devices(tmp_path, arrays):
  stops = iter([False] * 3 + [True] * 9)
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(small_config("ens", devices=4), tmp_path, data=arrays, should_stop=lambda: next(stops))
  with pytest.warns(UserWarning, match=r"devices \(4 x cpu there, 2 x cpu here\)"):
    run = alma_jax.run(small_config("ens", devices=2), tmp_path, data=arrays)
  assert run.metrics["t"].tolist() == [1, 2, 3, 4]


def test_collectives_inside_a_gradient_add_up():
  """The gradient of a psum inside shard_map is that of the whole batch's loss."""
  mesh = sharding.make_mesh(1, 4)
  x = jnp.arange(8.0)

  def local(w, x):
    def loss(w):
      mean = sharding.psum(jnp.sum(w * x), sharding.DATA) / 8
      return jnp.sum((w * x - mean) ** 2)
    return sharding.psum(jax.grad(loss)(w), sharding.DATA)

  spec = jax.sharding.PartitionSpec
  found = jax.shard_map(local, mesh=mesh, in_specs=(spec(), spec(sharding.DATA)), out_specs=spec(),
                        check_vma=False)(jnp.float32(2.0), x)
  np.testing.assert_allclose(found, jax.grad(lambda w: jnp.sum((w * x - (w * x).mean()) ** 2))(2.0), rtol=1e-6)


def test_two_processes_run_one_stream_together(tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "alma_jax.main", f"--config={ROOT}/configs/digits.py:ens",
             "--config.train.epochs=3", "--config.learner.num_members=2", "--config.model.width=8"]
  together = [subprocess.Popen([*command, f"--workdir={tmp_path}/two", f"--coordinator=127.0.0.1:{port}",
                                "--num_processes=2", f"--process_id={i}"], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True) for i in range(2)]
  outputs = [process.communicate(timeout=300)[0] for process in together]
  assert [process.returncode for process in together] == [0, 0], "\n".join(outputs)
  assert "in 2 processes" in outputs[0]
  two = alma_jax.load_run(tmp_path / "two")
  assert two.metrics["t"].tolist() == list(range(1, 21))
  alone = [*command, f"--workdir={tmp_path}/one", "--config.devices=2"]
  subprocess.run(alone, cwd=ROOT, check=True, capture_output=True)
  one = alma_jax.load_run(tmp_path / "one")
  np.testing.assert_allclose(two.metrics["error"], one.metrics["error"], atol=0.01)
  assert two.predict(np.zeros((2, 8, 8), np.uint8)).shape == (2, 10)


def test_many_convolutional_steps_on_two_devices():
  """Without waiting, more than about 32 steps with collectives dead-lock on virtual CPU devices."""
  config = small_config("sm", devices=2, model__name="vgg", model__width=2, train__batch_size=4, train__epochs=4,
                        train__optimizer="sgd", train__learning_rate=0.01)
  setting = settings.prepare(configs.parse(config), (*blobs(240, (32, 32, 3)), *blobs(60, (32, 32, 3), seed=1)))
  data = Stages(setting)[0]
  fitting, records = loop.advance(begin(setting.learner, setting.learner.init(), data), 100)
  assert len(loop.read(fitting, records)[0]) == 100 // 27


def test_rows_of_a_dispatch_are_padded_to_the_data_axis():
  config = small_config("sm", devices=8, train__batch_size=30)
  setting = settings.prepare(configs.parse(config), (*blobs(240), *blobs(60, seed=1)))
  assert setting.learner.mesh.shape["data"] == 8
  spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 1, 1, setting.learner.mesh, False)
  assert (spec.padded_batch, spec.val_batch) == (32, 512)
