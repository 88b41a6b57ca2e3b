"""Runs of version 0.1, which saved the `spec` and the `host` of a learner as one dict, are read and resumed."""
import hashlib
import json
import pathlib
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from runs import assert_same_run, interrupted, one_step_a_dispatch, slow, small_config
from stages import setting_of
from test_language import books, text_config  # noqa: F401
from test_language import setting_of as text_setting_of

import alma_jax
from alma_jax.runs import arrays as flat
from alma_jax.runs import checkpoint, frozen, legacy

SPLITS = {"hidden0": [0], "hidden1": [0]}
FRESH = dict(next=0, val=None, best=0, samples=0, growth=[0, None], diverged=[])
EXPERTS = dict(prototypes=[], counts=[], losses=[], scored=0, shares=[], spread=0.0, base_cost=[0, 0])


def assert_same(found, expected):
  """The same names and values, of the same types."""
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert type(found[name]) is type(value), name
    if isinstance(value, np.ndarray):
      assert found[name].dtype == value.dtype
    np.testing.assert_equal(found[name], value)


@pytest.mark.parametrize(("learner", "first"), [
    *[(learner, {}) for learner in ("sm", "ens", "umix", "gens", "bagging")], ("boosting", {"alphas": []}),
    *[(learner, {"splits": SPLITS, "scores": {}, "scored": 0}) for learner in ("moe", "gmoe")],
    ("ff", {"widths": [4, 4], "residuals": [0, 0], "grown": []}), ("hmoe", EXPERTS)])
def test_an_untrained_state_is_the_one_of_today(learner, first):
  state = setting_of(learner, **({"model__num_experts": 2} if "splits" in first else {})).learner.init()
  spec, host = legacy.split({"num_frozen": 0, **first})
  if learner == "gmoe":
    spec["size"] = state.spec["size"]  # its capacities were powers of two
  assert_same(spec, state.spec)
  assert_same(host, state.host)


@pytest.mark.filterwarnings("ignore:the vocabulary has")
@pytest.mark.parametrize(("learner", "changes", "first"), [
    ("gens", {}, {}), ("gmoe", {}, {"num_experts": 2, "growth": []}),
    ("sm", {"train__learning_rate": (0.1, 0.01)}, {"tuning": FRESH}),
    ("gmoe", {"train__learning_rate": (0.1, 0.01)}, {"num_experts": 2, "growth": [], "tuning": FRESH})])
def test_an_untrained_language_model_is_the_one_of_today(books, learner, changes, first):  # noqa: F811
  state = text_setting_of(books, learner, **changes).learner.init()
  spec, host = legacy.split({"num_frozen": 0, **first})
  assert_same(spec, state.spec)
  assert_same(host, state.host)


GROWN = dict(stage=1, losses={"layer1": [2.0, 1.0]}, chosen={"layer1": [0]})
SCORES = {layer: {"usage": [3.0, 5.0], "loss": [1.0, 0.5]} for layer in SPLITS}


