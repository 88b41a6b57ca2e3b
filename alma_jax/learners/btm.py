"""btm: Branch-Train-Merge of language models (Li et al. 2022; docs/algorithms.md §6.3)."""
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import keys
from alma_jax.config import sections, text_sections
from alma_jax.config.fields import field
from alma_jax.config.registry import TEXT, register
from alma_jax.errors import BadInput
from alma_jax.growth import domains
from alma_jax.learners import stacked
from alma_jax.learners.contract import Contribution, GrowthReport, LearnerState, StageResult
from alma_jax.learners.expert_stacks import shards
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.problems.language_modeling import Contexts, Ends, HostPool, Windows
from alma_jax.training import loop, optimizers
from alma_jax.types import Array, Cost, Tree


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """Branch-Train-Merge: copies of one language model train on a domain each; the context weights their predictions."""
  name: str = "btm"
  num_domains: int = field(4, "number of domains, each with its own network", at_least=1)
  domains: str = field(
      "tfidf", "divide the documents by k-means of their `tfidf`, or at `random`", choices=("tfidf", "random"))
  seed_share: float = field(
      0.5, "share of the first stage's steps that train one network on all documents; the experts are copies of it",
      above=0, below=1)

  problems: ClassVar[tuple[str, ...]] = (TEXT,)

  def check(self, config: Any) -> None:
    super().check(config)
    if not config.dataset.keeps_documents:
      raise BadInput(f"learner.name='btm' divides whole documents, which dataset.name={config.dataset.name!r} does not "
                     "keep; use text:DIR or tfds:NAME.")
    for path, values in (("train.learning_rate", config.train.learning_rate), ("model.dropout", config.model.dropout)):
      if len(values) > 1:
        raise BadInput(f"{path}={values} lists several values, but learner.name='btm' chooses none of them; give one.")

  def make(self, context: Any) -> Any:
    return BTM(context)


