"""Replaces the predictor in a run folder after every stage, if `log.predictor` asks for it."""
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.runs import exporting, settings
from alma_jax.runs.run_folder import RunFolder
from alma_jax.runs.snapshot import RunState

FOLDER = "predictor"  # its name in a run folder


class Publisher:
  """The folder `predictor` of a run. All processes of the run call its methods, and process 0 writes."""

  def __init__(self, setting: settings.Setting, folder: RunFolder):
    """Neither argument is used if `log.predictor` is false."""
    self._folder, self._root, self._standing = folder, folder.path / FOLDER, exporting.Standing()
    self.follow(setting)

  def follow(self, setting: settings.Setting) -> None:
    """Goes on with another setting of the same run, as after a live stream has brought a new class."""
    wanted, self._setting = setting.config.log.predictor, setting
    self._exporter = exporting.Exporter(setting.learner, setting.source.task) if wanted else None

  def publish(self, now: RunState) -> None:
    """Replaces the predictor by that of the last complete stage.

    Raises:
      OSError: it cannot be written; the one before stays.
    """
    if self._exporter is None or not now.stage or not now.complete:
      return
    source = self._setting.source
    self._standing.add(now.lines, source.task.metric)
    position = exporting.Position(self._folder.path, self._setting.config, source.meta(), source.fingerprint,
                                  self._standing)
    files = self._exporter.files(now.learner, position)
    if sharding.is_main():
      predictors.publish(self._root, now.stage - 1, files)

  def catch_up(self, now: RunState) -> None:
    """Publishes if the predictor is older than the last complete stage, as after `log.predictor` was switched on."""
    version = predictors.latest_version(self._root)
    late = version is None or int(version.partition("-")[0]) < now.stage - 1
    if self._exporter is not None and sharding.any_process(late and sharding.is_main()):
      self.publish(now)
