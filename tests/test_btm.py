"""Branch-Train-Merge: domains of documents, experts that start from one seed, mixtures weighted by the context."""
import itertools

import jax
import numpy as np
import pytest
from runs import ROOT, sentences, text_config
from stages import Stages, arrays_equal, batches_of, fit_stage

from alma_jax import config as configs
from alma_jax.data import tokens
from alma_jax.errors import BadInput
from alma_jax.growth import domains
from alma_jax.learners import btm, prediction
from alma_jax.learners.contract import LearnerState
from alma_jax.problems.language_modeling import Contexts, Ends, Windows
from alma_jax.runs import settings

pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has")  # the text yields fewer than 300 units

ANIMALS, TOOLS = ["the", "cat", "ran", "to", "see", "a", "dog"], ["old", "saws", "hum", "by", "blunt", "files"]


@pytest.fixture(scope="module")
def books(tmp_path_factory):
  """8 training documents, every second of them of other words; 2 for validation and 2 for test."""
  root = tmp_path_factory.mktemp("books")
  for split, num in (("train", 8), ("valid", 2), ("test", 2)):
    (root / split).mkdir()
    for i in range(num):
      (root / split / f"{i:02d}.txt").write_text(sentences(100 * len(split) + i, 40, (ANIMALS, TOOLS)[i % 2]))
  return root


def setting_of(books, **changes):
  return settings.prepare(configs.parse(text_config(books, "btm", **{
      "dataset__cross_documents": False, "model__num_experts": 2, "train__steps": 16, "learner__num_domains": 2,
      "stream__num_megabatches": 1, **changes})))


def test_the_weights_are_posteriors():
  """Model 0 gives both targets 1/2, model 1 gives them 1/4; the third target does not count."""
  each = np.log([[[0.5, 0.5, 1.0]], [[0.25, 0.25, 1.0]]]).astype(np.float32)
  weights = np.exp(btm.log_posteriors(each))[:, 0]
  np.testing.assert_allclose(weights[0], [1 / 2, 2 / 3, 4 / 5], rtol=1e-5)  # 1 : 1, 2 : 1, 4 : 1
  mixed = np.exp(btm.mixed(each))[0]
  np.testing.assert_allclose(mixed, [3 / 8, 2 / 3 / 2 + 1 / 3 / 4, 1], rtol=1e-5)


