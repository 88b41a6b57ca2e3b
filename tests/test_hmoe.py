"""The flat hard mixture: properties of docs/algorithms.md §6.1."""
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import blobs, slow, small_config
from stages import (
  Stages,
  advance,
  arrays_equal,
  assert_close,
  begin,
  contribution,
  fit_stage,
  member,
  setting_of,
  train_stage,
)

import alma_jax
from alma_jax import export
from alma_jax.errors import BadInput
from alma_jax.growth import cluster
from alma_jax.learners import prediction, stacked
from alma_jax.models import layers, network
from alma_jax.parallel import members
from alma_jax.predictors import folder, predictor
from alma_jax.training import loop


def mixture_of(data=None, **changes):
  return setting_of("hmoe", data, **{"model__num_experts": 3, **changes})


def cloud(num, seed=0):
  """Points around three centres in the plane, which are 10 apart."""
  rng = np.random.default_rng(seed)
  centres = np.array([[0.0, 0], [10, 0], [0, 10]])
  return centres[np.arange(num) % 3] + rng.normal(size=(num, 2))


def test_kmeans_is_at_a_fixed_point():
  points = cloud(90)
  found = cluster.kmeans(points, 3, np.random.default_rng(0))
  index, distance = cluster.nearest(points, found.prototypes)
  assert found.counts.tolist() == [30, 30, 30]
  np.testing.assert_allclose(found.prototypes, [points[index == i].mean(0) for i in range(3)], rtol=1e-5)
  np.testing.assert_allclose(distance, np.linalg.norm(points - found.prototypes[index], axis=1))
  again = cluster.kmeans(points, 3, np.random.default_rng(0))
  np.testing.assert_array_equal(found.prototypes, again.prototypes)
  spread = lambda c: (cluster.nearest(points, c.prototypes)[1]**2).sum()
  assert spread(found) <= min(spread(cluster.Clusters(points[3 * i:3 * i + 3], None)) for i in range(20))
  assert len(cluster.kmeans(np.ones((5, 2)), 3, np.random.default_rng(0)).counts) == 1  # all points are equal


def test_update_is_a_running_mean():
  clusters = cluster.Clusters(np.array([[0.0], [10.0]]), np.array([2, 3]))
  new = cluster.update(clusters, np.array([[3.0], [1.0], [12.0]]))
  np.testing.assert_allclose(new.prototypes, [[(2 * 0 + 3 + 1) / 4], [(3 * 10 + 12) / 4]])
  assert new.counts.tolist() == [4, 4]
  assert clusters.counts.tolist() == [2, 3]
  np.testing.assert_array_equal(clusters.prototypes, [[0.0], [10.0]])
  np.testing.assert_array_equal(cluster.update(clusters, np.array([[0.0]])).prototypes[1], [10.0])


def test_add_split_and_remove():
  clusters = cluster.Clusters(np.array([[0.0], [10.0]]), np.array([40, 4]))
  added, parent = cluster.add(clusters, np.array([[20.0], [22.0]]))
  np.testing.assert_array_equal(added.prototypes, [[0.0], [10.0], [21.0]])
  assert (added.counts.tolist(), parent) == ([40, 4, 2], 1)
  four = np.array([[-1.0], [-1.2], [1.0], [-0.8]])  # means -1 of three and 1 of one, of all 40: -0.5; moved by 0.5
  halves = cluster.split(clusters, 0, four, 1, np.random.default_rng(0))
  np.testing.assert_allclose(sorted(halves.prototypes[[0, 2], 0]), [-0.5, 1.5], rtol=1e-6)
  assert sorted(halves.counts.tolist()) == [4, 10, 30]
  np.testing.assert_allclose(np.average(halves.prototypes[[0, 2], 0], weights=halves.counts[[0, 2]]), 0, atol=1e-6)
  assert cluster.split(clusters, 0, four, 2, np.random.default_rng(0)) is clusters  # one would have a single example
  left, kept = cluster.remove(clusters, 5)
  assert (left.prototypes.tolist(), left.counts.tolist(), kept.tolist()) == ([[0.0]], [40], [0])
  assert cluster.remove(clusters, 1000)[1].tolist() == [0]  # the largest stays
  points = np.linspace(-5, 20, 101)[:, None]  # only the points of the removed cluster change their cluster
  before, after = (cluster.nearest(points, c.prototypes)[0] for c in (added, cluster.remove(added, 3)[0]))
  np.testing.assert_array_equal(before[before < 2], after[before < 2])
  assert set(after[before == 2]) == {1}


