"""Language modelling: streams of text, training, growth, resuming and sampling; properties of docs/algorithms.md §5."""
import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from runs import text_config
from stages import Stages, batches_of, begin, contribution, train_stage

from alma_jax import config as configs
from alma_jax import keys
from alma_jax.growth import duplicate
from alma_jax.learners import stacked
from alma_jax.parallel import sharding
from alma_jax.problems import language_modeling
from alma_jax.runs import settings
from alma_jax.training import batching, loop, optimizers

pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has")  # the text yields fewer than 300 units


def setting_of(books, learner="sm", **changes):
  return settings.prepare(configs.parse(text_config(books, learner, **changes)))


def test_windows_come_in_endless_permutations(books):
  setting = setting_of(books, "ens", train__steps=70)
  data = Stages(setting)[0]
  num = len(data.train)
  assert 2 * num < 70 * 4  # each window more than twice
  training = setting.learner.training(setting.learner.init(), data)

  def read(start, stop):
    return np.array([np.concatenate(batches) for batches in batches_of(training, start, stop)])

  whole = read(0, 70)
  for again in range(2):
    for member in range(2):
      assert sorted(whole[member, again * num:(again + 1) * num]) == sorted(data.train)
  assert not np.array_equal(whole[0], whole[1])
  np.testing.assert_array_equal(whole[:, 36:100], read(9, 25))
  rows = batching.train_batches(training, 3, 9)
  np.testing.assert_array_equal(rows.examples[:6].transpose(1, 0, 2).reshape(2, -1), whole[:, 12:36])
  assert rows.num_examples[:6].tolist() == [4] * 6
  assert rows.num_steps == 6
  assert np.flatnonzero(rows.ends_round[:6]).tolist() == [0, 4]  # validations after steps 4, 8, ...


def test_members_have_keys_of_their_own(books):
  setting = setting_of(books, "ens", model__dropout=0.5)
  fitting = begin(setting.learner, setting.learner.init(), Stages(setting)[0])
  assert len(np.unique(jax.device_get(fitting.own.key), axis=0)) == 2


def test_the_balance_loss_is_a_mean_over_groups_that_hold_tokens(books):
  setting = setting_of(books, model__group_size=4)
  task, network = setting.facts.problem, setting.learner.network(setting.learner.first_spec())
  variables = jax.tree.map(lambda leaf: leaf[0], setting.learner.init().live)
  variables = variables._replace(params=jax.tree_util.tree_map_with_path(
      lambda path, leaf: leaf * 0 if "router" in str(path) else leaf, variables.params))
  pool = language_modeling.Pool(np.ones((3, 17), np.int32), np.array([4, 9, 16], np.int32))  # 1, 3 and 4 groups
  mask = np.array([True, True, True])
  output, _ = jax.jit(lambda v: network.apply(v, task.inputs(pool, pool), mask, train=True))(variables)

  def norm(pool, mask):
    return task.norm(pool, mask, 3)

  mesh = sharding.make_mesh(1, 1)
  tokens, groups = jax.shard_map(norm, mesh=mesh, in_specs=jax.sharding.PartitionSpec(),
                                 out_specs=jax.sharding.PartitionSpec(), check_vma=False)(pool, mask)
  assert (int(tokens), int(groups)) == (29, 8)
  np.testing.assert_allclose(float(output.balance) / 8, 1, rtol=1e-5)  # uniform routers


def test_targets_that_do_not_count_change_nothing(books):
  setting = setting_of(books)
  task, network = setting.facts.problem, setting.learner.network(setting.learner.first_spec())
  variables = jax.tree.map(lambda leaf: leaf[0], setting.learner.init().live)
  tokens = np.random.default_rng(0).integers(0, 200, (3, 17)).astype(np.int32)
  long, short = (pool_of(tokens, length) for length in ([16, 5, 16], [16, 5, 0]))
  scrambled = tokens.copy()
  scrambled[1, 6:] = 1
  same = pool_of(scrambled, [16, 5, 16])
  sums = [network_sums(task, network, variables, pool, np.array(mask)) for pool, mask in (
      (long, [True] * 3), (same, [True] * 3), (long, [True, True, False]), (short, [True] * 3))]
  assert [int(s.tokens) for s in sums] == [37, 37, 21, 21]
  np.testing.assert_allclose(float(sums[0].loss), float(sums[1].loss), rtol=1e-6)
  np.testing.assert_allclose(float(sums[2].loss), float(sums[3].loss), rtol=1e-6)
  assert int(sums[0].load.sum()) == 37


