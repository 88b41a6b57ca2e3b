"""Runs on several devices, and two processes of one run."""
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from runs import ROOT, alma, blobs, one_step_a_dispatch, small_config
from stages import Stages, begin, contribution

import alma_jax
from alma_jax import config as configs
from alma_jax.parallel import sharding
from alma_jax.runs import settings
from alma_jax.store import checkpoint
from alma_jax.training import loop

pytestmark = pytest.mark.slow

ALONE = """
import sys
import alma_jax
from alma_jax import config as configs
for learner in ("sm", "ens"):
  config = configs.base(learner)
  config.update_from_flattened_dict({"train.epochs": 1, "log.progress": False, "log.tensorboard": False,
                                     "stream.num_megabatches": 1, "stream.waiting_time": 1})
  run = alma_jax.run(config, f"{sys.argv[1]}/{learner}")
  print(run.summary["device"])
"""

def test_members_share_the_cores_by_default(tmp_path):
  """Also after a run that did not need them. This needs a fresh process."""
  cores = sharding.num_cores()
  workers = -(-5 // -(-5 // min(5, cores)))
  expected = f"{workers} x cpu" if workers > 1 else "cpu"
  command = [sys.executable, "-c", ALONE, str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  assert done.stdout.split("\n")[:2] == ["cpu", expected]
  command = [sys.executable, "-m", "alma_jax.main", f"--config={ROOT}/configs/digits.py:ens",
             "--config.train.epochs=1", "--config.stream.num_megabatches=1", "--config.stream.waiting_time=1",
             f"--workdir={tmp_path}/main"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
  assert f" s on {expected}, " in done.stdout


def test_members_that_do_not_divide_evenly_train_as_on_one_device(monkeypatch, tmp_path, arrays):
  monkeypatch.setattr(sharding, "num_cores", lambda: 2)
  stops = iter([False] * 5 + [True] * 9)
  one_step_a_dispatch(monkeypatch)
  runs = []
  for devices in (1, 0):
    config = small_config("ens", learner__num_members=5, devices=devices, train__patience=2, train__epochs=6,
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


def one_step(members, devices, model, shape, batch_size=24):
  """Parameters, statistics, momentum and sums after a step on a partial batch, and an evaluation."""
  config = small_config("ens", learner__num_members=members, devices=devices, model__name=model,
                        model__width=3, train__batch_size=batch_size, train__optimizer="sgd", train__learning_rate=1.0,
                        train__epochs=1, stream__num_megabatches=2, stream__waiting_time=1)
  # 21 training examples: a batch of 24 is padded, unevenly over several devices.
  setting = settings.prepare(configs.parse(config), (*blobs(48, shape), *blobs(30, shape, seed=1)))
  learner, data = setting.learner, Stages(setting)[0]
  state = learner.init()
  fitting, records = loop.advance(begin(learner, state, data._replace(train=data.train[:21])), 1)
  contributed = contribution(setting, state, 0, setting.protocol.source.test_pool(learner.mesh))
  member = fitting.state.members
  return jax.device_get((member.now, member.opt)), jax.device_get(records).train, contributed


@pytest.mark.parametrize(("devices", "members", "model", "shape"), [
    (4, 5, "mlp", (6, 6)), (8, 4, "compact", (17, 16, 1))])  # a batch on four, and a batch on two for each member
def test_a_step_and_an_evaluation_agree_on_all_device_counts(devices, members, model, shape):
  expected, found = (one_step(members, num, model, shape) for num in (1, devices))
  # SGD at rate 1: the parameters' change is the gradient. Sums over the batch have another order; the largest
  # difference was 1.2e-5 of the largest entry, in `compact`.
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * max(1, np.abs(a).max())), expected, found)


def test_a_mixture_with_hard_gates_trains_alike_on_all_device_counts():
  ends = []
  for devices in (1, 4):
    config = small_config("moe", devices=devices, learner__gating="hard", model__num_experts=3, train__batch_size=24,
                          train__optimizer="sgd", train__learning_rate=1.0)
    setting = settings.prepare(configs.parse(config), (*blobs(48), *blobs(30, seed=1)))
    learner, data = setting.learner, Stages(setting)[0]
    fitting, _ = loop.advance(begin(learner, learner.init(), data), 1)
    ends.append(jax.device_get(fitting.state.members.now))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(a).max())), *ends)


def test_a_padded_step_is_the_step_without_padding():
  padded, whole = (one_step(1, 1, "compact", (17, 16, 1), batch_size)[0] for batch_size in (24, 21))
  (now, _), (expected, _) = padded, whole
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(a).max())), expected, now)


def test_a_run_goes_on_with_another_number_of_devices(tmp_path, arrays):
  stops = iter([False] * 3 + [True] * 9)
  with pytest.raises(alma_jax.Stopped):
    alma_jax.run(small_config("ens", devices=4), tmp_path, data=arrays, should_stop=lambda: next(stops))
  with pytest.warns(UserWarning, match=r"devices \(4 x cpu there, 2 x cpu here\)"):
    run = alma_jax.run(small_config("ens", devices=2), tmp_path, data=arrays)
  assert run.metrics["t"].tolist() == [1, 2, 3, 4]


def test_two_processes_run_one_stream_together(tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  flags = [f"--config={ROOT}/configs/digits.py:ens", "--config.train.epochs=3", "--config.learner.num_members=2",
           "--config.model.width=8"]
  together = [subprocess.Popen([sys.executable, "-m", "alma_jax.main", *flags, f"--workdir={tmp_path}/two",
                                f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={i}"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in range(2)]
  outputs = [process.communicate(timeout=300)[0] for process in together]
  assert [process.returncode for process in together] == [0, 0], "\n".join(outputs)
  assert "in 2 processes" in outputs[0]
  two = alma_jax.load_run(tmp_path / "two")
  assert two.metrics["t"].tolist() == list(range(1, 21))
  assert alma("main", *flags, f"--workdir={tmp_path}/one", "--config.devices=2").returncode == 0
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
