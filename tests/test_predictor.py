"""The predictor in a run folder: whole at every moment, and that of the last complete stage."""
import importlib.util
import json
import shutil
import threading

import numpy as np
import pytest
from runs import assert_same_run, interrupted, lines, one_step_a_dispatch

import alma_jax
from alma_jax.errors import BadInput
from alma_jax.predictors import folder


def load(root):
  """The module load.py of a folder (test_export.py loads it in a process that has only jax)."""
  spec = importlib.util.spec_from_file_location("load", root / "load.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def told(**entries):
  """The bytes of a predictor.json."""
  return json.dumps(dict(format=1, vocabulary=9, sequence_length=4, sha256={}) | entries).encode()


def test_every_stage_replaces_the_predictor(tmp_path, make_config, arrays):
  config = make_config(log__predictor=True, log__label="mine")
  run = alma_jax.run(config, tmp_path / "run", data=arrays)
  root = tmp_path / "run/predictor"
  names = sorted(path.name for path in root.iterdir())
  assert [name.partition("-")[0] for name in names] == ["000000", "000001", "latest.json", "load.py"]
  np.testing.assert_allclose(load(root).predict(arrays[2][..., None]), run.predict(arrays[2]), atol=2e-6)
  with pytest.raises(ValueError, match=r"x is uint8 of shape \(30, 6, 6\); give uint8 of shape \(batch, 6, 6, 1\)"):
    load(root).classify(arrays[2])
  first = load(root / names[0]).predict(arrays[2][..., None])
  assert np.abs(first - run.predict(arrays[2])).max() > 1e-3
  facts = json.loads(folder.read(root).files[folder.FACTS])
  assert (facts["stage"], facts["megabatch"], facts["metrics"]["error"]) == (1, 4, run.metrics["error"][-1])
  assert facts["provenance"]["data_fingerprint"] == json.loads((run.path / "config.json").read_text())[
      "data_fingerprint"]
  tested = [value for value in run.metrics["prequential_error"] if not np.isnan(value)]
  assert facts["metrics"]["prequential"] == pytest.approx(np.mean(tested))
  assert facts["metrics"]["prequential_megabatches"] == len(tested) == 2
  card = folder.read(root).files[folder.CARD].decode()
  assert card.startswith("# mine on data, stage 1\n")
  assert f"| error on the run's test set | {run.metrics['error'][-1]:.6g} |" in card
  alma_jax.run(make_config(seed=1), tmp_path / "run", data=arrays, overwrite=True)
  assert not root.exists()


def test_a_run_that_is_stopped_ends_with_the_same_predictor(tmp_path, make_config, arrays, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = make_config(log__predictor=True)
  plain = alma_jax.run(make_config(), tmp_path / "plain", data=arrays)
  assert not (plain.path / "predictor").exists()
  alma_jax.run(config, tmp_path / "whole", data=arrays)
  assert_same_run(tmp_path / "plain", tmp_path / "whole")
  times = 0
  while interrupted(config, tmp_path / "cut", 2, data=arrays):
    times += 1
    stages = [line["stage"] for line in lines(tmp_path / "cut", "metrics.jsonl") if line["updated"]]
    if stages:
      assert folder.latest_version(tmp_path / "cut/predictor").startswith(f"{stages[-1]:06d}-")
  assert times > 1
  assert_same_run(tmp_path / "whole", tmp_path / "cut")
  weights = [folder.read(tmp_path / name / "predictor").files[folder.WEIGHTS] for name in ("whole", "cut")]
  assert weights[0] == weights[1]


@pytest.mark.parametrize(("was_on", "dispatches"), [(False, 4), (True, 2)])
def test_a_resumed_run_writes_its_newest_predictor_anew(tmp_path, make_config, arrays, monkeypatch, was_on, dispatches):
  """The field may be new. What a killed session has left may be of a stage that is trained again on other data."""
  one_step_a_dispatch(monkeypatch)
  config = make_config(log__predictor=True)
  assert interrupted(make_config(log__predictor=was_on), tmp_path / "run", dispatches, data=arrays)
  num = len([line for line in lines(tmp_path / "run", "metrics.jsonl") if line["updated"]])
  assert num or was_on
  if was_on:
    alma_jax.run(config, tmp_path / "ahead", data=arrays)
    shutil.copytree(tmp_path / "ahead/predictor", tmp_path / "run/predictor", dirs_exist_ok=True)
  published, publish = [], folder.publish
  monkeypatch.setattr(folder, "publish", lambda root, number, files: published.append(number) or publish(
      root, number, files))
  alma_jax.run(config, tmp_path / "run", data=arrays)
  assert published == list(range(num if was_on else num - 1, 2))


def test_readers_never_see_half_of_a_predictor(tmp_path):
  """Every read returns files of one version, however often it is replaced meanwhile."""
  versions = [{folder.FACTS: told(stage=i), folder.PROGRAM: b"%d" % i * 100_000} for i in range(60)]
  folder.publish(tmp_path / "p", 0, versions[0])
  found, done = [], threading.Event()

  def read():
    while not done.is_set():
      found.append(folder.read(tmp_path / "p").files)

  threads = [threading.Thread(target=read) for _ in range(3)]
  for thread in threads:
    thread.start()
  for i, files in enumerate(versions):
    folder.publish(tmp_path / "p", i, files)
  done.set()
  for thread in threads:
    thread.join()
  assert all(files in versions for files in found)
  assert len({files[folder.FACTS] for files in found}) > 5
  assert len(list((tmp_path / "p").iterdir())) == 3  # two versions and the pointer


def test_what_a_killed_writer_has_left_is_replaced(tmp_path):
  root, files = tmp_path / "p", {folder.FACTS: told(), folder.PROGRAM: b"1"}
  version = folder.publish(root, 7, files)
  (root / "latest.json").unlink()  # killed between the two renames
  (root / version / folder.PROGRAM).write_bytes(b"torn")
  (root / ".tmp-000008-00000000").mkdir()
  with pytest.raises(BadInput, match="there is no predictor in"):
    folder.read(root)
  assert folder.publish(root, 7, files) == version
  assert folder.read(root)[:2] == (version, files)
  assert sorted(path.name for path in root.iterdir()) == [version, "latest.json"]


@pytest.mark.parametrize(("pointer", "reason"), [
    ('{"version": "../..", "sha256": {}}', "names '../..', which is not in the folder"),
    ('{"version": "000000-00", "sha256": {"../secret": "00"}}', "names '../secret'"),
    ('{"version": "000000-00"}', "does not name a version"), ("{", "Expecting property name")])
def test_damaged_pointers_are_refused(tmp_path, monkeypatch, pointer, reason):
  monkeypatch.setattr(folder, "_PAUSE", 0)
  folder.publish(tmp_path, 0, {folder.FACTS: told(), folder.PROGRAM: b"1"})
  (tmp_path / "latest.json").write_text(pointer)
  with pytest.raises(BadInput, match=reason):
    folder.read(tmp_path)


def test_damaged_files_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(folder, "_PAUSE", 0)
  version = folder.publish(tmp_path, 0, {folder.FACTS: told(), folder.PROGRAM: b"1"})
  (tmp_path / version / folder.PROGRAM).write_bytes(b"2")
  with pytest.raises(BadInput, match="predictor.stablehlo is not what was written"):
    folder.read(tmp_path)
