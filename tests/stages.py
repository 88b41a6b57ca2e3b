"""Training learners stage by stage, without a run folder."""
import jax
import numpy as np
from conftest import blobs, small_config

from alma_jax import config as configs
from alma_jax import environment


def setting_of(learner="sm", data=None, **changes):
  return environment.prepare(configs.parse(small_config(learner, **changes)), data or (*blobs(240), *blobs(60, seed=1)))


def train_stage(setting, state, stage, rows=256):
  """One stage; returns (state, report, entries per epoch)."""
  learner, data, complete = setting.learner, environment.Stages(setting)[stage], False
  while not complete:
    state, _ = learner.grow(state, data)
    state, report, epochs = fit_stage(learner, state, data, rows)
    complete = learner.complete(state)
  return state, report, epochs


def fit_stage(learner, state, data, rows=256):
  """One training of a state that has grown; returns the same."""
  fitting, epochs, done = learner.begin(state, data), [], False
  while fitting.cursor < learner.num_rows(fitting) and not done:
    fitting, records = learner.advance(fitting, rows)
    more, done = learner.read(fitting, records)
    epochs += more
  state, report = learner.finish(state, fitting)
  return state, report, epochs


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
