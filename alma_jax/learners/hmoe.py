"""hmoe: a flat hard mixture, an independent expert for every cluster of features (docs/algorithms.md §6.1)."""
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax import models
from alma_jax.config import sections
from alma_jax.config.fields import field
from alma_jax.config.registry import register
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import expert_stacks, prediction, stacked
from alma_jax.learners.contract import Context, Contribution, GrowthReport, LearnerState, StageResult
from alma_jax.learners.expert_stacks import Experts, shards, stacks
from alma_jax.models import cost
from alma_jax.parallel import members, sharding
from alma_jax.problems import classification
from alma_jax.training import loop, optimizers
from alma_jax.types import Array, Cost, Tree, Variables


@register
@dataclasses.dataclass(frozen=True)
class Options(sections.Options):
  """A flat hard mixture: the examples are clustered by their features, and each cluster has a network of its own."""
  name: str = "hmoe"
  init: str = field(
      "copy", "initial weights of the experts: a `copy` of the base network, or fresh ones (`scratch`)",
      choices=("copy", "scratch"))
  min_shard: int = field(10, "remove a cluster to which fewer examples than this have ever belonged", at_least=1)
  add_beyond: float = field(
      0.0, "`min_shard` examples farther from all prototypes than this form a new cluster, as a multiple of the "
      "root mean square distance in the first clustering; 0: add none", at_least=0)
  split_every: int = field(
      0, "split the cluster with the largest validation loss every so many stages; 0: never", at_least=0)
  em_rounds: int = field(
      1, "how often a stage trains its experts (hard EM); in between, prototypes move to the examples on which their "
      "expert is best", at_least=1)
  expert_widths: tuple[int, ...] = field(
      (), "widths of the experts in turn: with (8,32), experts 0, 2, ... have 8; empty: `model.width`", at_least=1)
  init_from_scratch: bool = field(False, sections.INIT_FROM_SCRATCH)

  defaults: ClassVar = {"model.num_experts": 4}
  trains_apart: ClassVar[bool] = True
  splits_data = True
  has_experts = True

  def check(self, config: Any) -> None:
    super().check(config)
    if len(self.expert_widths) > config.model.num_experts:
      raise BadInput(f"learner.expert_widths={self.expert_widths} has more widths than model.num_experts="
                     f"{config.model.num_experts} experts, which take turns; leave some out, or raise "
                     "model.num_experts.")

  def make(self, context: Any) -> Any:
    return HMoE(context)


