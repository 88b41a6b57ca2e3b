"""What a problem and its data have to define: the base classes of both.

A problem says what batches, losses, predictions and selection are. A source holds the data of one run of a problem.
`pool`, `batch`, `inputs`, `output`, `sums` and `contribution` are pytrees of arrays. Only the problem knows their
structure, except that the first field of a pool has an entry for each of its examples.
"""
# mypy: disable-error-code="empty-body"
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax.data.megabatches import Megabatches
from alma_jax.data.memory import Memory, StageData
from alma_jax.types import Array, Key, Tree, Variables


class Interface(NamedTuple):
  """What an exported prediction program takes and returns.

  Attributes:
    facts: entries of predictor.json that say it.
    example: shape and dtype of one raw example.
    inputs: a batch of raw examples -> what a network reads.
    outputs: the learner's prediction -> what the program returns.
  """
  facts: dict[str, Any]
  example: jax.ShapeDtypeStruct
  inputs: Callable[[Any], Any]
  outputs: Callable[[Any], tuple[Any, ...]]


class Problem:
  """Base class of problems, which are frozen dataclasses of static facts: jitted functions take them as such.

  All methods are traceable by jax, except `load` and `report`, which work on the host.

  Attributes:
    metric: its name, e.g. "error". Its value on validation data is called val_METRIC.
    decimals: of a value of the metric as text.
    files: of a run folder, which belong to its predictor.
    selects: whether the best round of a stage is selected; otherwise the last round is kept.
    in_epochs: whether a round is an epoch. Otherwise a stage's examples are one endless sequence of permutations, which
      is cut into full batches, and a round is a number of training steps.
    max_steps: the largest number of training steps of a dispatch.
  """
  metric: str
  decimals: int
  max_steps: int
  files: tuple[str, ...] = ()
  selects: bool = True
  in_epochs: bool = True

  @property
  def guessing_loss(self) -> float | None:
    """The largest sensible loss of an example in nats, if drift is watched by losses; None: it is watched by errors."""
    return None

  @property
  def chance(self) -> float | None:
    """The metric of random guessing; None if it is unknown."""
    return None

  @property
  def eval_batch(self) -> int:
    """Number of examples of an evaluation batch."""
    return 512

  def num_views(self, shape: Sequence[int]) -> int:
    """How many forward passes one network needs to predict an example of this shape."""
    del shape
    return 1

  @property
  def group(self) -> int:
    """Number of examples that a device must process together; 1 if they are independent of each other."""
    return 1

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a network."""

  def interface(self, meta: Mapping[str, Any], votes: bool) -> Interface:
    """What an exported program takes and returns.

    Args:
      meta: what `Source.meta` returned, of a task with its constants and classes.
      votes: whether a prediction is the class that most networks vote for.
    """

  def batch_bytes(self, num: int, num_devices: int) -> tuple[int, int]:
    """(bytes on the host, bytes on each device) of what is prepared for a dispatch of `num` examples."""
    return 4 * num, 4 * num // num_devices  # indices of examples

  # ------------------------------------------------------------------------ from a pool to what a network reads

  def load(self, pool: Tree, index: np.ndarray) -> tuple[Tree, np.ndarray]:
    """Loads the examples that a dispatch needs.

    Args:
      pool: pool of training examples.
      index: int32 array of any shape, indices into `pool`.

    Returns:
      (a pool with these examples, int32 array of the shape of `index` with their indices into it). The pool is `pool`
      itself if it is on the device already, as it is unless a problem says otherwise.
    """
    return pool, index

  def take(self, pool: Tree, index_B: Array, weight_B: Array | None = None) -> Tree:
    """The batch of the examples `index_B` of a pool on the device; `weight_B` float32 are factors of their losses."""

  def inputs(self, pool: Tree, batch: Tree) -> Tree:
    """What a network reads in evaluation."""

  def train_inputs(self, pool: Tree, batch: Tree, key: Key, offset: Array, total: int) -> Tree:
    """What a network reads in training; augmentation happens here.

    Args:
      pool: of the batch.
      batch: this device's part of the batch.
      key: of the training step.
      offset: int32, number of the part's first example in the whole batch.
      total: size of the whole batch. The result depends on the whole batch, and not on how it is divided.
    """

  # ------------------------------------------------------------------------ sums, losses, selection

  def zeros(self, network: Any) -> Tree:
    """The sums over no examples."""

  def sums(self, output: Any, batch: Tree, mask_B: Array) -> Tree:
    """Sums of losses and counts over the examples of `mask_B`, bool; `output` is the network's for the batch."""

  def norm(self, batch: Tree, mask_B: Array, count: Array) -> Any:
    """What `objective` divides by, for the batch on all devices; `count` int32 is its number of examples."""
    return count

  def objective(self, output: Any, batch: Tree, mask_B: Array, sums: Tree, norm: Any) -> Array:
    """The scalar to be minimised. Its values for the parts of a batch are added.

    Args:
      output, batch, mask_B: as in `sums`.
      sums: what `sums` returned.
      norm: what `norm` returned.
    """

  def better(self, sums: Tree, best: Tree, val: Any) -> Array:
    """Whether `sums` over validation examples improve on the `best` so far.

    Only problems that select need this method.

    Args:
      sums: of a round, arrays [M].
      best: of the best round, arrays [M].
      val: training.program.ValBatches.

    Returns:
      bool [M].
    """

  def report(self, sums: Tree, own_M: np.ndarray, num_M: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Loss in nats and the metric, from sums.

    Args:
      sums: of numpy arrays [M].
      own_M: int, the number of each member's own examples. The joint numbers are over these.
      num_M: int, the number of examples that were summed for each member.

    Returns:
      ({name: number}, {name: float [M]}); NaN for a member without any example.
    """

  # ------------------------------------------------------------------------ predictions of several networks

  def contribution(self, network: Any, member: Variables, inputs: Tree, combine: str) -> Mapping[str, Any]:
    """One network's part of a joint prediction.

    Args:
      network: models.Network.
      member: its Variables.
      inputs: as `inputs` returns them.
      combine: how predictions are joined, the learner's `combine`.

    Returns:
      Dict of arrays [B, ...].
    """

  def merge(self, stacked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The joint contribution of stacked members: arrays [M, B, ...] -> [B, ...]."""

  def join(self, first: Mapping[str, Any] | None, second: Mapping[str, Any]) -> dict[str, Any]:
    """The joint contribution of two; None stands for no networks. Takes numpy arrays, too."""

  def resolve(self, joined: Mapping[str, Any], count: float, combine: str) -> Any:
    """The prediction of `count` networks from their joint contribution. Takes numpy arrays, too."""


class Source:
  """Base class of the data of a run.

  Attributes:
    problem: of the run.
    megabatches: data.megabatches.Megabatches.
    memory: data.memory.Memory.
    example_shape: shape of one example: of an image, or (L + 1,) of a window of text.
    fingerprint: SHA-256 of the data.
    untrained: the metric before the first update (docs/algorithms.md §1). None: it is measured if the problem selects,
      and there is none otherwise.
    files: {name: text} of files that are written into the run folder.
    num_test: number of examples of which each is right or wrong in the test set.
    has_test: whether there is a test set. Otherwise the prequential metric of a mega-batch is its test metric.
    is_changing: whether the distribution changes, so that every learner is tested on each mega-batch when it arrives.
    constants: normalisation constants of the first stage, which the pools and `meta` use; None: there are none, or
      they never change.
  """
  problem: Any
  megabatches: Megabatches
  memory: Memory
  example_shape: tuple[int, ...]
  fingerprint: str
  untrained: float | None = None
  files: dict[str, str] = {}  # noqa: RUF012 (never changed in place)
  num_test: int = 0
  has_test: bool = True
  is_changing: bool = False
  constants: Any = None

  @staticmethod
  def of_meta(config: Any, meta: Mapping[str, Any]) -> tuple[Any, tuple[int, ...]]:
    """(problem, shape of an example) from what `meta` returned.

    Raises:
      BadInput: the config does not fit the examples.
    """

  @property
  def num_bytes(self) -> tuple[int, int]:
    """(bytes in the host's memory, bytes on each device) of the examples that a run holds at one time, at least."""

  def meta(self, ends: Sequence[int] = ()) -> dict[str, Any]:
    """What a learner that is saved after the stage `ends` needs to know of the data to predict; JSON can hold it."""

  def followed(self, known: Any, ends: Sequence[int]) -> tuple[Any, list[Any]]:
    """(constants of the last of the stages that end at `ends`, columns that get new ones); only if there are any.

    `known`: the constants of the previous stage. Constants that belong to the data set never change.
    """

  def load(self, data: StageData, mesh: Mesh) -> StageData:
    """What `memory.stage` has returned, with the pools. The examples are then numbered by their places in the pools."""

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[Tree, np.ndarray]:
    """(a pool that holds these training examples, their places in it, int32)."""

  def test_at(self, t: int) -> Hashable:
    """The test set after mega-batch t: equal for mega-batches that share one."""
    return None

  def test_pool(self, mesh: Mesh, t: int = 1) -> Tree:
    """The pool of test examples after mega-batch t, if there are any."""

  def score(self, prediction: Any, t: int = 1) -> dict[str, Any]:
    """The metric, the loss in nats and the chosen metrics (measures.py) of a prediction for all these examples."""

  def tested(self, t: int) -> np.ndarray:
    """int32 [N], training examples by which the deployed learner is tested when mega-batch t arrives."""

  def score_training(self, prediction: Any, which: np.ndarray) -> dict[str, Any]:
    """What metrics.jsonl says about a prediction for the training examples `which`: prequential_METRIC and the chosen
    metrics."""
