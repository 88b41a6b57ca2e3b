"""Your own images in folders by class: DIR/train/CLASS/*.png and DIR/test/CLASS/*.png, or DIR/CLASS/*.png.

    python -m alma_jax.main --config=configs/folder.py:ens --config.dataset.name=folder:DIR

LEARNER is one of sm, ens, umix, gens, bagging, boosting, moe, gmoe, ff, hmoe. Without
train/ and test/ a fifth of every class is held out as the test set. Images have
to be of one size. 10 mega-batches, waiting time 1, an MLP; for photographs of 32
pixels or more a side --config.model.name=vgg --config.train.augment=true.
"""
from alma_jax import config


def get_config(learner="ens"):
  c = config.base(learner)
  c.dataset.name = "folder:images"
  c.stream.num_megabatches = 10
  c.stream.waiting_time = 1
  return c
