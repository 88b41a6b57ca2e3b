"""Whether a run fits into memory: predictions against the memory that is available, and refusals."""
import math
import resource

import jax
import numpy as np
import pytest
from runs import blobs, small_config, text_config
from stages import Stages, begin, setting_of

import alma_jax
from alma_jax import config as configs
from alma_jax.config.registry import LEARNERS
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.problems import classification
from alma_jax.runs import memory_check, settings

NOTHING = memory_check.Limits(1, None)

ALONE = [learner for learner in LEARNERS["images"] if learner != "expert"]  # which needs the gate of an hmoe


def num_bytes(tree):
  return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def parts(setting):
  """{what: bytes} of a run on a CPU."""
  held = memory_check.Held(setting, apart=False)
  return {part.what: part.host for part in (held.data(), held.batches(), *held.training())}


def text_setting(books, learner="sm", **changes):
  return settings.prepare(configs.parse(text_config(books, learner, **changes)))


def assert_judged(setting):
  """The run fits into this machine, and not into one byte. The prediction covers all parameters."""
  memory_check.check(setting)
  predicted, state = parts(setting), contract.untrained(setting.learner)
  variables = predicted["the network's variables and their optimiser"]
  assert 4 * setting.learner.cost(state).num_params < variables < sum(predicted.values()) < memory_check.host_memory()
  assert 0 < memory_check.Held(setting, apart=False).least_variables().host <= variables
  assert predicted["the output of one layer"] > 0
  with pytest.raises(BadInput, match="the run needs at least .* of memory, but there are 1 bytes"):
    memory_check.check(setting, NOTHING)


def assert_held(setting):
  """The variables in training are those predicted, to the byte."""
  state = setting.learner.init()
  held = num_bytes(state.live) + num_bytes(begin(setting.learner, state, Stages(setting)[0]).state)
  assert parts(setting)["the network's variables and their optimiser"] == held


@pytest.mark.parametrize("learner", ALONE)
def test_images(learner):
  assert_judged(setting_of(learner))


def test_variables_in_training():
  assert_held(setting_of("ens"))


@pytest.mark.parametrize("learner", [*LEARNERS["text"]])
@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_texts(books, learner):
  changes = {"learner__num_domains": 2} if learner == "btm" else {}  # three of six steps are for the experts
  assert_judged(text_setting(books, learner, **changes))


@pytest.mark.parametrize("learner", [*LEARNERS["tasks"]])
def test_tasks(learner):
  config = configs.tasks(learner, "digits")
  config.update_from_flattened_dict({"stream.num_megabatches": 3, "model.width": 8, "train.epochs": 2, "devices": 1})
  setting = settings.prepare(configs.parse(config))
  memory_check.check(setting)
  found, num_pairs = parts(setting), setting.config.train.num_pairs
  # of an MLP of width 8 on 8x8 pixels in one channel with a head of the largest task, for every pair
  classes = setting.facts.problem.num_outputs
  params = (64 + 1) * 8 + (8 + 1) * 8 + (8 + 1) * classes
  assert found["the network's variables and their optimiser"] > 4 * num_pairs * params
  assert found["the data set"] >= 64 * max(info.num_train + info.num_val for info in setting.protocol.source.data.infos)
  with pytest.raises(BadInput, match="the run needs at least .* of memory, but there are 1 bytes"):
    memory_check.check(setting, NOTHING)


@pytest.mark.parametrize("learner", ["sm", "ff"])
def test_images_of_convolutions(learner):
  data = (*blobs(120, (32, 32, 3)), *blobs(30, (32, 32, 3), seed=1))
  setting = setting_of(learner, data, model__name="vgg", model__width=8)
  assert_judged(setting)
  # The first convolutions: 64 examples of 32x32 pixels and 8 channels.
  assert parts(setting)["the output of one layer"] == 64 * 32 * 32 * 8 * 4


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "optimizer"), [
    (learner, ("adadelta", "sgd", "adam")[i % 3]) for i, learner in enumerate(ALONE)])
def test_variables_in_training_of_every_learner(learner, optimizer):
  assert_held(setting_of(learner, train__optimizer=optimizer))


def test_by_hand():
  # 240 training and 60 test images of 6x6 bytes with labels of 4 bytes; 2 stages; h²+(D+1+K)h+K+h = 16+160+3+4
  # parameters of width 4 with D = 36 inputs and K = 3 classes.
  found = parts(setting_of("gens", stream__waiting_time=1))
  assert found["the data set"] == 300 * (36 + 4)
  assert found["the batches of 256 training steps"] == 256 * 64 * 4
  assert found["the members kept of earlier stages"] == 2 * 183 * 4  # of 4, one is trained and one is its start
  assert found["the output of one layer"] == 64 * 4 * 4


