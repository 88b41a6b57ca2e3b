"""MNIST as in the paper: 500 mega-batches of 120 images, waiting time 10, an MLP.

    python -m alma_jax.main --config=configs/mnist.py:ens

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or
anytime (docs/anytime.md). The paper uses --config.model.width from 4 to 64 and
--config.stream.waiting_time from 10 to 500; its optimiser (Adadelta, learning rate 1)
and its 100 epochs per stage are the defaults. `:ens` at width 32 takes 45 s on two CPU
cores and ends with CER 29.2 and final error 0.031. If --config.dataset.data_dir is not
given, TFDS downloads the data first.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(learner: str = "ens") -> ConfigDict:
  c = config.base(learner)
  c.dataset.name = "mnist"
  c.stream.num_megabatches = 500
  if c.stream.schedule == "every":  # anytime has a schedule of its own
    c.stream.waiting_time = 10
  if learner == "anytime":
    c.train.shift = 2
    c.train.budget = 9.8e7  # a fifteenth of what `ens` of width 32 spends
  elif learner == "anytime,v1":
    c.model.width = 141  # no more parameters than `ens` of five networks of width 32
  return c
