"""What a checkpoint holds: the state of a run, its learner, and the stage in training."""
import dataclasses
import pathlib
from typing import Any, NamedTuple

import numpy as np

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.data import normalization
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.learners.contract import GrowthReport, LearnerState
from alma_jax.parallel import sharding
from alma_jax.runs import settings
from alma_jax.store import checkpoint, metrics
from alma_jax.training import loop
from alma_jax.types import Tree


@dataclasses.dataclass
class RunState:
  """The state of a run: what a checkpoint holds, apart from a stage in training.

  Attributes:
    learner: LearnerState after the last complete training.
    stage: the stage in progress, or the next one, from 0.
    epoch: epochs (language: rounds) of the stage so far.
    lines: entries of metrics.jsonl so far.
    num_train_lines: lines of train.jsonl so far.
    train_total: their checksum, see run_files.chained.
    constants: normalisation constants that the learner was trained with; None: its problem has none that can change.
    arrived: what is known of the mega-batch after which the stage in training began: further entries of its line.
    initial_params: parameters of the untrained learner.
    complete: whether `learner` is that of a complete stage.
    wall_seconds, compile_seconds: of earlier sessions.
  """
  learner: LearnerState
  initial_params: int
  stage: int = 0
  epoch: int = 0
  lines: list[metrics.Entry] = dataclasses.field(default_factory=list)
  num_train_lines: int = 0
  train_total: str = ""
  complete: bool = True
  wall_seconds: float = 0.0
  compile_seconds: float = 0.0
  arrived: metrics.Entry | None = None
  constants: normalization.Normalization | None = None
  _ends: list[int] = dataclasses.field(default_factory=list)
  _num_read: int = 0  # lines that `_ends` covers

  def data(self, source: Any) -> dict[str, Any]:
    """What the learner's predictions need to know about the source's data; JSON can hold it."""
    constants = {} if self.constants is None else self.constants.entries()
    return {**source.meta(), **constants}

  @property
  def ends(self) -> tuple[int, ...]:
    """The mega-batches after which the learner was trained, counted from 1. No line with one of them is taken back."""
    self._num_read = min(self._num_read, len(self.lines))
    self._ends += metrics.ends(self.lines[self._num_read:])
    self._num_read = len(self.lines)
    return tuple(self._ends)


@dataclasses.dataclass(frozen=True)
class Growth:
  """A stage that has grown, and how it is trained.

  Attributes:
    state: LearnerState after growing.
    report: GrowthReport.
    fit: loop.FitState, begun or restored.
  """
  state: LearnerState
  report: GrowthReport
  fit: loop.FitState


class Snapshot(NamedTuple):
  """The content of a checkpoint, as `checkpoint.Checkpoints.save` takes it: JSON, arrays, and what never changes."""
  meta: checkpoint.Meta
  trees: dict[str, Tree]
  frozen: tuple[Tree, ...]


def take(setting: settings.Setting, examiner: Any, now: RunState, seconds: dict[str, float],
         growth: Growth | None = None) -> Snapshot:
  """The snapshot of a run.

  Args:
    setting: of the run.
    examiner: settings.Examiner of the run, or task_results.TaskExaminer; the predictions that it keeps are saved.
    now: the state of the run.
    seconds: "wall_seconds" and "compile_seconds" of all sessions so far.
    growth: the stage in training, or None between two stages.
  """
  state = now.learner
  host, trees = _parted(state.host, "host")
  trees["live"] = state.live
  if state.opt is not None:
    trees["opt"] = state.opt
  if state.average is not None:
    trees["average"] = state.average
  grown, frozen = None, state.frozen
  if growth is not None:
    trees["fit"] = loop.save(growth.fit)
    if growth.state is not state and not growth.report.repeat:
      grown_host, arrays = _parted(growth.state.host, "grown_host")
      trees |= arrays | {"grown": growth.state.live}
      frozen = growth.state.frozen
      grown = dict(spec=growth.state.spec, host=grown_host, report=list(growth.report))
  if examiner.cached is not None:
    trees["cached"] = examiner.cached
  meta = dict(
      config=configs.identity(setting.config), stage=now.stage, epoch=now.epoch, complete=now.complete,
      cursor=None if growth is None else growth.fit.cursor, spec=state.spec, host=host, growth=grown, lines=now.lines,
      arrived=now.arrived, num_train_lines=now.num_train_lines, train_total=now.train_total,
      num_cached=examiner.num_cached, initial_params=now.initial_params, data=now.data(setting.source), **seconds)
  return Snapshot(meta, trees, frozen)


