"""hmoe: a flat hard mixture, an independent expert for every cluster of features (docs/algorithms.md §6.1)."""
import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import cost, keys, members, models, sharding
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import fit, stacked
from alma_jax.learners.base import GrowthReport
from alma_jax.models.moe import capacity
from alma_jax.tasks import classification
from alma_jax.types import Cost


def make(context):
  """Learner of a base.Context.

  The first stage trains one network, the base; the inputs of its last layer are
  the features from then on. `model.num_experts` clusters of them (k-means of the
  stage's training examples) get an expert each: a network that is trained and
  selected on what is nearest to the cluster's prototype, and answers for it. It
  starts as a copy of the base, or from scratch (`init`). Before every later
  stage, in this order:

  - update: prototypes become the means of all that was nearest to them so far.
  - add: new examples farther from all prototypes than `add_beyond` times the
    root mean square distance in the first clusters become a cluster, if they
    are `min_shard` or more; its expert is a copy of the nearest. 0: never.
  - split: every `split_every` stages the cluster with the largest sum of
    validation losses is split by 2-means of its new examples, of which each
    half needs `min_shard`; both experts are copies. 0: never.
  - remove: clusters that fewer than `min_shard` examples ever came to.

  Experts are stacked; where their number changes there is room for the next
  power of two, so that few changes compile anything. Who gets no new example
  stays as it is, with `init_from_scratch` too. Growth counts the training of
  the base, its pass over the data of every stage, and what the losses cost that
  decide about a split.

  Raises:
    BadInput: more clusters than training examples in the first stage.
  """
  c = context.config
  options, shape, network = c.learner, (1, *context.example_shape), context.network()
  if context.num_train is not None and c.model.num_experts > context.num_train:
    raise BadInput(f"model.num_experts={c.model.num_experts} clusters exceed the {context.num_train} training examples "
                   "of the first stage.")

  def grow(state, data, fresh):
    spec = state.spec
    if not state.frozen:
      return state, GrowthReport()  # the base comes first
    features, features_val = look(state, data.pool, data.train), look(state, data.pool, data.val)
    if spec["counts"]:
      (clusters, parents), (macs, flops) = follow(spec, features[:data.num_new], data, options), (0, 0)
    else:
      clusters = cluster.kmeans(features, c.model.num_experts, _rng(data, 0))
      _, distance = cluster.nearest(features, clusters.prototypes)
      spec = {**spec, "spread": float(np.sqrt((distance**2).mean()))}
      parents, (macs, flops) = [0] * len(clusters.counts), spec["base_cost"]
    clusters, parents = sharding.agree_on((clusters, np.int32(parents)))
    spec = {**spec, "prototypes": clusters.prototypes.tolist(), "counts": clusters.counts.tolist(), "losses": [],
            "shares": [cluster.nearest(h, clusters.prototypes)[0].tolist() for h in (features, features_val)]}
    which = np.pad(parents, (0, room(spec) - len(parents)))
    live = jax.tree.map(lambda leaf: leaf[which], sharding.fetch(state.live))
    scratch = options.init_from_scratch if state.spec["counts"] else options.init == "scratch"
    if scratch:
      touched = np.isin(np.arange(len(which)), spec["shares"][0])
      pick = lambda new, old: np.where(touched.reshape(-1, *[1] * (old.ndim - 1)), new, old)
      live = jax.tree.map(pick, sharding.fetch(fresh(spec)), live)
    looked = _feature_macs(network, shape) * (len(data.train) + len(data.val))
    if options.split_every:
      looked += spec["scored"] * count(state).predict_macs
    report = GrowthReport(macs + looked, flops + 2 * looked)
    return state._replace(spec=spec, live=sharding.put(live, learner.mesh)), report

  def room(spec):
    """Experts that are stacked."""
    num = len(spec["counts"]) or 1
    return capacity(num) if options.split_every or options.add_beyond else num

  def emphasis(state, data):
    if not state.spec["counts"]:
      return fit.Emphasis()
    own, own_val = (shards(state, which, index) for which, index in zip((data.train, data.val), state.spec["shares"]))
    return fit.Emphasis(own=own, own_val=own_val)

  def finish(state, fit_state):
    before = count(state)
    state, report = learner.finish(state, fit_state)
    spec, data = state.spec, fit_state.data
    if not spec["counts"]:
      spent = [before.fwd_macs * report.samples, before.train_flops * report.samples]
      return state._replace(spec={**spec, "num_frozen": 1, "base_cost": spent}, frozen=(state.live,)), report
    labels = sharding.fetch(data.pool.y)
    losses = [0.0] * len(spec["counts"])
    experts = sharding.fetch(state.live)
    for expert, mine in enumerate(shards(state, data.val, spec["shares"][1])[:len(losses)]):
      if len(mine):
        answered = answers(experts, expert, data.pool, mine)
        losses[expert] = len(mine) * classification.error_and_loss(answered.argmax(-1), answered, labels[mine])[1]
    return state._replace(spec={**spec, "losses": losses, "scored": len(data.val), "shares": []}), report

  def look(state, pool, which):
    """Features [N, H] of the examples `which` of a pool."""
    return stacked.contribution(
        network, context.task, learner.mesh, "features", state.frozen[0], pool, which)["features"]

  def shards(state, which, index):
    """The examples `which`, expert by expert, as `index` shares them out: list of int32 arrays."""
    return [which[np.array(index) == i] for i in range(room(state.spec))]

  def answers(experts, expert, pool, which):
    """Class probabilities [N, K] of one of the experts (host Variables [E, ...])."""
    one = sharding.put(jax.tree.map(lambda leaf: leaf[expert:expert + 1], experts), learner.mesh)
    return stacked.contribution(network, context.task, learner.mesh, "probabilities", one, pool, which)["sum"]

  def contribution(state, block, pool, which=None):
    if not state.spec["counts"]:
      return learner.contribution(state, block, pool, which)
    which = np.arange(pool.x.shape[0], dtype=np.int32) if which is None else which
    joint = np.zeros((pool.x.shape[0], context.task.num_classes), np.float32)
    index, _ = cluster.nearest(look(state, pool, which), np.array(state.spec["prototypes"]))
    experts = sharding.fetch(state.live)
    for expert, mine in enumerate(shards(state, which, index)):
      if len(mine):
        joint[mine] = answers(experts, expert, pool, mine)
    return {"sum": joint[which]}

  def predict(state, x):
    if not state.spec["counts"]:
      return learner.predict(state, x)
    features = models.features(network, members.index(state.frozen[0], 0), x)
    gaps = features[:, None] - jnp.array(state.spec["prototypes"], jnp.float32)[None]
    answer = lambda member: jax.nn.softmax(network.apply(member, x, None, train=False)[0])
    answers_EBK = members.apply(answer, room(state.spec), state.live)
    return jnp.take_along_axis(answers_EBK, jnp.square(gaps).sum(-1).argmin(-1)[None, :, None], 0)[0]

  def count(state):
    one, macs = cost.abstract_variables(network, shape).params, cost.forward_macs(network, shape)
    flops, num = cost.training_flops(network, shape), len(state.spec["counts"])
    if not num:
      return Cost(models.count_params(one), macs, flops, macs)
    base = models.count_params({name: leaf for name, leaf in one.items() if name != "output"})
    return Cost(base + num * models.count_params(one), macs, flops, macs + _feature_macs(network, shape))

  def template(spec):
    base = learner.template({**spec, "num_frozen": 0, "counts": []}).live
    return learner.template({**spec, "num_frozen": 0})._replace(spec=spec, frozen=(base,) * spec["num_frozen"])

  learner = stacked.make(
      context, network, "probabilities", grow=grow, emphasis=emphasis, scratch=False,
      members=lambda spec: (room(spec), bool(spec["counts"])),
      spec={"prototypes": [], "counts": [], "losses": [], "scored": 0, "shares": [], "spread": 0.0,
            "base_cost": [0, 0]})
  return learner._replace(
      template=template, predict=predict,
      finish=finish, contribution=contribution, cost=count, describe=describe,
      complete=lambda state: bool(state.spec["counts"]),
      num_blocks=lambda state: 1,
      resolve=lambda state, joined: classification.resolve(joined, 1, "probabilities"))