@pytest.mark.parametrize(("learner", "changes", "sentence"), [
    ("ens", {"train__batch_size": 10**9}, "5.12 TB are for the batches .* so lower train.batch_size=1000000000"),
    ("ens", {"train__batch_size": 10**23}, "lower train.batch_size=1000"),
    ("ens", {"model__width": 10**7}, "6 PB are for the network's variables .* so lower model.width=10000000"),
    ("sm", {"model__width": 10**23}, "lower model.width=1000"),
    ("ens", {"learner__num_members": 10**9}, "lower learner.num_members=1000000000"),
    ("umix", {"learner__num_members": 10**9}, "lower learner.num_members=1000000000"),
    ("gens", {"learner__members_per_stage": 10**9}, "lower learner.members_per_stage=1000000000"),
    ("moe", {"model__width": 10**8}, "lower model.width=100000000"),
])
def test_what_cannot_fit_is_refused_at_once(tmp_path, learner, changes, sentence):
  config = small_config(learner, **changes)
  with pytest.raises(BadInput, match=f"the run needs at least .*{sentence}"):
    alma_jax.run(config, tmp_path / "run")
  assert not (tmp_path / "run").exists()


def test_what_overwrites_a_finished_run_is_refused_as_well(tmp_path, arrays):
  first = alma_jax.run(small_config(), tmp_path / "run", data=arrays)
  with pytest.raises(BadInput, match="lower model.width=10000000"):
    alma_jax.run(small_config(model__width=10**7), tmp_path / "run", data=arrays, overwrite=True)
  assert alma_jax.load_run(tmp_path / "run").summary == first.summary


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"model__width": 10**7}, "lower model.width=10000000"),
    ({"model__num_layers": 10**12}, "lower model.num_layers=1000000000000"),
    ({"train__batch_size": 10**6, "train__eval_every": 1}, "lower train.batch_size=1000000"),
])
@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_language_models_that_cannot_fit(books, changes, sentence):
  with pytest.raises(BadInput, match=sentence):
    memory_check.check(text_setting(books, **changes), memory_check.Limits(10**9, None))


def test_devices_have_limits_of_their_own():
  setting = setting_of("ens")
  memory_check.check(setting, memory_check.Limits(math.inf, math.inf))
  with pytest.raises(BadInput, match="at least .* of memory on each device, but there are 10 kB"):
    memory_check.check(setting, memory_check.Limits(math.inf, 10_000))
  with pytest.raises(BadInput, match="at least .* of memory, but there are 10 kB; .* for the batches"):
    memory_check.check(setting, memory_check.Limits(10_000, math.inf))


def test_what_cannot_be_traced_is_judged_by_the_config_alone(monkeypatch):
  setting = setting_of(model__width=100)
  traceable = setting.learner.init

  def init():
    state = traceable()
    return state._replace(live=jax.tree.map(np.asarray, state.live))

  def init_by_mask():
    state = traceable()
    return state._replace(live=jax.tree.map(lambda leaf: leaf[leaf > 0], state.live))

  for made in (init_by_mask, init):
    monkeypatch.setattr(setting.learner, "init", made)
    assert contract.untrained(setting.learner) is None
  memory_check.check(setting)
  with pytest.raises(BadInput, match="120 kB are for the network"):  # 3 copies of 100 x 100 weights
    memory_check.check(setting, NOTHING)


def test_limits_of_control_groups(tmp_path, monkeypatch):
  physical = memory_check.host_memory(tmp_path)
  proc = tmp_path / "proc/self"
  proc.mkdir(parents=True)
  for cgroup, file, limit in (("0::/a/b", "sys/fs/cgroup/a/b/memory.max", "max"),
                              ("0::/a/b", "sys/fs/cgroup/a/memory.max", "5000000"),
                              ("0::/a/b", "sys/fs/cgroup/memory.max", "4000000"),
                              ("3:cpu:/x\n2:memory:/y", "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "3000000"),
                              ("2:memory:/y", "sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))):
    (proc / "cgroup").write_text(cgroup + "\n")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(limit + "\n")
    expected = {"5000000": 5_000_000, "4000000": 4_000_000, "3000000": 3_000_000}.get(limit)
    if limit != str(2**63 - 4096):
      assert memory_check.host_memory(tmp_path) == (expected or physical)
  monkeypatch.setattr(resource, "getrlimit", lambda which: (2_000_000, 2_000_000))
  assert memory_check.host_memory(tmp_path) == 2_000_000


def test_mapped_arrays_need_no_memory(tmp_path):
  np.save(tmp_path / "a.npy", np.zeros(1000))
  mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
  assert classification._is_mapped(np.asarray(mapped)[:10])
  assert not classification._is_mapped(np.zeros(10)[:5])
