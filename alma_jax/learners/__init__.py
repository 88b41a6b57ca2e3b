"""Learners by name. Each file holds what sets its learner apart from the others."""
from collections.abc import Callable

from alma_jax.config import registry, schema
from alma_jax.learners import tuned
from alma_jax.learners.bagging import Bagging
from alma_jax.learners.boosting import Boosting
from alma_jax.learners.btm import BTM
from alma_jax.learners.contract import Context, Learner
from alma_jax.learners.ens import Ens
from alma_jax.learners.expert import Expert
from alma_jax.learners.firefly import Firefly
from alma_jax.learners.flat_gmoe import FlatGMoE
from alma_jax.learners.gens import GEns
from alma_jax.learners.gmoe import GMoE, MoE
from alma_jax.learners.hmoe import HMoE
from alma_jax.learners.mntdp import MNTDP
from alma_jax.learners.replay import Replay
from alma_jax.learners.select import Select
from alma_jax.learners.sm import SM
from alma_jax.learners.transfer import Finetune, Independent, NewHead, Oracle
from alma_jax.learners.umix import UMix

TASKS: dict[str, Callable[[Context], Learner]] = {
    "independent": Independent, "finetune": Finetune, "new_head": NewHead, "replay": Replay, "oracle": Oracle,
    "select": Select, "mntdp": MNTDP}
FACTORIES: dict[str, Callable[[Context], Learner]] = {
    "sm": SM, "ens": Ens, "umix": UMix, "gens": GEns, "bagging": Bagging, "boosting": Boosting, "moe": MoE,
    "gmoe": GMoE, "ff": Firefly, "hmoe": HMoE, "expert": Expert}
# In place of the image learners of that name, and for text alone.
LANGUAGE: dict[str, Callable[[Context], Learner]] = {"gmoe": FlatGMoE, "btm": BTM}


def make(context: Context) -> Learner:
  """The learner that `context.config.learner.name` names."""
  config = context.config
  if isinstance(config, schema.TaskConfig):
    return TASKS[config.learner.name](context)
  own = (LANGUAGE | registry.TEXT_LEARNERS) if config.is_language else registry.LEARNERS
  factory = (FACTORIES | own)[config.learner.name]
  return tuned.Tuned(context, factory) if tuned.num_candidates(config) > 1 else factory(context)
