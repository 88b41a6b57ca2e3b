"""The loop of a run (Algorithm 1), for all protocols: receive a mega-batch, grow, train, test, write, save.

The protocol decides what arrives, when to train, and what to train and test on (protocols/contract.py). The learner
decides how (learners/contract.py). Listeners are told what has happened (listeners.py).
"""
import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import numpy as np

from alma_jax import messages
from alma_jax.errors import BadInput, Diverged, Stopped
from alma_jax.learners import contract, outputs, tuned
from alma_jax.parallel import runtime, sharding
from alma_jax.parallel.sharding import say
from alma_jax.protocols.contract import Prepared, State, TrainedStage
from alma_jax.runs import settings, snapshot
from alma_jax.runs.listeners import Listener
from alma_jax.runs.progress import COMPILING, Progress
from alma_jax.runs.settings import Setting
from alma_jax.runs.snapshot import Growth
from alma_jax.store import checkpoint, metrics, run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.run_files import DIVERGED, METRICS, STOPPED, TRAIN
from alma_jax.store.run_folder import RunFolder
from alma_jax.training import loop, optimizers

# Progress and signals are handled between dispatches: seconds of a dispatch, and training steps of the first one.
_TARGET_SECONDS, _FIRST_ROWS = 0.25, 1


class Session:
  """A session of a run: from its newest checkpoint, or from the beginning, to the end of the stream.

  Attributes:
    setting: the config with its protocol and its learner.
    now: the state of the run.
  """

  def __init__(self, setting: Setting, folder: RunFolder, shown: Progress, listeners: Sequence[Listener],
               should_stop: Callable[[], bool]):
    """Opens the newest checkpoint. Nothing has changed if it is refused.

    Args:
      setting: the config with its protocol and its learner.
      folder: the run folder, claimed by this run.
      shown: the progress display, one of the listeners.
      listeners: notified of every event, in this order.
      should_stop: () -> bool; if True, the run is saved and stops.

    Raises:
      BadInput: the checkpoints are damaged, or have disappeared: the run would start again and overwrite its lines.
    """
    self.setting, self._folder, self._shown, self._listeners = setting, folder, shown, listeners
    self._should_stop = should_stop
    self._began = self._saved_at = time.monotonic()
    self._compiled_before = runtime.compile_seconds()
    lost = (folder.path / METRICS).exists() and not (folder.path / checkpoint.CHECKPOINTS).is_dir()
    if sharding.any_process(lost and sharding.is_main()):
      raise BadInput(f"{run_files.shown(folder.path)} holds {METRICS}, but its folder checkpoints has disappeared; "
                     "restore it, or --overwrite the run.")
    keep = setting.config.checkpoint.keep
    self._checkpoints = checkpoint.Checkpoints(folder.path, keep)
    opened = self._checkpoints.newest()
    self.now = self._begun() if opened is None else self._restored(opened)
    # Whether the newest checkpoint holds all lines of metrics.jsonl, and the stage in training that it holds, if any.
    self._is_saved, self._saved_in = True, self.now.stage if self.now.arrival else None
    self._pending = opened if opened is not None and opened.meta["cursor"] is not None else None  # until it goes on
    self._is_new = opened is None and not (folder.path / METRICS).exists()
    # The last mega-batch of the last complete stage, at each of the newest checkpoints.
    self._covered: collections.deque[int] = collections.deque(maxlen=keep + 1)
    self._is_compiled = False  # whether the programs of the present shapes exist
    self._rows = _FIRST_ROWS  # training steps of the next dispatch, adapted to its length

  def run(self) -> Generator["Session", None, State]:
    """Runs the stream to its end, and returns the state then. Yields itself while no mega-batch is there.

    Raises:
      BadInput, Diverged, Stopped: see experiment.run.
    """
    folder, now, protocol = self._folder, self.now, self.setting.protocol
    for listener in self._listeners:
      listener.claimed(self._is_new)
    folder.write_config()
    folder.cut(METRICS, now.lines)
    folder.check_and_cut(TRAIN, now.num_train_lines, now.train_total)
    for name in (DIVERGED, STOPPED):
      folder.delete(name)  # the run goes on
    with contextlib.ExitStack() as cleanup:
      folder.note("")  # what a killed session may have left
      cleanup.callback(folder.note, "")
      cleanup.enter_context(messages.heard(folder.note))
      cleanup.callback(self._checkpoints.finish)
      for listener in self._listeners:
        cleanup.callback(listener.close)
      for listener in self._listeners:
        listener.begin(self.setting.learner, now)
      self._shown.skip(_tried(self.setting, now))
      arrivals = cleanup.enter_context(contextlib.closing(protocol.arrivals(now.lines)))
      for t in itertools.chain([now.arrival.t] if now.arrival else [], arrivals):
        if t is None:
          yield self
          self._wait()
        else:
          self._receive(t)
      if not self._is_saved:
        self._save(permanent=True)
      with self._shown.phase("saving"):
        self._checkpoints.finish()
    now.wall_seconds, now.compile_seconds = self._seconds().values()
    return now

  # ------------------------------------------------------------------ where it begins

  def _begun(self) -> State:
    setting, shown = self.setting, run_files.shown(self._folder.path)
    setting.protocol.attach(self._folder.path, 0)
    learner = setting.learner.init()
    num_params = setting.learner.cost(learner).num_params
    if (self._folder.path / METRICS).exists():
      say(f"no checkpoint has been saved in {shown} yet; the run starts again")
    c = setting.config
    known = f", {c.stream.num_megabatches} {c.unit}" if c.stream.num_megabatches else ""
    say(f"running in {shown}: {c.label}, {c.model.name} of width {c.model.width}, {num_params:,} parameters at the "
        f"start{known}")
    if setting.decided:
      values = ", ".join(f"{field}={value}" for field, value in setting.decided.items())
      sizes = setting.protocol.sizes()
      steps = sorted({plan.steps for plan in c.train.plans(sizes) if plan.steps})
      if sizes.exact and steps != [c.train.steps]:
        values += f" ({' to '.join(map(str, steps[:1] + steps[1:][-1:]))} steps in a stage)"
      say(f"train.budget={c.train.budget:g} multiply-adds a mega-batch: {values}")
    elif c.train.budget:
      say(f"train.budget={c.train.budget:g} has no effect, because model.width, train.steps and train.batch_size are "
          "set; set one of them to 0 to use it")
    return State(learner, num_params, setting.protocol.meta(()))

  def _restored(self, opened: checkpoint.Opened) -> State:
    protocol, folder = self.setting.protocol, self._folder
    snapshot.check_config(folder.path, self.setting.config, opened.meta)
    lines, arrival = opened.meta["lines"], snapshot.arrival_of(opened.meta)
    protocol.attach(folder.path, len(lines))
    facts = protocol.facts((*metrics.ends(lines), *([arrival.t] if arrival else [])))
    if facts != self.setting.facts:
      self.setting = self.setting.fitted(facts)
    now = snapshot.restore(self.setting.learner, opened)
    sizes = protocol.sizes()
    if sizes.exact and now.stage == len(sizes.train):
      say(f"resuming {folder.shown} after the last of {now.stage} stages")
    else:
      after = f", after {settings.round_name(facts.problem)} {now.epoch}" if now.epoch else ""
      say(f"resuming {folder.shown} in stage {now.stage + 1}{settings.of_stages(self.setting)}{after}")
    return now

  # ------------------------------------------------------------------ a mega-batch

  def _wait(self) -> None:
    """While no mega-batch has arrived: saves what is not saved, and stops if it should."""
    self._folder.check_place()
    if self._is_due() and not self._is_saved:
      self._save()
    elif self._should_stop():
      raise self.stopped()

  def _receive(self, t: int) -> None:
    """Decides about mega-batch t, trains if it is time, and writes its line."""
    now, folder, protocol = self.now, self._folder, self.setting.protocol
    if now.arrival is None:
      if t <= len(now.lines):  # it is received again
        now.lines.pop()
        folder.cut(METRICS, now.lines)
      with self._shown.phase("testing the mega-batch"):
        now.arrival = protocol.decide(t, self.setting.learner, now)
    if now.arrival.trains:
      ends = (*now.ends, t)
      self._fit_learner(ends)
      entry = self._stage(protocol.stage(ends, self.setting.learner, now.meta))
    else:
      entry = metrics.waiting(self.setting.facts.problem.metric, t, now.lines[-1] if now.lines else None,
                              now.arrival.notes.get(metrics.UNTRAINED, self.setting.facts.problem.chance),
                              self.setting.learner.cost(now.learner))
      entry |= now.arrival.notes
    now.lines.append(entry)
    now.arrival, now.epoch, self._is_saved = None, 0, False
    folder.append(METRICS, entry)
    if entry["updated"]:
      folder.write(protocol.reports(self.setting.learner, now.learner.spec, now.lines))
    for listener in self._listeners:
      listener.line(entry, self.setting.learner, now)
    if entry["updated"]:
      every = self.setting.config.checkpoint.keep_every
      permanent = bool(every) and now.stage % every == 0
      if permanent or self._is_due():
        self._save(permanent=permanent)

  def _fit_learner(self, ends: tuple[int, ...]) -> None:
    """Replaces the learner if the last of the stages `ends` needs another; the state gets outputs for new classes."""
    setting, now = self.setting, self.now
    facts = setting.protocol.facts(ends)
    if facts == setting.facts:
      return
    num_new = facts.problem.num_outputs - setting.facts.problem.num_outputs
    self.setting = setting.fitted(facts)
    if num_new:
      say(f"stage {len(ends)} adds {num_new} output{'s' * (num_new > 1)} for new classes, which makes "
          f"{facts.problem.num_outputs}")
      new: Any = self.setting.learner  # a Stacked, as all learners whose outputs may become more
      now.learner = outputs.add_classes(setting.learner, new, now.learner, new.fresh(len(ends) - 1, now.learner.spec))
      now.adopt(setting.protocol.meta(ends))
      self._checkpoints.renew_frozen()
      self._forget_programs()
    for listener in self._listeners:
      listener.relearned(self.setting.learner, now)

  # ------------------------------------------------------------------ a stage

  def _stage(self, prepared: Prepared) -> Entry:
    """Grows, trains and finishes a stage, as often as the learner wants, and tests it; returns its line."""
    learner, now, data, began = self.setting.learner, self.now, prepared.data, time.monotonic()
    assert now.arrival is not None
    complete = False
    while not complete:
      if self._pending is None:
        growth = self._grown(data)
      else:
        growth = snapshot.restore_growth(learner, self._pending, now.learner, data)
        done = self.setting.config.train.plan(len(data.train), data.share, data.grown).samples
        self._shown.skip(done * growth.fit.cursor // loop.num_steps(growth.fit))
      self._pending, trained = None, self._trained(growth, data, began)
      now.learner, report, complete, found = learner.finish(growth.state, data, trained)
      contract.check_state(growth.state, now.learner, self.setting.config.learner.name)
      now.complete, self._saved_in = complete, None
    now.adopt(prepared.meta)
    with self._shown.phase("evaluating"):
      tested = self.setting.protocol.test(learner, now, TrainedStage(growth.state, data))
    cost, grown = learner.cost(now.learner), growth.report
    grown_flops = 2 * grown.macs if grown.flops is None else grown.flops
    now.stage += 1
    line = metrics.line(
        self.setting.facts.problem.metric,
        t=now.arrival.t, stage=now.stage - 1, updated=True, value=None, val_value=report.val, loss=None,
        num_params=cost.num_params, growth_macs=grown.macs, seconds=time.monotonic() - began,
        fwd_macs=(cost.fwd_macs * report.samples if report.macs is None else report.macs) + grown.macs,
        train_flops=(cost.train_flops * report.samples if report.flops is None else report.flops) + grown_flops,
        predict_macs=cost.predict_macs)
    return line | now.arrival.notes | tested | prepared.notes | found

  def _grown(self, data: loop.StageData) -> Growth:
    learner, before = self.setting.learner, self.now.learner
    with self._shown.phase("growing"):
      state, report = learner.grow(before, data)
      contract.check_state(before, state, self.setting.config.learner.name)
    shapes = [jax.tree.map(np.shape, each.live) for each in (state, before)]
    if shapes[0] != shapes[1] and not learner.shapes_recur:
      self._forget_programs()
    return Growth(state, report, loop.begin(learner.training(state, data)))

  def _forget_programs(self) -> None:
    """Frees the programs of shapes that never occur again, which hold memory."""
    runtime.forget_programs()
    self._is_compiled = False

  def _trained(self, growth: Growth, data: loop.StageData, began: float) -> loop.Trained:
    """Trains. After a divergence, writes diverged.json, and saves the run as it was before, if that is not saved."""
    now = self.now
    before = now.num_train_lines, now.train_total, now.epoch
    try:
      with self._shown.training(now.stage):
        return loop.finish(self._fit(growth, data, began))
    except Diverged as diverged:
      self._folder.write({DIVERGED: run_files.json_bytes(dict(stage=now.stage, epoch=now.epoch, line=str(diverged)))})
      if self._saved_in != now.stage:
        now.num_train_lines, now.train_total, now.epoch = before
        self._save()
      raise

  def _fit(self, growth: Growth, data: loop.StageData, began: float) -> loop.FitState:
    """Trains to the end of the stage; one dispatch is always under way.

    Args:
      growth: the stage; its training may have begun.
      data: of the stage.
      began: time.monotonic() at the beginning of the stage.

    Raises:
      Diverged: the training loss is not finite.
    """
    fit, done, pending = growth.fit, False, None
    total, plan = loop.num_steps(fit), self.setting.config.train.plan(len(data.train), data.share, data.grown)
    while not done and fit.cursor < total:
      since, start = time.monotonic(), fit.cursor
      with contextlib.nullcontext() if self._is_compiled else self._shown.phase(COMPILING):
        fit, records = loop.advance(fit, self._rows)
      self._is_compiled = True
      if pending is not None:
        done = self._record(fit, pending, began)
      pending = records
      if not done and self._is_due():
        done, pending = self._record(fit, pending, began), None
        if not done:
          self._save(growth._replace(fit=fit))
      rows = fit.cursor - start
      aim = rows * _TARGET_SECONDS / max(time.monotonic() - since, 1e-4)
      self._rows = int(sharding.agree(int(np.clip(aim, 1, min(2 * self._rows, fit.spec.problem.max_steps)))))
      self._shown.steps(rows, plan.samples / total, data.stage, fit.cursor, total)
    if pending is not None:
      self._record(fit, pending, began)
    return fit

  def _record(self, fit: loop.FitState, records: Any, began: float) -> bool:
    """Writes the epochs of a dispatch; returns whether patience has ended the stage."""
    now, problem, plan, (epochs, done) = self.now, fit.spec.problem, fit.training.plan, loop.read(fit, records)
    for number, (joint, members) in enumerate(epochs, int(sharding.fetch(records.first))):
      now.epoch += 1
      self._refuse_divergence(joint, problem)
      step = min((number + 1) * plan.per_round, plan.steps)
      entry: Entry = dict(stage=fit.data.stage, epoch=now.epoch)
      if not problem.in_epochs:
        entry["step"] = step
      train = fit.spec.train
      factor, = train.factors(fit.data.stage, [step - 1], plan.steps) or [1.0]
      rate = float(optimizers.rate(train, step - 1)) * float(np.float32(factor))
      entry |= dict(joint, lr=rate, seconds=time.monotonic() - began)
      if len(members[f"val_{problem.metric}"]) > 1:
        finite = lambda values: [float(value) if np.isfinite(value) else None for value in values]
        entry["members"] = {key: finite(value) for key, value in members.items()}
      self._folder.append(TRAIN, entry)
      now.num_train_lines += 1
      now.train_total = run_files.chained(now.train_total, run_files.encoded(entry))
      for listener in self._listeners:
        listener.epoch(entry)
    return done

  def _refuse_divergence(self, joint: dict[str, Any], problem: Any) -> None:
    for key, value in joint.items():
      if value is not None and not np.isfinite(value).all():
        raise Diverged(f"{key} is no longer finite in stage {self.now.stage + 1}{settings.of_stages(self.setting)}, "
                       f"{settings.round_name(problem)} {self.now.epoch}; lower "
                       f"train.learning_rate={self.setting.config.train.learning_rate}. Everything before is saved in "
                       f"{self._folder.path}.")

  # ------------------------------------------------------------------ saving

  def _is_due(self) -> bool:
    """Whether the run should be saved now; all processes ask."""
    for listener in self._listeners:
      listener.check()
    late = time.monotonic() - self._saved_at >= self.setting.config.checkpoint.seconds
    return sharding.any_process(self._should_stop() or late)

  def _save(self, growth: Growth | None = None, permanent: bool = False) -> None:
    """Saves the run as it stands, inside a stage with its Growth; raises Stopped if the run should stop."""
    now = self.now
    meta, trees, frozen = snapshot.take(self.setting.config, now, self._seconds(), growth)
    self._folder.sync()
    for listener in self._listeners:
      listener.flush()
    with self._shown.phase("saving"):
      self._checkpoints.save(meta, trees, frozen, permanent)
    self._saved_at, self._is_saved = time.monotonic(), True
    self._saved_in = now.stage if now.arrival else None
    self._covered.append(max(now.ends, default=0))
    if len(self._covered) == self._covered.maxlen:
      self.setting.protocol.covered(self._covered[0])
    for listener in self._listeners:
      listener.saved(self._checkpoints.wait)
    if sharding.any_process(self._should_stop()):
      self._checkpoints.finish()
      raise self.stopped()

  def _seconds(self) -> dict[str, float]:
    """Seconds of all sessions so far."""
    return dict(wall_seconds=self.now.wall_seconds + time.monotonic() - self._began,
                compile_seconds=self.now.compile_seconds + runtime.compile_seconds() - self._compiled_before)

  def stopped(self, is_saved: bool = True) -> Stopped:
    """What to raise when the run should stop; notes in the folder that it has. `is_saved`: as it stands."""
    self._folder.write({STOPPED: run_files.json_bytes(dict(stage=self.now.stage, epoch=self.now.epoch))})
    how = "saved {}; run the command again, and it continues from there." if is_saved else (
        "stopped {} before it could be saved; run the command again, and it continues from its last save.")
    return Stopped(how.format(self._folder.shown))


def samples(setting: Setting) -> list[int]:
  """The maximum number of training examples that each stage processes, as far as the stages are known."""
  plans = setting.config.train.plans(setting.protocol.sizes())
  return [setting.config.num_candidates * plan.samples for plan in plans]


def _tried(setting: Setting, now: State) -> int:
  """Training examples of the stage in progress that earlier candidates of learners.tuned have processed."""
  of_stage = samples(setting)[:now.stage + 1][-1:]  # an adaptive run may have more stages than expected
  return sum(of_stage) * tuned.num_tried(now.learner) // setting.config.num_candidates
