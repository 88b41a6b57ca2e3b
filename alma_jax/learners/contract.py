"""The contract between a run and a learner.

A learner decides how networks are grown, trained and combined. It never sees the test set. A run (runs/loop.py)
hands it one stage after another and asks it for contributions to predictions.

The life of a stage: `grow`, `training`, the training loop (training/loop.py), `finish`; and all of that again unless
`finish` says that the stage is complete. All methods are pure functions: their results depend on
their arguments alone, which they do not change. The run checks the state after every `grow` and `finish`, and refuses
one that could not be restored.

To add a learner, write a subclass of `stacked.Stacked`, which implements all of this for networks of one shape that
are trained side by side, or of `paths.Paths` for streams of tasks, and register its options (docs/add-a-learner.md).
"""
import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from alma_jax import models
from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.models import cost
from alma_jax.parallel import sharding
from alma_jax.training import loop
from alma_jax.types import Array, Cost, Tree, Variables

Contribution = dict[str, Array | np.ndarray]


class LearnerState(NamedTuple):
  """What a learner is between two stages: everything that the next stage depends on. Otherwise a resumed run differs.

  Attributes:
    spec: static facts, a dict that JSON can hold: what decides the shapes of the arrays, e.g. widths, the topology of
      gates. `num_frozen` is the number of frozen blocks.
    live: Variables of what can still be trained; of stacked networks every leaf is [M, ...].
    frozen: tuple of Variables that never change again, oldest first. Each is saved once, so none can be replaced.
    opt: optimiser state that the next stage starts from, or None for a fresh one.
    host: small state on the host: a dict of values that JSON can hold and of numpy arrays with at least one element,
      which are entries of the dict itself. Variables that predict and are never trained belong here, too.
    average: averaged weights, Variables like `live`, that predict in place of it; None: `live` predicts. They are not
      used any more once the next stage is trained.
  """
  spec: dict[str, Any]
  live: Any
  frozen: tuple[Variables, ...] = ()
  opt: Tree = None
  host: dict[str, Any] = {}  # noqa: RUF012 (never changed in place)
  average: Any = None

  @property
  def predicting(self) -> Any:
    """Variables of the live block that predict."""
    return self.live if self.average is None else self.average

  @property
  def num_held(self) -> int:
    """How often the live block's weights are held: twice with an average, which counts in Mem."""
    return 1 if self.average is None else 2


class GrowthReport(NamedTuple):
  """What a growth cost, and how a resumed run restores it.

  Attributes:
    macs: multiply-adds of forward passes, which are part of the paper's Comp.
    flops: floating-point operations of all passes, or None for 2 per multiply-add.
    repeat: whether a run that was stopped in the stage grows again when it resumes. Otherwise the grown state is saved
      with every checkpoint of the stage.
  """
  macs: int = 0
  flops: int | None = None
  repeat: bool = False


class StageResult(NamedTuple):
  """What `finish` returns.

  Attributes:
    state: the learner's new state.
    report: what the stage cost and reached so far.
    complete: whether the stage is over. If not, it goes on with another growth and another training, whose last
      report counts for the whole stage.
    notes: further entries for its line of metrics.jsonl.
  """
  state: LearnerState
  report: loop.FitReport
  complete: bool = True
  notes: dict[str, Any] = {}  # noqa: RUF012 (never changed in place)


class Learner(Protocol):
  """The methods of a learner that a run calls.

  Attributes:
    mesh: the devices that it runs on.
    freezes: whether the live block of a stage is frozen before the next stage is trained. Then its contribution to
      the test predictions is computed only once.
    shapes_recur: whether shapes of earlier stages come back, so that their programs are kept.
  """
  mesh: Mesh
  freezes: bool
  shapes_recur: bool = False

  def init(self) -> LearnerState:
    """The untrained state."""
    ...

  def grow(self, state: LearnerState, data: loop.StageData) -> tuple[LearnerState, GrowthReport]:
    """Changes the architecture before a training; may use the training and validation data of the stage."""
    ...

  def training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    """What the training loop has to do: which variables it starts from, on which examples, with which optimiser."""
    ...

  def largest_training(self, state: LearnerState, data: loop.StageData) -> loop.Training:
    """A training of about the largest size among the first ones, of shapes instead of arrays.

    Args:
      state: the untrained state, of shapes.
      data: a stage without a pool.
    """
    return self.training(state, data)

  def only_network(self, state: LearnerState) -> Variables | None:
    """Variables of the network that predicts, numpy arrays, for `learner.root`; None: several predict."""
    del state
    return None

  def finish(self, state: LearnerState, data: loop.StageData, trained: loop.Trained) -> StageResult:
    """The learner's state after a training."""
    ...

  def num_blocks(self, state: LearnerState) -> int:
    """Number of blocks, whose contributions are joined to a prediction."""
    ...

  def contribution(self, state: LearnerState, block: int, inputs: Any) -> Contribution:
    """The contribution of one block to the predictions for a batch.

    This and `resolve` are the only way to a prediction: evaluation, `Run.predict`, export and sampling use them. Both
    are traceable, i.e. they also work inside `jax.jit`.

    Args:
      state: of the learner.
      block: number of the block, from 0.
      inputs: a batch as the network reads it: normalised images [B, ...] float32, or one of the kinds of inputs of
        problems/language_modeling.py.

    Returns:
      Dict of arrays [B, ...], which the problem's `join` adds to those of the other blocks. A name that only one block
      uses is kept as it is.
    """
    ...

  def padded_contribution(self, state: LearnerState, block: int, inputs: Any, mask_B: np.ndarray) -> Contribution:
    """`contribution` for a batch on the devices that is padded where `mask_B`, bool, is False.

    The results for padding are not used, so a learner need not compute them.
    """
    del mask_B
    return self.contribution(state, block, inputs)

  def packed(self, state: LearnerState) -> LearnerState:
    """The state to export: it predicts the same, without what only training needs."""
    return state._replace(live=state.predicting, opt=None, average=None)

  def resolve(self, state: LearnerState, joined: Contribution) -> Any:
    """The prediction from the joined contributions of all blocks.

    Returns:
      For images (classes int [B], probabilities float32 [B, K]), for text log-probabilities.
    """
    ...

  def cost(self, state: LearnerState) -> Cost:
    """Parameters and multiply-adds of the state, per example."""
    ...

  def planned_cost(self, state: LearnerState, stage: int) -> Cost:
    """The cost in a later stage, if `state` is untrained, as far as the config decides it; for predictions."""
    del stage
    return self.cost(state)

  def router(self, state: LearnerState) -> Callable[[Tree], dict[str, np.ndarray]] | None:
    """Pool -> the weights of the experts for each image, {mixture: float32 [N, E]}; None: no experts to choose from."""
    del state
    return None

  def describe(self, state: LearnerState) -> str:
    """Text for people: what has grown. Only `spec` and `host` of the state are used."""
    ...

  def template(self, spec: dict[str, Any]) -> LearnerState:
    """A state whose arrays are jax.ShapeDtypeStruct, to restore a checkpoint into; `host` is empty.

    It has an optimiser state and an average, whether or not the learner keeps any.
    """
    ...