def test_refitting_moves_the_examples_of_this_stage():
  """Of the 3 examples of cluster 0 one is of an earlier stage; its mean stays in the prototype."""
  clusters = cluster.Clusters(np.array([[0.0], [10.0], [50.0]]), np.array([3, 1, 0]))
  points = np.array([[-1.0], [4.0], [10.0]])
  new = cluster.refit(clusters, points, np.array([0, 0, 1]), np.array([0, 1, 1]))
  np.testing.assert_array_equal(new.prototypes, [[-0.5], [7.0], [50.0]])  # (0 - 1) / 2, (4 + 10) / 2
  assert new.counts.tolist() == [2, 2, 0]
  with_less = cluster.refit(clusters, points, np.array([0, 0, 1]), np.array([0, 0, 0]))
  np.testing.assert_allclose(with_less.prototypes, [[13 / 4], [10.0], [50.0]], rtol=1e-6)  # the second keeps its own
  assert with_less.counts.tolist() == [3, 1, 0]


def alike(setting, combine, variables, pool):
  """The contribution of stacked networks of one kind for a pool, joined by `combine`."""
  learner, task = setting.learner, setting.facts.problem
  network = learner.network(learner.first_spec())
  one = lambda inputs: stacked.contribute(network, task, learner.mesh, combine, variables, inputs)
  return prediction.in_batches(one, task, learner.mesh, pool)


def nearest_of(setting, state, pool):
  """The expert whose prototype is nearest to the features of each example of a pool."""
  features = alike(setting, "features", state.frozen[0], pool)["features"]
  return cluster.nearest(features, state.host["prototypes"])[0]


def test_shards_partition_and_experts_predict_for_their_own():
  setting = mixture_of()
  state, report, _ = train_stage(setting, setting.learner.init(), 0)
  learner, data = setting.learner, Stages(setting)[1]
  state, _ = learner.grow(state, data)
  fitting = begin(learner, state, data)
  own, own_val = fitting.examples.own, fitting.examples.own_val
  assert sorted(np.concatenate(own)) == sorted(data.train)
  assert len(own) == 3
  assert min(map(len, own)) > 0
  assert report.samples == 2 * len(Stages(setting)[0].train)
  joint = contribution(setting, state, 0, data.pool)["sum"]
  for i, (train, val) in enumerate(zip(own, own_val)):
    alone = alike(setting, "probabilities", learner.take(state.live, [i]), data.pool)["sum"]
    for part in (train, val):
      np.testing.assert_allclose(joint[part], alone[part], atol=1e-6)
  index = nearest_of(setting, state, data.pool)
  for i, train in enumerate(own):
    assert set(index[train]) == {i}
  part = contribution(setting, state, 0, data.pool, data.val)["sum"]
  np.testing.assert_allclose(part, joint[data.val], atol=1e-6)


