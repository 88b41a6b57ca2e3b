"""Training learners stage by stage, without a run folder."""
import jax
import numpy as np
from runs import blobs, small_config

from alma_jax import config as configs
from alma_jax.learners import prediction
from alma_jax.protocols.contract import State
from alma_jax.runs import settings
from alma_jax.training import batching, loop


class Stages:
  """The stages of a setting by their numbers, StageData. None has new normalisation constants."""

  def __init__(self, setting):
    self._setting = setting

  def __getitem__(self, stage):
    protocol = self._setting.protocol
    return protocol.stage(protocol.expected_ends[:stage + 1], self._setting.learner, {}).data


def examine(setting, state):
  """(the metric, the loss) of a learner's state on the test set."""
  now = State(state, 0, {})
  return tuple(setting.protocol.test(setting.learner, now, None).values())


def setting_of(learner="sm", data=None, **changes):
  return settings.prepare(configs.parse(small_config(learner, **changes)), data or (*blobs(240), *blobs(60, seed=1)))


def train_stage(setting, state, stage, rows=256):
  """One stage; returns (state, report, entries per epoch)."""
  learner, data, complete = setting.learner, Stages(setting)[stage], False
  while not complete:
    state, _ = learner.grow(state, data)
    (state, report, complete, _), epochs = fit_stage(learner, state, data, rows)
  return state, report, epochs


def fit_stage(learner, state, data, rows=256):
  """One training of a state that has grown; returns (StageResult, entries per epoch)."""
  fit, epochs = advance(begin(learner, state, data), rows)
  return finish(learner, state, fit), epochs


def begin(learner, state, data):
  """The FitState of a stage."""
  return loop.begin(learner.training(state, data))


def advance(fit, rows=256):
  """A FitState's whole training, `rows` steps a dispatch; returns (FitState, entries per epoch)."""
  epochs, done = [], False
  while fit.cursor < loop.num_steps(fit) and not done:
    fit, records = loop.advance(fit, rows)
    more, done = loop.read(fit, records)
    epochs += more
  return fit, epochs


def finish(learner, state, fit):
  """StageResult of a stage that was trained so far."""
  return learner.finish(state, fit.data, loop.finish(fit))


def batches_of(training, start, stop):
  """The examples of steps start..stop without padding: for each member a list of arrays, one a step."""
  size, found = training.spec.problem.max_steps, [[] for _ in range(training.spec.num_members)]
  for first in range(start, stop, size):
    rows = batching.train_batches(training, first, min(first + size, stop))
    for r in range(int(rows.num_steps)):
      for member, batches in enumerate(found):
        count = rows.num_examples[r, member] if training.spec.own_examples else rows.num_examples[r]
        batches.append(rows.examples[r, member, :count])
  return found


def contribution(setting, state, block, pool, which=None):
  """Of a block to the predictions for a pool, arrays [N, ...]."""
  return prediction.contributions(setting.learner, setting.facts.problem, state, block, pool, which)


def train(setting, stages=2, rows=256):
  """Stages from the first; returns (state, [(report, entries per epoch)])."""
  state, log = setting.learner.init(), []
  for stage in range(stages):
    state, report, epochs = train_stage(setting, state, stage, rows)
    log.append((report, epochs))
  return state, log


def arrays_equal(a, b):
  return all(jax.tree.leaves(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b)))


def assert_close(a, b, tolerance):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=tolerance), a, b)


def member(tree, i):
  """Member i of a stacked tree, on the host."""
  return jax.tree.map(lambda leaf: leaf[i], jax.device_get(tree))
