"""Algorithm 1: stage after stage, grow, train, evaluate, write, save."""
import dataclasses
import importlib.metadata
import importlib.util
import pathlib
import platform
import sys
import time

import jax
import numpy as np

from alma_jax import checkpoint, environment, fields, metrics, results, runtime, sharding, writers
from alma_jax import config as configs
from alma_jax.errors import BadInput, Diverged, Stopped
from alma_jax.learners import optimizers, tuned
from alma_jax.learners.base import GrowthReport
from alma_jax.writers import METRICS, TRAIN

# How often progress and signals are looked at: length of a dispatch, and rows of the first.
_TARGET_SECONDS, _FIRST_ROWS = 0.25, 1


def run(config, workdir=None, *, data=None, overwrite=False, should_stop=None):
  """Runs a stream to its end, or goes on with it, or finds it complete.

  Args:
    config: ConfigDict (see `alma_jax.base_config` and configs/) or RunConfig.
    workdir: run folder; None: runs/NAME-LEARNER-<short hash>.
    data: (x_train, y_train, x_test, y_test) in place of `dataset.name`.
    overwrite: start again where the folder holds a run.
    should_stop: () -> bool, asked between dispatches; True saves and stops.

  Returns:
    results.Run of the finished run.

  Raises:
    BadInput: config, data or folder cannot be used; nothing was computed.
    Diverged: the training loss is not finite; everything so far is saved.
    Stopped: `should_stop` said so; everything so far is saved.
  """
  config = configs.parse(config)
  if data is not None:
    config = dataclasses.replace(config, dataset=fields.Dataset("data", ""))
  if config.log.wandb and importlib.util.find_spec("wandb") is None:
    raise BadInput(f"log.wandb={config.log.wandb!r} needs a package that is missing; run `pip install wandb`.")
  runtime.setup(config)
  setting = environment.prepare(config, data)
  path = pathlib.Path(workdir or configs.default_workdir(config)).expanduser()
  with _claimed(path, setting, overwrite) as folder:
    folder.write_files(setting.source.files)
    if writers.read_json(path / "summary.json") is None:
      _Runner(setting, folder, should_stop or (lambda: False)).run()
      sharding.barrier("the run is complete")
    else:
      say(f"{path} is complete.")
  return results.load_run(path)


def _claimed(path, setting, overwrite):
  """The run folder; where process 0 refuses it, all processes do."""
  folder = problem = None
  try:
    sharding.check_same(setting.source.fingerprint, "data")
    folder = writers.RunFolder(path, sharding.is_main())
    folder.claim(setting.config, setting.source.fingerprint, overwrite)
  except BadInput as error:
    problem = error
  if sharding.any_process(problem is not None):
    if folder is not None:
      folder.close()
    raise problem or BadInput("process 0 refused the run folder; it says why.")
  return folder


def say(message):
  """One line for the person at the terminal, from process 0."""
  if sharding.is_main():
    print(message, file=sys.stderr, flush=True)


