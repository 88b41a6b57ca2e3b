"""What surrounds a learner: data, stream, and the test set it never sees."""
from typing import NamedTuple

import jax
import numpy as np

from alma_jax import config as configs
from alma_jax import learners, sharding
from alma_jax.data import datasets
from alma_jax.data import stream as streams
from alma_jax.errors import BadInput
from alma_jax.learners import base, fit
from alma_jax.tasks import classification


class Setting(NamedTuple):
  """Everything a run is made of, checked, before any computation."""
  config: configs.RunConfig
  dataset: datasets.Dataset
  stream: streams.Stream
  mean: np.ndarray  # of the inputs, in their own units
  std: np.ndarray
  learner: base.Learner


def prepare(config, data=None):
  """Loads the data, cuts the stream, builds the learner.

  Args:
    config: RunConfig.
    data: (x_train, y_train, x_test, y_test) in place of `dataset.name`.

  Raises:
    BadInput: they do not fit together.
  """
  if data is None:
    dataset = datasets.load(config.dataset.name, config.dataset.data_dir, config.seed)
  elif len(data) != len(datasets.ARRAYS):
    raise BadInput(f"data holds {len(data)} arrays; it should be ({', '.join(datasets.ARRAYS)}).")
  else:
    dataset = datasets.from_arrays("data", dict(zip(datasets.ARRAYS, data)))
  stream = streams.make(len(dataset.x_train), config.stream, config.seed)
  mean, std = dataset.normalization or streams.first_normalization(dataset.x_train, stream)
  learner = make_learner(config, dataset.num_classes, dataset.x_train.shape[1:], stream.sizes)
  return Setting(config, dataset, stream, mean, std, learner)


def make_learner(config, num_classes, example_shape, sizes=None):
  """The config's learner for such examples and a Stream's sizes; None: it will not be trained."""
  if config.train.augment and len(example_shape) != 3:
    raise BadInput("train.augment=True flips and crops images, but this data set's examples have shape "
                   f"{tuple(map(int, example_shape))}.")
  task = classification.Classification(num_classes, config.train.augment)
  max_val, num_train = (1, None) if sizes is None else (int(sizes[:, 1].max()), int(sizes[0, 0]))
  return learners.make(base.Context(config, task, tuple(example_shape), max_val, num_train))


def make_pool(x, y, mean, std, mesh):
  """A task pool on the mesh, replicated."""
  return sharding.put(classification.Pool(x, np.asarray(y, np.int32), mean, std), mesh)


class Stages:
  """The stages of the stream over a training set that lies on the device."""

  def __init__(self, setting):
    s = setting
    self._stream, self._seed = s.stream, s.config.seed
    self._pool = make_pool(s.dataset.x_train, s.dataset.y_train, s.mean, s.std, s.learner.mesh)

  def __getitem__(self, stage):
    part = self._stream.stage(stage)
    return fit.StageData(stage, self._seed, self._pool, part.train, part.val, part.num_new)


class Examiner:
  """Holds the test set, and the summed contributions of final members to it."""

  def __init__(self, setting):
    s = setting
    self._learner, self._labels = s.learner, s.dataset.y_test
    self._pool = make_pool(s.dataset.x_test, s.dataset.y_test, s.mean, s.std, s.learner.mesh)
    self.num_cached, self.cached = 0, None

  def examine(self, state, trained=True):
    """(error, loss): share of wrong test predictions, mean cross-entropy in nats.

    Contributions of members that never change again are kept, so that a
    growing ensemble costs as much to evaluate at its 50th stage as at its 5th.
    """
    if trained:
      for block in range(self.num_cached, self._learner.num_final(state)):
        self.cached = classification.join(self.cached, self._learner.contribution(state, block, self._pool))
        self.num_cached = block + 1
    total = self.cached
    for block in range(self.num_cached, self._learner.num_blocks(state)):
      total = classification.join(total, self._learner.contribution(state, block, self._pool))
    return classification.error_and_loss(*self._learner.resolve(state, total), self._labels)


def chance_error(num_classes):
  """Error of random predictions, 1 - 1/K (§1)."""
  return 1 - 1 / num_classes


def describe_devices(mesh):
  """E.g. "8 x NVIDIA H100" or "cpu"."""
  kind = mesh.devices.flat[0].device_kind
  processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
  return (f"{mesh.size} x {kind}" if mesh.size > 1 else kind) + processes