def test_the_prior_moves_from_window_to_window(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")
  from branch_train_merge import with_moving_prior
  one = np.log([[0.5, 0.5], [0.25, 0.25]])  # [M, L]; the posterior after it is 4 : 1 if the prior was 1 : 1
  each = np.stack([one, one], 1)
  mixed, priors = with_moving_prior(each, 0.75)
  np.testing.assert_allclose(priors, [[0.5, 0.5], [0.575, 0.425]])  # 0.75 * 0.5 + 0.25 * 0.8
  np.testing.assert_allclose(np.exp(mixed[1, 0]), 0.575 / 2 + 0.425 / 4)
  fixed, _ = with_moving_prior(each, 1.0)
  uniform = btm.mixed(each.astype(np.float32))
  np.testing.assert_allclose(fixed, uniform, rtol=1e-5)


def test_documents_of_different_words_are_different_domains(books):
  source = setting_of(books).protocol.source
  ids, starts = np.asarray(source.corpus.splits["train"].ids), source.corpus.splits["train"].starts
  assert domains.document_of(ids, starts).tolist() == list(range(8))
  assert domains.document_of(ids, starts[1:] - 1).tolist() == list(range(7))
  counts = domains.token_counts(ids, np.arange(8), source.corpus.vocab_size)
  assert counts[2].sum() == starts[3] - starts[2] - 1  # without END
  found = domains.nearest(domains.cluster(counts, 2, np.random.default_rng(0)), counts)
  first = ["cat" in text for text in _texts(source)]
  assert set(found[first]) != set(found[~np.array(first)])
  assert len(set(found[first])) == len(set(found[~np.array(first)])) == 1


def test_random_domains_have_equal_numbers_of_documents():
  dealt = domains.dealt(0, np.arange(12), 4)
  assert np.bincount(dealt).tolist() == [3] * 4
  assert domains.dealt(0, np.array([5, 11]), 4).tolist() == dealt[[5, 11]].tolist()
  assert dealt.tolist() != domains.dealt(1, np.arange(12), 4).tolist()


@pytest.mark.slow
def test_experts_train_on_their_domains_from_one_seed(books):
  setting = setting_of(books)
  learner, data = setting.learner, Stages(setting)[0]
  state, _ = learner.grow(learner.init(), data)
  shares = state.host["train_shares"]
  assert sorted(set(shares)) == [0, 1]
  seed, report, complete = _fit(learner, state, data)
  assert (complete, report.samples) == (False, 8 * 4)  # half of 16 steps of 4 windows
  grown, growth = learner.grow(seed, data)
  assert growth.macs == learner.cost(seed).fwd_macs * 8 * 4
  assert arrays_equal(jax.tree.map(lambda leaf: leaf[0], grown.live), jax.tree.map(lambda leaf: leaf[1], grown.live))
  training = learner.training(grown, data)
  for domain, batches in enumerate(batches_of(training, 0, training.plan.steps)):
    read = np.concatenate(batches)
    assert len(read) == 4 * 4  # an equal part of the other half
    assert set(read) <= set(data.train[shares == domain])
  after, report, complete = _fit(learner, grown, data)
  assert (complete, report.samples) == (True, 8 * 4)  # of both together
  assert "train_shares" not in after.host


def test_all_kinds_of_predictions_agree(books):
  """Those of the targets of windows, of every next token, and of the token after one."""
  setting = setting_of(books)
  learner, task = setting.learner, setting.facts.problem
  spec = {"num_frozen": 0, "num_domains": 2}
  state = LearnerState(spec, learner.fresh(0, spec))
  pool = setting.protocol.source.test_pool(learner.mesh)
  tokens = np.asarray(pool.tokens)[:2]
  assert tokens.shape == (2, 17)
  of_windows = prediction.predict(learner, task, state, Windows(tokens, np.int32([16, 9])))
  of_contexts = np.asarray(prediction.predict(learner, task, state, Contexts(tokens[:, :-1])))
  np.testing.assert_allclose(np.exp(of_contexts).sum(-1), 1, rtol=1e-4)
  chosen = np.take_along_axis(of_contexts, tokens[:, 1:, None], -1)[..., 0]
  np.testing.assert_allclose(of_windows[0], chosen[0], rtol=1e-4)
  np.testing.assert_allclose(of_windows[1, :9], chosen[1, :9], rtol=1e-4)
  assert not of_windows[1, 9:].any()
  end = prediction.predict(learner, task, state, Ends(tokens[:, :-1], np.int32(6)))
  np.testing.assert_allclose(end, of_contexts[:, 6], rtol=1e-4)
  each = learner.log_probs(state, Contexts(tokens[:, :-1]))
  assert np.abs(each[0] - each[1]).max() > 0.01  # the experts differ


def test_more_domains_than_documents_are_refused_before_any_training(books):
  setting = setting_of(books, learner__num_domains=9, train__steps=60)
  with pytest.raises(BadInput, match="learner.num_domains=9 exceeds the 8 documents of the first stage"):
    setting.learner.grow(setting.learner.init(), Stages(setting)[0])


def _fit(learner, state, data):
  (after, report, complete, _), _ = fit_stage(learner, state, data)
  return after, report, complete


def _texts(source):
  """The training documents in their order."""
  tokenizer = tokens.parse(source.corpus.tokenizer)
  bounds = [*source.corpus.splits["train"].starts, len(source.corpus.splits["train"].ids) - 1]
  return [tokenizer.decode(source.corpus.splits["train"].ids[a:b].tolist()) for a, b in itertools.pairwise(bounds)]
