"""Language models: whole runs, candidates, growth and samples."""
import math
import socket
import subprocess

import jax
import numpy as np
import pytest
from runs import ROOT, TOY, command, interrupted, launch, lines, one_step_a_dispatch, text_config
from stages import Stages, arrays_equal, assert_close, begin, train_stage
from test_language import log_probs_of, setting_of

import alma_jax
from alma_jax.data import tokens
from alma_jax.errors import BadInput
from alma_jax.models import cost
from alma_jax.runs import sampling, snapshot
from alma_jax.training import loop

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the vocabulary has")]


def test_a_learner_through_the_entry_point(tmp_path, books):
  flags = [f"--config.{key}={value}" for key, value in TOY.items()]
  flags += [f"--workdir={tmp_path / 'run'}", f"--config.dataset.name=text:{books}", "--config.stream.waiting_time=3"]
  done = launch("configs/lm.py:gmoe,tiny", *flags)
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
  assert f"  score       {run.summary['average_perplexity']:.4f}   average perplexity" in done.stdout
  train = lines(run.path, "train.jsonl")
  assert [(entry["stage"], entry["step"]) for entry in train] == [(0, 4), (0, 6), (1, 4), (1, 6)]
  for entry in train:
    assert np.sum(entry["train_load"]) == pytest.approx(len(entry["train_load"]))
    assert entry["val_dropped"] == [0.0]  # of one mixture layer, without limit in evaluation
  written = b"".join(path.read_bytes() for path in (run.path / "tensorboard/train").iterdir())
  for name in ("train_load/0/0", "train_load/0/1", "train_dropped/0", "val_perplexity"):
    assert name.encode() in written


def test_a_members_training_equals_a_separate_run(books):
  together = setting_of(books, "ens", model__dropout=0.1, learner__init_from_scratch=True)
  both, _, _ = train_stage(together, together.learner.init(), 0)
  alone = setting_of(books, "sm", model__dropout=0.1)
  one, _, _ = train_stage(alone, alone.learner.init(), 0)
  assert_close(jax.tree.map(lambda leaf: leaf[:1], both.live), one.live, 1e-5)
  first, second = (jax.tree.leaves(jax.tree.map(lambda leaf, i=i: leaf[i], both.live.params)) for i in range(2))
  assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(first, second))


def test_neither_dispatches_nor_validations_change_a_step(books):
  setting = setting_of(books, model__dropout=0.1)
  whole, report, rounds = train_stage(setting, setting.learner.init(), 0)
  assert (report.rounds, report.samples, len(rounds)) == (2, 6 * 4, 2)
  for rows in (1, 2, 5):
    cut, _, again = train_stage(setting, setting.learner.init(), 0, rows)
    assert arrays_equal(whole.live, cut.live)
    assert [r.joint for r in again] == [r.joint for r in rounds]
  without = setting_of(books, model__dropout=0.1, train__eval_every=0)
  assert arrays_equal(whole.live, train_stage(without, without.learner.init(), 0)[0].live)


def first_step(books, **changes):
  """What the first of two steps came to, and the optimiser's first moments after it."""
  setting = setting_of(books, "ens", model__dropout=0.1, model__jitter=0.01, model__block="modern",
                       model__group_size=32, train__optimizer="muon", train__steps=2, train__warmup_steps=1,
                       train__eval_every=1, train__batch_size=6, dataset__cross_documents=False, **changes)
  begun = begin(setting.learner, setting.learner.init(), Stages(setting)[0])
  fitting, records = loop.advance(begun, 1)
  flat = jax.tree_util.tree_flatten_with_path(jax.device_get(fitting.state.members.opt))[0]
  mu = [leaf for path, leaf in flat if ".mu" in jax.tree_util.keystr(path)]
  assert mu
  return loop.read(fitting, records)[0][0].joint, mu


