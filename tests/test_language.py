"""Language modelling: streams of text, training, growth, resuming and sampling; properties of docs/algorithms.md §5."""
import dataclasses
import functools
import json
import math
import socket
import subprocess

import jax
import numpy as np
import pytest
from runs import ROOT, alma, command, interrupted, launch, lines, one_step_a_dispatch, slow
from stages import Stages, arrays_equal, assert_close, batches_of, begin, contribution, train_stage

import alma_jax
from alma_jax import config as configs
from alma_jax import keys
from alma_jax.errors import BadInput
from alma_jax.growth import duplicate
from alma_jax.learners import stacked
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.problems import language_modeling
from alma_jax.runs import sampling, settings
from alma_jax.training import batching, loop

TOY = {"dataset.vocab_size": 300, "dataset.sequence_length": 16, "model.width": 16, "model.num_layers": 2,
       "model.num_heads": 2, "train.steps": 6, "train.warmup_steps": 2, "train.batch_size": 4, "train.eval_every": 4,
       "train.learning_rate": (0.01,)}
SPOKEN = "the cat sat on a mat and then it ran to see some dog by that old red barn again"


def sentences(seed, num=60):
  rng = np.random.default_rng(seed)
  return "\n".join(" ".join(rng.choice(SPOKEN.split(), 8)) for _ in range(num))


@pytest.fixture(scope="module")
def books(tmp_path_factory):
  """12 training documents of 60 lines, 2 for validation and 2 for test."""
  root = tmp_path_factory.mktemp("books")
  for split, num in (("train", 12), ("valid", 2), ("test", 2)):
    (root / split).mkdir()
    for i in range(num):
      (root / split / f"{i:02d}.txt").write_text(sentences(100 * len(split) + i))
  return root


def text_config(books, learner="sm", **changes):
  """A run of seconds: 4 mega-batches, 6 steps each of 4 windows of 16 tokens."""
  config = configs.language(learner, "tiny")
  config.update_from_flattened_dict(TOY | {
      "dataset.name": f"text:{books}", "devices": 1, "log.progress": False, "log.tensorboard": False})
  if learner == "gmoe":
    config.model.num_experts, config.learner.add_experts = 2, (1, 2)
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return config


pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has")  # the text yields fewer than 300 units


def setting_of(books, learner="sm", **changes):
  return settings.prepare(configs.parse(text_config(books, learner, **changes)))


@pytest.mark.parametrize("learner", ["gmoe", slow("sm"), slow("ens"), slow("gens")])
def test_every_learner_through_the_entry_point(tmp_path, books, learner):
  flags = [f"--config.{key}={value}" for key, value in TOY.items()]
  flags += [f"--workdir={tmp_path / 'run'}", f"--config.dataset.name=text:{books}", "--config.stream.waiting_time=3"]
  done = launch(f"configs/lm.py:{learner},tiny", *flags)
  assert done.returncode == 0, done.stderr
  run = alma_jax.load_run(tmp_path / "run")
  entries = lines(run.path, "metrics.jsonl")
  assert list(entries[0])[:6] == ["t", "stage", "updated", "perplexity", "val_perplexity", "loss"]
  assert [entry["updated"] for entry in entries] == [False, False, True, True]
  assert [entry["perplexity"] is None for entry in entries] == [True, True, False, False]
  for entry in entries[2:]:
    assert entry["perplexity"] == pytest.approx(math.exp(entry["loss"]))
  assert run.summary["average_perplexity"] == pytest.approx(np.mean([entry["perplexity"] for entry in entries[2:]]))
  assert run.summary["final_perplexity"] == entries[-1]["perplexity"]
  assert f"average perplexity {run.summary['average_perplexity']:.4f} over 4 mega-batches" in done.stdout
  train = lines(run.path, "train.jsonl")
  assert [(entry["stage"], entry["step"]) for entry in train] == [(0, 4), (0, 6), (1, 4), (1, 6)]
  for entry in train:
    assert np.sum(entry["train_load"]) == pytest.approx(len(entry["train_load"]))
    assert entry["val_dropped"] == [0.0]  # of one mixture layer, without limit in evaluation
  if learner == "gens":
    assert "is complete" in launch(f"configs/lm.py:{learner},tiny", *flags).stderr


