"""What a run is made of: data, stream, learner, and the test set that the learner never sees."""
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax import learners
from alma_jax.config import schema
from alma_jax.data import datasets, normalization
from alma_jax.errors import BadInput
from alma_jax.learners import contract, prediction
from alma_jax.parallel import environment
from alma_jax.problems import classification, language_modeling, live_classification, live_language, sequence
from alma_jax.problems.live_source import LiveSource
from alma_jax.runs import loaded
from alma_jax.store import metrics
from alma_jax.training import loop


class Setting(NamedTuple):
  """Everything that a run is made of; all of it is checked before any computation.

  `root` is the pretrained network that `learner.root` names, `arrays` what loaded.digests returned.
  """
  config: schema.RunConfig
  source: classification.Images | language_modeling.Texts | sequence.Tasks
  learner: contract.Learner
  root: contract.Root | None = None
  arrays: Mapping[str, str] = {}

  @property
  def digests(self) -> dict[str, Any]:
    """Hashes of what decides the results besides the config, as config.json has them."""
    of_root = {} if self.root is None else {"root_sha256": self.root.sha256}
    of_arrays = {"arrays": dict(self.arrays)} if self.arrays else {}
    return {"data_fingerprint": self.source.fingerprint} | of_root | of_arrays

  @property
  def made_with(self) -> dict[str, str]:
    """What the rounding of the results depends on, by name."""
    return environment.made_with(describe_devices(self.learner.mesh))

  @property
  def stream(self) -> Any:
    """data.stream.Stream of the source, or problems.sequence.Order."""
    return self.source.stream

  @property
  def is_live(self) -> bool:
    """Whether the mega-batches arrive while the run goes on."""
    return isinstance(self.source, LiveSource)


def prepare(config: schema.RunConfig, data: Sequence[Any] | datasets.Dataset | None = None,
            run: pathlib.Path | None = None, root: contract.Root | None = None) -> Setting:
  """Loads the data, cuts the stream, builds the learner. Of a live stream it waits for the first mega-batch.

  Args:
    config: RunConfig.
    data: (x_train, y_train, x_test, y_test), or a Dataset, in place of `dataset.name`.
    run: folder of a run that goes on; of a live stream it says which mega-batches were used.
    root: the network of `learner.root`.

  Raises:
    BadInput: they do not fit together.
  """
  if config.is_language and data is not None:
    raise BadInput("arrays are for image classification; texts are named by dataset.name=text:DIR.")
  source: Any
  if isinstance(config, schema.TaskConfig):
    if data is not None:
      raise BadInput("arrays are for streams of mega-batches; tasks of your own are named by "
                     "dataset.name=tasks:PATH.py.")
    source = sequence.Tasks(config)
  elif config.is_live and data is None:
    source = (live_language.LiveTexts if config.is_language else live_classification.LiveImages)(config, run)
  else:
    source = language_modeling.Texts(config) if config.is_language else classification.Images(config, data)
  setting = built(config, source, source.stream.most_val, root)
  return setting._replace(arrays=loaded.digests(contract.Context(config, source.problem, source.example_shape, 1)))


def built(config: schema.RunConfig, source: Any, most_val: int, root: contract.Root | None = None) -> Setting:
  """The setting of a source whose stages have at most `most_val` validation examples, with its learner."""
  num_train = int(source.stream.sizes(source.stream.expected_ends[:1]).train[0])
  context = contract.Context(config, source.problem, source.example_shape, most_val, num_train, root)
  return Setting(config, source, learners.make(context), root)


def problem_of(config: schema.RunConfig, meta: dict[str, Any]) -> Any:
  """The problem for the data that `meta` of a checkpoint describes."""
  return _of_meta(config, meta)[0]


def reader(config: schema.RunConfig, meta: dict[str, Any]) -> contract.Learner:
  """The config's learner for the data that `meta` of a checkpoint describes, to predict and not to be trained."""
  problem, shape = _of_meta(config, meta)
  return learners.make(contract.Context(config, problem, shape, 1))


def arrays_of(config: schema.RunConfig, meta: dict[str, Any]) -> dict[str, str]:
  """What loaded.digests returns for the data that `meta` of a checkpoint describes."""
  problem, shape = _of_meta(config, meta)
  return loaded.digests(contract.Context(config, problem, shape, 1))


def classes_of(config: schema.RunConfig, meta: dict[str, Any]) -> Any:
  """See results.Run.classes; `meta` of a checkpoint."""
  return _module(config).classes(meta)


