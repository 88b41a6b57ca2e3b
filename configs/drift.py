"""Streams that change: labels are redefined, images turn, classes arrive, old concepts return.

    python -m alma_jax.main --config=configs/drift.py:anytime,relabel
    python -m alma_jax.main --config=configs/drift.py:sm,rotate --config.dataset.degrees=45

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or anytime,
which follows changes (docs/changing-streams.md). anytime,uniform,STREAM is one network that
replays all data, for comparison. STREAM is one of stationary, permute, relabel, invert,
rotate, classes, noise, imbalance, shares, recur_inputs, recur_labels, concepts, mix,
mix_inputs, or one of river's generators, as in anytime,river:Agrawal. The default is relabel.

A stream has 60 mega-batches of 400 examples of MNIST, and every learner trains on each.
For other data, set --config.dataset.name=drift:cifar10 or drift:npz:PATH.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(arg: str = "anytime,relabel") -> ConfigDict:
  recipes = {"anytime": "anytime,tracking", "anytime,uniform": "anytime"}
  learner, _, stream = arg.rpartition(",")
  if arg in recipes or not learner:
    learner, stream = arg, "relabel"
  recipe = recipes.get(learner, learner)
  c = config.base(recipe)
  if stream.startswith("river:"):
    c.dataset.name = stream
  else:
    c.dataset.name = "drift:mnist"
    c.dataset.change = stream
  c.stream.num_megabatches = 60
  c.stream.schedule = "every"
  c.stream.waiting_time = 1
  if recipe in ("anytime", "anytime,tracking"):
    c.stream.replay_order, c.train.most_passes = "random", 0.0  # the same for both, so that you can compare them
    c.train.budget = 8e8 if recipe == "anytime" else 1.6e9  # for each network 8e8
  return c
