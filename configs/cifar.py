"""CIFAR-10: 100 mega-batches of 500 images, VGG19 (the paper's §4)."""
from alma_jax import config


def get_config(learner="ens"):
  c = config.base(learner)
  c.dataset.name = "cifar10"
  c.stream.num_megabatches = 100
  c.stream.waiting_time = 10
  c.model.name = "vgg"
  c.model.width = 16
  c.train.epochs = 100
  c.train.optimizer = "sgd"
  c.train.learning_rate = 0.01
  c.train.momentum = 0.9
  c.train.weight_decay = 1e-4
  c.train.augment = True
  return c
