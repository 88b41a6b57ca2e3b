"""The loop of a run (Algorithm 1), for all protocols: receive a mega-batch, grow, train, test, write, save.

The protocol decides what arrives, when to train, and what to train and test on (protocols/contract.py). The learner
decides how (learners/contract.py). Listeners are told what has happened (listeners.py).
"""
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from alma_jax import messages
from alma_jax.errors import Diverged
from alma_jax.learners import contract, outputs, tuned
from alma_jax.parallel.sharding import say
from alma_jax.protocols.contract import Prepared, State, Trained
from alma_jax.runs import settings, snapshot
from alma_jax.runs.listeners import Listener
from alma_jax.runs.progress import Progress
from alma_jax.runs.saving import Saver
from alma_jax.runs.settings import Setting
from alma_jax.runs.snapshot import Growth
from alma_jax.runs.stage_training import Trainer
from alma_jax.store import checkpoint, metrics, run_files
from alma_jax.store.metrics import Entry
from alma_jax.store.run_files import METRICS, TRAIN
from alma_jax.store.run_folder import RunFolder
from alma_jax.training import loop


def run(setting: Setting, folder: RunFolder, shown: Progress, listeners: Sequence[Listener],
        should_stop: Callable[[], bool]) -> State:
  """Runs a stream to its end, from the newest checkpoint in `folder` if there is one.

  Args:
    setting: the config with its protocol and its learner.
    folder: the run folder, claimed by this run.
    shown: the progress display, one of the listeners.
    listeners: notified of every event, in this order.
    should_stop: () -> bool; if True, the run is saved and stops.

  Returns:
    The state at the end.

  Raises:
    BadInput, Diverged, Stopped: see experiment.run.
  """
  saver = Saver(setting, folder, shown, listeners, should_stop)  # first: damage must be noticed before anything changes
  setting, now = _resumed(setting, folder, saver.opened)
  protocol, pending = setting.protocol, saver.opened  # pending: a checkpoint inside the stage in training
  if pending is not None and pending.meta["cursor"] is None:
    pending = None
  for listener in listeners:
    listener.claimed(saver.opened is None and not (folder.path / METRICS).exists())
  folder.write_config(setting.config, setting.digests, setting.made_with)
  folder.cut(METRICS, len(now.lines), now.lines)
  folder.cut(TRAIN, now.num_train_lines, total=now.train_total)
  folder.write_diverged(None)
  saver.begin(now)
  with contextlib.ExitStack() as cleanup:
    folder.note("")  # what a killed session may have left
    cleanup.callback(folder.note, "")
    cleanup.enter_context(messages.heard(folder.note))
    cleanup.callback(saver.checkpoints.finish)
    for listener in listeners:
      cleanup.callback(listener.close)
    for listener in listeners:
      listener.begin(setting.learner, now)
    shown.skip(_tried(setting, now))
    trainer = Trainer(setting.config.train, folder, shown, listeners, now, settings.of_stages(setting), saver.is_due,
                      lambda growth: saver.save(now, growth))
    arrivals = cleanup.enter_context(contextlib.closing(protocol.arrivals(now.lines)))
    for t in itertools.chain([now.arrival.t] if now.arrival else [], arrivals):
      if t is None:
        saver.idle(now)
        continue
      if now.arrival is None:
        if t <= len(now.lines):  # it is received again
          now.lines.pop()
          folder.cut(METRICS, len(now.lines), now.lines)
        with shown.phase("testing the mega-batch"):
          now.arrival = protocol.decide(t, setting.learner, now)
      if now.arrival.trains:
        ends = (*now.ends, t)
        setting = _fitted(setting, now, ends, trainer, saver, listeners)
        entry = _train(setting, now, protocol.stage(ends, setting.learner, now.meta), trainer, saver, folder, shown,
                       pending)
        pending = None
      else:
        entry = metrics.waiting(setting.facts.problem.metric, t, now.lines[-1] if now.lines else None,
                                now.arrival.notes.get(metrics.UNTRAINED, setting.facts.problem.chance),
                                setting.learner.cost(now.learner))
        entry |= now.arrival.notes
      now.lines.append(entry)
      now.arrival, now.epoch, saver.is_saved = None, 0, False
      folder.append(METRICS, entry)
      if entry["updated"]:
        folder.write_reports(protocol.reports(setting.learner, now.learner.spec, now.lines))
      for listener in listeners:
        listener.line(entry, setting.learner, now)
      if entry["updated"]:
        saver.stage_ended(now)
    saver.end(now)
  seconds = saver.seconds(now)
  now.wall_seconds, now.compile_seconds = seconds["wall_seconds"], seconds["compile_seconds"]
  return now


def samples(setting: Setting) -> list[int]:
  """The maximum number of training examples that each stage processes, as far as the stages are known."""
  num, sizes, train = setting.config.num_candidates, setting.protocol.sizes(), setting.config.train
  return [num * train.plan(int(size), float(share)).samples for size, share in zip(sizes.train, sizes.share)]


def _tried(setting: Setting, now: State) -> int:
  """Training examples of the stage in progress that earlier candidates of learners.tuned have processed."""
  of_stage = samples(setting)[:now.stage + 1][-1:]  # an adaptive run may have more stages than expected
  return sum(of_stage) * tuned.num_tried(now.learner) // setting.config.num_candidates


