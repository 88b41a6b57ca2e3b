"""Replaces the predictors in a run folder after every stage, if `log.predictor` asks for it."""
from alma_jax.learners.contract import Learner
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.protocols.contract import Protocol, State
from alma_jax.runs import exporting
from alma_jax.runs.listeners import Listener
from alma_jax.runs.progress import Progress
from alma_jax.store.metrics import Entry
from alma_jax.store.run_folder import RunFolder

FOLDER = "predictor"  # its name in a run folder


class Publisher(Listener):
  """The folder `predictor` of a run. Predictors that a stage does not change are left as they are."""

  def __init__(self, protocol: Protocol, folder: RunFolder, shown: Progress):
    """`protocol` and `folder` of the run; `shown`: its progress."""
    self._protocol, self._folder, self._shown = protocol, folder, shown
    self._exporter: exporting.Exporter | None = None
    self._stages: dict[str, int] = {}  # of the predictors that are there

  def begin(self, learner: Learner, state: State) -> None:
    """Publishes what is older than the last complete stage, as after `log.predictor` was switched on."""
    ends = (*state.ends, *([state.arrival.t] if state.arrival else []))
    self._exporter = exporting.Exporter(learner, self._protocol.facts(ends).problem)
    if state.stage and state.complete:
      self._publish(learner, state)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """Before the checkpoint: no saved stage is without its predictor."""
    if entry["updated"]:
      self._publish(learner, state)

  def _publish(self, learner: Learner, state: State) -> None:
    assert self._exporter is not None
    with self._shown.phase("writing the predictor"):
      for shown in self._protocol.shown(learner, state):
        root = self._folder.path / FOLDER / shown.name
        if shown.name not in self._stages:
          version = predictors.latest_version(root) or ""
          number = version.partition("-")[0]
          self._stages[shown.name] = sharding.agree(int(number) if number.isdecimal() else -1)
        if self._stages[shown.name] < shown.stage:
          position = exporting.Position(
              self._folder.path, self._protocol.config, shown.meta,
              self._protocol.fingerprint_after(shown.standing.line["t"]), shown.standing)
          files = self._exporter.files(shown.state, position)
          if sharding.is_main():
            predictors.publish(root, state.stage - 1, files)
          self._stages[shown.name] = shown.stage
