"""Normalisation constants: made from the first mega-batch, and made anew for a column that they no longer fit."""
import json

import jax.numpy as jnp
import numpy as np
import pytest
from runs import interrupted, one_step_a_dispatch, small_config
from test_live import Parts, assert_same_results, drop, live_config, make_folder
from test_predictor import load

import alma_jax
from alma_jax import config as configs
from alma_jax.data import normalization
from alma_jax.data.megabatches import permuted
from alma_jax.errors import BadInput
from alma_jax.predictors import folder as predictors
from alma_jax.predictors import inputs
from alma_jax.problems import classification
from alma_jax.reports import read
from alma_jax.runs import exporting, settings

NIGHTS, CHANGE = 4, 3  # mega-batches, and the first whose column 0 is not constant


def test_the_first_constants_see_only_the_first_training_part():
  megabatches = permuted(100, 4, 0.1, 0)
  x = np.zeros((100, 2), np.float32)
  first = megabatches.part(1)[0]
  x[first] = [[5.0, 1.0]]
  x[first[0]] = [5.0, 24.0]  # 23 examples: mean 2, std sqrt(22 + 22²)/sqrt(23)
  mean, std = normalization.made(x[first])
  np.testing.assert_allclose(mean, [5.0, 2.0], rtol=1e-6)
  np.testing.assert_allclose(std, [0.0, np.sqrt((22 + 22**2) / 23)], rtol=1e-6)


@pytest.mark.parametrize(("scale", "std"), [(1e-34, 1.0), (1e-40, 0.0)])
def test_tiny_columns_are_normalised_or_constant(scale, std):
  x = np.float32([[-scale, 1], [scale, 3]])
  constants = normalization.made(x)
  np.testing.assert_allclose(classification.normalize(x, *constants), [[-std, -1], [std, 1]], atol=1e-6)


def column(kind, rng, num=400):
  """A column of which the constants came from values N(0, 1), or from `kind`[0] that were all equal, as it goes on."""
  x = rng.normal(size=num)
  return dict(
      same=x, wider=4 * x, glitch=np.where(np.arange(num) < 5, 1e6, x),
      missing=np.where(rng.random(num) < 0.02, -9999, x),
      still=np.full(num, 3.0), stuck=np.full(num, -9999.0), units=1000 * x, shifted=x + 20, smaller=x / 1000,
      rare=(rng.random(num) < 0.01).astype(float), counts=rng.poisson(0.05, num).astype(float), large=1e4 * x,
      rare_and_large=(rng.random(num) < 0.01) * 1e4, tiny=1e-4 * x, skewed=0.2 * (rng.random(num) < 0.05))[kind]


@pytest.mark.parametrize(("mean", "std", "kind", "changes"), [
    (0, 1.1, "same", False), (0, 1.1, "wider", False), (0, 1.1, "glitch", False), (0, 1.1, "missing", False),
    (0, 1.1, "still", False), (0, 1.1, "stuck", False), (0, 0.3, "rare", False), (0, 1.1, "skewed", False),
    (0, 1.1, "units", True), (0, 1.1, "shifted", True), (0, 1.1, "smaller", True), (0, 1e6, "same", True),
    (0, 0, "still", False), (0, 0, "rare", False), (0, 0, "counts", False), (0, 0, "stuck", False),
    (0, 0, "large", True), (0, 0, "rare_and_large", True), (0, 0, "tiny", True), (7e5, 0, "large", True)])
def test_a_column_gets_new_constants_only_if_its_own_do_not_fit(mean, std, kind, changes):
  """std = 0: the values were constant."""
  x = column(kind, np.random.default_rng(0))[:, None] + mean
  known = normalization.Normalization(np.float32([5, mean, 5]), np.float32([2, std, 2]))
  x = np.concatenate([np.full_like(x, 5), x, np.full_like(x, 5)], 1).astype(np.float32)
  found, changed = normalization.followed(known, x)
  assert changed == ([1] if changes else [])
  if not changes:
    assert found is known
    return
  np.testing.assert_array_equal(found.mean, np.float32([5, x[:, 1].astype(float).mean(), 5]))
  np.testing.assert_array_equal(found.std, np.float32([2, x[:, 1].astype(float).std(), 2]))
  assert normalization.followed(found, x) == (found, [])  # the new ones fit
  assert known.mean[1] == np.float32(mean)  # and those before are as they were