def test_cutting_a_stage_into_dispatches_changes_no_bit(books):
  setting = setting_of(books, train__eval_every=5, model__dropout=0.1)
  whole, report, rounds = train_stage(setting, setting.learner.init(), 0)
  assert (report.rounds, report.samples, len(rounds)) == (2, 6 * 4, 2)
  for rows in (1, 2, 5):
    cut, _, again = train_stage(setting, setting.learner.init(), 0, rows)
    assert arrays_equal(whole.live, cut.live)
    assert [r.joint for r in again] == [r.joint for r in rounds]


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


def test_a_members_training_equals_a_separate_run(books):
  together = setting_of(books, "ens", model__dropout=0.1, learner__init_from_scratch=True)
  both, _, _ = train_stage(together, together.learner.init(), 0)
  alone = setting_of(books, "sm", model__dropout=0.1)
  one, _, _ = train_stage(alone, alone.learner.init(), 0)
  assert_close(jax.tree.map(lambda leaf: leaf[:1], both.live), one.live, 1e-5)
  first, second = (jax.tree.leaves(jax.tree.map(lambda leaf, i=i: leaf[i], both.live.params)) for i in range(2))
  assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(first, second))


def test_members_have_keys_of_their_own(books):
  setting = setting_of(books, "ens", model__dropout=0.5)
  fitting = begin(setting.learner, setting.learner.init(), Stages(setting)[0])
  assert len(np.unique(jax.device_get(fitting.own.key), axis=0)) == 2


def test_more_frequent_validation_changes_no_step(books):
  trained = []
  for every in (0, 2):
    setting = setting_of(books, model__dropout=0.2, train__eval_every=every)
    trained.append(train_stage(setting, setting.learner.init(), 0)[0].live)
  assert arrays_equal(*trained)


@pytest.mark.parametrize("group_size", [4, slow(32)])
def test_groups_smaller_and_larger_than_windows(books, group_size):
  """The whole stage; with devices whose share is less than a group, too."""
  results = []
  for devices, micro in ((1, 0), (4, 0)):
    setting = setting_of(books, model__group_size=group_size, devices=devices, train__micro_batch=micro,
                         dataset__cross_documents=False, train__steps=2, train__warmup_steps=1, train__eval_every=1)
    learner = setting.learner
    fitting, records = loop.advance(begin(learner, learner.init(), Stages(setting)[0]), 1)
    results.append(jax.device_get(fitting.state.members.opt[0]).mu)
    assert loop.read(fitting, records)[0][0].joint["train_perplexity"] > 1
  for other in results[1:]:
    assert_close(results[0], other, 1e-5)


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


@functools.cache
def first_step(books, learner, changes=()):
  """What the first of two steps came to, and Adam's first moments after it."""
  setting = setting_of(books, learner, model__dropout=0.1, model__jitter=0.01, train__steps=2, train__warmup_steps=1,
                       train__eval_every=1, dataset__cross_documents=False, **dict(changes))
  begun = begin(setting.learner, setting.learner.init(), Stages(setting)[0])
  fitting, records = loop.advance(begun, 1)
  return loop.read(fitting, records)[0][0].joint, jax.device_get(fitting.state.members.opt[0]).mu


@pytest.mark.parametrize(("learner", "changes"), [
    ("sm", {"train__micro_batch": 1}), ("sm", {"devices": 4}), slow("sm", {"devices": 2, "train__micro_batch": 1}),
    slow("ens", {"devices": 4})])
def test_accumulation_and_devices_change_no_step(books, learner, changes):
  """Later steps differ, because Adam amplifies rounding."""
  (first, mu), (second, other) = first_step(books, learner), first_step(books, learner, tuple(changes.items()))
  for key, value in first.items():
    np.testing.assert_allclose(value, second[key], rtol=1e-5)
  assert_close(mu, other, 1e-5)


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
  np.testing.assert_allclose([train.rate(step) for step in range(10)], expected, rtol=1e-6)
  tripled = dataclasses.replace(train, steps_multiplier=3)
  assert tripled.rate(29) == pytest.approx(0.4 / 27)
  assert tripled.plan(1).steps == 30
  none = dataclasses.replace(train, warmup_steps=0)
  assert none.rate(0) == pytest.approx(0.4)
  # With decay=0.3 it is constant until the last 3 steps; later stages begin at half of it.
  flat = dataclasses.replace(train, decay=0.3, restart=0.5)
  expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4 * 2 / 3, 0.4 / 3]
  for stage, factor in ((0, 1.0), (1, 0.5), (2, 0.5)):
    np.testing.assert_allclose([flat.rate(step) * flat.factors(stage, [step], 10)[0] for step in range(10)],
                               np.multiply(expected, factor), rtol=1e-6)
  setting = setting_of(books)
  state, _, _ = train_stage(setting, setting.learner.init(), 0)
  begun = begin(setting.learner, state, Stages(setting)[1])
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(begun.state.members.opt)))