def pool_of(tokens, length):
  return language_modeling.Pool(tokens, np.array(length, np.int32))


@functools.partial(jax.jit, static_argnums=(0, 1))
def network_sums(task, network, variables, pool, mask):
  output, _ = network.apply(variables, task.inputs(pool, pool), mask, train=False)
  return task.sums(output, pool, mask)


def log_probs_of(setting, state):
  """Of the first block's networks for the test text, added up: float32 [N, L]."""
  return contribution(setting, state, 0, setting.protocol.source.test_pool(setting.learner.mesh))["log_sum"]


def test_an_ensembles_loss_is_that_of_averaged_probabilities(books):
  setting = setting_of(books, "ens", learner__num_members=3)
  state = setting.learner.init()
  pool = setting.protocol.source.test_pool(setting.learner.mesh)
  task, length = setting.facts.problem, np.asarray(pool.length)
  joint = setting.learner.resolve(state, contribution(setting, state, 0, pool))
  counts = np.arange(joint.shape[1])[None] < length[:, None]
  ones = [state._replace(live=setting.learner.take(state.live, [i])) for i in range(3)]
  singles = [log_probs_of(setting, one) for one in ones]
  expected = np.log(np.mean(np.exp(np.float64(singles)), 0))
  np.testing.assert_allclose(joint[counts], expected[counts], rtol=1e-5, atol=1e-5)
  losses = [-single[counts].mean(dtype=np.float64) for single in singles]
  perplexity, loss = map(setting.protocol.source.score(joint).get, ("perplexity", "loss"))
  assert loss < np.mean(losses)  # Jensen
  assert loss == pytest.approx(-expected[counts].mean(), rel=1e-5)
  assert perplexity == pytest.approx(math.exp(loss))
  halves = task.join(task.join(None, {"log_sum": task.merge({"log_sum": np.stack(singles[:2])})["log_sum"]}),
                     {"log_sum": singles[2]})
  np.testing.assert_allclose(task.resolve(halves, 3, "")[counts], joint[counts], rtol=1e-5, atol=1e-5)


def test_every_test_token_is_evaluated_once(books):
  whole = setting_of(books, dataset__cross_documents=False)
  corpus = whole.protocol.source.corpus
  held_out = whole.protocol.source._held_out["test"]
  targets = [np.arange(start + 1, start + length + 1) for start, length in zip(held_out.start, held_out.length)]
  assert sorted(np.concatenate(targets)) == list(range(1, len(corpus.splits["test"].ids)))  # all but the first END
  few = setting_of(books, dataset__eval_tokens=100)
  assert 16 <= few.protocol.source._held_out["test"].length.sum() <= 100


def test_a_stage_knows_its_own_mega_batches_only(books):
  setting = setting_of(books, stream__waiting_time=2)
  corpus, stages = setting.protocol.source.corpus, Stages(setting)
  bounds = [*corpus.splits["train"].starts, len(corpus.splits["train"].ids) - 1]
  for stage in range(2):
    data = stages[stage]
    first, last = bounds[corpus.parts[2 * stage]], bounds[corpus.parts[2 * stage + 2]]
    start = data.pool.windows.start[data.train]
    assert (start.min(), data.pool.windows.length[data.train].sum()) == (first, last - first)
    assert (start + data.pool.windows.length[data.train]).max() == last
    assert len(data.val) == len(setting.protocol.source._held_out["valid"].start)