class HMoE(Experts):
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

  With `em_rounds` above 1 the experts of a stage are trained so often. In between, each prototype moves to the mean of
  the examples on which its expert has the least loss of all.

  Experts of one width are stacked. If their number can change, the stack has places for the next power of two, so that
  few changes need a new compilation. Experts of several widths (`expert_widths`) are trained one width after the other,
  because a stack that is padded to the largest width would compute it for all. An expert without new examples stays as
  it is, also with `init_from_scratch`. Growth counts the trainings of the stage before its last one, that of the base
  among them, the pass of the base over the data of every stage, and the losses by which prototypes are refitted and the
  cluster to split is selected.

  `spec` has `num_experts` (0 while there is only the base) and, with `expert_widths`, `widths`, that of each expert.
  `live` then is a tuple of stacks, by ascending widths, instead of a stack. `host` has `prototypes` [E, H], `counts`
  [E] of the examples so far, `losses` (sums over validation examples), `spread`, `scored`, `base_cost`, and within a
  stage `train_shares`, `val_shares` and, if there is a memory, `memory_shares`: the expert of each example; `round`,
  that of EM from 0; `todo`; and `spent`, the multiply-adds and operations so far.
  """
  combine = "probabilities"

  def __init__(self, context: Context):
    """Raises:
      BadInput: there are more clusters than training examples in the first stage, or the network has no features.
    """
    super().__init__(context)
    self._first = context.config.model.num_experts
    self._base = self.network(self.first_spec())
    expert_stacks.check_features(self._base, self._shape, context.config.model.name)
    self._feature_macs = expert_stacks.feature_macs(self._base, self._shape)
    self.scratch = False  # `grow` initialises experts itself
    if context.num_train is not None and self._first > context.num_train:
      raise BadInput(f"model.num_experts={self._first} clusters exceed the {context.num_train} training examples of "
                     "the first stage.")

  def facts(self) -> dict[str, Any]:
    return {"num_experts": 0}

  def init(self) -> LearnerState:
    host = dict(losses=[], scored=0, spread=0.0, base_cost=[0, 0])
    return super().init()._replace(host=host)

  # ------------------------------------------------------------------ a stage

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    if not state.frozen:
      return state, GrowthReport()  # the base comes first
    if not state.host.get("todo"):  # a round begins
      state = self._refitted(state, data) if state.host.get("round") else self._clustered(state, data)
      used = [np.isin(part.places, state.host["train_shares"]).any() for part in self.parts(state.spec)]
      state = state._replace(host={**state.host, "todo": np.flatnonzero(used).tolist()})
    return state, GrowthReport(*state.host["spent"])

  def _clustered(self, state: LearnerState, data: loop.StageData) -> LearnerState:
    """The state at the beginning of a stage: its clusters, and an expert for each."""
    options, host = self.options, state.host
    features, features_val = (self._features(state, data.pool, which) for which in (data.train, data.val))
    if state.spec["num_experts"]:
      (clusters, parents), spent = cluster.follow(host, features[:data.num_new], data, options), [0, 0]
    else:
      clusters = cluster.kmeans(features, self._first, cluster.rng_of(data, 0))
      _, distance = cluster.nearest(features, clusters.prototypes)
      host = {**host, "spread": float(np.sqrt((distance**2).mean()))}
      parents, spent = [0] * len(clusters.counts), host["base_cost"]
    clusters, parents = sharding.agree((clusters, np.array(parents, np.int32)))
    spec = {**state.spec, "num_experts": len(clusters.counts)}
    if options.expert_widths:
      turns, old = options.expert_widths, state.spec.get("widths")
      spec["widths"] = [old[i] for i in parents] if old else [turns[i % len(turns)] for i in range(len(parents))]
    shares = [_shares(h, clusters) for h in (features, features_val)]
    host = {**host, **_facts(clusters), "losses": [], "train_shares": shares[0], "val_shares": shares[1]}
    if len(data.memory):
      host["memory_shares"] = _shares(self._features(state, data.pool, data.memory), clusters)
    live = tuple(self._born(state, one, parents, shares[0], data.stage) for one in self._specs(spec))
    looked = self._feature_macs * (len(data.train) + len(data.val) + len(data.memory))
    if options.split_every:
      looked += host["scored"] * self.cost(state).predict_macs
    host["spent"] = [spent[0] + looked, spent[1] + 2 * looked]
    if options.expert_widths:
      return state._replace(spec=spec, live=live, average=None, host=host)
    return state._replace(spec=spec, live=live[0], host=host)

  def _born(self, state: LearnerState, spec: dict[str, Any], parents: np.ndarray, shares: np.ndarray,
            stage: int) -> Variables:
    """The experts of the part that `spec` names, at the beginning of a stage: copies of their parents, or new ones."""
    part, first = self._part(spec), not state.spec["num_experts"]
    before = {one.width: (stack, one.experts) for one, stack in zip(self.parts(state.spec), stacks(state.live))}
    if part.width not in before:
      return self.fresh(stage, spec)  # the base has another width
    stack, mine = before[part.width]
    live = self.take(stack, [mine.index(parents[expert]) if expert >= 0 else 0 for expert in part.places])
    if self.options.init == "scratch" if first else self.options.init_from_scratch:
      live = self._where(np.isin(part.places, shares), self.fresh(stage, spec), live)
    return live

  def _refitted(self, state: LearnerState, data: loop.StageData) -> LearnerState:
    """The state between two rounds of EM: the prototypes follow the experts with the least losses."""
    host, labels, new = state.host, sharding.fetch(data.pool.y), data.train[:data.num_new]
    known = np.stack([self._answers(state, expert, data.pool, new)[np.arange(len(new)), labels[new]]
                      for expert in range(state.spec["num_experts"])])  # probabilities [E, N] of the right classes
    before = host["train_shares"][:len(new)]
    best = np.where(known[before, np.arange(len(new))] >= known.max(0), before, known.argmax(0))
    sides = {"train_shares": data.train, "val_shares": data.val, "memory_shares": data.memory}
    features = {name: self._features(state, data.pool, which) for name, which in sides.items() if len(which)}
    clusters = cluster.Clusters(host["prototypes"], host["counts"])
    clusters = sharding.agree(cluster.refit(clusters, features["train_shares"][:len(new)], before, best))
    shares = {name: _shares(each, clusters) for name, each in features.items()}
    looked = self._feature_macs * sum(map(len, sides.values())) + self.context.num_views * len(new) * sum(
        len(self._part(one).experts) * cost.forward_macs(self.network(one), self._shape)
        for one in self._specs(state.spec))
    spent = [host["spent"][0] + looked, host["spent"][1] + 2 * looked]
    # Without the average of the round before: it is no part of what a resumed training starts from.
    return state._replace(average=None, host={**host, **_facts(clusters), **shares, "spent": spent})

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    if not state.spec["num_experts"]:
      return super().training(state, data)
    spec = self._turned(state)
    training = super().training(state._replace(spec=spec, live=stacks(state.live)[spec["part"]]), data)
    notes = {"em_round": state.host.get("round", 0) + 1} if self.options.em_rounds > 1 else {}
    notes |= {"width": self._part(spec).width} if self.options.expert_widths else {}
    return dataclasses.replace(training, notes=notes)

  def examples(self, state: LearnerState, data: loop.StageData) -> loop.Examples:
    if not state.spec["num_experts"]:
      return loop.Examples()
    host, places = state.host, self._part(state.spec).places
    memory = shards(data.memory, host["memory_shares"], places) if len(data.memory) else None
    return loop.Examples(own=shards(data.train, host["train_shares"], places),
                         own_val=shards(data.val, host["val_shares"], places), memory=memory)

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    spec = self._turned(state)
    network = self.network(spec)
    macs, flops = cost.forward_macs(network, self._shape), self._flops(network)
    if not state.spec["num_experts"]:
      after, report, *_ = super().finish(state, data, trained)
      base = after._replace(spec={**after.spec, "num_frozen": 1}, frozen=(after.predicting,), average=None,
                            host={**after.host, "base_cost": [macs * report.samples, flops * report.samples]})
      return StageResult(base, report, complete=False)
    after, report = self._put(state, super().finish(state, data, trained).state, spec["part"]), trained.report
    todo, number = state.host.get("todo", [])[1:], state.host.get("round", 0)
    if todo or number + 1 < self.options.em_rounds:
      spent = [old + each * report.samples for old, each in zip(state.host["spent"], (macs, flops))]
      host = {**after.host, "todo": todo, "round": number if todo else number + 1, "spent": spent}
      return StageResult(after._replace(host=host), report, complete=False)
    labels, losses, errors = sharding.fetch(data.pool.y), [0.0] * state.spec["num_experts"], 0.0
    for expert, mine in enumerate(shards(data.val, state.host["val_shares"], range(len(losses)))):
      if len(mine):
        answered = self._answers(after, expert, data.pool, mine)
        error, loss = classification.error_and_loss(answered.argmax(-1), answered, labels[mine])
        losses[expert], errors = len(mine) * loss, errors + len(mine) * error
    if self.options.expert_widths:
      report = report._replace(val=errors / len(data.val), macs=macs * report.samples, flops=flops * report.samples)
    within = ("train_shares", "val_shares", "memory_shares", "todo", "round", "spent")
    host = {key: value for key, value in after.host.items() if key not in within}
    return StageResult(after._replace(host={**host, "losses": losses, "scored": len(data.val)}), report)

  def perturbed(self, state: LearnerState, fresh: Variables) -> Variables:
    """As in Stacked, at the beginning of a stage; an expert without new examples stays as it is."""
    if not state.spec["num_experts"]:
      return super().perturbed(state, fresh)
    if state.host.get("round"):
      return state.live
    taught = np.isin(self._part(state.spec).places, state.host["train_shares"])
    return self._where(taught, super().perturbed(state, fresh), state.live)

  # ------------------------------------------------------------------ predictions and costs

  def num_blocks(self, state: LearnerState) -> int:
    return 1

  def contribution(self, state: LearnerState, block: int, inputs: Tree) -> Contribution:
    """The probabilities from the expert of each example's nearest prototype; other experts do not compute it."""
    return self._routed(state, inputs, None)

  def padded_contribution(self, state: LearnerState, block: int, inputs: Tree, mask_B: np.ndarray) -> Contribution:
    return self._routed(state, inputs, sharding.put(mask_B, self.mesh, sharding.EXAMPLES))

  def _routed(self, state: LearnerState, inputs: Tree, mask_B: Array | None) -> Contribution:
    if not state.spec["num_experts"]:
      return stacked.contribute(self._base, self._problem, self.mesh, self.combine, state.predicting, inputs)
    parts = self.parts(state.spec)
    room = sum(len(part.places) for part in parts)  # one program, however many places are taken
    prototypes_EH = np.full((room, state.host["prototypes"].shape[1]), np.inf, np.float32)
    prototypes_EH[:state.spec["num_experts"]] = state.host["prototypes"]
    return _route(self._base, tuple(self.network(one) for one in self._specs(state.spec)), self._problem,
                  sharding.dividing(self.mesh, inputs), self.combine, state.frozen[0], stacks(state.predicting),
                  prototypes_EH, tuple(_place_of(part, room) for part in parts), inputs, mask_B)

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    return self._problem.resolve(joined, 1, self.combine)

  def cost(self, state: LearnerState) -> Cost:
    """Costs of an example are those of one expert, on average over the examples so far if the experts differ."""
    params = lambda network: cost.abstract_variables(network, self._shape).params
    macs, flops = cost.forward_macs(self._base, self._shape), self._flops(self._base)
    views = self.context.num_views
    if not state.spec["num_experts"]:
      return Cost(models.count_params(params(self._base)) * state.num_held, macs, flops, macs * views)
    base = models.count_params({name: leaf for name, leaf in params(self._base).items() if name != "output"})
    held = spent = operations = 0
    for part, one in zip(self.parts(state.spec), self._specs(state.spec)):
      network, num = self.network(one), int(state.host["counts"][part.experts].sum())
      held += len(part.experts) * state.num_held * models.count_params(params(network))
      spent += num * cost.forward_macs(network, self._shape)
      operations += num * self._flops(network)
    total = int(state.host["counts"].sum())
    return Cost(base + held, spent // total, operations // total, views * (spent // total) + self._feature_macs)

  def _flops(self, network: Any) -> int:
    return optimizers.flops(self.context.config.train, network, self._shape)

  def router(self, state: LearnerState) -> Callable[[Tree], dict[str, np.ndarray]] | None:
    def weights(pool: Tree) -> dict[str, np.ndarray]:
      prototypes = state.host["prototypes"]
      nearest, _ = cluster.nearest(self._features(state, pool), prototypes)
      return {"experts": np.eye(len(prototypes), dtype=np.float32)[nearest]}

    return weights if state.frozen else None

  def describe(self, state: LearnerState) -> str:
    """Each expert's share of the examples and of the validation loss, and its width if they have several."""
    if not state.spec["num_experts"]:
      return "the base network; there are no experts yet"
    counts, losses = state.host["counts"].tolist(), state.host["losses"]
    lines = [f"experts: {len(counts)}"]
    for expert, num in enumerate(counts):
      width = f"  width {state.spec['widths'][expert]}" if state.spec.get("widths") else ""
      loss = f"  validation loss {losses[expert] / max(sum(losses), 1e-30):.1%}" if losses else ""
      lines.append(f"  expert {expert}{width}  {num / sum(counts):.1%} of the examples so far{loss}")
    return "\n".join(lines)

  def _features(self, state: LearnerState, pool: Tree, which: np.ndarray | None = None) -> np.ndarray:
    """Features [N, H] of the examples `which` of a pool; None: of all."""
    return expert_stacks.features(self._base, self._problem, self.mesh, state.frozen[0], pool, which)

  def _answers(self, state: LearnerState, expert: int, pool: Tree, which: np.ndarray) -> np.ndarray:
    """Class probabilities [N, K] of one of the experts."""
    network, one = self._expert(state, expert)
    answer = lambda inputs: stacked.contribute(network, self._problem, self.mesh, self.combine, one, inputs)
    return np.asarray(prediction.in_batches(answer, self._problem, self.mesh, pool, which)["sum"])

  def _where(self, chosen: np.ndarray, new: Variables, old: Variables) -> Variables:
    """The experts of `new` where `chosen` bool [E], and those of `old` elsewhere; on the mesh."""
    pick = lambda new, old: np.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)
    return sharding.put(jax.tree.map(pick, *sharding.fetch((new, old))), self.mesh)