def _resumed(setting: Setting, folder: RunFolder, opened: checkpoint.Opened | None) -> tuple[Setting, State]:
  """(the setting with the checkpoint's learner, its state); without a checkpoint, of a new run."""
  protocol, shown = setting.protocol, run_files.shown(folder.path)
  if opened is None:
    protocol.attach(folder.path, 0)
    learner = setting.learner.init()
    num_params = setting.learner.cost(learner).num_params
    if (folder.path / METRICS).exists():
      say(f"no checkpoint has been saved in {shown} yet; the run starts again")
    say(f"running in {shown}, from {num_params:,} parameters")
    return setting, State(learner, num_params, protocol.meta(()))
  snapshot.check_config(folder.path, setting.config, opened.meta)
  lines, arrival = opened.meta["lines"], snapshot.arrival_of(opened.meta)
  protocol.attach(folder.path, len(lines))
  facts = protocol.facts((*metrics.ends(lines), *([arrival.t] if arrival else [])))
  setting = setting if facts == setting.facts else setting.fitted(facts)
  now = snapshot.restore(setting.learner, opened)
  sizes = protocol.sizes()
  if sizes.exact and now.stage == len(sizes.train):
    say(f"resuming {folder.shown} after the last of {now.stage} stages")
  else:
    after = f", after {settings.round_name(facts.problem)} {now.epoch}" if now.epoch else ""
    say(f"resuming {folder.shown} in stage {now.stage + 1}{settings.of_stages(setting)}{after}")
  return setting, now


def _fitted(setting: Setting, now: State, ends: tuple[int, ...], trainer: Trainer, saver: Saver,
            listeners: Sequence[Listener]) -> Setting:
  """The setting with a learner for the last of the stages `ends`; the state gets its outputs for new classes."""
  facts, old = setting.protocol.facts(ends), setting.learner
  if facts == setting.facts:
    return setting
  num_new = facts.problem.num_outputs - setting.facts.problem.num_outputs
  setting = setting.fitted(facts)
  if num_new:
    say(f"stage {len(ends)} adds {num_new} output{'s' * (num_new > 1)} for new classes, which makes "
        f"{facts.problem.num_outputs}")
    new: Any = setting.learner  # a Stacked, as all learners whose outputs may become more
    now.learner = outputs.add_classes(old, new, now.learner, new.fresh(len(ends) - 1, now.learner.spec))
    now.adopt(setting.protocol.meta(ends))
    saver.checkpoints.renew_frozen()
    trainer.forget_programs()
  for listener in listeners:
    listener.begin(setting.learner, now)
  return setting


def _train(setting: Setting, now: State, prepared: Prepared, trainer: Trainer, saver: Saver, folder: RunFolder,
           shown: Progress, pending: checkpoint.Opened | None) -> Entry:
  """Grows, trains and finishes a stage, as often as the learner wants, and tests it; returns its line."""
  learner, data, began, complete = setting.learner, prepared.data, time.monotonic(), False
  assert now.arrival is not None
  while not complete:
    if pending is None:
      growth = _grown(setting, now, prepared, trainer, shown)
    else:
      growth = snapshot.restore_growth(learner, pending, now.learner, data)
      done = setting.config.train.plan(len(data.train), data.share).samples
      shown.skip(done * growth.fit.cursor // loop.num_steps(growth.fit))
    pending, trained = None, _trained(growth, now, prepared, trainer, saver, folder, shown, began)
    now.learner, report, complete = learner.finish(growth.state, data, trained)
    contract.check_state(growth.state, now.learner, setting.config.learner.name)
    now.complete, saver.saved_in = complete, None
  now.adopt(prepared.meta)
  with shown.phase("evaluating"):
    tested = setting.protocol.test(learner, now, Trained(growth.state, data))
  cost, grown = learner.cost(now.learner), growth.report
  grown_flops = 2 * grown.macs if grown.flops is None else grown.flops
  now.stage += 1
  return metrics.Line(
      t=now.arrival.t, stage=now.stage - 1, updated=True, value=None, val_value=report.val, loss=None,
      num_params=cost.num_params, growth_macs=grown.macs, seconds=time.monotonic() - began,
      fwd_macs=(cost.fwd_macs * report.samples if report.macs is None else report.macs) + grown.macs,
      train_flops=(cost.train_flops * report.samples if report.flops is None else report.flops) + grown_flops,
      predict_macs=cost.predict_macs).entry(setting.facts.problem.metric) | now.arrival.notes | tested | prepared.notes


def _grown(setting: Setting, now: State, prepared: Prepared, trainer: Trainer, shown: Progress) -> Growth:
  learner = setting.learner
  with shown.phase("growing"):
    state, report = learner.grow(now.learner, prepared.data)
    contract.check_state(now.learner, state, setting.config.learner.name)
  shapes = [jax.tree.map(np.shape, each.live) for each in (state, now.learner)]
  if shapes[0] != shapes[1] and not learner.shapes_recur:
    trainer.forget_programs()
  return Growth(state, report, loop.begin(learner.training(state, prepared.data)))


def _trained(growth: Growth, now: State, prepared: Prepared, trainer: Trainer, saver: Saver, folder: RunFolder,
             shown: Progress, began: float) -> loop.Trained:
  """Trains. After a divergence, writes diverged.json, and saves the run as it was before, if that is not saved."""
  before = now.num_train_lines, now.train_total, now.epoch
  try:
    with shown.training(now.stage):
      return loop.finish(trainer.train(growth, prepared.data, began))
  except Diverged as diverged:
    folder.write_diverged(dict(stage=now.stage, epoch=now.epoch, line=str(diverged)))
    if saver.saved_in != now.stage:
      now.num_train_lines, now.train_total, now.epoch = before
      saver.save(now)
    raise
