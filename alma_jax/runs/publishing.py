"""Replaces the predictors in a run folder after every stage, if `log.predictor` asks for it."""
import pathlib

from alma_jax.learners.contract import Learner
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.protocols.contract import Protocol, Shown, State
from alma_jax.runs import exporting
from alma_jax.runs.listeners import Listener
from alma_jax.runs.progress import Progress
from alma_jax.store.metrics import Entry
from alma_jax.store.run_folder import RunFolder

FOLDER = "predictor"  # its name in a run folder


class Publisher(Listener):
  """The folder `predictor` of a run. Predictors that a stage does not change are left as they are."""

  def __init__(self, protocol: Protocol, folder: RunFolder, progress: Progress):
    """Publishes what `protocol` shows into `folder`; `progress` says so."""
    self._protocol, self._folder, self._progress = protocol, folder, progress
    self._exporter: exporting.Exporter | None = None

  def begin(self, learner: Learner, state: State) -> None:
    """Publishes what is older than the last complete stage, as after `log.predictor` was switched on."""
    ends = (*state.ends, *([state.arrival.t] if state.arrival else []))
    self._exporter = exporting.Exporter(learner, self._protocol.facts(ends).problem)
    for shown in self._protocol.shown(learner, state) if state.stage and state.complete else ():
      number = (predictors.latest_version(self._root(shown)) or "").partition("-")[0]
      if sharding.agree(int(number) if number.isdecimal() else -1) < shown.stage:
        self._publish(shown, state)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """Before the checkpoint: no saved stage is without its predictor."""
    for shown in self._protocol.shown(learner, state, state.stage - 1) if entry["updated"] else ():
      self._publish(shown, state)

  def _publish(self, shown: Shown, state: State) -> None:
    assert self._exporter is not None
    with self._progress.phase("writing the predictor"):
      position = exporting.Position(self._folder.path, self._protocol.config, shown.meta,
                                    self._protocol.fingerprint_after(shown.standing.line["t"]), shown.standing)
      files = self._exporter.files(shown.state, position)
      if sharding.is_main():
        predictors.publish(self._root(shown), state.stage - 1, files)

  def _root(self, shown: Shown) -> pathlib.Path:
    return self._folder.path / FOLDER / shown.name
