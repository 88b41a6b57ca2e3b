"""Your own images in folders by class: DIR/train/CLASS/*.png and DIR/test/CLASS/*.png, or DIR/CLASS/*.png.

    python -m alma_jax.main --config=configs/folder.py:ens --config.dataset.name=folder:DIR

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or
anytime (docs/anytime.md). If there is no train/ and test/, a fifth of every class is
held out as the test set. All images must have the same size;
--config.dataset.image_size=32 resizes them. There are 10 mega-batches and the waiting
time is 1. anytime chooses the network, and trains on shifted copies; for photographs add
--config.train.flip=true, which mirrors them. The other learners train an MLP; for
photographs of 32 or more pixels a side add --config.model.name=vgg
--config.train.augment=true.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(learner: str = "ens") -> ConfigDict:
  c = config.base(learner)
  c.dataset.name = "folder:images"
  c.stream.num_megabatches = 10
  if c.stream.schedule == "every":  # anytime has a schedule of its own
    c.stream.waiting_time = 1
  if learner == "anytime":
    c.train.budget = 1e10  # a second or two on two CPU cores
    c.train.shift = 2
  return c
