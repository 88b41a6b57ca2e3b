"""The digits bundled with scikit-learn: 1,437 training images of 8x8, no download."""
from alma_jax import config


def get_config(learner="ens"):
  return config.base(learner)
