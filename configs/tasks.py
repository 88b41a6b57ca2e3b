"""Streams of tasks: `digits`, of scikit-learn's images, needs no download.

    python -m alma_jax.main --config=configs/tasks.py:select,digits
    python -m alma_jax.main --config=configs/tasks.py:mntdp,s_minus

LEARNER is one of independent, finetune, new_head, replay, oracle, select, mntdp. STREAM
is one of digits, s_minus, s_plus, s_in, s_out, s_pl, s_long, nevis_mini, or
tasks:PATH.py for a list of your own (docs/task-streams.md). All but `digits` need MNIST and CIFAR-10,
which TFDS downloads if --config.dataset.data_dir is not given.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(learner_and_stream: str = "select,digits") -> ConfigDict:
  learner, _, stream = learner_and_stream.partition(",")
  c = config.tasks(learner, stream or "digits")
  if c.dataset.name != "digits":
    c.model.name = "resnet"
    c.model.width = 16
  return c
