"""MNIST: 500 mega-batches of 120 images, two hidden layers (the paper's §4)."""
from alma_jax import config


def get_config(learner="ens"):
  c = config.base(learner)
  c.dataset.name = "mnist"
  c.stream.num_megabatches = 500
  c.stream.waiting_time = 10
  c.model.width = 32
  c.train.epochs = 100
  c.train.optimizer = "adadelta"
  c.train.learning_rate = 1.0
  return c
