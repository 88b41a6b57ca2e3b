"""Your own arrays: an .npz file of x_train, y_train, x_test, y_test."""
from alma_jax import config


def get_config(learner="ens"):
  c = config.base(learner)
  c.dataset.name = "npz:data.npz"
  c.stream.num_megabatches = 10
  c.stream.waiting_time = 1
  return c
