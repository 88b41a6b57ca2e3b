"""CIFAR-10 as in the paper: 100 mega-batches of 500 images, waiting time 10, VGG19.

    python -m alma_jax.main --config=configs/cifar.py:ens

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or
anytime (docs/anytime.md). The paper's 100 epochs per stage need a GPU. With
--config.train.epochs=10, `:ens` takes 12 minutes on two CPU cores at width 16; on a
JPEG copy of CIFAR-10 it ended with CER 45.3 and final error 0.332. If
--config.dataset.data_dir is not given, TFDS downloads the data first.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(learner: str = "ens") -> ConfigDict:
  c = config.base(learner)
  c.dataset.name = "cifar10"
  c.stream.num_megabatches = 100
  if c.stream.schedule == "every":  # anytime has a schedule of its own
    c.stream.waiting_time = 10
  if learner == "anytime":
    c.train.budget = 3.5e10
    c.train.shift = 2
    c.train.flip = True
    return c
  c.model.name = "vgg"
  c.model.width = 16
  c.train.optimizer = "sgd"
  c.train.learning_rate = 0.01
  c.train.momentum = 0.9
  c.train.weight_decay = 1e-4
  c.train.augment = True
  if learner == "anytime,v1":
    c.train.batch_size = 32
    c.train.steps = 900
    c.train.optimizer = "adam"
    c.train.learning_rate = 0.002
    c.train.label_smoothing = 0.0
  return c
