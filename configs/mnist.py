"""MNIST as in the paper: 500 mega-batches of 120 images, waiting time 10, an MLP.

    python -m alma_jax.main --config=configs/mnist.py:ens

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe. The
paper's sizes are --config.model.width 4 to 64, its waiting times
--config.stream.waiting_time 10 to 500. `:ens` at width 32 takes half a minute
on two CPU cores (50 stages of 100 epochs) and ends with CER 29.2, final error
0.031. Without --config.dataset.data_dir TFDS downloads the data first.
"""
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
