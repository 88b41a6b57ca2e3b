"""A run depends on its config, data, versions and devices: what a notebook or the environment sets changes nothing."""
import contextlib
import json
import os
import subprocess
import sys
import warnings

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import ROOT, alma, assert_same_run, command, interrupted, launch, slow, small_config

import alma_jax
from alma_jax import keys
from alma_jax.parallel import environment, threads

OTHERS = {
    "jax_enable_x64": True, "jax_default_prng_impl": "rbg", "jax_threefry_partitionable": False,
    "jax_numpy_dtype_promotion": "strict", "jax_default_matmul_precision": "bfloat16", "jax_random_seed_offset": 5,
    "jax_transfer_guard": "disallow", "flax_fix_rng_separator": True, "flax_return_frozendict": True}


@contextlib.contextmanager
def setting(**values):
  config_of = lambda name: (flax if name.startswith("flax") else jax).config
  before = {name: getattr(config_of(name), name) for name in values}
  for name, value in values.items():
    config_of(name).update(name, value)
  try:
    yield
    assert {name: getattr(config_of(name), name) for name in values} == values  # whatever ran has left them alone
  finally:
    for name, value in before.items():
      config_of(name).update(name, value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, arrays):
  return alma_jax.run(small_config("ens", log__predictor=True), tmp_path_factory.mktemp("whole"), data=arrays)


@pytest.mark.parametrize("values", [OTHERS, {"jax_disable_jit": True}], ids=["others", "disable_jit"])
def test_settings_of_a_notebook_change_no_number(tmp_path, arrays, whole, values):
  images = arrays[2]
  with setting(**values):
    run = alma_jax.run(small_config("ens", log__predictor=True), tmp_path / "run", data=arrays)
    found = run.predict(images)
    np.savez(tmp_path / "x.npz", x=images)
    done = alma("predict", f"--workdir={tmp_path}/run", tmp_path / "x.npz")
  assert_same_run(whole.path, run.path)
  np.testing.assert_array_equal(found, whole.predict(images))
  assert done.stdout == alma("predict", f"--workdir={whole.path}", tmp_path / "x.npz").stdout


def test_nor_does_a_context_of_a_notebook(tmp_path, arrays, whole):
  with jax.set_mesh(jax.make_mesh((1,), ("mine",))), jax.default_device(jax.devices()[1]), jax.disable_jit():
    run = alma_jax.run(small_config("ens", log__predictor=True), tmp_path, data=arrays)
    assert jax.sharding.get_abstract_mesh().axis_names == ("mine",)
  assert_same_run(whole.path, run.path)


def test_a_run_goes_on_under_other_settings(tmp_path, arrays, whole):
  config = small_config("ens", log__predictor=True)
  with setting(jax_enable_x64=True, jax_threefry_partitionable=False):
    assert interrupted(config, tmp_path, 2, data=arrays)
  with setting(jax_default_prng_impl="rbg"):
    assert interrupted(config, tmp_path, 1, data=arrays)
  assert_same_run(whole.path, alma_jax.run(config, tmp_path, data=arrays).path)


def test_threads_of_the_training_have_the_settings_of_the_run():
  mesh = jax.sharding.Mesh(jax.devices()[:1], "one")
  with setting(jax_enable_x64=True), environment.fixed():
    found = threads.side_by_side(mesh, [lambda: jnp.asarray(np.ones(2)).dtype] * 3)
  assert found == [np.float32] * 3


def test_a_nan_in_a_later_batch_is_found():
  mesh = jax.sharding.Mesh(jax.devices()[:1], "one")
  calls = [lambda value=value: jnp.log(jnp.float32(value)) for value in (1, 1, -1)]
  assert np.isnan(threads.side_by_side(mesh, calls)[-1])
  with jax.debug_nans(True), pytest.raises(FloatingPointError):
    threads.side_by_side(mesh, calls)


def test_the_keys_are_those_of_jax():
  of_jax = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(7), 2), keys.INIT), 1)
  np.testing.assert_array_equal(keys.member_keys(7, 2, keys.INIT, 3)[1], jax.random.key_data(of_jax))


@pytest.mark.slow
def test_a_command_in_another_environment_ends_with_the_same_numbers(tmp_path):
  others = os.environ | {name.upper(): str(value) for name, value in OTHERS.items()}
  np.savez(tmp_path / "x.npz", x=np.zeros((3, 8, 8, 1), np.uint8))
  fields = ("--config.stream.num_megabatches=2", "--config.train.epochs=1", "--config.log.tensorboard=false",
            "--config.devices=1")
  plain = launch("digits:ens", *fields, "--workdir", tmp_path / "plain")
  assert plain.returncode == 0, plain.stderr
  subprocess.run(command("digits:ens", *fields, "--workdir", tmp_path / "others"), cwd=ROOT, check=True, env=others,
                 capture_output=True)
  assert_same_run(tmp_path / "plain", tmp_path / "others")
  predict = [sys.executable, "-m", "alma_jax.predict", "--workdir", tmp_path / "others", tmp_path / "x.npz"]
  done = subprocess.run(predict, cwd=ROOT, env=others, capture_output=True, check=True, text=True)
  assert done.stdout == alma("predict", "--workdir", tmp_path / "plain", tmp_path / "x.npz").stdout


@pytest.mark.parametrize(("env", "devices", "number"), [
    ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 2, 3),
    ({"JAX_NUM_CPU_DEVICES": "1"}, 0, 1), slow({}, 3, 3)])
def test_the_users_number_of_virtual_devices_stays(env, devices, number):
  code = f"""
from alma_jax import config as configs
from alma_jax.parallel import runtime
config = configs.base("ens")
runtime.setup(configs.parse(config))
config.devices = {devices}
runtime.setup(configs.parse(config))
import jax
print(len(jax.devices()))
"""
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | env, capture_output=True, text=True)
  assert done.stdout == f"{number}\n", done.stderr


def test_what_cannot_be_fixed_is_recorded_and_compared(tmp_path, arrays, monkeypatch):
  flags = os.environ.get("XLA_FLAGS", "")
  monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_enable_fast_math=true --xla_force_host_platform_device_count=8")
  config = small_config(train__epochs=3)
  assert interrupted(config, tmp_path, 1, data=arrays)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert interrupted(config, tmp_path, 1, data=arrays)
  stored = json.loads((tmp_path / "config.json").read_text())["made_with"]
  assert stored["XLA_FLAGS"] == f"{flags} --xla_cpu_enable_fast_math=true".strip()
  assert stored["jax"] == jax.__version__
  assert stored["devices"] == "cpu"
  monkeypatch.setenv("XLA_FLAGS", flags)
  with pytest.warns(UserWarning, match=f"uninterrupted run: XLA_FLAGS .{flags} --xla_cpu_enable_fast_math=true there"):
    run = alma_jax.run(config, tmp_path, data=arrays)
  assert json.loads((tmp_path / "config.json").read_text())["made_with"] == stored
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert alma_jax.run(config, tmp_path, data=arrays).summary == run.summary  # complete: nothing is computed