@functools.partial(jax.jit, static_argnames=("base", "networks", "problem", "mesh", "combine"))
def _route(base: Any, networks: tuple[Any, ...], problem: Any, mesh: Mesh | None, combine: str, features_of: Variables,
           experts: tuple[Variables, ...], prototypes_EH: Array, place_of: tuple[Array, ...], inputs: Array,
           mask_B: Array | None) -> Contribution:
  """Joined contribution of each example's expert.

  Args:
    base: network of the features.
    networks: of the experts of each part, see expert_stacks.Part.
    problem, mesh, combine, inputs: as for stacked.contribute.
    features_of: Variables [1, ...] of the base.
    experts: Variables [M, ...] of each part.
    prototypes_EH: float32, infinite in places without an expert.
    place_of: for each part the places of all experts in its stack, int32 [E], M for experts of other parts.
    mask_B: bool, which examples are not padding; None: all.
  """
  def local(features_of: Variables, experts: tuple[Variables, ...], prototypes_EH: Array, place_of: tuple[Array, ...],
            inputs: Array, mask_B: Array | None) -> Contribution:
    features_BH = models.features(base, members.index(features_of, 0), inputs)
    nearest_B = jnp.square(features_BH[:, None] - prototypes_EH[None]).sum(-1).argmin(-1)
    block, found = members.block_size(inputs.shape[0], len(prototypes_EH)), []
    for network, stack, place_E in zip(networks, experts, place_of):
      member_B = place_E[nearest_B]
      if mask_B is not None:
        member_B = jnp.where(mask_B, member_B, jax.tree.leaves(stack)[0].shape[0])
      one = lambda member, rows, network=network: problem.contribution(network, member, rows, combine)
      found.append(members.routed(one, stack, member_B, inputs, block))
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *found)

  arguments = features_of, experts, prototypes_EH, place_of, inputs, mask_B
  if mesh is None:
    return local(*arguments)
  whole, divided = sharding.REPLICATED, sharding.EXAMPLES
  return jax.shard_map(local, mesh=mesh, check_vma=False, in_specs=(*[whole] * 4, divided, divided), out_specs=divided)(
      *arguments)


def _place_of(part: expert_stacks.Part, room: int) -> np.ndarray:
  """int32 [room], the place of each expert in the stack of its part; the number of places for other experts."""
  found = np.full(room, len(part.places), np.int32)
  found[part.experts] = np.arange(len(part.experts))
  return found


def _facts(clusters: cluster.Clusters) -> dict[str, np.ndarray]:
  """Entries of `host`."""
  return {"prototypes": clusters.prototypes.astype(np.float64), "counts": clusters.counts.astype(np.int64)}


def _shares(features: np.ndarray, clusters: cluster.Clusters) -> np.ndarray:
  """int32 [N], the cluster of each example."""
  return cluster.nearest(features, clusters.prototypes)[0].astype(np.int32)