@pytest.mark.parametrize("copies", ["offset", "plain"])
def test_growth_preserves_every_probability_with_offsets(books, copies):
  setting = setting_of(books, "gmoe", learner__copies=copies, learner__noise=0.0, model__num_experts=3,
                       learner__add_experts=(2, 4, 3), model__num_layers=4)
  stages, state = Stages(setting), setting.learner.init()
  for stage, num in enumerate((3, 5, 9, 12)):
    before = log_probs_of(setting, state)
    grown, growth = setting.learner.grow(state, stages[stage])
    assert grown.spec["num_experts"] == num
    if stage:
      old, new = jax.device_get((state.live, grown.live))
      changed = np.abs(log_probs_of(setting, grown) - before).max()
      assert changed < 1e-5 if copies == "offset" else changed > 1e-3
      assert growth.macs == setting.learner.cost(state).fwd_macs * len(stages[stage].val)
      for layer, losses in grown.host["growth"][-1]["losses"].items():
        top = np.argsort(-np.array(losses))[:num - old.params[layer]["router"].shape[-1]]
        was, now = old.params[layer], new.params[layer]
        np.testing.assert_array_equal(now["experts"]["up_kernel"][:, -len(top):], was["experts"]["up_kernel"][:, top])
        np.testing.assert_array_equal(now["router"][..., -len(top):], was["router"][..., top])
    d, shared = 16, setting.protocol.source.corpus.vocab_size * 16
    count = shared + 4 * (4 * d * d + 4 * d) + 2 * (8 * d * d + 5 * d) + 9 * 2 * d + 2 * num * (8 * d * d + 6 * d)
    assert setting.learner.cost(grown).num_params == count
    state = grown if stage else train_stage(setting, state, 0)[0]
  losses = state.host["growth"][-1]["losses"]
  assert sum(losses["layer1"]) == pytest.approx(sum(losses["layer3"]), rel=1e-5)
  assert "before stage 3, layer3: of 9 experts duplicated" in setting.learner.describe(state)


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


def test_validation_chooses_among_the_listed(tmp_path, books):
  choices = {"train__learning_rate": (1e-6, 0.01), "model__dropout": (0.0, 0.9)}
  setting = setting_of(books, **choices)
  state, report, rounds = train_stage(setting, setting.learner.init(), 0)
  assert state.host["chosen"] == [[2, []]]  # 0.01 and 0: the others hardly learn
  assert (report.samples, len(rounds)) == (4 * 24, 2)
  single = setting_of(books, train__learning_rate=0.01, model__dropout=0.0)
  alone, its, _ = train_stage(single, single.learner.init(), 0)
  assert arrays_equal(state.live, alone.live)
  assert report.val == its.val
  assert "stage 0: learning rate 0.01, dropout 0" in setting.learner.describe(state)
  second, _, _ = train_stage(setting, state, 1)
  assert len(second.host["chosen"]) == 2
  assert second.live.params["embedding"].shape == alone.live.params["embedding"].shape


@pytest.mark.parametrize("rates", [(0.01, 1e-6, 1e-5), (1e-6, 0.01, 1e-5), (1e-6, 1e-5, 0.01)])
def test_what_a_learner_knows_is_that_of_the_chosen_candidate(books, monkeypatch, rates):
  def finish(self, state, data, trained):
    result = plain(self, state, data, trained)
    host = {**state.host, "mine": trained.report.val, "array": np.array([trained.report.val])}
    return result._replace(state=result.state._replace(host=host))

  plain = stacked.Stacked.finish
  monkeypatch.setattr(stacked.Stacked, "finish", finish)
  setting = setting_of(books, train__learning_rate=rates)
  state, report, _ = train_stage(setting, setting.learner.init(), 0)
  assert set(state.host) == {"tuning", "chosen", "mine", "array"}
  assert state.host["chosen"] == [[rates.index(0.01), []]]
  assert state.host["mine"] == state.host["array"][0] == report.val


