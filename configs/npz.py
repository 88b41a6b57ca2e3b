"""Your own arrays: an .npz file of x_train, y_train, x_test, y_test.

    python -m alma_jax.main --config=configs/npz.py:ens --config.dataset.name=npz:PATH

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe, or
anytime (docs/anytime.md). Images are uint8 or float, [N, H, W], [N, H, W, C] or [N, D];
labels count classes from 0. Inputs are normalised with the mean and standard deviation
of the first mega-batch. There are 10 mega-batches and the waiting time is 1.
anytime chooses the network; the others train an MLP, which takes 40 s on two CPU cores for
data of MNIST's size.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(learner: str = "ens") -> ConfigDict:
  c = config.base(learner)
  c.dataset.name = "npz:data.npz"
  c.stream.num_megabatches = 10
  if c.stream.schedule == "every":  # anytime has a schedule of its own
    c.stream.waiting_time = 1
  if learner == "anytime":
    c.train.budget = 1e10  # a second or two on two CPU cores
  return c
