"""Evaluation, Run.predict, export and sampling predict alike, by the learner's `contribution` and `resolve`.

The learners here override both, and keep what they need in `host`. The expected predictions are computed by hand,
from the logits of each member. A caller that ignores one of the two methods predicts something else.
"""
import dataclasses
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import small_config, text_config
from stages import examine

import alma_jax
from alma_jax import config as configs
from alma_jax import export
from alma_jax.learners import ens, stacked
from alma_jax.problems import classification
from alma_jax.runs import sampling, settings, snapshot

pytestmark = pytest.mark.slow

WEIGHTS, PRIOR = (0.01, 0.19, 0.8), (0.5, 0.3, 0.2)


@dataclasses.dataclass(frozen=True)
class Unequal(ens.Options):
  name: str = "unequal"
  num_members: int = 3

  def make(self, context):
    return UnequalEns(context)


@dataclasses.dataclass(frozen=True)
class UnequalText(ens.TextOptions):
  name: str = "unequal_text"
  num_members: int = 3

  def make(self, context):
    return UnequalTextEns(context)


class UnequalEns(ens.Ens):
  """The member weights of `contribution` and the prior of `resolve` are set by `finish`."""

  def finish(self, state, data, trained):
    result = super().finish(state, data, trained)
    host = {"weights": np.float32(WEIGHTS), "prior": list(PRIOR)}
    return result._replace(state=result.state._replace(host=host))

  def contribution(self, state, block, inputs):
    parts = []
    for member in range(3):
      one = jax.tree.map(lambda leaf, i=member: leaf[i:i + 1], state.live)
      parts.append(stacked.contribute(self.network(state.spec), self._problem, self.mesh, self.combine, one, inputs))
    return {"sum": sum(weight * part["sum"] for weight, part in zip(state.host["weights"], parts))}

  def resolve(self, state, joined):
    probabilities = joined["sum"] * np.float32(state.host["prior"])[None]
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    return probabilities.argmax(-1), probabilities


class UnequalTextEns(UnequalEns):
  """`resolve` does not divide by the number of members, since the weights sum to 1."""

  def contribution(self, state, block, inputs):
    parts = []
    for member in range(3):
      one = jax.tree.map(lambda leaf, i=member: leaf[i:i + 1], state.live)
      parts.append(stacked.contribute(self.network(state.spec), self._problem, self.mesh, self.combine, one, inputs))
    return {"log_sum": jax.nn.logsumexp(jnp.stack(
        [part["log_sum"] + jnp.log(weight) for weight, part in zip(state.host["weights"], parts)]), 0)}

  def resolve(self, state, joined):
    return joined["log_sum"]


@pytest.fixture(autouse=True)
def _registered():
  alma_jax.register(Unequal)
  alma_jax.register(UnequalText)


def restored(run):
  """(learner, LearnerState) of the last stage of a run."""
  opened, learner = run.open()
  return learner, snapshot.restore_learner(learner, opened)


def exported(run):
  """The predictor that export has written, as a function."""
  return runpy.run_path(str(export.export(run) / "load.py"))["predict"]


def members_of(state):
  return [jax.tree.map(lambda leaf, i=i: leaf[i], jax.device_get(state.live)) for i in range(3)]


def test_images(tmp_path, arrays):
  noise = np.random.default_rng(0).integers(0, 256, arrays[2].shape).astype(np.uint8)  # on which members disagree
  data = (*arrays[:2], noise, arrays[3])
  config = small_config("unequal", train__epochs=10, model__width=16)
  run = alma_jax.run(config, tmp_path / "run", data=data)
  learner, state = restored(run)
  setting = settings.prepare(configs.parse(config), data)
  x = classification.normalize(jnp.asarray(noise[..., None]), *setting.protocol.source.constants)
  network = learner.network(state.spec)
  logits = [network.apply(member, x, None, False)[0] for member in members_of(state)]
  single = np.float64([jax.nn.softmax(one) for one in logits])
  weigh = lambda weights, prior: np.tensordot(weights, single, 1) * np.array(prior)
  normalised = lambda p: p / p.sum(-1, keepdims=True)
  expected = normalised(weigh(WEIGHTS, PRIOR))
  equal, flat = np.ones(3) / 3, np.ones(3)
  for other in (weigh(equal, flat), weigh(equal, PRIOR), weigh(WEIGHTS, flat)):  # if a method were ignored
    assert np.abs(normalised(other) - expected).max() > 0.01
    assert (other.argmax(-1) != expected.argmax(-1)).any()
  error, loss = classification.error_and_loss(expected.argmax(-1), expected, arrays[3])
  assert run.metrics["error"][-1] == pytest.approx(error)
  assert run.metrics["loss"][-1] == pytest.approx(loss, rel=1e-5)
  np.testing.assert_allclose(run.predict(noise), expected, atol=1e-6)
  np.testing.assert_allclose(exported(run)(noise[..., None]), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the vocabulary has")
def test_texts(tmp_path, books, monkeypatch):
  config = text_config(books, "unequal_text", stream__num_megabatches=1, train__steps=30)
  run = alma_jax.run(config, tmp_path / "run")
  learner, state = restored(run)
  setting, judged = settings.prepare(configs.parse(config)), []
  source = setting.protocol.source
  score = source.score
  monkeypatch.setattr(source, "score", lambda prediction, t: judged.append(prediction) or score(prediction, t))
  pool = jax.device_get(source.test_pool(learner.mesh))
  tokens, targets = pool.tokens[:, :-1], pool.tokens[:, 1:]
  counts = np.arange(tokens.shape[1])[None] < pool.length[:, None]
  chosen = lambda log_probs: np.take_along_axis(np.asarray(log_probs), targets[..., None], -1)[..., 0][counts]
  network = learner.network(state.spec)
  logits = jax.jit(network.logits)
  single = np.float64([chosen(jax.nn.log_softmax(logits(member, tokens))) for member in members_of(state)])
  weigh = lambda weights: np.log(np.tensordot(weights, np.exp(single), 1))
  expected = weigh(WEIGHTS)
  for other in (weigh(np.ones(3)), weigh(np.ones(3) / 3), expected - np.log(3)):  # if a method were ignored
    assert np.abs(other - expected).max() > 0.01
  perplexity, loss = examine(setting, state)
  assert loss == pytest.approx(-expected.mean(), rel=1e-5)
  assert (run.metrics["perplexity"][-1], run.metrics["loss"][-1]) == pytest.approx((perplexity, loss), rel=1e-6)
  np.testing.assert_allclose(judged[0][counts], expected, rtol=1e-5, atol=1e-5)
  found = exported(run)(tokens)
  np.testing.assert_allclose(chosen(found), expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(np.exp(found).sum(-1), 1, rtol=1e-5)
  assert (run.path / "export/tokenizer.json").read_text() == (run.path / "tokenizer.json").read_text()
  for length in (1, 7, 16):  # of the context
    asked = sampling._next_log_probs(learner, setting.facts.problem, state, tokens[0, :length].tolist())
    np.testing.assert_allclose(asked[targets[0, length - 1]], judged[0][0, length - 1], rtol=1e-5, atol=1e-5)
