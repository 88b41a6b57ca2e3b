"""Configs to start from: the declared defaults, and what a learner or a size of language models changes.

The files under configs/ change them further.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from alma_jax.config import registry, schema
from alma_jax.config.fields import listed
from alma_jax.config.learner_options import LEARNERS, TEXT_LEARNERS, Options
from alma_jax.config.trees import set_field
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


# What configs know by a name besides the learners. docs/anytime.md says how the numbers of `anytime` were chosen.
_ON_ALL_DATA = {"stream.replay": 1.0}
RECIPES: Mapping[str, Recipe] = {
    "anytime": Recipe("sm", "One network that trains for a fixed number of steps on new and remembered data.", {
        "stream.schedule": "geometric", "stream.replay_share": "uniform", "train.steps": 80, "train.eval_every": 10**6,
        "train.decay": 0.5, "train.label_smoothing": 0.1, "train.weight_decay": 1e-3,
        "model.width": 98}),  # on the digits no more parameters than `ens` of five networks of width 32
    "retrain": Recipe("sm", "One network that every stage trains from scratch on all data so far.",
                      {**_ON_ALL_DATA, "learner.init_from_scratch": True}),
    "warm": Recipe("sm", "One network that every stage trains further on all data so far.", _ON_ALL_DATA),
    "shrink_perturb": Recipe(
        "sm", "As warm; every stage shrinks and perturbs the weights first (Ash and Adams, 2020).",
        {**_ON_ALL_DATA, "learner.shrink": 0.6, "learner.perturb": 0.1}),
}
TEXT_RECIPES: Mapping[str, Recipe] = {
    "anytime": Recipe("sm", "One model that replays earlier mega-batches in the steps of a stage.",
                      {"stream.replay_share": "uniform", "train.decay": 0.3}),
}
# `LEARNER,authors`: when stages end in the authors' code, which stops some learners early. In the paper all learners
# train for the same number of epochs (appendix B.1), which is the default.
AUTHORS = "authors"
_EARLY_STOP: Mapping[str, Any] = {"train.patience": 25, "train.patience_delta": 1e-3}


def base(learner: str = "ens") -> ConfigDict:
  """The config of a run on the digits, to be changed; it is what `python -m alma_jax.main` runs.

  Args:
    learner: name of a learner, e.g. "ens", or of a recipe: "anytime" (docs/anytime.md), "retrain" (from scratch on all
      data), "warm" (on all data), or "shrink_perturb" (on all data; Ash and Adams, 2020). "LEARNER,authors" stops
      stages early as the authors' code does: sm after 25 epochs without an improvement, ens never
      (docs/algorithms.md §2).

  Returns:
    ConfigDict with every field.

  Raises:
    BadInput: there is no such learner.
  """
  learner, comma, rule = learner.partition(",")
  name, changes = _resolved(learner, RECIPES, LEARNERS)
  if comma:
    changes = {**changes, **_authors(name, learner, rule)}
  options = registry.options_of(name, recipes=RECIPES)
  return _template(schema.ImageConfig, options, {**options.defaults, **changes})


def tasks(learner: str = "select", stream: str = "digits") -> ConfigDict:
  """The config of a run on a stream of tasks, to be changed (docs/task-streams.md).

  Args:
    learner: independent, finetune, new_head, replay, oracle, select or mntdp.
    stream: see the field dataset.name.

  Returns:
    ConfigDict with every field.

  Raises:
    BadInput: there is no such learner.
  """
  options = registry.options_of(learner, schema.TaskConfig)
  return _template(schema.TaskConfig, options, {"dataset.name": stream, **options.defaults})


def language(learner: str = "ens", size: str = "tiny") -> ConfigDict:
  """The config of a run of language models, to be changed.

  Args:
    learner: sm, ens, gens, gmoe, btm, or a registered one; or the recipe "anytime" (docs/anytime.md).
    size: tiny, base or large, see SIZES.

  Returns:
    ConfigDict with every field.

  Raises:
    BadInput: there is no such learner or size.
  """
  if size not in SIZES:
    raise BadInput(f"there is no size {size!r}; the sizes are {listed(SIZES)}.")
  name, changes = _resolved(learner, TEXT_RECIPES, TEXT_LEARNERS)
  options = registry.options_of(name, schema.LanguageConfig, TEXT_RECIPES)
  return _template(schema.LanguageConfig, options, {**_LANGUAGE, **SIZES[size], **options.defaults, **changes})


def _authors(name: str, given: str, rule: str) -> Mapping[str, Any]:
  """The changes of `given,rule`, where `given` is the learner `name` or a recipe of it."""
  if rule != AUTHORS or name != given or name not in LEARNERS:
    raise BadInput(f"{given!r} has no variant {rule!r}; there is NAME,{AUTHORS} with NAME one of "
                   f"{listed(LEARNERS)}.")
  return _EARLY_STOP if LEARNERS[name].stops_early else {}


def _resolved(name: str, recipes: Mapping[str, Recipe], learners: Collection[str]) -> tuple[str, Mapping[str, Any]]:
  """(learner, changes) of the name of a learner or of a recipe; a learner that users registered hides a recipe."""
  if name in learners or name not in recipes:
    return name, {}
  return recipes[name].learner, {"log.label": name, **recipes[name].changes}  # reports use its own name


def _template(config: type[schema.RunConfig], options: type[Options], changes: Mapping[str, Any]) -> ConfigDict:
  from ml_collections import ConfigDict  # only here: --help stays instant

  tree = schema.defaults(config, options)
  for field, value in changes.items():
    set_field(tree, field, value)
  return ConfigDict(tree, type_safe=False)  # `parse` checks types, and takes those of numpy as well
