"""Configs to start from: the declared defaults, with the changes of a learner, a recipe or a size.

The files under configs/ change them further.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from alma_jax.config import layout
from alma_jax.config.fields import listed
from alma_jax.config.registry import IMAGES, LEARNERS, TASKS, TEXT, YOURS, meant
from alma_jax.errors import BadInput

if TYPE_CHECKING:
  from ml_collections import ConfigDict

# Sizes of language models, as changes of the declared defaults. `tiny` takes minutes on two CPU cores.
# The paper's sizes (Appendix) train for 120,000 steps of 192 windows of 512 tokens on every mega-batch.
_PAPER = {
    "dataset.vocab_size": 50_000, "dataset.eval_tokens": 0, "train.steps": 120_000, "train.warmup_steps": 4000,
    "train.batch_size": 192, "train.eval_every": 2000, "checkpoint.seconds": 600.0}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "base": {**_PAPER, "model.width": 512, "model.num_layers": 6, "model.num_heads": 8, "train.micro_batch": 16,
             "train.learning_rate": (1e-3,)},
    "large": {**_PAPER, "model.width": 768, "model.num_layers": 12, "model.num_heads": 12, "train.micro_batch": 8,
              "train.learning_rate": (5e-4,)},
}
# The learner of every stage is kept: there are few stages, and each takes long.
_LANGUAGE = {"checkpoint.keep_every": 1}


class Recipe(NamedTuple):
  """A learner with certain fields.

  Attributes:
    learner: name of the learner.
    meaning: one line for `alma list`.
    changes: {field: value}.
  """
  learner: str
  meaning: str
  changes: Mapping[str, Any]


V1 = "v1"
# Names that stand for a learner with certain fields. docs/anytime.md says how the numbers of `anytime` were chosen.
_ON_ALL_DATA = {"stream.replay": 1.0}
# What all versions for images have in common.
_ANYTIME: Mapping[str, Any] = {
    "stream.schedule": "geometric", "stream.replay_share": "uniform", "train.eval_every": 10**6,
    "train.label_smoothing": 0.1}
_V2: Mapping[str, Any] = {
    **_ANYTIME, "stream.factor": 1.3, "stream.train_at_end": True, "model.name": "auto", "model.width": 0,
    "train.optimizer": "muon", "train.learning_rate": 0.05, "train.budget": 1.1e8, "train.batch_size": 0,
    "train.test_augment": True, "train.most_passes": 16.0, "learner.average": 0.5, "stream.replay_order": "passes",
    "stream.val_fraction": 0.02}  # little, because it selects nothing
_OF_IMAGES: Mapping[str, Recipe] = {
    "anytime": Recipe("sm", "One small network that replays all data, within a budget of multiply-adds.", _V2),
    "anytime,tracking": Recipe("dual", "Two such networks for data that change: one replays what still holds, one "
                                       "learns the newest data.",
                               {**_V2, "stream.memory_policy": "agreement", "train.first_steps": 3.0,
                                "train.most_passes": 0.0, "stream.replay_order": "random"}),
    f"anytime,{V1}": Recipe("sm", "Version 0.2's anytime: the paper's networks and optimisers.", {
        **_ANYTIME, "train.decay": 0.5, "train.steps": 80, "train.weight_decay": 1e-3,
        "model.width": 98}),  # on the digits no more parameters than `ens` of five networks of width 32
    "retrain": Recipe("sm", "One network that every stage trains from scratch on all data so far.",
                      {**_ON_ALL_DATA, "learner.init_from_scratch": True}),
    "warm": Recipe("sm", "One network that every stage trains further on all data so far.", _ON_ALL_DATA),
    "shrink_perturb": Recipe(
        "sm", "As warm; every stage shrinks and perturbs the weights first (Ash and Adams, 2020).",
        {**_ON_ALL_DATA, "learner.shrink": 0.6, "learner.perturb": 0.1}),
}
_MIXED = {"stream.replay_share": "uniform", "train.decay": 0.3}
_OF_TEXT: Mapping[str, Recipe] = {
    "anytime": Recipe("sm", "One model with modern layers that replays earlier mega-batches, without extra steps.", {
        **_MIXED, "model.block": "modern", "train.optimizer": "muon", "train.learning_rate": (0.02,)}),
    f"anytime,{V1}": Recipe("sm", "One model that replays earlier mega-batches, without extra steps.", _MIXED),
}
RECIPES: Mapping[str, Mapping[str, Recipe]] = {IMAGES: _OF_IMAGES, TEXT: _OF_TEXT, TASKS: {}}
# `LEARNER,authors`: when stages end in the authors' code, which stops some learners early. In the paper all learners
# train for the same number of epochs (appendix B.1), which is the default.
AUTHORS = "authors"
_EARLY_STOP: Mapping[str, Any] = {"train.patience": 25, "train.patience_delta": 1e-3}


def base(learner: str = "ens") -> ConfigDict:
  """The config of a run on the digits, which you can change. `alma run` without --config runs it.

  Args:
    learner: name of a learner, e.g. "ens", or of a recipe: "anytime" (docs/anytime.md), "retrain" (from scratch on all
      data), "warm" (on all data), or "shrink_perturb" (on all data; Ash and Adams, 2020); "anytime,v1" is version
      0.2's. "LEARNER,authors" stops
      stages early as the authors' code does: sm after 25 epochs without an improvement, ens never
      (docs/algorithms.md §2).

  Returns:
    ConfigDict with every field. A new name, as in `config.model.name = "vgg"` or `config.stream.schedule = "power"`,
    brings the fields that belong to it.

  Raises:
    BadInput: there is no such learner.
  """
  name, comma, rule = learner.partition(",")
  if learner in _OF_IMAGES:
    name, comma = learner, ""
  if comma and (rule != AUTHORS or name not in LEARNERS[IMAGES]):
    variants = [each for each in _OF_IMAGES if each.startswith(f"{name},")]
    raise BadInput(f"{name!r} has no variant {rule!r}; write " + (
        f"{listed([name, *variants])}." if variants else
        f"NAME,{AUTHORS}, where NAME is one of {listed(LEARNERS[IMAGES])}."))
  return _template(IMAGES, name, {}, _EARLY_STOP if comma and LEARNERS[IMAGES][name].stops_early else {})


def tasks(learner: str = "select", stream: str = "digits") -> ConfigDict:
  """The config of a run on a stream of tasks, which you can change (docs/task-streams.md).

  Args:
    learner: independent, finetune, new_head, replay, oracle, select or mntdp, or a registered one.
    stream: see the field dataset.name.

  Returns:
    ConfigDict with every field, see `base`.

  Raises:
    BadInput: there is no such learner or stream.
  """
  return _template(TASKS, learner, {"dataset.name": stream})


def language(learner: str = "ens", size: str = "tiny") -> ConfigDict:
  """The config of a run of language models, which you can change.

  Args:
    learner: sm, ens, gens, gmoe, btm, or a registered one; or the recipe "anytime" (docs/anytime.md).
    size: tiny, base or large, see SIZES; followed by ",v1" for the first version of the recipe.

  Returns:
    ConfigDict with every field, see `base`.

  Raises:
    BadInput: there is no such learner or size.
  """
  size, comma, version = size.partition(",")
  if size not in SIZES:
    raise BadInput(f"text has no size {size!r}; its sizes are {listed(SIZES)}.")
  return _template(TEXT, f"{learner}{comma}{version}", {**_LANGUAGE, **SIZES[size]})


def _template(problem: str, given: str, first: Mapping[str, Any], last: Mapping[str, Any] = {}) -> ConfigDict:
  """The template of a learner or a recipe. It applies `first`, the learner's changes, the recipe's, and `last`.

  Raises:
    BadInput: there is no such learner.
  """
  learners, recipes = LEARNERS[problem], RECIPES[problem]
  name, changes = given, {}
  if given in recipes and given not in learners:  # a learner that users registered hides a recipe
    name, changes = recipes[given].learner, {"log.label": given, **recipes[given].changes}
  if name not in learners:
    here = [problem for problem, others in LEARNERS.items() if name in others or name in RECIPES[problem]]
    elsewhere = f", but there is one for {listed(here)}" if here else meant(name, [*learners, *recipes])
    raise BadInput(f"there is no learner {name!r} for {problem}{elsewhere}; the learners are "
                   f"{listed([*learners, *recipes])}; {YOURS}.")
  flat = layout.defaults({"problem": problem, "learner.name": name})
  for part in filter(None, (first, learners[name].defaults, changes, last)):
    flat = layout.changed(flat, part)
  from alma_jax.config.template import config_dict  # only here: it imports ml_collections

  return config_dict(flat)
