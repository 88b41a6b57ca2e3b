"""Recipes: names of configs that are learners with certain fields."""

import pytest
from runs import ROOT, alma, small_config

import alma_jax
from alma_jax import config as configs
from alma_jax.config.registry import LEARNERS
from alma_jax.reports import read

NAMES = [*configs.RECIPES["images"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_its_learner_with_its_fields(name):
  recipe, flat = configs.RECIPES["images"][name], configs.flatten(configs.base(name).to_dict())
  assert configs.parse(configs.base(name)).learner.name == recipe.learner
  assert recipe.changes.items() <= flat.items()
  plain = configs.flatten(configs.base(recipe.learner).to_dict())
  assert {field for field in plain if field in flat and flat[field] != plain[field]} == {"log.label"} | {
      field for field, value in recipe.changes.items() if plain.get(field, value) != value}


@pytest.mark.parametrize("name", ["anytime,tracking", "shrink_perturb"])
def test_recipes_run_and_are_reported_under_their_names(tmp_path, arrays, name):
  config = small_config(name, **({"train__steps": 6, "stream__num_megabatches": 2} if "anytime" in name else {}))
  alma_jax.run(config, tmp_path / "run", data=arrays)
  assert read.read(tmp_path / "run").row["learner.name"] == name


def early_stop(learner):
  train = configs.parse(configs.base(learner)).train
  return train.patience, train.patience_delta


def test_no_learner_stops_early_but_by_the_authors_rule():
  for name in LEARNERS["images"]:
    assert early_stop(name) == (0, 0.0)
    assert early_stop(f"{name},authors") == ((0, 0.0) if name in ("ens", "umix", "bagging") else (25, 0.001))


@pytest.mark.parametrize(("name", "known"), [
    ("anytime,authors", "anytime, anytime,tracking, anytime,v1"), ("sm,others", "NAME,authors, where NAME"),
    ("sm,", "NAME,authors, where NAME")])
def test_there_is_one_rule_behind_the_comma(name, known):
  learner, _, rule = name.partition(",")
  with pytest.raises(alma_jax.BadInput, match=f"'{learner}' has no variant '{rule}'; write {known}"):
    configs.base(name)


@pytest.mark.slow
def test_ens_spends_five_times_the_compute_of_sm(tmp_path, arrays):
  """These images are learned in so few epochs that the authors' rule, with a patience of 25, ends a stage before 40."""
  sm, ens, stopped = (
      alma_jax.run(small_config(name, train__epochs=40), tmp_path / name, data=arrays).summary
      for name in ("sm", "ens", "sm,authors"))
  for cost in ("cumulative_fwd_macs", "cumulative_train_flops", "cumulative_params"):
    assert ens[cost] == 5 * sm[cost]
  assert stopped["cumulative_fwd_macs"] < sm["cumulative_fwd_macs"]


def test_texts_have_recipes():
  for name, recipe in configs.RECIPES["text"].items():
    flat = configs.flatten(configs.language(name).to_dict())
    assert recipe.changes.items() <= flat.items()
    assert configs.parse(configs.language(name)).learner.name == recipe.learner


def test_the_configs_know_anytime():
  for config in ("digits", "mnist", "cifar", "npz", "folder", "lm"):
    tree = configs.load_file(str(ROOT / f"configs/{config}.py"), "anytime")
    assert tree["log"]["label"] == "anytime"
    assert configs.parse(tree).stream.replay_share == "uniform"


@pytest.mark.parametrize(("arg", "learner", "stream"), [
    ("sm", "sm", "relabel"), ("anytime", "dual", "relabel"), ("anytime,uniform", "sm", "relabel"),
    ("anytime,uniform,rotate", "sm", "rotate"), ("gens,noise", "gens", "noise")])
def test_a_stream_that_changes_may_be_left_out(arg, learner, stream):
  config = configs.parse(configs.load_file(str(ROOT / "configs/drift.py"), arg))
  assert (config.learner.name, config.dataset.change.name) == (learner, stream)


def test_recipes_are_listed():
  listed = " ".join(alma("cli", "list").stdout.split())  # without line breaks and columns
  for name, recipe in configs.RECIPES["images"].items():
    assert f" {name} {recipe.meaning} ({recipe.learner})" in listed