class BTM(stacked.Stacked):
  """The first stage trains one network, the seed, for `seed_share` of its steps, and then a copy of it per domain.

  The domains divide the documents of the first stage: k-means of their tf-idf, or at random. Every expert gets an equal
  part of the steps that are left, and of the steps of later stages, whose documents go to the nearest domain. All
  trainings together take at most as many steps as one of `sm`, and each has its share of the warm-up. `train.restart`
  also holds for the experts of the first stage.

  A prediction is a mixture whose weights are the experts' posteriors after the context, by a uniform prior.

  `spec` has `num_domains` (0 while there is only the seed). `host` has `idf` and `centres` of the domains by tf-idf,
  `seed_cost`, and within a stage `train_shares` and `memory_shares`: the domain of each window.
  """
  combine = "probabilities"

  def __init__(self, context: Any):
    """Raises:
      BadInput: there is no step for the seed, or none for every expert.
    """
    super().__init__(context)
    seed, expert = self._train(False, 0).steps, self._train(True, 0).steps
    if not seed or not expert:
      total = context.config.train.plan(0).steps
      raise BadInput(f"the {total} steps of a stage leave {seed} for the seed and {expert} for each of "
                     f"learner.num_domains={self.options.num_domains} experts; raise train.steps.")

  def facts(self) -> dict[str, Any]:
    return {"num_domains": 0}

  def init(self) -> LearnerState:
    return super().init()._replace(host={"seed_cost": [0, 0]})

  def num_members(self, spec: dict[str, Any]) -> int:
    return spec["num_domains"] or 1

  def has_shards(self, spec: dict[str, Any]) -> bool:
    return bool(spec["num_domains"])

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    branches = not state.spec["num_domains"] and "train_shares" in state.host
    if not branches:
      host = self._shared(state.host, data)
      return state._replace(host=host), GrowthReport()
    num = self.options.num_domains
    live = self.take(state.predicting, [0] * num)
    return (state._replace(spec={**state.spec, "num_domains": num}, live=live, average=None),
            GrowthReport(*state.host["seed_cost"]))

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    training = super().training(state, data)
    train = self._train(bool(state.spec["num_domains"]), data.stage)
    return dataclasses.replace(training, spec=dataclasses.replace(training.spec, train=train))

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    num = state.spec["num_domains"]
    if not num:
      return loop.Examples()
    memory = None
    if len(data.memory):  # an expert without old windows of its domain recalls any
      old = shards(data.memory, state.host["memory_shares"], range(num))
      memory = [mine if len(mine) else data.memory for mine in old]
    own = shards(data.train, state.host["train_shares"], range(num))
    return loop.Examples(own=own, own_val=[data.val] * num, memory=memory)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    result, before = super().finish(state, data, trained), self.cost(state)
    after, report = result.state, result.report
    if not state.spec["num_domains"]:
      spent = [before.fwd_macs * report.samples, before.train_flops * report.samples]
      return StageResult(after._replace(host={**after.host, "seed_cost": spent}), report, complete=False)
    host = {key: value for key, value in after.host.items() if not key.endswith("_shares")}
    return StageResult(after._replace(host=host), report)

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """The log-probabilities of the mixture, see LanguageModeling.contribution."""
    if not state.spec["num_domains"]:
      return super().contribution(state, block, inputs)
    read = Contexts(inputs.tokens) if isinstance(inputs, Ends) else inputs
    each = self.log_probs(state, read)
    if isinstance(inputs, Windows):
      return {"log_sum": mixed(each)}
    mixed_BLV = next_mixed(each, inputs.tokens)
    if isinstance(inputs, Ends):
      return {"log_sum": jax.lax.dynamic_index_in_dim(mixed_BLV, inputs.position, 1, keepdims=False)}
    return {"log_sum": mixed_BLV}

  def log_probs(self, state: LearnerState, inputs: Windows | Contexts) -> jax.Array:
    """Log-probabilities by each network, [M, B, L] of the targets of Windows, [M, B, L, V] for Contexts; traceable."""
    network, each = self.network(state.spec), []
    for i in range(self.num_members(state.spec)):
      one = jax.tree.map(lambda leaf, i=i: leaf[i:i + 1], state.predicting)
      each.append(stacked.contribute(network, self._problem, self.mesh, self.combine, one, inputs)["log_sum"])
    return jnp.stack([jnp.asarray(log_probs) for log_probs in each])

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    return self._problem.resolve(joined, 1, self.combine)

  def cost(self, state: LearnerState) -> Cost:
    network, num = self.network(state.spec), self.num_members(state.spec)
    macs = cost.forward_macs(network, self._shape)
    flops = optimizers.flops(self.context.config.train, network, self._shape)
    return super().cost(state)._replace(fwd_macs=macs, train_flops=flops, predict_macs=num * macs)

  def describe(self, state: LearnerState) -> str:
    num = state.spec["num_domains"]
    return f"{num} networks, one for each domain" if num else "the seed network; there are no domains yet"

  def _train(self, experts: bool, stage: int) -> text_sections.Train:
    """The section `train` of a training of the seed, or of the experts, in a stage."""
    train: Any = self.context.config.train
    total, num = train.plan(0).steps, self.options.num_domains
    seed = 0 if stage else round(self.options.seed_share * total)
    steps = (total - seed) // num if experts else seed
    rate = tuple((train.restart if experts and not stage else 1) * rate for rate in train.learning_rate)
    return dataclasses.replace(train, steps=steps, steps_multiplier=1, learning_rate=rate,
                               warmup_steps=train.warmup_steps * steps // total)

  def _shared(self, host: dict[str, Any], data: loop.StageData) -> dict[str, Any]:
    """`host` with the domain of every window of the stage, and at the first stage with the domains.

    Raises:
      BadInput: there are fewer documents than domains.
    """
    pool, num = data.pool, self.options.num_domains
    assert isinstance(pool, HostPool)
    windows = np.concatenate([data.train, data.memory]).astype(np.int64)
    number, place = np.unique(domains.document_of(pool.ids, pool.windows.start[windows]), return_inverse=True)
    if not data.stage and len(number) < num:
      raise BadInput(f"learner.num_domains={num} exceeds the {len(number)} documents of the first stage; lower it, or "
                     "give the text as more documents.")
    if self.options.domains == "random":
      found = domains.dealt(data.seed, number, num)
    else:
      counts = domains.token_counts(pool.ids, number, self._problem.vocab_size)
      if "centres" not in host:
        made = domains.cluster(counts, num, keys.rng(data.seed, keys.CLUSTER, data.stage, 0))
        host = {**host, **sharding.agree(made._asdict())}
      found = domains.nearest(domains.Domains(host["idf"], host["centres"]), counts)
    shares = found[place]
    train, memory = np.split(shares, [len(data.train)])
    return {**host, "train_shares": train} | ({"memory_shares": memory} if len(memory) else {})


# The weight of model d after the tokens x_1..x_t is its posterior p(d | x_1..x_t) ∝ p_d(x_2..x_t | x_1) π_d, where the
# prior π is uniform. The mixture predicts the next token by Σ_d p(d | x_1..x_t) p_d(· | x_1..x_t).


def log_posteriors(log_probs_MBL: Array) -> Array:
  """Log-posteriors of the models before each target, float32 [M, B, L].

  `log_probs_MBL`: log-probabilities that each model gives to the targets of a window; 0 where none counts.
  """
  num = len(log_probs_MBL)
  log_prior_M = jnp.full(num, -np.log(num), jnp.float32)
  before_MBL = jnp.cumsum(log_probs_MBL, -1) - log_probs_MBL
  return jax.nn.log_softmax(log_prior_M[:, None, None] + before_MBL, axis=0)


def mixed(log_probs_MBL: Array) -> Array:
  """Log-probabilities of the targets by the mixture, float32 [B, L]; see `log_posteriors`."""
  return jax.nn.logsumexp(log_posteriors(log_probs_MBL) + log_probs_MBL, axis=0)


def next_mixed(log_probs_MBLV: Array, tokens_BL: Array) -> Array:
  """Log-probabilities of what follows each token by the mixture, float32 [B, L, V], from those of each model."""
  following_BL = jnp.roll(tokens_BL, -1, 1)  # that of the last token decides nothing
  targets_MBL = jnp.take_along_axis(log_probs_MBLV, following_BL[None, ..., None], -1)[..., 0]
  return jax.nn.logsumexp(log_posteriors(targets_MBL)[..., None] + log_probs_MBLV, axis=0)