@pytest.mark.parametrize(("old", "spec", "host"), [
    ({"num_frozen": 3}, {"num_frozen": 3}, {}),
    ({"num_frozen": 1, "alphas": [1.5, 0.5]}, {"num_frozen": 1}, {"alphas": [1.5, 0.5]}),
    ({"num_frozen": 0, "splits": SPLITS, "scores": SCORES, "scored": 8}, {"num_frozen": 0, "splits": SPLITS, "size": 2},
     {"scores": SCORES, "scored": 8}),
    ({"num_frozen": 0, "widths": [6, 5], "residuals": [0, 1], "grown": [[1, 2, 1, 1]]},
     {"num_frozen": 0, "widths": [6, 5], "residuals": [0, 1]}, {"grown": [[1, 2, 1, 1]]}),
    # hmoe: with the base alone, inside a stage, and after it.
    ({"num_frozen": 1, **EXPERTS, "base_cost": [7, 20]}, {"num_frozen": 1, "num_experts": 0},
     {"losses": [], "scored": 0, "spread": 0.0, "base_cost": [7, 20]}),
    ({"num_frozen": 1, **EXPERTS, "prototypes": [[0.5, 1.0], [2.0, 3.0]], "counts": [4, 2], "spread": 1.5,
      "shares": [[0, 1, 0], [1]]}, {"num_frozen": 1, "num_experts": 2},
     {"losses": [], "scored": 0, "spread": 1.5, "base_cost": [0, 0],
      "prototypes": np.array([[0.5, 1.0], [2.0, 3.0]]), "counts": np.array([4, 2]),
      "train_shares": np.array([0, 1, 0], np.int32), "val_shares": np.array([1], np.int32)}),
    ({"num_frozen": 1, **EXPERTS, "prototypes": [[0.5, 1.0]], "counts": [6], "losses": [2.5], "scored": 3},
     {"num_frozen": 1, "num_experts": 1},
     {"losses": [2.5], "scored": 3, "spread": 0.0, "base_cost": [0, 0], "prototypes": np.array([[0.5, 1.0]]),
      "counts": np.array([6])}),
    ({"num_frozen": 0, "num_experts": 3, "growth": [GROWN]}, {"num_frozen": 0, "num_experts": 3}, {"growth": [GROWN]}),
    # Between two candidates, and after two stages, the first of which was run before divergences were stored.
    ({"num_frozen": 2, "tuning": {**FRESH, "next": 1, "val": 9.5, "samples": 24}, "chosen": [[1, [0]]]},
     {"num_frozen": 2, "tuning": True},
     {"tuning": {**FRESH, "next": 1, "val": 9.5, "samples": 24}, "chosen": [[1, [0]]]}),
    ({"num_frozen": 0, "tuning": {name: FRESH[name] for name in FRESH if name != "diverged"}, "chosen": [2, [0, [1]]]},
     {"num_frozen": 0, "tuning": False}, {"tuning": FRESH, "chosen": [[2, []], [0, [1]]]})])
def test_spec_and_host_are_told_apart(old, spec, host):
  found = legacy.split(old)
  assert_same(found[0], spec)
  assert_same(found[1], host)


@pytest.mark.parametrize(("meta", "complete"), [
    ({"complete": False, "spec": {"tuning": True}}, False), ({"complete": True, "spec": {"tuning": False}}, True),
    ({"spec": {"num_frozen": 1}}, True), ({"spec": {"tuning": FRESH}}, True),
    ({"spec": {"tuning": {**FRESH, "next": 1}}}, False)])
def test_between_two_candidates_no_stage_is_complete(meta, complete):
  assert legacy.is_complete(meta) is complete


class FrozenBefore(frozen.Frozen):
  """Saves frozen trees as version 0.1 did: a folder of Orbax each, once."""

  def save(self, i, tree):
    path = self._earlier / f"{i:05d}"
    leaves = dict(flat.flatten(jax.device_get(tree)))
    sums = json.dumps({name: flat.digest(leaf) for name, leaf in leaves.items()}, sort_keys=True)
    if not path.exists():
      with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, leaves)
      (path / "sha256.json").write_text(sums)
    return hashlib.sha256(sums.encode()).hexdigest()


class Before(checkpoint.Checkpoints):
  """Saves as version 0.1 did."""

  def __init__(self, path, keep, create=True):
    super().__init__(path, keep, create)
    folder = pathlib.Path(path).absolute()
    self._frozen = FrozenBefore(folder / "pool", folder / "checkpoints/frozen", True)

  def save(self, meta, trees, frozen, permanent=False):
    arrays = {name: jax.device_get(trees.pop(name, {})) for name in ("host", "grown_host")}
    spec = joined(meta["spec"], {**meta["host"], **arrays["host"]})
    growth = meta["growth"] and dict(spec=joined(meta["growth"]["spec"], {
        **meta["growth"]["host"], **arrays["grown_host"]}), report=meta["growth"]["report"])
    kept = {name: value for name, value in meta.items() if name not in ("config", "host", "complete")}
    super().save({**kept, "spec": spec, "growth": growth}, trees, frozen, permanent)