def test_the_schedule_is_restarted_and_ends_at_zero(books):
  train = setting_of(books, train__steps=10, train__warmup_steps=3, train__learning_rate=0.4).config.train
  # Up to 0.4 at step 3, then down by 0.4 / 7 a step.
  expected = [0.1, 0.2, 0.3, *(0.4 * (1 - i / 7) for i in range(7))]
  np.testing.assert_allclose([optimizers.rate(train, step) for step in range(10)], expected, rtol=1e-6)
  tripled = dataclasses.replace(train, steps_multiplier=3)
  assert optimizers.rate(tripled, 29) == pytest.approx(0.4 / 27)
  assert tripled.plan(1).steps == 30
  none = dataclasses.replace(train, warmup_steps=0)
  assert optimizers.rate(none, 0) == pytest.approx(0.4)
  # With decay=0.3 it is constant until the last 3 steps; later stages begin at half of it.
  flat = dataclasses.replace(train, decay=0.3, restart=0.5)
  expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4 * 2 / 3, 0.4 / 3]
  for stage, factor in ((0, 1.0), (1, 0.5), (2, 0.5)):
    np.testing.assert_allclose([optimizers.rate(flat, step) * flat.factors(stage, [step], 10)[0]
                                for step in range(10)], np.multiply(expected, factor), rtol=1e-6)
  setting = setting_of(books)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  begun = begin(setting.learner, state, Stages(setting)[1])
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(begun.state.members.opt)))


def test_scores_are_the_loss_of_the_tokens_routed(books):
  setting = setting_of(books, "gmoe")
  data, state = Stages(setting)[0], setting.learner.init()
  network, task = setting.learner.network(state.spec), setting.facts.problem
  found = duplicate.scores(network, task, state.live, data.val_pool, data.val, setting.learner.mesh)["layer1"]
  variables = jax.tree.map(lambda leaf: leaf[0], state.live)
  pool = jax.device_get(data.val_pool)
  output, _ = jax.jit(lambda v: network.apply(v, task.inputs(pool, pool), None, train=False))(variables)
  expected = [-float(output.log_probs[output.expert[0] == e].sum()) for e in range(2)]
  np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_noise_makes_copies_differ_and_leaves_the_others(books):
  setting = setting_of(books, "gmoe")
  live = jax.device_get(setting.learner.init().live)
  grown = duplicate.grow(live, {"layer1": np.array([1])}, True, 0.5, keys.rng(0, keys.GATES, 1))
  router, old = grown.params["layer1"]["router"], live.params["layer1"]["router"]
  np.testing.assert_allclose(router[..., 1] + router[..., 2], 2 * old[..., 1], rtol=1e-5, atol=1e-6)
  assert np.std(router[..., 1] - router[..., 2]) > 0.5
  np.testing.assert_array_equal(router[..., 0], old[..., 0])
  np.testing.assert_allclose(grown.stats["layer1"]["offset"], [[0, -math.log(2), -math.log(2)]], rtol=1e-6)
  assert live.params["layer1"]["router"].shape[-1] == 2  # the input has not changed


def test_what_a_learner_knows_is_that_of_the_chosen_candidate(books, monkeypatch):
  def finish(self, state, data, trained):
    result = plain(self, state, data, trained)
    host = {**state.host, "mine": trained.report.val, "array": np.array([trained.report.val])}
    return result._replace(state=result.state._replace(host=host))

  plain = stacked.Stacked.finish
  monkeypatch.setattr(stacked.Stacked, "finish", finish)
  setting = setting_of(books, train__learning_rate=(0.01, 1e-6))
  state, report, _ = train_stage(setting, setting.learner.init(), 0)
  assert set(state.host) == {"tuning", "chosen", "mine", "array"}
  assert state.host["chosen"] == [[0, []]]
  assert state.host["mine"] == state.host["array"][0] == report.val


def test_a_gmoe_that_never_grows_may_name_more_experts_than_there_are(books):
  configs.parse(text_config(books, "gmoe", learner__add_experts=(3,), stream__waiting_time=4))  # it never grows


def test_padded_batches_of_devices(books):
  for batch, devices, micro, group, padded, at_once in (
      (6, 2, 2, 16, 8, 2),  # three each, in two parts of at most two
      (192, 8, 16, 16, 192, 12), (192, 4, 16, 16, 192, 16), (192, 8, 8, 16, 192, 8), (6, 1, 0, 16, 6, 6),
      (6, 4, 0, 32, 8, 2), (4, 4, 0, 32, 8, 2)):
    setting = setting_of(books, devices=devices, train__batch_size=batch, train__micro_batch=micro,
                         model__group_size=group)
    spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 1, 1, setting.learner.mesh, True)
    assert (spec.padded_batch, spec.at_once) == (padded, at_once)
  assert sharding.make_mesh(1, 2).size == 2
