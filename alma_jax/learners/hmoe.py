"""hmoe: a flat hard mixture, an independent expert for every cluster of features (docs/algorithms.md §6.1)."""
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import keys, models
from alma_jax.config import registry
from alma_jax.config.learner_options import HMoE as Options
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import prediction, stacked
from alma_jax.learners.contract import Context, Contribution, GrowthReport, LearnerState, StageResult
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.tasks import classification
from alma_jax.training import loop
from alma_jax.types import Cost, Tree, Variables


class HMoE(stacked.Stacked):
  """The first stage trains one network, the base; the inputs of its last layer are the features from then on.

  `model.num_experts` clusters of the features of the stage's training examples (k-means) get an expert each. An
  expert is a network that is trained on, selected on, and predicts for the examples nearest to its cluster's prototype.
  It starts as a copy of the base, or from scratch (`init`). Before every later stage, in this order:

  - update: each prototype becomes the mean of all examples that were nearest to it so far.
  - add: new examples farther from all prototypes than `add_beyond` times the root mean square distance in the first
    clusters become a cluster, if there are at least `min_shard` of them; its expert is a copy of the nearest. 0: never.
  - split: every `split_every` stages the cluster with the largest sum of validation losses is split by 2-means of its
    new examples, of which each half needs `min_shard`; both experts are copies. 0: never.
  - remove: clusters with fewer than `min_shard` examples so far.

  Experts are stacked. If their number can change, the stack has places for the next power of two, so that few changes
  need a new compilation. An expert without new examples stays as it is, also with `init_from_scratch`. Growth
  counts the training of the base, its pass over the data of every stage, and the losses by which the cluster to split
  is selected.

  `spec` has `num_experts` (0 while there is only the base). `host` has `prototypes` [E, H], `counts` [E] of the
  examples so far, `losses` (sums over validation examples), `spread`, `scored`, `base_cost`, and within a stage
  `train_shares`, `val_shares` and, if there is a memory, `memory_shares`: the expert of each example.
  """
  combine = "probabilities"

  def __init__(self, context: Context):
    """Raises:
      BadInput: there are more clusters than training examples in the first stage, or the network has no features.
    """
    super().__init__(context)
    _check_features(self.network(self.first_spec()), self._shape, context.config.model.name)
    self._first = context.config.model.num_experts
    self.scratch = False  # `grow` initialises experts itself
    if context.num_train is not None and self._first > context.num_train:
      raise BadInput(f"model.num_experts={self._first} clusters exceed the {context.num_train} training examples of "
                     "the first stage.")

  def facts(self) -> dict[str, Any]:
    return {"num_experts": 0}

  def init(self) -> LearnerState:
    host = dict(losses=[], scored=0, spread=0.0, base_cost=[0, 0])
    return super().init()._replace(host=host)

  def num_members(self, spec: dict[str, Any]) -> int:
    """Number of stacked networks: places for experts."""
    num = spec["num_experts"] or 1
    grows = self.options.split_every or self.options.add_beyond
    return 1 << (num - 1).bit_length() if grows else num

  def has_shards(self, spec: dict[str, Any]) -> bool:
    return bool(spec["num_experts"])

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not state.frozen:
      return state, GrowthReport()  # the base comes first
    options, host = self.options, state.host
    features, features_val = (self._features(state, data.pool, which) for which in (data.train, data.val))
    if state.spec["num_experts"]:
      (clusters, parents), (macs, flops) = follow(host, features[:data.num_new], data, options), (0, 0)
    else:
      clusters = cluster.kmeans(features, self._first, _rng(data, 0))
      _, distance = cluster.nearest(features, clusters.prototypes)
      host = {**host, "spread": float(np.sqrt((distance**2).mean()))}
      parents, (macs, flops) = [0] * len(clusters.counts), host["base_cost"]
    clusters, parents = sharding.agree_on((clusters, np.array(parents, np.int32)))
    spec = {**state.spec, "num_experts": len(clusters.counts)}
    shares = [np.int32(cluster.nearest(h, clusters.prototypes)[0]) for h in (features, features_val)]
    host = {**host, "prototypes": np.float64(clusters.prototypes), "counts": np.int64(clusters.counts), "losses": [],
            "train_shares": shares[0], "val_shares": shares[1]}
    if len(data.memory):
      old = self._features(state, data.pool, data.memory)
      host["memory_shares"] = np.int32(cluster.nearest(old, clusters.prototypes)[0])
    which = np.pad(parents, (0, self.num_members(spec) - len(parents)))
    live = self.take(state.live, which)
    scratch = options.init_from_scratch if state.spec["num_experts"] else options.init == "scratch"
    if scratch:
      live = self._where(np.isin(np.arange(len(which)), shares[0]), self.fresh(data.stage, spec), live)
    looked = _feature_macs(self.network(spec), self._shape) * (len(data.train) + len(data.val) + len(data.memory))
    if options.split_every:
      looked += host["scored"] * self.cost(state).predict_macs
    return state._replace(spec=spec, live=live, host=host), GrowthReport(macs + looked, flops + 2 * looked)

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    if not state.spec["num_experts"]:
      return loop.Examples()
    memory = self._shards(state, data.memory, state.host["memory_shares"]) if len(data.memory) else None
    return loop.Examples(own=self._shards(state, data.train, state.host["train_shares"]),
                         own_val=self._shards(state, data.val, state.host["val_shares"]), memory=memory)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    result, before = super().finish(state, data, trained), self.cost(state)
    after, report = result.state, result.report
    if not state.spec["num_experts"]:
      spent = [before.fwd_macs * report.samples, before.train_flops * report.samples]
      base = after._replace(spec={**after.spec, "num_frozen": 1}, frozen=(after.predicting,), average=None,
                            host={**after.host, "base_cost": spent})
      return StageResult(base, report, complete=False)
    labels, losses = sharding.fetch(data.pool.y), [0.0] * state.spec["num_experts"]
    for expert, mine in enumerate(self._shards(state, data.val, state.host["val_shares"])[:len(losses)]):
      if len(mine):
        answered = self._answers(after, expert, data.pool, mine)
        losses[expert] = len(mine) * classification.error_and_loss(answered.argmax(-1), answered, labels[mine])[1]
    host = {key: value for key, value in after.host.items() if not key.endswith("_shares")}
    return StageResult(after._replace(host={**host, "losses": losses, "scored": len(data.val)}), report)

  def num_blocks(self, state: LearnerState) -> int:
    return 1

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """The probabilities that the expert of each example's nearest prototype gives."""
    network = self.network(state.spec)
    if not state.spec["num_experts"]:
      return stacked.contribute(network, self._task, self.mesh, self.combine, state.predicting, inputs)
    prototypes = jnp.asarray(state.host["prototypes"], jnp.float32)
    features = stacked.contribute(network, self._task, self.mesh, "features", state.frozen[0], inputs)["features"]
    nearest = jnp.square(features[:, None] - prototypes[None]).sum(-1).argmin(-1)
    total: Any = None
    for expert in range(state.spec["num_experts"]):
      one = jax.tree.map(lambda leaf, i=expert: leaf[i:i + 1], state.predicting)
      answers = stacked.contribute(network, self._task, self.mesh, self.combine, one, inputs)["sum"]
      chosen = jnp.where((nearest == expert)[:, None], answers, 0)
      total = chosen if total is None else total + chosen
    return {"sum": total}

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    return self._task.resolve(joined, 1, self.combine)

  def cost(self, state: LearnerState) -> Cost:
    network, num = self.network(state.spec), state.spec["num_experts"]
    one, macs = cost.abstract_variables(network, self._shape).params, cost.forward_macs(network, self._shape)
    flops = cost.training_flops(network, self._shape)
    if not num:
      return Cost(models.count_params(one) * state.num_held, macs, flops, macs)
    base = models.count_params({name: leaf for name, leaf in one.items() if name != "output"})
    num_params = base + num * state.num_held * models.count_params(one)
    return Cost(num_params, macs, flops, macs + _feature_macs(network, self._shape))

  def describe(self, state: LearnerState) -> str:
    """Each expert's share of the examples and of the validation loss."""
    if not state.spec["num_experts"]:
      return "the base network; there are no experts yet"
    counts, losses = state.host["counts"].tolist(), state.host["losses"]
    lines = [f"experts: {len(counts)}"]
    for expert, num in enumerate(counts):
      loss = f"  validation loss {losses[expert] / max(sum(losses), 1e-30):.1%}" if losses else ""
      lines.append(f"  expert {expert}  {num / sum(counts):.1%} of the examples so far{loss}")
    return "\n".join(lines)

  def template(self, spec: dict[str, Any]) -> LearnerState:
    base = super().template({**spec, "num_frozen": 0, "num_experts": 0}).live
    return super().template({**spec, "num_frozen": 0})._replace(spec=spec, frozen=(base,) * spec["num_frozen"])

  def _features(self, state: LearnerState, pool: Tree, which: np.ndarray) -> np.ndarray:
    """Features [N, H] of the examples `which` of a pool."""
    look = lambda inputs: stacked.contribute(self.network(state.spec), self._task, self.mesh, "features",
                                             state.frozen[0], inputs)
    return np.asarray(prediction.in_batches(look, self._task, self.mesh, pool, which)["features"])

  def _answers(self, state: LearnerState, expert: int, pool: Tree, which: np.ndarray) -> np.ndarray:
    """Class probabilities [N, K] of one of the experts."""
    one, network = self.take(state.predicting, [expert]), self.network(state.spec)
    answer = lambda inputs: stacked.contribute(network, self._task, self.mesh, self.combine, one, inputs)
    return np.asarray(prediction.in_batches(answer, self._task, self.mesh, pool, which)["sum"])

  def _shards(self, state: LearnerState, which: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """The examples `which`, expert by expert, as `shares` assigns them: int32 arrays."""
    return [which[shares == expert] for expert in range(self.num_members(state.spec))]

  def perturbed(self, state: LearnerState, fresh: Variables) -> Variables:
    """As in Stacked; an expert without new examples stays as it is."""
    mixed = super().perturbed(state, fresh)
    if not state.spec["num_experts"]:
      return mixed
    return self._where(np.isin(np.arange(self.num_members(state.spec)), state.host["train_shares"]), mixed, state.live)

  def _where(self, chosen: np.ndarray, new: Variables, old: Variables) -> Variables:
    """The experts of `new` where `chosen` bool [E], and those of `old` elsewhere; on the mesh."""
    pick = lambda new, old: np.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return sharding.put(jax.tree.map(pick, *sharding.fetch((new, old))), self.mesh)


def follow(host: dict[str, Any], features: np.ndarray, data: loop.StageData,
           options: Options) -> tuple[cluster.Clusters, list[int]]:
  """The clusters of a later stage.

  Args:
    host: of the state before.
    features: [N, H] of the stage's new training examples.
    data: StageData.
    options: of the learner.

  Returns:
    (Clusters, for each of them the number of the old one whose expert it copies).
  """
  clusters = cluster.Clusters(host["prototypes"], host["counts"])
  parents, losses = list(range(len(host["counts"]))), list(host["losses"])
  _, distance = cluster.nearest(features, clusters.prototypes)
  far = (distance > options.add_beyond * host["spread"]) & (options.add_beyond > 0)
  far &= far.sum() >= options.min_shard
  clusters = cluster.update(clusters, features[~far])
  if far.any():
    clusters, parent = cluster.add(clusters, features[far])
    parents, losses = [*parents, parent], [*losses, 0.0]
  if options.split_every and data.stage % options.split_every == 0:
    index, _ = cluster.nearest(features, clusters.prototypes)
    large = np.bincount(index, minlength=len(parents)) >= 2 * options.min_shard
    if large.any():
      which = int(np.where(large, losses, -1).argmax())
      clusters = cluster.split(clusters, which, features[index == which], options.min_shard, _rng(data, 1))
      parents += [parents[which]] * (len(clusters.counts) - len(parents))
  clusters, kept = cluster.remove(clusters, options.min_shard)
  return clusters, [parents[i] for i in kept]


def _feature_macs(network: Any, shape: tuple[int, ...]) -> int:
  """Multiply-adds of one example's features."""
  head = cost.abstract_variables(network, shape).params["output"]["kernel"]
  return cost.forward_macs(network, shape) - models.count_params(head)


def _check_features(network: Any, shape: tuple[int, ...], name: str) -> None:
  """Raises BadInput if a network of the user's own does not sow its features."""
  if name in registry.MODELS:
    try:
      jax.eval_shape(lambda v, x: models.features(network, v, x), cost.abstract_variables(network, shape),
                     network.inputs(shape))
    except KeyError:
      raise BadInput(f"model.name={name!r} has no features for hmoe; end the network with a layers.Head named output, "
                     "or take another learner.") from None


def _rng(data: loop.StageData, number: int) -> np.random.Generator:
  return keys.rng(data.seed, keys.CLUSTER, data.stage, number)