def _of_meta(config: schema.RunConfig, meta: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
  """(the problem, shape of an example) for the data that `meta` of a checkpoint describes."""
  found: tuple[Any, tuple[int, ...]] = _module(config).of_meta(config, meta)
  return found


def _module(config: schema.RunConfig) -> Any:
  """The module of a config's problem."""
  if isinstance(config, schema.TaskConfig):
    return sequence
  return language_modeling if config.is_language else classification


class Stages:
  """The stages of the stream, with the pools that their examples come from.

  Attributes:
    pool: the problem's pool of training examples; None of a live stream, of which every stage has a pool of its own.
  """

  def __init__(self, setting: Setting):
    self._stream, self._seed = setting.stream, setting.config.seed
    self._source: Any = setting.source
    self._mesh, self._is_live = setting.learner.mesh, setting.is_live
    self.pool: Any = None
    self._val_pool: Any = None
    if not (setting.is_live or isinstance(self._source, sequence.Tasks)):  # these have a pool for every stage
      self.pool, self._val_pool = self._source.pools(self._mesh)

  def __getitem__(self, ends: Sequence[int]) -> loop.StageData:
    """The last of the stages that end at these mega-batches, counted from 1."""
    if isinstance(self._source, sequence.Tasks):
      pool, train, val = self._source.examples(len(ends) - 1, self._mesh)
      return loop.StageData(len(ends) - 1, self._seed, pool, pool, train, val, len(train))
    part = self._stream.stage(ends)
    pool, val_pool = self.pool, self._val_pool
    if self._is_live:
      pool, val_pool, part = self._source.of_stage(part, self._mesh)
    return loop.StageData(part.stage, self._seed, pool, val_pool, part.train, part.val, part.num_new, part.memory,
                          part.share)


  def select(self, examples: np.ndarray) -> tuple[Any, np.ndarray]:
    """(a pool that holds these training examples, their places in it, int32)."""
    if not self._is_live:
      return self.pool, examples
    return self._source.pool(examples, self._mesh), np.arange(len(examples), dtype=np.int32)


class Examiner:
  """Holds the test set, and the joined contributions of final blocks to its predictions."""

  def __init__(self, setting: Setting, constants: normalization.Normalization | None = None):
    """`constants` normalise the test set; None: the constants of the first stage do."""
    assert not isinstance(setting.source, sequence.Tasks)
    self._learner, self._source = setting.learner, setting.source
    self._pool = setting.source.test_pool(setting.learner.mesh)
    self.num_cached = 0  # blocks whose joined contribution is kept
    self.cached: contract.Contribution | None = None
    self.renormalize(constants)

  def renormalize(self, constants: normalization.Normalization | None) -> None:
    """Normalises the test set with other constants, and forgets contributions with those before; None: no change."""
    if constants is not None and self._pool is not None:
      self._pool = classification.renormalized(self._pool, self._source, constants, self._learner.mesh)
      self.num_cached, self.cached = 0, None

  def examine(self, state: contract.LearnerState, trained: bool = True) -> metrics.Entry:
    """The problem's metric, the loss and the chosen metrics on the test set, see Source.score.

    Contributions of blocks that never change again are kept. Thus a growing ensemble costs as much to evaluate at its
    50th stage as at its 5th.
    """
    num_blocks = self._learner.num_blocks(state)
    if trained and self._learner.freezes:
      for block in range(self.num_cached, num_blocks):
        self.cached, self.num_cached = self._joined(self.cached, state, block), block + 1
    total = self.cached
    for block in range(self.num_cached, num_blocks):
      total = self._joined(total, state, block)
    return self._source.score(self._learner.resolve(state, total or {}))

  def _joined(self, total: contract.Contribution | None, state: contract.LearnerState,
              block: int) -> contract.Contribution:
    problem = self._source.problem
    return problem.join(total, prediction.contributions(self._learner, problem, state, block, self._pool))


def measure(setting: Setting) -> metrics.Measure:
  """What the metric of the run is measured on."""
  return metrics.Measure(setting.source.problem.metric, not setting.source.has_test)


def describe_devices(mesh: Mesh) -> str:
  """E.g. "8 x NVIDIA H100" or "cpu"."""
  kind = mesh.devices.flat[0].device_kind
  processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
  return (f"{mesh.size} x {kind}" if mesh.size > 1 else kind) + processes


def of_stages(setting: Setting) -> str:
  """As in " of 50", if their number is known."""
  return "" if setting.stream.ends is None else f" of {len(setting.stream.ends)}"


def round_name(setting: Setting) -> str:
  """The name of the parts of a stage that end with a validation."""
  return "epoch" if setting.source.problem.in_epochs else "round"