@pytest.mark.parametrize(("num", "block"), [(1, 4), (5, 1), (100, 4)])
def test_rows_are_computed_by_their_member_alone(num, block):
  """B rows in M groups, each filled up to a whole number of blocks."""
  num_members, computed = 4, []
  rng = np.random.default_rng(0)
  kernels, x = rng.normal(size=(num_members, 3, 2)).astype(np.float32), rng.normal(size=(num, 3)).astype(np.float32)
  member_B = rng.integers(0, num_members + 1, num).astype(np.int32)  # that of the last number is none

  def one(kernel, rows):
    jax.debug.callback(lambda rows: computed.append(len(rows)), rows)
    return {"sum": rows @ kernel}

  found = jax.jit(lambda *args: members.routed(one, *args, min(block, num)))(kernels, member_B, x)["sum"]
  jax.effects_barrier()
  counts, block = np.bincount(member_B, minlength=num_members)[:num_members], min(block, num)
  assert sum(computed) == sum(-(-counts // block)) * block <= num + num_members * (block - 1)
  padded = np.concatenate([kernels, np.zeros((1, 3, 2), np.float32)])
  np.testing.assert_allclose(found, np.einsum("bi,bik->bk", x, padded[member_B]), rtol=1e-6, atol=1e-6)  # sums of 3


class Telling(nn.Module):
  """A network whose probabilities p tell about the rows that it computes together: p0/p2 is their number.

  p1/p2 depends on all of them, and so tells one computation from another.
  """
  width: int
  num_classes: int
  dtype: object
  axis: str | None

  @nn.compact
  def __call__(self, x, mask, train):
    logits_BK = layers.Head(self.num_classes, self.dtype, name="output")(x)
    if train:
      return logits_BK
    told = jnp.stack([jnp.ones(x.shape[0]).sum(), 1 + jnp.square(x.mean((1, 2, 3))).sum(), jnp.float32(1)])
    return jnp.broadcast_to(jnp.log(told)[None], logits_BK.shape)


@dataclasses.dataclass(frozen=True)
class TellingModel(alma_jax.Model):
  """`Telling`, which sees all rows of a block at once, as a network of the package does."""
  name: str = "telling"

  def build(self, num_outputs, example_shape, dtype, axis, **changes):
    return network.ImageNetwork(Telling(self.width, num_outputs, dtype, axis))


def rows_computed(probabilities):
  """The number of rows that were computed for these answers of `Telling`: each computation counts once."""
  return sum(round(float(first / last)) for first, _, last in np.unique(probabilities, axis=0))


@pytest.mark.parametrize("changes", [{}, slow({"learner__expert_widths": (4, 6)})])
def test_an_example_passes_through_one_expert_in_a_run_and_in_its_export(tmp_path, changes):
  alma_jax.register(TellingModel)
  config = small_config("hmoe", model__name="telling", model__num_experts=3, learner__min_shard=1, train__epochs=1,
                        **changes)
  data = (*blobs(240), *blobs(700, seed=1))
  run = alma_jax.run(config, tmp_path / "run", data=data)
  exported = predictor.load(folder.read(export.export(run))).program
  for num in (1, 40, 700):
    x = data[2][:num, ..., None]
    batches = -(-num // 512)  # in which a run computes
    assert num <= rows_computed(run.predict(x)) <= num + batches * 3 * members.block_size(512, 3)
    told = rows_computed(exported(x, size=num)[1])
    assert num <= told <= num + 3 * members.block_size(num, 3) <= max(1.5 * num, num + 3)


@pytest.mark.parametrize(("how", "optimizer"), [
    ("stepwise", "sgd"), slow("looped", "adadelta"), slow("vmapped", "adadelta"), slow("devices", "adadelta")])
def test_experts_train_as_separate_runs_on_their_shards(monkeypatch, how, optimizer):
  if how == "vmapped":
    jax.clear_caches()
    monkeypatch.setattr(members, "UNROLL_AT", 0)
  momentum = {"train__momentum": 0.9, "train__weight_decay": 1e-2, "train__learning_rate": 0.1}
  setting = setting_of("ens", learner__num_members=3, train__epochs=3, train__optimizer=optimizer,
                       train__batch_size=32, devices=4 if how == "devices" else 1,
                       **(momentum if optimizer == "sgd" else {}))
  learner, data = setting.learner, Stages(setting)[0]
  training = learner.training(learner.init(), data)
  training = dataclasses.replace(training, spec=dataclasses.replace(training.spec, stepwise=how == "stepwise"))
  own = [data.train[:70], data.train[70:], data.train[:0]]
  own_val = [data.val[:4], data.val[4:], data.val[:0]]
  sharded = dataclasses.replace(training.spec, own_examples=True)
  trained, epochs = run(dataclasses.replace(training, spec=sharded, examples=loop.Examples(own=own, own_val=own_val)))
  assert trained.report.samples == 3 * (70 + 38)
  assert arrays_equal(member(trained.variables, 2), member(training.variables, 2))
  for i in range(2):
    # As a stack whose members all train on this shard; member i is compared.
    alone, its_epochs = run(dataclasses.replace(training, data=data._replace(train=own[i], val=own_val[i])))
    assert_close(member(trained.variables, i), member(alone.variables, i), 1e-5)
    for mine, its in zip(epochs, its_epochs, strict=True):
      for key, value in mine.members.items():
        np.testing.assert_allclose(value[i], its.members[key][i], atol=1e-5)


def run(training):
  """(loop.Trained, entries per epoch) of a whole loop.Training."""
  fit, epochs = advance(loop.begin(training))
  return loop.finish(fit), epochs


def test_one_expert_from_scratch_is_a_single_model():
  changes = dict(train__patience=2, train__epochs=9, train__learning_rate=0.5)
  mixture = mixture_of(model__num_experts=1, learner__init="scratch", **changes)
  single = setting_of("sm", **changes)
  one, other = mixture.learner.init(), single.learner.init()
  for stage in range(2):
    one, report, _ = train_stage(mixture, one, stage)
    other, expected, _ = train_stage(single, other, stage)
    assert report == expected
    assert report.rounds < 9
    assert_close(one.live, other.live, 1e-5)
  base, _, _ = train_stage(single, single.learner.init(), 0)
  assert arrays_equal(one.frozen[0], base.live)  # never changed again


@pytest.mark.parametrize("scratch", [False, True])
def test_an_expert_without_new_examples_stays_as_it_is(scratch):
  x, y = blobs(240)
  setting = mixture_of((x, y, *blobs(60, seed=1)), learner__init_from_scratch=scratch)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  learner, data = setting.learner, Stages(setting)[1]
  grown, _ = learner.grow(state, data)
  shards = learner.training(grown, data).examples.own
  train = np.concatenate([shards[0], shards[2]])
  some = data._replace(train=train, num_new=len(train))
  grown, _ = learner.grow(state, some)
  assert len(learner.training(grown, some).examples.own[1]) == 0
  after = fit_stage(learner, grown, some)[0].state
  assert arrays_equal(member(after.live, 1), member(state.live, 1))
  assert not arrays_equal(member(after.live, 0), member(state.live, 0))


def test_costs_are_those_of_one_expert_and_of_the_base():
  setting = mixture_of()
  learner, data = setting.learner, Stages(setting)[0]
  first = learner.init()
  single = 4 * 4 + (36 + 1 + 3) * 4 + 3 + 4  # §7 with h=4, D=36, K=3
  macs, features = 4 * 4 + (36 + 3) * 4, 4 * 4 + 36 * 4
  assert learner.cost(first).num_params == single
  assert learner.cost(first).predict_macs == learner.cost(first).fwd_macs == macs
  (base, _, complete, _), _ = fit_stage(learner, first, data)
  assert not complete  # the experts of the stage are not trained yet
  grown, growth = learner.grow(base, data)
  (state, report, complete, _), _ = fit_stage(learner, grown, data)
  assert complete
  cost = learner.cost(state)
  assert cost.num_params == 3 * single + single - (4 + 1) * 3  # the base does not need its last layer any more
  assert (cost.fwd_macs, cost.predict_macs) == (macs, macs + features)
  assert report.samples == 2 * len(data.train)  # two epochs, every example once
  assert growth.macs == 2 * len(data.train) * macs + features * (len(data.train) + len(data.val))
  _, later = learner.grow(state, Stages(setting)[1])
  sizes = setting.protocol.source.memory.sizes((2, 4))
  assert later.macs == features * (sizes.train[1] + sizes.val[1])


def test_a_split_keeps_the_predictions_of_examples_that_stay_with_its_halves():
  setting = mixture_of(learner__split_every=1, learner__min_shard=5)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  learner, data = setting.learner, Stages(setting)[1]
  worst = int(np.argmax(state.host["losses"]))
  grown, _ = learner.grow(state, data)
  assert len(grown.host["counts"]) == grown.spec["num_experts"] == 4
  assert arrays_equal(member(grown.live, 3), member(state.live, worst))
  assert arrays_equal(member(grown.live, worst), member(state.live, worst))
  before, after = (nearest_of(setting, s, data.pool) for s in (state, grown))
  stays = (before == after) | ((before == worst) & (after == 3))
  assert ((before == worst) & (after == 3)).any()
  old, new = (contribution(setting, s, 0, data.pool)["sum"] for s in (state, grown))
  np.testing.assert_allclose(old[stays], new[stays], atol=1e-6)
  assert "experts: 4" in learner.describe(grown)


def test_clusters_follow_the_stream():
  host = {"prototypes": np.array([[0.0, 0], [10, 0]]), "counts": np.array([30, 3]), "losses": [1.0, 5.0],
          "spread": 1.0}
  data = loop.StageData(1, 0, None, None, None, None, None)
  options = lambda **changes: mixture_of(**{f"learner__{key}": value for key, value in changes.items()}).config.learner
  points = np.vstack([cloud(30)[::3], cloud(30)[2::3]])  # ten around 0 0, ten around 0 10
  clusters, parents = cluster.follow(host, points, data, options(min_shard=3))
  assert (clusters.counts.tolist(), parents) == ([50, 3], [0, 1])
  clusters, parents = cluster.follow(host, points, data, options(min_shard=4))  # the second keeps a count of 3
  assert (clusters.counts.tolist(), parents) == ([50], [0])
  clusters, parents = cluster.follow(host, points, data, options(min_shard=3, add_beyond=5.0))
  assert (clusters.counts.tolist(), parents) == ([40, 3, 10], [0, 1, 0])
  np.testing.assert_allclose(clusters.prototypes[2], points[10:].mean(0))
  assert len(cluster.follow(host, points, data, options(min_shard=11, add_beyond=5.0))[1]) == 1  # ten are too few
  clusters, parents = cluster.follow(host, points, data, options(min_shard=3, split_every=1))
  assert parents == [0, 1, 0]  # the second has the larger loss, but no new example
  means = np.array([points[:10].mean(0), points[10:].mean(0)])
  np.testing.assert_allclose(np.ptp(clusters.prototypes[[0, 2]], 0), np.ptp(means, 0), rtol=1e-5)
  middle = np.average(clusters.prototypes[[0, 2]], 0, clusters.counts[[0, 2]])
  np.testing.assert_allclose(middle, points.mean(0) * 20 / 50, rtol=1e-5)
  assert cluster.follow(host, points, data._replace(stage=3), options(min_shard=3, split_every=2))[1] == [0, 1]


def rounds(setting, stage=0, state=None):
  """The states after each training of a stage, the last one complete, with the costs of growth."""
  learner, data, complete = setting.learner, Stages(setting)[stage], False
  state = learner.init() if state is None else state
  while not complete:
    state, growth = learner.grow(state, data)
    (state, report, complete, _), epochs = fit_stage(learner, state, data)
    yield state, growth, report, epochs


def test_a_round_of_em_moves_prototypes_to_the_examples_of_least_loss():
  _, (once, _, first, _) = rounds(mixture_of())
  setting = mixture_of(learner__em_rounds=2)
  _, (state, before, _, _), (after, growth, report, epochs) = rounds(setting)
  learner, data = setting.learner, Stages(setting)[0]
  assert arrays_equal(state.live, once.live)  # the first round is that of a run with one round
  known = [alike(setting, "probabilities", learner.take(state.live, [i]), data.pool)["sum"] for i in range(3)]
  right = np.array(known)[:, data.train, np.asarray(data.pool.y)[data.train]]
  old = state.host["train_shares"]
  best = np.where(right[old, np.arange(len(old))] >= right.max(0), old, right.argmax(0))
  features = alike(setting, "features", state.frozen[0], data.pool)["features"][data.train]
  for i in np.unique(best):
    np.testing.assert_allclose(after.host["prototypes"][i], features[best == i].mean(0), rtol=1e-4, atol=1e-5)
  nearest, _ = cluster.nearest(features, after.host["prototypes"])
  np.testing.assert_array_equal(after.host["counts"], np.bincount(nearest, minlength=3))
  assert after.host.keys() == once.host.keys()
  macs = setting.learner.cost(after).fwd_macs
  looked = (len(data.train) + len(data.val)) * (4 * 4 + 36 * 4) + len(data.train) * 3 * macs
  assert growth.macs == before.macs + macs * first.samples + looked
  assert report.samples == 2 * len(data.train)
  assert [epoch.joint["em_round"] for epoch in epochs] == [2, 2]


def test_experts_of_equal_widths_are_those_without_widths():
  plain, listed = mixture_of(), mixture_of(learner__expert_widths=(4,))
  one, other = (train_stage(each, each.learner.init(), 0) for each in (plain, listed))
  assert arrays_equal(one[0].live, other[0].live[0])
  assert one[1]._replace(macs=None, flops=None) == other[1]._replace(macs=None, flops=None, val=one[1].val)
  assert other[1].val == pytest.approx(one[1].val)
  assert plain.learner.cost(one[0]) == listed.learner.cost(other[0])


def test_more_widths_than_experts_are_refused():
  with pytest.raises(BadInput, match=r"expert_widths=\(4, 5, 6, 7\) has more widths than model.num_experts=3"):
    mixture_of(learner__expert_widths=(4, 5, 6, 7))


def test_replayed_examples_are_not_counted_again():
  setting = mixture_of(stream__replay=1.0)
  state = setting.learner.init()
  for stage in range(2):
    state, _, _ = train_stage(setting, state, stage)
  assert state.host["counts"].sum() == 216  # all training examples, once
  assert Stages(setting)[1].num_new == 108
  assert len(Stages(setting)[1].train) == 216


def test_more_clusters_than_examples_are_refused():
  with pytest.raises(BadInput, match="109 clusters exceed the 108 training examples of the first stage"):
    mixture_of((*blobs(240), *blobs(60, seed=1)), model__num_experts=109)
  mixture_of(model__num_experts=108)
