"""What surrounds a learner: data, stream, and the test set it never sees."""
from typing import NamedTuple

import jax

from alma_jax import fields, learners
from alma_jax.errors import BadInput
from alma_jax.learners import base, fit
from alma_jax.tasks import classification, language_modeling


class Setting(NamedTuple):
  """Everything a run is made of, checked, before any computation."""
  config: fields.RunConfig
  source: classification.Images | language_modeling.Texts
  learner: base.Learner

  @property
  def stream(self):
    """data.stream.Stream of the source."""
    return self.source.stream


def prepare(config, data=None):
  """Loads the data, cuts the stream, builds the learner.

  Args:
    config: RunConfig.
    data: (x_train, y_train, x_test, y_test) in place of `dataset.name`.

  Raises:
    BadInput: they do not fit together.
  """
  if config.is_language and data is not None:
    raise BadInput("arrays are for image classification; texts are named by dataset.name=text:DIR.")
  source = language_modeling.Texts(config) if config.is_language else classification.Images(config, data)
  sizes = source.stream.sizes
  context = base.Context(config, source.task, source.example_shape, int(sizes[:, 1].max()), int(sizes[0, 0]))
  return Setting(config, source, learners.make(context))


def reader(config, meta):
  """The config's learner for the data that `meta` of a checkpoint describes, to predict and not to be trained."""
  of_meta = language_modeling.of_meta if config.is_language else classification.of_meta
  task, shape = of_meta(config, meta)
  return learners.make(base.Context(config, task, shape, 1))


class Stages:
  """The stages of the stream, with the pools that their examples come from."""

  def __init__(self, setting):
    self._stream, self._seed = setting.stream, setting.config.seed
    self._pools = setting.source.pools(setting.learner.mesh)

  def __getitem__(self, stage):
    part = self._stream.stage(stage)
    return fit.StageData(stage, self._seed, *self._pools, part.train, part.val, part.num_new)


class Examiner:
  """Holds the test set, and the joined contributions of final members to it."""

  def __init__(self, setting):
    self._learner, self._source = setting.learner, setting.source
    self._pool = setting.source.test_pool(setting.learner.mesh)
    self.num_cached, self.cached = 0, None

  def examine(self, state, trained=True):
    """(the task's metric, loss) on the test set; loss in nats, the mean over images or tokens.

    Contributions of members that never change again are kept, so that a
    growing ensemble costs as much to evaluate at its 50th stage as at its 5th.
    """
    join = self._source.task.join
    if trained:
      for block in range(self.num_cached, self._learner.num_final(state)):
        self.cached = join(self.cached, self._learner.contribution(state, block, self._pool))
        self.num_cached = block + 1
    total = self.cached
    for block in range(self.num_cached, self._learner.num_blocks(state)):
      total = join(total, self._learner.contribution(state, block, self._pool))
    return self._source.score(self._learner.resolve(state, total))


def describe_devices(mesh):
  """E.g. "8 x NVIDIA H100" or "cpu"."""
  kind = mesh.devices.flat[0].device_kind
  processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
  return (f"{mesh.size} x {kind}" if mesh.size > 1 else kind) + processes
