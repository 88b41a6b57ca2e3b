"""What a run is made of: data, stream, learner, and the test set that the learner never sees."""
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax import learners
from alma_jax.config import schema
from alma_jax.data import datasets, normalization, schedule
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
    """Stream of the source, or problems.sequence.Order."""
    return self.source.stream if isinstance(self.source, sequence.Tasks) else Stream(self.source, self.config.stream)

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
  setting = built(config, source, Setting(config, source, None).stream.most_val, root)  # type: ignore[arg-type]
  return setting._replace(arrays=loaded.digests(contract.Context(config, source.problem, source.example_shape, 1)))


def built(config: schema.RunConfig, source: Any, most_val: int, root: contract.Root | None = None) -> Setting:
  """The setting of a source whose stages have at most `most_val` validation examples, with its learner."""
  stream = Setting(config, source, None).stream  # type: ignore[arg-type]
  num_train = int(stream.sizes(stream.expected_ends[:1]).train[0])
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


def _of_meta(config: schema.RunConfig, meta: dict[str, Any]) -> tuple[Any, tuple[int, ...]]:
  """(the problem, shape of an example) for the data that `meta` of a checkpoint describes."""
  if isinstance(config, schema.TaskConfig):
    return sequence.of_meta(config, meta)
  return (language_modeling.of_meta if config.is_language else classification.of_meta)(config, meta)


class Stream:
  """Mega-batches, schedule and memory of a source under the names that this package still uses."""

  def __init__(self, source: Any, config: Any):
    self._feed, self._megabatches, self._memory = getattr(source, "feed", None), source.megabatches, source.memory
    self._schedule, self._limit = config.schedule, config.num_megabatches
    self.stage, self.sizes = self._memory.stage, self._memory.sizes
    self.is_adaptive = not self._schedule.is_fixed
    self.trains_late = self._feed is not None and self._schedule.trains_at_end

  @property
  def num_megabatches(self) -> int:
    return self._megabatches.num

  @property
  def ends(self) -> tuple[int, ...] | None:
    return None if self.is_adaptive or self._feed is not None else self.expected_ends

  @property
  def expected_ends(self) -> tuple[int, ...]:
    return self._schedule.ends(self._limit) if self._feed is None else (self.next_training(1) or 1,)

  @property
  def most_val(self) -> int:
    return self._memory.most_val(self.expected_ends if self._feed is not None else self.ends)

  def wait(self, t: int, tick: Callable[[], None] = lambda: None) -> bool:
    if self._feed is None:
      return t <= self._megabatches.num
    end = self.next_training(t)
    after = f"; the next training is after mega-batch {end}" if end is not None and end > t else ""
    return self._feed.wait(t, tick, after)

  def is_last(self, t: int) -> bool:
    return t == self._megabatches.num if self._feed is None else self._feed.is_last(t)

  def decide(self, t: int, history: Callable[[], schedule.History]) -> tuple[bool, dict[str, Any]]:
    return self._schedule.decide(t, self._limit, lambda: self.is_last(t), history)

  def next_training(self, t: int) -> int | None:
    return self._schedule.next(t, self._limit)


class Stages:
  """The stages of the stream, with the pools that their examples come from."""

  def __init__(self, setting: Setting):
    self._source: Any = setting.source
    self._seed, self._mesh = setting.config.seed, setting.learner.mesh

  def __getitem__(self, ends: Sequence[int]) -> loop.StageData:
    """The last of the stages that end at these mega-batches, counted from 1."""
    if isinstance(self._source, sequence.Tasks):
      pool, train, val = self._source.examples(len(ends) - 1, self._mesh)
      return loop.StageData(len(ends) - 1, self._seed, pool, pool, train, val, len(train))
    return self._source.load(self._source.memory.stage(ends), self._mesh)

  def select(self, examples: np.ndarray) -> tuple[Any, np.ndarray]:
    """(a pool that holds these training examples, their places in it, int32)."""
    return self._source.select(examples, self._mesh)


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

  def examine(self, state: contract.LearnerState, trained: bool = True) -> tuple[float, float]:
    """(the problem's metric, loss) on the test set; loss in nats, the mean over images or tokens.

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
