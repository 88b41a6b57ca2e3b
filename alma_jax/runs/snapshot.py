"""What a checkpoint holds: the state of a run, its learner, and the stage in training."""
import pathlib
from typing import Any, NamedTuple

import numpy as np

from alma_jax import config as configs
from alma_jax.config import schema
from alma_jax.errors import BadInput
from alma_jax.learners import contract
from alma_jax.learners.contract import GrowthReport, LearnerState
from alma_jax.parallel import sharding
from alma_jax.protocols.contract import Arrival, Joined, State
from alma_jax.store import checkpoint
from alma_jax.training import loop
from alma_jax.types import Tree

# Fields of State that a checkpoint holds as they are; `meta` is called "data" there.
_FIELDS = ("stage", "epoch", "complete", "initial_params", "lines", "num_train_lines", "train_total")


class Growth(NamedTuple):
  """A stage that has grown, and how it is trained.

  Attributes:
    state: LearnerState after growing.
    report: GrowthReport.
    fit: loop.FitState, begun or restored.
  """
  state: LearnerState
  report: GrowthReport
  fit: loop.FitState


def take(config: schema.RunConfig, now: State, seconds: dict[str, float], growth: Growth | None = None
         ) -> tuple[checkpoint.Meta, dict[str, Tree], tuple[Tree, ...]]:
  """What a checkpoint of a run holds, as `checkpoint.Checkpoints.save` takes it.

  Args:
    config: of the run.
    now: the state of the run.
    seconds: "wall_seconds" and "compile_seconds" of all sessions so far.
    growth: the stage in training, or None between two stages.
  """
  state = now.learner
  host, trees = _parted(state.host, "host")
  found = dict(live=state.live, opt=state.opt, average=state.average, joined=now.joined.cached)
  trees |= {name: tree for name, tree in found.items() if tree is not None}
  grown, frozen = None, state.frozen
  if growth is not None:
    trees["fit"] = loop.save(growth.fit)
    if growth.state is not state and not growth.report.repeat:
      grown_host, arrays = _parted(growth.state.host, "grown_host")
      trees |= arrays | {"grown": growth.state.live}
      frozen = growth.state.frozen
      grown = dict(spec=growth.state.spec, host=grown_host, report=list(growth.report))
  meta = dict(
      config=configs.identity(config), cursor=None if growth is None else growth.fit.cursor, spec=state.spec, host=host,
      growth=grown, arrival=now.arrival and list(now.arrival), num_joined=now.joined.num, data=now.meta, **seconds,
      **{name: getattr(now, name) for name in _FIELDS})
  return meta, trees, frozen


def restore(learner: contract.Learner, opened: checkpoint.Opened, partly: bool = False) -> State:
  """The saved state of a run; `learner` and `partly` as for `restore_learner`."""
  meta = opened.meta
  joined = Joined(dict(opened.arrays("joined")), meta["num_joined"]) if opened.has("joined") else Joined()
  return State(
      restore_learner(learner, opened, partly), meta=meta["data"], arrival=arrival_of(meta), joined=joined,
      **{name: meta[name] for name in (*_FIELDS, "wall_seconds", "compile_seconds")})


def arrival_of(meta: checkpoint.Meta) -> Arrival | None:
  """The mega-batch whose stage was in training, by the meta of a checkpoint."""
  return meta["arrival"] and Arrival(*meta["arrival"])


def restore_growth(learner: contract.Learner, opened: checkpoint.Opened, state: LearnerState,
                   data: loop.StageData) -> Growth:
  """The stage in training that a checkpoint holds; `state` is that of the learner before the stage."""
  saved = opened.meta["growth"]
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
  opt, average = (opened.tree(name, getattr(shapes, name)) if opened.has(name) else None for name in ("opt", "average"))
  arrays = (opened.tree("live", shapes.live), opened.frozen(shapes.frozen), opt, average)
  live, frozen, opt, average = sharding.put(arrays, learner.mesh)
  return LearnerState(spec, live, frozen, opt, host, average)


def spec_and_host(opened: checkpoint.Opened) -> tuple[dict[str, Any], dict[str, Any]]:
  """`spec` and `host` of the LearnerState in an opened checkpoint."""
  return opened.meta["spec"], opened.meta["host"] | opened.arrays("host")


def check_config(path: pathlib.Path, config: schema.RunConfig, meta: checkpoint.Meta) -> None:
  """Raises BadInput if config.json of the run folder `path` is not that of a checkpoint's meta."""
  differ = configs.changed_since(meta["config"], config, "in the checkpoint", "now")
  if differ:
    raise BadInput(f"{path / 'config.json'} was changed after its checkpoints were saved: {', '.join(differ)}; restore "
                   "it, or --overwrite the run.")


def _parted(host: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Tree]]:
  """(entries of a LearnerState's `host` for JSON, {name: its arrays} or {})."""
  arrays = {key: value for key, value in host.items() if isinstance(value, np.ndarray)}
  return {key: value for key, value in host.items() if key not in arrays}, {name: arrays} if arrays else {}