class _Runner:
  """One session of a run: from where it stands to its end."""

  def __init__(self, setting, folder, should_stop):
    self._setting, self._folder, self._should_stop = setting, folder, should_stop
    self._config, self._learner, self._source = setting.config, setting.learner, setting.source
    self._metric = self._source.task.metric
    self._started = self._saved = time.monotonic()
    self._saved_in = None  # stage in progress in the newest checkpoint
    self._compiled_at_start = runtime.compile_seconds()
    self._rows = _FIRST_ROWS  # training steps of the next dispatch, adapted to its length

  def run(self):
    folder, stream = self._folder, self._setting.stream
    self._checkpoints = checkpoint.Checkpoints(folder.path / "checkpoints", self._config.checkpoint.keep)
    self._restore()  # first: damage must be told before anything is changed
    self._stages, train_lines = environment.Stages(self._setting), self._num_train_lines
    folder.write_config(self._config, self._source.fingerprint)
    folder.cut(METRICS, len(self._lines))
    folder.cut(TRAIN, train_lines)
    self._boards = []
    if self._config.log.tensorboard and sharding.is_main():
      self._boards.append(writers.TensorBoard(folder.path / "tensorboard", len(self._lines), train_lines))
    if self._config.log.wandb and sharding.is_main():
      self._boards.append(writers.Wandb(folder.path, self._config, train_lines))
    sizes = np.array([self._config.train.plan(int(num)).samples for num in stream.sizes[:, 0]])
    sizes *= tuned.num_candidates(self._config)
    self._progress = writers.Progress(
        self._config.log.progress and sharding.is_main(), int(sizes.sum()), int(sizes[:self._stage].sum()),
        self._metric, self._round)
    try:
      while self._stage < stream.num_stages:
        self._run_stage()
      self._finish()
    finally:
      self._progress.close()
      self._checkpoints.finish()
      for board in self._boards:
        board.close()

  def _run_stage(self):
    stage, began, learner = self._stage, time.monotonic(), self._learner
    data, last_t = self._stages[stage], self._setting.stream.last_t(stage)
    while len(self._lines) < last_t - 1:
      self._write(metrics.waiting(
          self._metric, len(self._lines) + 1, self._lines[-1] if self._lines else None,
          None if self._lines else self._untrained(), learner.cost(self._state).num_params))
    complete = False
    while not complete:
      grown, growth, fitting = self._resumed_inside(data) or self._grow(data)
      train_lines, epoch = self._num_train_lines, self._epoch
      try:
        fitting = self._train(fitting, data, began, (grown, growth))
      except Diverged:
        if self._saved_in != stage:  # what has been learnt before is not lost
          self._num_train_lines, self._epoch = train_lines, epoch
          self._save()
        raise
      self._state, report = learner.finish(grown, fitting)
      complete, self._saved_in = learner.complete(self._state), None
    value, loss = self._examiner.examine(self._state)
    cost = learner.cost(self._state)
    self._stage = stage + 1
    self._write(metrics.line(
        self._metric, last_t, stage, True, value, report.val, loss, cost.num_params,
        cost.fwd_macs * report.samples + growth.macs,
        cost.train_flops * report.samples + (2 * growth.macs if growth.flops is None else growth.flops),
        growth.macs, time.monotonic() - began))
    every = self._config.checkpoint.keep_every
    permanent = bool(every) and self._stage % every == 0
    last = self._stage == self._setting.stream.num_stages
    if permanent or last or self._is_due():
      self._save(permanent=permanent or last)

  def _grow(self, data):
    """(grown LearnerState, GrowthReport, FitState)."""
    grown, growth = self._learner.grow(self._state, data)
    shapes = lambda state: jax.tree.map(np.shape, state.live)
    if shapes(grown) != shapes(self._state):
      jax.clear_caches()  # the programs of the old shapes never run again, and hold memory
    return grown, growth, self._learner.begin(grown, data)

  def _train(self, fitting, data, began, grown):
    """Advances to the end of the stage; one dispatch is always under way."""
    learner, total, done, pending = self._learner, self._learner.num_rows(fitting), False, None
    plan = self._config.train.plan(len(data.train))
    while not done and fitting.cursor < total:
      since, start = time.monotonic(), fitting.cursor
      fitting, records = learner.advance(fitting, self._rows)
      if pending is not None:
        done = self._record(fitting, pending, began)
      pending = records
      if not done and self._is_due():
        done, pending = self._record(fitting, pending, began), None
        if not done:
          self._save(fitting, grown)
      self._pace(fitting.cursor - start, time.monotonic() - since)
      self._progress.update(
          (fitting.cursor - start) * plan.samples // total, data.stage, self._setting.stream.num_stages,
          fitting.cursor // -(-total // plan.rounds), plan.rounds, self._val_value)
    if pending is not None:
      self._record(fitting, pending, began)
    return fitting

  def _record(self, fitting, records, began):
    """Writes the epochs of a dispatch; returns whether patience ended the stage."""
    epochs, done = self._learner.read(fitting, records)
    for joint, members in epochs:
      self._epoch += 1
      for key, value in joint.items():
        if value is not None and not np.isfinite(value).all():
          raise Diverged(f"{key} is no longer finite in stage {fitting.data.stage}, {self._round} {self._epoch}; lower "
                         f"train.learning_rate={self._config.train.learning_rate}. All before is saved in "
                         f"{self._folder.path}.")
      plan = self._config.train.plan(len(fitting.data.train))
      step = min(((self._epoch - 1) % plan.rounds + 1) * plan.per_round, plan.steps)
      entry = dict(stage=fitting.data.stage, epoch=self._epoch)
      if not self._source.task.in_epochs:
        entry["step"] = step
      entry |= dict(joint, lr=optimizers.rate(fitting.spec.train, step - 1), seconds=time.monotonic() - began)
      if len(members[f"val_{self._metric}"]) > 1:
        told = lambda value: [float(v) if np.isfinite(v) else None for v in value]
        entry["members"] = {key: told(value) for key, value in members.items()}
      self._folder.append(TRAIN, entry)
      self._num_train_lines += 1
      self._val_value = entry[f"val_{self._metric}"]
      for board in self._boards:
        board.train(entry)
    return done

  def _write(self, entry):
    self._lines.append(entry)
    self._folder.append(METRICS, entry)
    for board in self._boards:
      board.stream(entry)
    self._epoch, self._val_value = 0, None

  def _pace(self, rows, seconds):
    aim = rows * _TARGET_SECONDS / max(seconds, 1e-4)
    self._rows = sharding.agree(int(np.clip(aim, 1, min(2 * self._rows, self._source.task.max_rows))))

  def _untrained(self):
    """The metric before the first update."""
    if self._source.untrained is not None or not self._source.task.selects:
      return self._source.untrained
    return self._examiner.examine(self._state, trained=False)[0]

  # ------------------------------------------------------- saving and resuming

  @property
  def _round(self):
    """What people call it."""
    return "epoch" if self._source.task.in_epochs else "round"

  def _is_due(self):
    due = time.monotonic() - self._saved >= self._config.checkpoint.seconds
    return sharding.any_process(self._should_stop() or due)

  def _save(self, fitting=None, grown=None, permanent=False):
    """Saves the run as it stands, inside a stage with its `(LearnerState, GrowthReport)`; raises Stopped if told to."""
    trees, growth = dict(live=self._state.live), None
    if self._state.opt is not None:
      trees["opt"] = self._state.opt
    if fitting is not None:
      trees["fit"] = self._learner.save_fit(fitting)
      state, report = grown
      # What grows by freezing a block grows again: that costs nothing.
      if state.spec != self._state.spec and len(state.frozen) == len(self._state.frozen):
        trees["grown"], growth = state.live, dict(spec=state.spec, report=list(report))
    if self._examiner.cached is not None:
      trees["cached"] = self._examiner.cached
    meta = dict(
        stage=self._stage, cursor=None if fitting is None else fitting.cursor, epoch=self._epoch,
        spec=self._state.spec, growth=growth, lines=self._lines, num_train_lines=self._num_train_lines,
        num_cached=self._examiner.num_cached, complete=self._learner.complete(self._state),
        wall_seconds=self._wall(), compile_seconds=self._compiled(),
        initial_params=self._initial_params,
        data=self._source.meta())
    self._folder.sync()
    for board in self._boards:
      board.flush()
    self._checkpoints.save(meta, trees, self._state.frozen, permanent)
    self._saved, self._saved_in = time.monotonic(), self._stage
    if sharding.any_process(self._should_stop()):
      self._checkpoints.finish()
      raise Stopped(f"saved {self._folder.path}; the same command goes on from there.")

  def _restore(self):
    """From the newest good checkpoint, or from nothing."""
    self._examiner = environment.Examiner(self._setting)
    self._opened = opened = self._checkpoints.newest()
    self._val_value = None
    if opened is None:
      self._state = self._learner.init()
      self._initial_params = self._learner.cost(self._state).num_params
      self._lines, self._stage, self._epoch, self._num_train_lines = [], 0, 0, 0
      self._wall_before = self._compiled_before = 0.0
      say(f"running in {self._folder.path}, from {self._initial_params:,} parameters")
      return
    meta = opened.meta
    self._state = results.restore_state(self._learner, opened)
    if opened.has("cached"):
      self._examiner.cached, self._examiner.num_cached = opened.arrays("cached"), meta["num_cached"]
    self._lines, self._stage, self._epoch = meta["lines"], meta["stage"], meta["epoch"]
    self._saved_in = self._stage
    self._num_train_lines, self._initial_params = meta["num_train_lines"], meta["initial_params"]
    self._wall_before, self._compiled_before = meta["wall_seconds"], meta["compile_seconds"]
    say(f"resuming {self._folder.path} in stage {self._stage} (the last is {self._setting.stream.num_stages - 1})"
        + (f", after {self._round} {self._epoch}" if meta["cursor"] is not None else ""))

  def _resumed_inside(self, data):
    """What `_grow` returned and what training came to, if the run was stopped inside this stage; or None."""
    opened, self._opened = self._opened, None
    if opened is None or opened.meta["cursor"] is None:
      return None
    growth, learner = opened.meta["growth"], self._learner
    if growth is None:
      grown, report = learner.grow(self._state, data)
    else:
      live = opened.tree("grown", learner.template(growth["spec"]).live)
      grown = learner.restore(self._state._replace(spec=growth["spec"], live=live))
      report = GrowthReport(*growth["report"])
    carry = opened.tree("fit", learner.fit_template(grown))
    return grown, report, learner.restore_fit(grown, carry, opened.meta["cursor"], data)

  def _wall(self):
    return self._wall_before + time.monotonic() - self._started

  def _compiled(self):
    return self._compiled_before + runtime.compile_seconds() - self._compiled_at_start

  def _finish(self):
    """Summary and curve, once the last stage is saved."""
    self._checkpoints.finish()
    if not sharding.is_main():
      return
    from alma_jax import plots
    c = self._config
    summary = metrics.summarize(self._lines, self._initial_params)
    summary |= dict(wall_seconds=self._wall(), compile_seconds=self._compiled(),
                    device=environment.describe_devices(self._learner.mesh), versions=_versions())
    name = c.dataset.name.rstrip("/").rsplit("/", 1)[-1].split(":", 1)[-1]
    if "cer" in summary:
      judged = f"CER {summary['cer']:.3f}"
    else:
      judged = f"average perplexity {summary['average_perplexity']:.1f}"
    title = f"{name}, {c.learner.name}: {judged} over {len(self._lines)} mega-batches, waiting time " \
            f"{c.stream.waiting_time}"
    plots.curve(self._lines, self._metric, title, self._folder.path / "curve.png", self._source.chance)
    self._folder.write_summary(summary)


def _versions():
  packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
  return dict(python=platform.python_version(), **{name: importlib.metadata.version(name) for name in packages})