def restore(setting: settings.Setting, opened: checkpoint.Opened, examiner: Any) -> RunState:
  """The saved state of a run. The saved predictions are given to the examiner."""
  meta = opened.meta
  if opened.has("cached"):
    examiner.cached, examiner.num_cached = dict(opened.arrays("cached")), meta["num_cached"]
  return RunState(
      restore_learner(setting.learner, opened), meta["initial_params"], meta["stage"], meta["epoch"], meta["lines"],
      meta["num_train_lines"], meta["train_total"], meta["complete"], meta["wall_seconds"], meta["compile_seconds"],
      meta["arrived"], constants(setting.source, opened))


def constants(source: Any, opened: checkpoint.Opened | None) -> normalization.Normalization | None:
  """The normalisation constants of the learner in a checkpoint; without a checkpoint, of the first stage."""
  if opened is None or source.constants is None:
    return source.constants
  return normalization.of_entries(opened.meta["data"])


def restore_growth(setting: settings.Setting, opened: checkpoint.Opened, state: LearnerState,
                   data: loop.StageData) -> Growth:
  """The stage in training that a checkpoint holds; `state` is that of the learner before the stage."""
  saved, learner = opened.meta["growth"], setting.learner
  if saved is None:
    state, report = learner.grow(state, data)
  else:
    spec, host = saved["spec"], saved["host"] | opened.arrays("grown_host")
    shapes = learner.template(spec)
    live, frozen = sharding.put((opened.tree("grown", shapes.live), opened.frozen(shapes.frozen)), learner.mesh)
    state = LearnerState(spec, live, frozen, host=host)  # the optimiser's state is part of the training
    report = GrowthReport(*saved["report"])
  training = learner.training(state, data)
  carry = opened.tree("fit", loop.template(training.spec, training.variables))
  return Growth(state, report, loop.restore(training, carry, opened.meta["cursor"]))


def restore_learner(learner: contract.Learner, opened: checkpoint.Opened, partly: bool = False) -> LearnerState:
  """The LearnerState of an opened checkpoint, on the learner's devices.

  Args:
    learner: of the run.
    opened: the checkpoint.
    partly: whether frozen blocks may be lost; None is then in their place.

  Raises:
    BadInput: one is lost.
  """
  if opened.lost and not partly:
    raise BadInput(f"a network of the learner is lost: {next(iter(opened.lost.values()))}")
  spec, host = spec_and_host(opened)
  shapes = learner.template(spec)
  opt = opened.tree("opt", shapes.opt) if opened.has("opt") else None
  average = opened.tree("average", shapes.average) if opened.has("average") else None
  arrays = (opened.tree("live", shapes.live), opened.frozen(shapes.frozen), opt, average)
  live, frozen, opt, average = sharding.put(arrays, learner.mesh)
  return LearnerState(spec, live, frozen, opt, host, average)


def spec_and_host(opened: checkpoint.Opened) -> tuple[dict[str, Any], dict[str, Any]]:
  """`spec` and `host` of the LearnerState in an opened checkpoint."""
  return opened.meta["spec"], opened.meta["host"] | opened.arrays("host")


def check_config(path: pathlib.Path, config: schema.RunConfig, meta: checkpoint.Meta) -> None:
  """Raises BadInput if config.json of the run folder `path` is not that of a checkpoint's meta."""
  differ = configs.compared(meta["config"], configs.identity(config), "in the checkpoint", "now")
  if differ:
    raise BadInput(f"{path / 'config.json'} was changed after its checkpoints were saved: {', '.join(differ)}; restore "
                   "it, or --overwrite the run.")


def _parted(host: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Tree]]:
  """(entries of a LearnerState's `host` for JSON, {name: its arrays} or {})."""
  arrays = {key: value for key, value in host.items() if isinstance(value, np.ndarray)}
  return {key: value for key, value in host.items() if key not in arrays}, {name: arrays} if arrays else {}