def follow(spec, features, data, options):
  """The clusters of a later stage.

  Args:
    spec: of the state before.
    features: [N, H] of the stage's new training examples.
    data: StageData.
    options: options.HMoE.

  Returns:
    (Clusters, for each of them which of the old ones its expert is a copy of).
  """
  clusters = cluster.Clusters(np.array(spec["prototypes"]), np.array(spec["counts"]))
  parents, losses = list(range(len(spec["counts"]))), list(spec["losses"])
  _, distance = cluster.nearest(features, clusters.prototypes)
  far = (distance > options.add_beyond * spec["spread"]) & (options.add_beyond > 0)
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


def describe(spec):
  """Text: what each expert answers for."""
  if not spec["counts"]:
    return "one network, the base of the experts to come"
  lines = [f"experts: {len(spec['counts'])}"]
  for expert, num in enumerate(spec["counts"]):
    loss = f"  validation loss {spec['losses'][expert] / max(sum(spec['losses']), 1e-30):.1%}" if spec["losses"] else ""
    lines.append(f"  expert {expert}  {num / sum(spec['counts']):.1%} of the examples so far{loss}")
  return "\n".join(lines)


def _feature_macs(network, shape):
  """Multiply-adds of one example's features."""
  head = cost.abstract_variables(network, shape).params["output"]["kernel"]
  return cost.forward_macs(network, shape) - models.count_params(head)


def _rng(data, number):
  return keys.rng(data.seed, keys.CLUSTER, data.stage, number)
