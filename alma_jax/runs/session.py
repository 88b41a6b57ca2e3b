"""Algorithm 1: for each stage grow, train, evaluate, write and save, from the state of a run to its end."""
import collections
import contextlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from alma_jax import messages
from alma_jax.data import normalization
from alma_jax.errors import Diverged, Stopped
from alma_jax.learners import contract, tuned
from alma_jax.learners.task_learner import TaskLearner
from alma_jax.parallel import runtime, sharding
from alma_jax.parallel.sharding import say
from alma_jax.problems import classification, sequence
from alma_jax.problems.live_source import LiveSource
from alma_jax.runs import (
  arrivals,
  drift,
  ending,
  live,
  loggers,
  progress,
  publishing,
  settings,
  snapshot,
  stage_training,
  starting,
  task_results,
)
from alma_jax.runs.snapshot import Growth, RunState
from alma_jax.store import checkpoint, metrics
from alma_jax.store.run_files import METRICS, TRAIN
from alma_jax.store.run_folder import RunFolder
from alma_jax.training import loop

Examiner = settings.Examiner | task_results.TaskExaminer


def run(setting: settings.Setting, folder: RunFolder, should_stop: Callable[[], bool]) -> None:
  """Runs a stream to its end, from the newest checkpoint in `folder` if there is one.

  Args:
    setting: of the run.
    folder: claimed by this run.
    should_stop: () -> bool; True saves and stops.

  Raises:
    BadInput, Diverged, Stopped: see experiment.run.
  """
  starting.refuse_lost_checkpoints(folder)
  checkpoints = checkpoint.Checkpoints(folder.path, setting.config.checkpoint.keep)
  opened = checkpoints.newest()  # first: damage must be noticed before anything is changed
  if setting.is_live:
    setting = live.resumed(setting, folder, opened)
  examiner = _examiner(setting, opened)
  now = (starting.untrained(setting, folder) if opened is None else
         starting.restored(setting, folder, opened, examiner))
  if opened is None and not (folder.path / METRICS).exists():
    folder.upload()  # later there is METRICS, which a folder without a checkpoint must not have in a store
  folder.write_config(setting.config, setting.digests, setting.made_with)
  folder.cut(METRICS, len(now.lines), now.lines)
  folder.cut(TRAIN, now.num_train_lines, total=now.train_total)
  folder.write_diverged(None)
  if opened is not None:
    folder.upload()  # not before: only a sound moment of the run may replace what the store holds
  with contextlib.ExitStack() as cleanup:
    folder.note("")  # what a killed session may have left
    cleanup.callback(folder.note, "")
    cleanup.enter_context(messages.heard(folder.note))
    boards = loggers.start(folder, setting.config, len(now.lines), now.num_train_lines) if sharding.is_main() else []
    for board in boards:
      cleanup.callback(board.close)
    cleanup.callback(checkpoints.finish)
    shown = progress.Progress(setting.config.log.progress and sharding.is_main(), _samples(setting), now.stage,
                              settings.measure(setting), settings.round_name(setting), setting.stream.ends is not None)
    cleanup.callback(shown.close)
    tried = tuned.num_tried(now.learner)  # candidates that were trained before the run was stopped
    if tried:
      samples = _samples(setting)[:now.stage + 1][-1]  # an adaptive run may have more stages than expected
      shown.skip(samples * tried // tuned.num_candidates(setting.config))
    session = _Session(setting, folder, checkpoints, examiner, boards, shown, should_stop, now)
    session.run(None if opened is None or opened.meta["cursor"] is None else opened)


def _examiner(setting: settings.Setting, opened: checkpoint.Opened | None) -> Examiner:
  if isinstance(setting.source, sequence.Tasks):
    assert isinstance(setting.learner, TaskLearner)
    return task_results.TaskExaminer(setting.learner, setting.source)
  return settings.Examiner(setting, snapshot.constants(setting.source, opened))


def _samples(setting: settings.Setting) -> list[int]:
  """The largest number of training examples that each stage processes, as far as the stages are known."""
  num, sizes = tuned.num_candidates(setting.config), setting.stream.sizes(setting.stream.expected_ends)
  return [num * setting.config.train.plan(int(size), share).samples for size, share in zip(sizes.train, sizes.share)]


def _saved(folder: RunFolder) -> str:
  return f"saved {folder.shown}; the same command goes on from there."


class _Session:
  """One session of a run. `now` is the state of the run."""

  def __init__(self, setting: settings.Setting, folder: RunFolder, checkpoints: checkpoint.Checkpoints,
               examiner: Examiner, boards: list[Any], shown: progress.Progress,
               should_stop: Callable[[], bool], now: RunState):
    self.now, self._setting, self._folder, self._checkpoints = now, setting, folder, checkpoints
    self._examiner, self._boards, self._progress, self._should_stop = examiner, boards, shown, should_stop
    self._config, self._learner, self._problem = setting.config, setting.learner, setting.source.problem
    self._stages, self._stream = settings.Stages(setting), setting.stream
    self._arrivals, self._measure = arrivals.Arrivals(setting, self._stages), settings.measure(setting)
    self._drift = drift.watching(setting, now, self._arrivals.metric)
    self._started = self._saved_at = time.monotonic()
    self._compiled_before = runtime.compile_seconds()
    self._most_val = self._stream.most_val
    # The last mega-batch of the last complete stage, at each of the newest checkpoints.
    self._covered: collections.deque[int] = collections.deque(maxlen=self._config.checkpoint.keep + 1)
    self._is_saved = bool(now.lines)  # whether the newest checkpoint holds all lines of metrics.jsonl
    self._saved_in: int | None = None  # the stage in progress in the newest checkpoint
    self._trainer = stage_training.Trainer(setting, folder, boards, shown, now, self._is_due, self._save)
    self._publisher = publishing.Publisher(setting, folder)

  def run(self, opened: checkpoint.Opened | None) -> None:
    """Runs to the end; `opened` is the checkpoint of a stage in training, if the run was stopped inside one."""
    if opened is not None:
      self._saved_in = self.now.stage
    self._publisher.catch_up(self.now)
    while True:
      while self._stream.wait(len(self.now.lines) + 1, self._idle):
        self._receive(opened)
        opened = None
      if not self._is_left_over():
        break
      self._take_back()
    self._say_what_was_not_used()
    if not self._is_saved:
      self._save(permanent=True)
    with self._progress.phase("saving"):
      self._checkpoints.finish()
    if sharding.is_main():
      ending.write(self._setting, self._folder, self.now, self._seconds())

  def _watch(self, t: int, arrived: metrics.Entry) -> metrics.Entry:
    """What the line of mega-batch t says about its data: new classes, and drift."""
    source: Any = self._setting.source
    noted = source.notes(t) if self._setting.is_live else {}
    if self._drift is not None:
      noted |= self._drift.update(arrived, len(source.tested(t)))
    if drift.AFTER in noted:
      digits = ".1f" if self._config.is_language else ".3f"
      say(f"drift at mega-batch {t}: the prequential {self._problem.metric} has risen from "
          f"{noted[drift.BEFORE]:{digits}} to {noted[drift.AFTER]:{digits}}")
    return noted

  # ------------------------------------------------------------------ a live stream

  def _idle(self) -> None:
    """While the run waits for a mega-batch: saves what is not saved, and stops if it should."""
    self._folder.check_store()
    self._folder.check_place()
    if not self._is_saved and self._is_due():
      self._save()
    elif self._should_stop():
      raise Stopped(_saved(self._folder))

  def _fit(self, ends: tuple[int, ...]) -> None:
    """Before a stage of a live stream: a learner with room for what has arrived."""
    fitted = live.fitted(self._setting, self.now.learner, ends, self._most_val)
    if fitted is None:
      return
    self._setting, self.now.learner, self._most_val, num_new = fitted
    self._learner, self._problem = self._setting.learner, self._setting.source.problem
    self._publisher.follow(self._setting)
    if num_new:
      say(f"stage {len(ends)} adds {num_new} output{'s' * (num_new > 1)} for new classes, which makes "
          f"{self._problem.num_outputs}")
      self._checkpoints.renew_frozen()
      self._examiner = settings.Examiner(self._setting, self.now.constants)
      self._trainer.forget_programs()
    self._trainer.follow(self._setting)
    self._stages = settings.Stages(self._setting)
    self._arrivals = arrivals.Arrivals(self._setting, self._stages)

  def _forget(self) -> None:
    """Deletes the copies of mega-batches that no kept checkpoint needs; with replay, any may be needed again."""
    source: Any = self._setting.source
    self._covered.append(max(self.now.ends, default=0))
    stream: Any = self._config.stream
    if len(self._covered) == self._covered.maxlen and not stream.replay and not stream.replay_share:
      source.feed.forget(self._covered[0])

  def _say_what_was_not_used(self) -> None:
    """Says which mega-batches of a live stream came after its last training."""
    num = len(self.now.lines) - max(self.now.ends, default=0)
    if self._setting.is_live and num:
      last = f"{num} mega-batches were" if num > 1 else "mega-batch was"
      say("the stream has ended before the next training of "
          f"stream.schedule={self._config.stream.schedule.name}: its last {last} not trained on")

  def _is_left_over(self) -> bool:
    """Whether a live stream has ended after mega-batches on which the schedule still trains."""
    lines = self.now.lines
    return bool(self._stream.trains_late and lines and not lines[-1]["updated"])

  def _take_back(self) -> None:
    """Takes back the last line, which was written before the stream was known to end there."""
    self.now.lines.pop()
    self._folder.cut(METRICS, len(self.now.lines), self.now.lines)
    self._drift = drift.watching(self._setting, self.now, self._arrivals.metric)

  # ------------------------------------------------------------------ a mega-batch

  def _receive(self, opened: checkpoint.Opened | None) -> None:
    """Receives the next mega-batch, and trains if the schedule says so; `opened`: the stage in training, if any."""
    now, metric = self.now, self._problem.metric
    train = True
    if now.arrived is None:
      with self._progress.phase("testing the mega-batch"):
        train, now.arrived = self._arrivals.next(now)
      now.arrived |= self._watch(len(now.lines) + 1, now.arrived)
      if not now.lines and (untrained := self._untrained_value()) is not None:
        now.arrived[metrics.UNTRAINED] = untrained
    if train:
      self._run_stage(opened)
      return
    waited = metrics.waiting(metric, len(now.lines) + 1, now.lines[-1] if now.lines else None,
                             now.arrived.get(metrics.UNTRAINED), self._learner.cost(now.learner))
    if self._measure.is_prequential:
      waited[metric] = self._arrived_value()
    self._write(waited | now.arrived)

  def _run_stage(self, opened: checkpoint.Opened | None) -> None:
    now, stage, began, learner = self.now, self.now.stage, time.monotonic(), self._learner
    last_t, metric = len(now.lines) + 1, self._problem.metric
    if self._setting.is_live:
      self._fit((*now.ends, last_t))
      learner = self._learner
    data, constants, changed = self._normalized(self._stages[*now.ends, last_t], (*now.ends, last_t))
    complete = False
    while not complete:
      grown = self._grow(data) if opened is None else self._restore_growth(opened, data)
      opened = None
      trained = self._train_or_note(grown, data, began)
      now.learner, report, complete = learner.finish(grown.state, data, trained)
      contract.check_state(grown.state, now.learner, self._config.learner.name)
      now.complete, self._saved_in = complete, None
    if changed:
      now.constants = constants
      assert isinstance(self._examiner, settings.Examiner)  # the constants of a task never change
      self._examiner.renormalize(constants)
    loss: float | None
    value: Any
    with self._progress.phase("evaluating"):
      value, loss, further = self._examine()
      if isinstance(self._examiner, task_results.TaskExaminer) and self._config.log.lca:
        further |= {task_results.LCA: self._examiner.lca(grown.state, now.learner, data, self._config.log.lca)}
    cost, growth = learner.cost(now.learner), grown.report
    growth_flops = 2 * growth.macs if growth.flops is None else growth.flops
    now.stage = stage + 1
    self._write(metrics.Line(
        t=last_t, stage=stage, updated=True, value=value, val_value=report.val, loss=loss, num_params=cost.num_params,
        fwd_macs=(cost.fwd_macs * report.samples if report.macs is None else report.macs) + growth.macs,
        train_flops=(cost.train_flops * report.samples if report.flops is None else report.flops) + growth_flops,
        growth_macs=growth.macs, seconds=time.monotonic() - began,
        predict_macs=cost.predict_macs).entry(metric) | (now.arrived or {}) | further | changed)
    if isinstance(self._examiner, task_results.TaskExaminer) and sharding.is_main():
      self._examiner.write(self._folder.path, now.learner, now.lines)
    with self._progress.phase("writing the predictor"):
      self._publisher.publish(now)  # before the checkpoint: no saved stage is without its predictor
    self._progress.end_stage(stage, now.lines[-1].get(self._measure.key), time.monotonic() - began)
    if isinstance(self._setting.source, LiveSource):
      self._setting.source.release(now.ends)
    every, last = self._config.checkpoint.keep_every, self._stream.is_last(last_t)
    permanent = last or (bool(every) and now.stage % every == 0)
    if permanent or self._is_due():
      self._save(permanent=permanent)

  def _normalized(self, data: loop.StageData, ends: tuple[int, ...]
                  ) -> tuple[loop.StageData, normalization.Normalization | None, metrics.Entry]:
    """(the data with the stage's normalisation constants, the constants, their change for metrics.jsonl)."""
    source: Any = self._setting.source
    before, mesh = self.now.constants, self._learner.mesh
    if before is None:
      return data, None, {}
    constants, changed = source.followed(before, ends)
    if changed:
      say(f"warning: stage {len(ends)} uses new normalisation constants, because the scale of the data has changed: "
          f"{normalization.described(before, constants, changed, len(source.example_shape) == 3)}")
    pool = classification.renormalized(data.pool, source, constants, mesh)
    val_pool = pool if data.val_pool is data.pool else classification.renormalized(
        data.val_pool, source, constants, mesh)
    return data._replace(pool=pool, val_pool=val_pool), constants, {
        metrics.RENORMALIZED: changed} if changed else {}

  def _examine(self) -> tuple[Any, float | None, metrics.Entry]:
    """(metric, loss in nats, further entries of the line of metrics.jsonl)."""
    if isinstance(self._examiner, task_results.TaskExaminer):
      return self._examiner.examine(self.now.learner, self.now.lines)
    if self._measure.is_prequential:
      return self._arrived_value(), None, {}
    further = self._examiner.examine(self.now.learner)
    return further.pop(self._problem.metric), further.pop("loss"), further

  def _grow(self, data: loop.StageData) -> Growth:
    with self._progress.phase("growing"):
      state, report = self._learner.grow(self.now.learner, data)
      contract.check_state(self.now.learner, state, self._config.learner.name)
    shapes = lambda state: jax.tree.map(np.shape, state.live)
    if shapes(state) != shapes(self.now.learner) and not isinstance(self._learner, TaskLearner):
      self._trainer.forget_programs()
    return Growth(state, report, loop.begin(self._learner.training(state, data)))

  def _restore_growth(self, opened: checkpoint.Opened, data: loop.StageData) -> Growth:
    """What `_grow` returned, with its training as it stood when the run was stopped."""
    grown = snapshot.restore_growth(self._setting, opened, self.now.learner, data)
    samples = self._config.train.plan(len(data.train), data.share).samples
    self._progress.skip(samples * grown.fit.cursor // loop.num_steps(grown.fit))
    return grown

  def _train_or_note(self, grown: Growth, data: loop.StageData, began: float) -> loop.Trained:
    """Trains. After a divergence, writes diverged.json, and saves the run as it was before, if that is not saved."""
    now = self.now
    before = now.num_train_lines, now.train_total, now.epoch
    try:
      with self._progress.training(now.stage):
        return loop.finish(self._trainer.train(grown, data, began))
    except Diverged as diverged:
      self._folder.write_diverged(dict(stage=now.stage, epoch=now.epoch, line=str(diverged)))
      if self._saved_in != now.stage:
        now.num_train_lines, now.train_total, now.epoch = before
        self._save()
      raise

  def _write(self, entry: metrics.Entry) -> None:
    self.now.lines.append(entry)
    self.now.arrived, self._is_saved = None, False
    self._folder.append(METRICS, entry)
    for board in self._boards:
      board.stream(self._measure.logged(entry))
    self.now.epoch = 0

  def _arrived_value(self) -> float | None:
    """Without a test set: the prequential metric of the mega-batch that has arrived, or what stands for it."""
    arrived = self.now.arrived or {}
    value = arrived.get(self._arrivals.metric)
    return self._setting.source.untrained if value is None else value

  def _untrained_value(self) -> float | None:
    """The metric before the first update; None without a test set, where nothing is measured."""
    if self._measure.is_prequential:
      return None
    if self._setting.source.untrained is not None or not self._problem.selects:
      return self._setting.source.untrained
    assert isinstance(self._examiner, settings.Examiner)
    with self._progress.phase("evaluating the untrained network"):
      untrained: float = self._examiner.examine(self.now.learner, trained=False)[self._problem.metric]
      return untrained

  # ------------------------------------------------------------------ saving

  def _is_due(self) -> bool:
    self._folder.check_store()
    due = time.monotonic() - self._saved_at >= self._config.checkpoint.seconds
    return sharding.any_process(self._should_stop() or due)

  def _save(self, grown: Growth | None = None, permanent: bool = False) -> None:
    """Saves the run as it stands, inside a stage with its Growth; raises Stopped if the run should stop."""
    meta, trees, frozen = snapshot.take(self._setting, self._examiner, self.now, self._seconds(), grown)
    self._folder.sync()
    for board in self._boards:
      board.flush()
    with self._progress.phase("saving"):
      self._checkpoints.save(meta, trees, frozen, permanent)
    self._saved_at, self._saved_in, self._is_saved = time.monotonic(), self.now.stage, True
    if self._setting.is_live:
      self._forget()
    if self._folder.is_mirrored:
      self._checkpoints.wait()
      self._folder.upload()
    if sharding.any_process(self._should_stop()):
      self._checkpoints.finish()
      raise Stopped(_saved(self._folder))

  def _seconds(self) -> dict[str, float]:
    """Seconds of all sessions so far."""
    return dict(wall_seconds=self.now.wall_seconds + time.monotonic() - self._started,
                compile_seconds=self.now.compile_seconds + runtime.compile_seconds() - self._compiled_before)