def test_accumulation_and_devices_change_no_step(books):
  """A device has 3 of 6 windows, and a group needs 2. Later steps differ, because Adam amplifies rounding."""
  (first, mu), (second, other) = first_step(books), first_step(books, devices=2, train__micro_batch=1)
  for key, value in first.items():
    np.testing.assert_allclose(value, second[key], rtol=1e-5)
  assert_close(mu, other, 1e-5)


def test_growth_preserves_every_probability_with_offsets(books):
  setting, plain = (setting_of(books, "gmoe", learner__copies=copies, learner__noise=0.0, model__num_experts=3,
                               learner__add_experts=(2, 4), model__num_layers=4, stream__num_megabatches=3)
                    for copies in ("offset", "plain"))
  stages, state = Stages(setting), setting.learner.init()
  for stage, num in enumerate((3, 5, 9)):
    before = log_probs_of(setting, state)
    grown, growth = setting.learner.grow(state, stages[stage])
    assert grown.spec["num_experts"] == num
    if stage:
      old, new = jax.device_get((state.live, grown.live))
      np.testing.assert_allclose(log_probs_of(setting, grown), before, rtol=0, atol=1e-5)
      copied, _ = plain.learner.grow(state, stages[stage])
      assert np.abs(log_probs_of(plain, copied) - before).max() > 1e-3
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
  assert "before stage 2, layer3: of 5 experts duplicated" in setting.learner.describe(state)


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


def test_cost_is_that_of_the_active_weights(books):
  cost_of = lambda learner: learner.cost(learner.template(learner.first_spec()))
  setting = setting_of(books, model__num_layers=4)
  vocabulary, d, length = setting.protocol.source.corpus.vocab_size, 16, 16
  one = 4 * (4 * d * d + 2 * length * d) + 4 * 8 * d * d + 2 * d * 4 + vocabulary * d  # attention, FFN, routers, output
  found = cost_of(setting.learner)
  assert found.fwd_macs == length * one
  twice = cost_of(setting_of(books, model__num_layers=4, model__num_experts=8).learner)
  assert twice.fwd_macs == length * (one + 2 * d * 4)  # only the routers depend on their number
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
  opened, learner = run.open()
  macs = learner.cost(snapshot.restore_learner(learner, opened)).fwd_macs
  assert run.summary["cumulative_fwd_macs"] == 2 * 24 * macs
  with pytest.raises(alma_jax.Diverged, match="diverged in stage 1; lower them"):
    alma_jax.run(text_config(books, train__learning_rate=(1e5, 1e4), stream__num_megabatches=1), tmp_path / "none")


def test_a_run_stopped_between_candidates_shows_whole_stages_only(tmp_path, books, monkeypatch):
  one_step_a_dispatch(monkeypatch)
  config = text_config(books, "gens", model__dropout=(0.0, 0.1), checkpoint__keep_every=1, stream__num_megabatches=2)
  sessions, seen = 0, set()
  while interrupted(config, tmp_path, 4):
    run = alma_jax.load_run(tmp_path)
    for stage in run.stages():
      assert run.sample("the", num_tokens=3, stage=stage, seed=1).startswith("the")
    seen.add(tuple(run.stages()))
    sessions += 1
  assert sessions > 4
  assert seen >= {(), (0,)}


def test_text_in_two_processes(tmp_path, books):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  flags = ["configs/lm.py:ens", *(f"--config.{key}={value}" for key, value in TOY.items()),
           f"--config.dataset.name=text:{books}", "--config.stream.num_megabatches=1"]
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


def test_bfloat16_is_close(books):
  losses = []
  for precision in ("float32", "bfloat16"):
    setting = setting_of(books, precision=precision)
    state, _, rounds = train_stage(setting, setting.learner.init(), 0)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.live.params)} == {"float32"}
    losses.append(rounds[-1].joint["train_loss"])
  assert losses[1] == pytest.approx(losses[0], rel=0.02)
  assert losses[1] != losses[0]