def joined(spec, host):
  """The `spec` of version 0.1, which could hold no arrays."""
  old = {**spec, **{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in host.items()}}
  if "spread" in old:  # hmoe
    shares = [old.pop(name) for name in ("train_shares", "val_shares") if name in old]
    old = {**old, "prototypes": old.get("prototypes", []), "counts": old.get("counts", []), "shares": shares}
    del old["num_experts"]
  old.pop("size", None)
  return old


def assert_goes_on(tmp_path, monkeypatch, config, dispatches, **options):
  """Runs that were stopped inside a stage and saved in the old way end as an uninterrupted one, and are read."""
  one_step_a_dispatch(monkeypatch)
  alma_jax.run(config, tmp_path / "whole", **options)
  stages = []
  for number in dispatches:
    path = tmp_path / str(number)
    with monkeypatch.context() as patched:
      patched.setattr(checkpoint, "Checkpoints", Before)
      assert interrupted(config, path, number, **options)
    meta = checkpoint.Checkpoints(path, 2).newest().meta
    assert "host" not in meta
    assert meta["cursor"]
    stages.append(meta["stage"])
    stopped = alma_jax.load_run(path)
    if meta["stage"] and "data" in options:
      _, _, x_test, y_test = options["data"]
      wrong = stopped.predict(x_test).argmax(-1) != y_test
      assert wrong.mean() == pytest.approx(stopped.metrics["error"][-1])
    alma_jax.run(config, path, **options)
    assert_same_run(tmp_path / "whole", path)
    assert alma_jax.load_run(path).describe() == alma_jax.load_run(tmp_path / "whole").describe()
  assert set(stages) == {0, 1}


def test_frozen_trees_are_read_and_move_to_the_pool(tmp_path):
  trees = tuple({"w": np.full((3, 4), i, np.float32)} for i in range(3))
  old = checkpoint.Checkpoints(tmp_path, 2)
  old._frozen = FrozenBefore(tmp_path / "pool", tmp_path / "checkpoints/frozen", True)
  old.save({}, {}, trees[:2])
  old.finish()
  assert not (tmp_path / "pool").exists()
  now = checkpoint.Checkpoints(tmp_path, 1)
  np.testing.assert_array_equal(now.newest().frozen(trees[:2])[1]["w"], trees[1]["w"])
  now.save({}, {}, trees)
  now.finish()
  shutil.rmtree(tmp_path / "checkpoints/frozen")
  for read, tree in zip(checkpoint.Checkpoints(tmp_path, 1).newest().frozen(trees), trees, strict=True):
    np.testing.assert_array_equal(read["w"], tree["w"])


# 3 epochs of 4 steps a stage; of hmoe the first stage trains twice.
@pytest.mark.parametrize(("learner", "dispatches"), [
    ("hmoe", (5, 17, 24)), *[slow(learner, (5, 17)) for learner in ("boosting", "bagging", "gmoe", "ff", "ens")]])
def test_runs_go_on(tmp_path, arrays, monkeypatch, learner, dispatches):
  options = {"hmoe": {"learner__split_every": 1, "learner__min_shard": 3, "model__num_experts": 2},
             "gmoe": {"learner__keep_optimizer": True}}
  config = small_config(learner, train__epochs=3, train__batch_size=16, checkpoint__seconds=1e9,
                        **options.get(learner, {}))
  assert_goes_on(tmp_path, monkeypatch, config, dispatches, data=arrays)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the vocabulary has")
@pytest.mark.parametrize(("learner", "changes"), [
    ("gens", {}), ("gmoe", {}), ("sm", {"train__learning_rate": (0.01, 0.001)}),
    ("gens", {"train__learning_rate": (0.01, 0.001)}), ("gmoe", {"train__learning_rate": (0.01, 0.001)})])
def test_language_models_go_on(tmp_path, books, monkeypatch, learner, changes):  # noqa: F811
  config = text_config(books, learner, stream__num_megabatches=2, checkpoint__seconds=1e9, **changes)
  assert_goes_on(tmp_path, monkeypatch, config, (3, 15 if changes else 9))  # a stage has 6 steps for each rate