def test_few_examples_do_not_show_that_values_have_come_closer_together():
  known = normalization.Normalization(np.zeros(1, np.float32), np.full(1, 9, np.float32))
  for num, changed in ((31, []), (32, [0])):
    assert normalization.followed(known, np.linspace(0, 1, num, dtype=np.float32)[:, None])[1] == changed


def test_a_channel_that_was_black_gets_constants():
  rng = np.random.default_rng(0)
  night, day = rng.integers(40, 200, (2, 20, 6, 6, 3)).astype(np.uint8)
  night[..., 0] = 0
  known = normalization.made(night)
  found, changed = normalization.followed(known, day)
  assert (known.std[0], changed) == (0, [0])
  assert found.std[0] == np.float32(day[..., 0].astype(float).std())
  assert f"channel 0 has a mean of {found.mean[0]:.3g}" in normalization.described(known, found, changed, is_image=True)
  assert normalization.followed(normalization.made(day), day // 2)[1] == []  # darker images are no other scale


def test_pixels_of_another_scale_get_constants_of_their_own():
  """A minority of the pixels that vary; the others keep the channel's constants, and so does the other channel."""
  rng = np.random.default_rng(0)
  night, day = rng.normal(3, 2, (2, 50, 6, 6, 2)).astype(np.float32)
  night[:, :, 0, 0], day[:, :, 5] = 0, 1
  day[:, :, 0, 0] = rng.normal(0, 1e4, (50, 6))
  known = normalization.made(night)
  found, changed = normalization.followed(known, day)
  assert changed == [(row, 0, 0) for row in range(6)]
  np.testing.assert_array_equal(found.std[:, 0, 0], day[:, :, 0, 0].astype(float).std(0).astype(np.float32))
  np.testing.assert_array_equal(found.mean[:, 0, 0], day[:, :, 0, 0].astype(float).mean(0).astype(np.float32))
  others = np.ones((6, 6, 2), bool)
  others[:, 0, 0] = False
  for new, old in zip(found, known):
    np.testing.assert_array_equal(new[others], np.broadcast_to(old, (6, 6, 2))[others])
  assert normalization.followed(found, day) == (found, [])
  said = normalization.described(known, found, changed, is_image=True)
  assert said.startswith(f"pixel (0, 0) of channel 0 has a mean of {found.mean[0, 0, 0]:.3g}")
  assert said.endswith("; and 1 more pixels")
  inputs = np.asarray(classification.normalize(jnp.asarray(day), *map(jnp.asarray, found)))
  np.testing.assert_allclose(inputs, (day - found.mean) / found.std, rtol=1e-4, atol=1e-4)
  # If the whole channel changes its scale later, all its pixels share constants again.
  last, changed = normalization.followed(found, 1000 * night + rng.normal(size=night.shape).astype(np.float32))
  assert changed == [0, 1]
  assert (last.std == last.std[:1, :1]).all()
  again = normalization.of_entries(json.loads(json.dumps(last.entries())))
  np.testing.assert_array_equal(again, last)


def test_far_values_of_a_column_that_was_constant_count_as_its_constant():
  x = np.repeat(np.float32([[5], [6], [13], [14], [-1e4]]), 3, 1)
  mean, std = np.float32([5, 5, 5]), np.float32([0, 2, 1])  # a std of 1 is as good as another
  found = np.asarray(classification.normalize(jnp.asarray(x), jnp.asarray(mean), jnp.asarray(std)))
  expected = np.float32([[0, 0, 0], [1, 0.5, 1], [8, 4, 8], [0, 4.5, 9], [0, -5002.5, -10005]])
  np.testing.assert_array_equal(found, expected)


def test_evaluate_names_columns_of_another_scale():
  x = np.random.default_rng(0).normal(0, [1e4, 1, 1], (500, 3)).astype(np.float32)
  for column, factor, expected in ((1, 1000, "column 1 has a mean of "), (1, 4, None), (0, 1, None)):
    values, other = inputs.Scale(normalization.made(x), False), x.copy()
    other[:, column] *= factor
    for part in np.split(other, 5):
      values.add(part)
    said = values.warning("new.npz")
    assert (said is None) == (expected is None)
    assert said is None or expected in said


# ---------------------------------------------------------------- a run


def table(megabatches):
  """(x_train, y_train, x_test, y_test): labels follow from columns 1 and 2, column 0 is constant before CHANGE."""
  rng = np.random.default_rng(0)
  x, x_test = (rng.normal(size=(num, 4)).astype(np.float32) for num in (480, 80))
  y, y_test = ((each[:, 1] + each[:, 2] > 0).astype(int) for each in (x, x_test))
  for part in (x, x_test):
    part[:, 0] *= 1e4
  for t in range(1, CHANGE):
    x[np.concatenate(megabatches.part(t)), 0] = 7
  return x, y, x_test, y_test


def config_and_data():
  changes = {"stream__num_megabatches": NIGHTS, "stream__waiting_time": 1, "train__epochs": 30, "model__width": 8,
             "checkpoint__keep_every": 1, "log__predictor": True}
  return changes, table(permuted(480, NIGHTS, 0.1, 0))


def run_live(monkeypatch, tmp_path, config, data, learner, changes, dispatches):
  """The run of a config, live and stopped after so many dispatches again and again, in the folder cut."""
  folder, parts = make_folder(tmp_path / "live", data), Parts(config, data)
  for t in range(1, NIGHTS + 1):
    parts.drop(folder, t)
  (folder / "end").touch()
  one_step_a_dispatch(monkeypatch)
  while interrupted(live_config(folder, learner, **changes | {"log__predictor": False}), tmp_path / "cut", dispatches):
    pass


@pytest.mark.slow
def test_what_is_remembered_gets_the_new_constants_too(tmp_path, monkeypatch):
  changes, data = config_and_data()
  changes |= {"train__steps": 10, "stream__memory_size": 40, "stream__schedule": "every"}
  config = small_config("anytime", **changes)
  run = alma_jax.run(config, tmp_path / "run", data=data)
  assert run.lines[CHANGE - 1]["renormalized"] == [0]
  run_live(monkeypatch, tmp_path, config, data, "anytime", changes, 5)
  assert_same_results(tmp_path / "run", tmp_path / "cut")


def test_a_pixel_whose_scale_appears_later(tmp_path, monkeypatch, capsys):
  """The run recovers, and exports the constants of each stage; live and stopped again and again, it is the same."""
  changes, (x, y, x_test, y_test) = config_and_data()
  data = x.reshape(-1, 2, 2, 1), y, x_test.reshape(-1, 2, 2, 1), y_test
  config = small_config("gens", **changes)
  run = alma_jax.run(config, tmp_path / "run", data=data)
  assert "stage 3 uses new normalisation constants, because the scale of the data has changed: pixel (0, 0)" in (
      capsys.readouterr().err)
  assert [line.get("renormalized") for line in run.lines] == [None, None, [[0, 0, 0]], None]
  assert run.summary["final_error"] < 0.25  # of chance 0.5
  run_live(monkeypatch, tmp_path, config, data, "gens", changes, 61)
  assert_same_results(tmp_path / "run", tmp_path / "cut")
  for stage in (1, 2):
    place = exporting.export(run, stage, tmp_path / f"export{stage}")
    np.testing.assert_allclose(load(place).predict(data[2]), run.predict(data[2], stage), atol=1e-6)
  values = inputs.Scale(predictors.read(tmp_path / "export2").description.constants, True)
  values.add(data[2])
  assert values.warning("x") is None
  values.add(np.repeat(data[2] * np.float32([[[1], [1]], [[100], [1]]]), 3, 0))
  assert "pixel (1, 0) of channel 0" in values.warning("x")


def test_every_stage_predicts_with_the_constants_that_it_was_trained_with(tmp_path, capsys):
  changes, data = config_and_data()
  run = alma_jax.run(small_config("sm", **changes), tmp_path / "run", data=data)
  (said,) = [line for line in capsys.readouterr().err.splitlines() if "column 0" in line]
  assert "stage 3" in said
  assert "against a constant 7" in said
  assert [line.get("renormalized") for line in run.lines] == [None, None, [0], None]
  # The new scale is met before it is trained on: .5 if the column's values reached the network.
  assert run.metrics["prequential_error"][CHANGE - 1:].max() < 0.15
  x, y = data[2:]
  blind = x.copy()
  blind[:, 0] = 7
  for stage in range(NIGHTS):
    answers = run.predict(x, stage=stage)
    assert (answers.argmax(1) != y).mean() == run.metrics["error"][stage]
    sees = np.abs(answers - run.predict(blind, stage=stage)).max() > 0
    assert sees == (stage >= CHANGE - 1)  # before, values of the column say nothing
    if stage in (CHANGE - 2, CHANGE - 1):
      out = exporting.export(run, stage=stage, out=tmp_path / f"export-{stage}")
      np.testing.assert_allclose(load(out).predict(x), answers, atol=2e-6)
  published = predictors.read(run.path / "predictor").files  # its program was made anew with the constants
  np.testing.assert_allclose(load(run.path / "predictor").predict(x), answers, atol=2e-6)
  facts = json.loads(published[predictors.FACTS])
  assert facts["normalization"]["std"][0] == pytest.approx(1e4, rel=0.2)


def test_constants_of_a_data_set_stay(tmp_path):
  changes, data = config_and_data()
  setting = settings.prepare(configs.parse(small_config("sm", **changes)), data)
  source = setting.protocol.source
  source.dataset.__dict__["normalization"] = tuple(source.constants)
  assert source.followed(source.constants, (1, 2, 3)) == (source.constants, [])


# ---------------------------------------------------------------- which data a predictor was made from


def live_run(path, nights, predictor):
  folder = make_folder(path / "live")
  for t, (x, y) in enumerate(nights, 1):
    drop(folder, t, x, y)
  (folder / "end").touch()
  return alma_jax.run(live_config(folder, "sm", stream__waiting_time=1, checkpoint__keep_every=1, train__epochs=1,
                                  log__predictor=predictor), path / "run")


def test_the_fingerprint_of_a_live_predictor_covers_every_entry(tmp_path):
  """Thus reports keep runs on different data apart."""
  rng = np.random.default_rng(0)
  nights = [(rng.integers(0, 255, (30, 4, 4)).astype(np.uint8), np.arange(30) % 3) for _ in range(4)]
  runs = [live_run(tmp_path / name, night, predictor=name == "first") for name, night in (
      ("first", nights[:3]), ("again", nights[:3]), ("other", [*nights[:2], nights[3]]))]
  prints = [[run.data_until(t) for t in (1, 2, 3)] for run in runs]
  assert prints[0] == prints[1]
  assert prints[0][:2] == prints[2][:2]
  assert len({*prints[0], prints[2][2]}) == 4  # every stage and every stream has its own
  published = json.loads(predictors.read(runs[0].path / "predictor").files[predictors.FACTS])
  assert published["provenance"]["data_fingerprint"] == prints[0][-1]
  assert "mega-batches 1 to 3, listed in stream.jsonl" in published["provenance"]["data_covered"]
  card = predictors.read(runs[0].path / "predictor").files[predictors.CARD].decode()
  assert f"| data_fingerprint | {prints[0][-1]} |" in card
  first, again, other = (read.read(run.path).row["data_fingerprint"] for run in runs)
  assert first == again != other
  stored = [json.loads((run.path / "config.json").read_text())["data_fingerprint"] for run in runs]
  assert stored[0] == stored[1] == stored[2]  # what a run that goes on is recognised by
  ledger = runs[0].path / "stream.jsonl"
  ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:1]))
  with pytest.raises(BadInput, match="lists only 1 of the 3 mega-batches"):
    exporting.export(alma_jax.load_run(runs[0].path), out=tmp_path / "torn")
