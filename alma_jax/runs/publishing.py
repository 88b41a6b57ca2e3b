"""Replaces the predictor in a run folder after every stage, if `log.predictor` asks for it."""
from alma_jax.learners.task_learner import TaskLearner
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.problems import sequence
from alma_jax.problems.live_source import LiveSource
from alma_jax.runs import exporting, settings, task_results
from alma_jax.runs.snapshot import RunState
from alma_jax.store.run_folder import RunFolder

FOLDER = "predictor"  # its name in a run folder


class Publisher:
  """The folder `predictor` of a run. All processes of the run call its methods, and process 0 writes.

  On a stream of tasks it has a folder for each task. If earlier tasks are not forgotten, their predictors do not
  change, and only that of the newest task is written, with those of the earlier tasks to which it returns.
  """

  def __init__(self, setting: settings.Setting, folder: RunFolder):
    """Neither argument is used if `log.predictor` is false."""
    self._folder, self._root, self._standing = folder, folder.path / FOLDER, exporting.Standing()
    self._caught_up = False  # whether the predictors of all earlier tasks are there
    self.follow(setting)

  def follow(self, setting: settings.Setting) -> None:
    """Goes on with another setting of the same run, as after a live stream has brought a new class."""
    wanted, self._setting = setting.config.log.predictor, setting
    self._exporter = exporting.Exporter(setting.learner, setting.source.problem) if wanted else None

  def publish(self, now: RunState) -> None:
    """Replaces the predictor by that of the last complete stage.

    Raises:
      OSError: it cannot be written; the one before stays.
    """
    if self._exporter is None or not now.stage or not now.complete:
      return
    learner = self._setting.learner
    if not isinstance(learner, TaskLearner):
      self._publish(now)
    elif learner.options.forgets:
      for t in range(now.stage):
        self._publish(now, t)
    elif self._caught_up:
      for t in self._tasks.visits(now.stage - 1):
        self._publish(now, t)
    else:
      self.catch_up(now)

  def catch_up(self, now: RunState) -> None:
    """Publishes what is older than the last complete stage, as after `log.predictor` was switched on."""
    learner = self._setting.learner
    if self._exporter is None or not now.stage or not now.complete:
      return
    self._caught_up = True
    if not isinstance(learner, TaskLearner):
      if self._is_late(now.stage - 1):
        self._publish(now)
      return
    for t in range(now.stage):
      if self._is_late(now.stage - 1 if learner.options.forgets else self._tasks.newest(t, now.stage), t):
        self._publish(now, t)

  @property
  def _tasks(self) -> sequence.Tasks:
    assert isinstance(self._setting.source, sequence.Tasks)
    return self._setting.source

  def _is_late(self, stage: int, t: int | None = None) -> bool:
    """Whether the predictor, of task t if it is given, is older than a stage."""
    version = predictors.latest_version(self._root if t is None else predictors.of_task(self._root, t))
    number = (version or "").partition("-")[0]
    late = not number.isdecimal() or int(number) < stage
    return sharding.any_process(late and sharding.is_main())

  def _publish(self, now: RunState, t: int | None = None) -> None:
    """Publishes the predictor, of task t if it is given."""
    source, learner, state, root = self._setting.source, self._setting.learner, now.learner, self._root
    data = now.data(source)
    if t is None:
      standing = self._standing.add(now.lines, source.problem.metric)
    else:
      assert isinstance(learner, TaskLearner)
      state, data = task_results.shown(learner, state, data, t)
      standing = exporting.standing_of_task(now.lines, learner.cost(state).num_params, data,
                                            learner.options.forgets)
      root = predictors.of_task(root, t)
    fingerprint = (source.fingerprint_after(standing.last["t"]) if isinstance(source, LiveSource) else
                   source.fingerprint)
    position = exporting.Position(self._folder.path, self._setting.config, data, fingerprint, standing)
    assert self._exporter is not None
    files = self._exporter.files(state, position)
    if sharding.is_main():
      predictors.publish(root, now.stage - 1, files)