class Root(NamedTuple):
  """A pretrained network that a learner may start from.

  Attributes:
    path: of the run folder that it comes from.
    variables: of one network, numpy arrays.
    sha256: of them, hexadecimal.
  """
  path: str
  variables: Variables
  sha256: str


@dataclasses.dataclass(frozen=True)
class Context:
  """What a learner is built from.

  Attributes:
    config: schema.RunConfig.
    problem: see problems/contract.py.
    example_shape: shape of one input; for text (L + 1,).
    max_val: validation examples of the largest stage.
    num_train: training examples of the first stage. None if the learner is only read and never trained.
    root: the network of `learner.root`; None if the config names none, or if the learner is only read.
  """
  config: schema.RunConfig
  problem: Any
  example_shape: tuple[int, ...]
  max_val: int
  num_train: int | None = None
  root: Root | None = None

  def network(self, width: int | None = None, **options: Any) -> Any:
    """The network that the config names; options are those of models.build, `width` replaces `model.width`."""
    model = self.config.model if width is None else dataclasses.replace(self.config.model, width=width)
    return models.build(model, self.problem.num_outputs, self.example_shape, self.config.precision,
                        sharding.DATA, **options)

  @property
  def num_views(self) -> int:
    """How many forward passes one network needs to predict an example."""
    views: int = self.problem.num_views(self.example_shape)
    return views

  @property
  def example(self) -> Tree:
    """Zeros in the place of one input with its batch axis, as the networks read it."""
    shapes = self.network().inputs((1, *self.example_shape))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def untrained(learner: Learner) -> LearnerState | None:
  """The shapes of the LearnerState that `learner.init` returns, or None if init cannot be traced."""
  specs = []

  def live() -> Tree:
    state = learner.init()
    specs.append((state.spec, state.host))
    return state.live

  try:
    shapes = jax.eval_shape(live)
  except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):  # init looks at values, or places arrays elsewhere
    return None
  spec, host = specs[0]
  return LearnerState(spec, shapes, host=host)


def planned_macs(learner: Learner, num_stages: int) -> list[int]:
  """Forward multiply-adds of an example in each stage of an untrained learner, for predictions.

  Only the shapes of its state are used, if its init can be traced.
  """
  with cost.predicting():
    state = untrained(learner)
  state = state or learner.init()
  with cost.predicting():
    return [learner.planned_cost(state, stage).fwd_macs for stage in range(num_stages)]


def check_state(before: LearnerState, after: LearnerState, name: str) -> None:
  """Checks what a learner has made of its state, because a state that cannot be restored gives wrong numbers later.

  Args:
    before: the state that the learner was given.
    after: the state that it returned.
    name: of the learner.

  Raises:
    BadInput: frozen blocks were replaced or removed, `num_frozen` of `spec` is not their number, or an entry of `spec`
      or `host` cannot be saved.
  """
  num, said = len(after.frozen), after.spec.get("num_frozen", len(after.frozen))
  if num != said:
    raise BadInput(f"the learner {name!r} returned a state with {num} frozen blocks and spec['num_frozen']={said}; "
                   "Stacked.append adds a block and counts it.")
  if num < len(before.frozen) or any(old is not new for old, new in zip(before.frozen, after.frozen)):
    raise BadInput(f"the learner {name!r} replaced or removed a frozen block; each is saved only once. Keep variables "
                   "that change in `live`, or as numpy arrays in `host`.")
  for part, entries in (("spec", after.spec), ("host", after.host)):
    for key, value in entries.items():
      if part == "host" and isinstance(value, np.ndarray) and value.size:
        continue
      try:
        json.dumps(value)
      except (TypeError, ValueError):
        allowed = "values that JSON can hold" + (", and numpy arrays that are not empty" if part == "host" else "")
        raise BadInput(f"the learner {name!r} put a value of type {type(value).__name__} into {part}[{key!r}], which "
                       f"cannot be saved; {part} is a dict of {allowed}.") from None