def test_cost_is_that_of_the_active_weights(books):
  setting = setting_of(books, model__num_layers=4)
  vocabulary, d, length = setting.protocol.source.corpus.vocab_size, 16, 16
  one = 4 * (4 * d * d + 2 * length * d) + 4 * 8 * d * d + 2 * d * 4 + vocabulary * d  # attention, FFN, routers, output
  found = setting.learner.cost(setting.learner.init())
  assert found.fwd_macs == length * one
  twice = setting_of(books, model__num_layers=4, model__num_experts=8).learner
  assert twice.cost(twice.init()).fwd_macs == length * (one + 2 * d * 4)  # only the routers depend on their number
  # Everything twice in the backward pass; the embedding's rows are picked, not multiplied.
  assert found.train_flops == 2 * 3 * found.fwd_macs
  # A vocabulary's chunks are not padded: 1100 tokens are two of 550, where 1024 go at once.
  long = setting_of(books, dataset__sequence_length=1100, stream__num_megabatches=1).learner
  network = long.network({})
  more = cost.forward_macs(network, (1, 1101)) - 1100 * vocabulary * d
  assert more == 1100 * (2 * (4 * d * d + 2 * 1100 * d + 8 * d * d) + d * 4)


def test_a_diverging_candidate_is_passed_over(tmp_path, books):
  run = alma_jax.run(text_config(books, train__learning_rate=(1e4, 0.01), stream__num_megabatches=1), tmp_path / "one")
  assert run.describe().endswith("stage 0: learning rate 0.01, dropout 0; diverged: learning rate 10000, dropout 0")
  assert np.isfinite(run.metrics["perplexity"]).all()
  assert [(entry["peak_lr"], entry["step"], entry["val_perplexity"] is None) for entry in run.train] == [
      (1e4, 4, True), (1e4, 6, True), (0.01, 4, False), (0.01, 6, False)]
  alone = alma_jax.run(text_config(books, train__learning_rate=0.01, stream__num_megabatches=1), tmp_path / "alone")
  assert run.summary["cumulative_fwd_macs"] == 2 * alone.summary["cumulative_fwd_macs"]
  with pytest.raises(alma_jax.Diverged, match="diverged in stage 1; lower them"):
    alma_jax.run(text_config(books, train__learning_rate=(1e5, 1e4), stream__num_megabatches=1), tmp_path / "none")


