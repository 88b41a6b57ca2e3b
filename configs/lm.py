"""Language modelling as in the paper: 4 mega-batches of text, Switch Transformers, perplexity.

    python -m alma_jax.main --config=configs/lm.py:sm,tiny --config.dataset.name=text:DIR

LEARNER,SIZE: one of sm, ens, gens, gmoe; and tiny (the default: minutes on two CPU
cores), base (6 layers, width 512) or large (12 layers, width 768), which want
GPUs. DIR holds train/, valid/ and test/ with .txt files, one document each, or
.txt files alone. Without it TFDS downloads tiny_shakespeare. The paper's runs:
--config.model.num_experts=4, 8 or 12; ens has 2 members of 4 experts; gens adds
such a member before every mega-batch; gmoe goes from 4 to 6, 8 and 12 experts. Who
waits: --config.stream.waiting_time=3 or 4, with as many
--config.train.steps_multiplier to train as long as who does not.
"""
from alma_jax import config


def get_config(arg="ens,tiny"):
  learner, _, size = arg.partition(",")
  return config.language(learner or "ens", size or "tiny")
