"""Language modelling as in the paper: 4 mega-batches of text, Switch Transformers, perplexity.

    python -m alma_jax.main --config=configs/lm.py:LEARNER,SIZE --config.dataset.name=text:DIR

LEARNER is one of sm, ens, gens, gmoe, btm, anytime. SIZE is tiny (the default, for
CPUs), base (6 layers, width 512) or large (12 layers, width 768); base and
large need GPUs. anytime,SIZE,v1 is the first version of anytime. DIR holds train/, valid/
and test/ with .txt files, one document each, or only .txt files. If no data set is named,
TFDS downloads tiny_shakespeare.

The paper's runs have --config.model.num_experts=4, 8 or 12. ens has 2 members of 4
experts, gens adds a member of 4 experts at every stage, and gmoe grows from 4 to 6, 8
and 12 experts. A learner that waits for 3 or 4 mega-batches
(--config.stream.waiting_time) takes as many steps up to its first training as one that
does not wait if --config.train.steps_multiplier has the same value.
"""
from ml_collections import ConfigDict

from alma_jax import config


def get_config(arg: str = "ens,tiny") -> ConfigDict:
  learner, _, size = arg.partition(",")
  return config.language(learner or "ens", size or "tiny")