def test_a_run_stopped_between_candidates_shows_whole_stages_only(tmp_path, books, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = text_config(books, "gens", model__dropout=(0.0, 0.1), checkpoint__keep_every=1)
  sessions, seen = 0, set()
  while interrupted(config, tmp_path, 4):
    run = alma_jax.load_run(tmp_path)
    for stage in run.stages():
      assert run.sample("the", num_tokens=3, stage=stage, seed=1).startswith("the")
    seen.add(tuple(run.stages()))
    sessions += 1
  assert sessions > 8
  assert seen >= {(), (0,), (0, 1)}


@pytest.mark.slow
def test_text_in_two_processes(tmp_path, books):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  flags = ["configs/lm.py:ens", *(f"--config.{key}={value}" for key, value in TOY.items()),
           f"--config.dataset.name=text:{books}", "--config.stream.num_megabatches=2"]
  together = [subprocess.Popen(command(*flags, f"--workdir={tmp_path}/two", f"--coordinator=127.0.0.1:{port}",
                                       "--num_processes=2", f"--process_id={i}"), cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True) for i in range(2)]
  outputs = [process.communicate(timeout=300)[0] for process in together]
  assert [process.returncode for process in together] == [0, 0], "\n".join(outputs)
  assert launch(*flags, f"--workdir={tmp_path}/one").returncode == 0
  one, two = (alma_jax.load_run(tmp_path / name) for name in ("one", "two"))
  np.testing.assert_allclose(one.metrics["perplexity"], two.metrics["perplexity"], rtol=1e-3)


def test_samples(tmp_path, books, monkeypatch):
  run = alma_jax.run(text_config(books, "ens"), tmp_path)
  text = run.sample("the cat", num_tokens=20, seed=3)
  assert text.startswith("the cat")
  assert text == run.sample("the cat", num_tokens=20, seed=3)
  assert text != run.sample("the cat", num_tokens=20, seed=4)
  greedy = run.sample("the cat", num_tokens=5, temperature=0)
  assert greedy == run.sample("the cat", num_tokens=5, top_k=1, seed=9)
  # By hand: the likeliest token of the averaged probabilities.
  opened, learner = run.open()
  from alma_jax.data import tokens
  from alma_jax.runs import snapshot
  state, tokenizer = snapshot.restore_learner(learner, opened), tokens.parse((tmp_path / "tokenizer.json").read_text())
  written = [opened.meta["data"]["end"], *tokenizer.encode("the cat").ids]
  network = learner.network(state.spec)
  all_logits = jax.jit(jax.vmap(network.logits, (0, None)))

  def likeliest(ids):
    padded = np.zeros((1, 24), np.int32)  # what follows changes nothing
    padded[0, :len(ids)] = ids
    return int(jax.nn.softmax(all_logits(state.live, padded)[:, 0, len(ids) - 1]).mean(0).argmax())

  for _ in range(5):
    written.append(likeliest(written))
  assert greedy == tokenizer.decode(written[1:])
  contexts, inner = [], sampling._next_log_probs
  monkeypatch.setattr(sampling, "_next_log_probs", lambda *args: contexts.append(args[-1]) or inner(*args))
  run.sample("the cat sat on a mat", num_tokens=30, temperature=0)  # longer than a window
  assert [len(context) for context in contexts[-14:]] == [16] * 14
  for context, following in zip(contexts[-14:], contexts[-13:]):
    assert following == [*context[1:], likeliest(context)]
  assert run.stages() == [0, 1, 2, 3]
  assert run.sample("the", num_tokens=20, stage=0, seed=1) != run.sample("the", num_tokens=20, stage=3, seed=1)
  with pytest.raises(BadInput, match="should be one string"):
    run.sample(["a", "b"])
  with pytest.raises(BadInput, match="which predicts no classes"):
    run.predict(np.zeros((1, 16)))


@pytest.mark.parametrize("module", ["sample", "report"])
def test_help(module):
  done = alma(module, "--help")
  assert done.returncode == 0
  assert f"python -m alma_jax.{module}" in done.stdout


def test_a_gmoe_that_never_grows_may_name_more_experts_than_there_are(books):
  configs.parse(text_config(books, "gmoe", learner__add_experts=(3,), stream__waiting_time=4))  # it never grows


def test_sizes_and_learners_are_named_when_unknown():
  for arg, sentence in (("sm,huge", "no size 'huge'; the sizes are tiny, base, large"),
                        ("boosting", "no learner 'boosting' for text, but there is one for images; the")):
    done = launch(f"configs/lm.py:{arg}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr


def test_a_json_config_is_read_back(tmp_path, books):
  config = configs.parse(text_config(books, "gmoe", model__dropout=(0.0, 0.1)))
  assert configs.parse(json.loads(json.dumps(configs.to_dict(config)))) == config


def test_tensorboard_has_the_scalars_of_routers(tmp_path, books):
  alma_jax.run(text_config(books, log__tensorboard=True, stream__num_megabatches=1), tmp_path)
  written = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard" / "train").iterdir())
  for name in ("train_load/0/0", "train_load/0/3", "train_dropped/0", "val_perplexity"):
    assert name.encode() in written


@pytest.mark.slow
def test_bfloat16_is_close(books):
  losses = []
  for precision in ("float32", "bfloat16"):
    setting = setting_of(books, precision=precision)
    state, _, rounds = train_stage(setting, setting.learner.init(), 0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.live.params)} == {"float32"}
    losses.append(rounds[-1].joint["train_loss"])
  assert losses[1] == pytest.approx(losses[0], rel=0.02)
  assert losses[1] != losses[0]


def test_padded_batches_of_devices(books):
  setting = setting_of(books, devices=2, train__batch_size=6, train__micro_batch=2)
  spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 1, 1, setting.learner.mesh, True)
  assert (spec.padded_batch, spec.at_once) == (8, 2)  # three each, in two parts of at most two
  for batch, devices, micro, group, padded, at_once in (
      (192, 8, 16, 16, 192, 12), (192, 4, 16, 16, 192, 16), (192, 8, 8, 16, 192, 8), (6, 1, 0, 16, 6, 6),
      (6, 4, 0, 32, 8, 2), (4, 4, 0, 32, 8, 2)):
    setting = setting_of(books, devices=devices, train__batch_size=batch, train__micro_batch=micro,
                         model__group_size=group)
    spec = loop.FitSpec(None, setting.facts.problem, setting.config.train, 1, 1, setting.learner.mesh, True)
    assert (spec.padded_batch, spec.at_once) == (padded, at_once)
  assert sharding.make_mesh(1, 2).size == 2
