"""Trains a stage: dispatches, their lines in train.jsonl, and checkpoints between them."""
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from alma_jax.errors import Diverged
from alma_jax.parallel import runtime, sharding
from alma_jax.protocols.contract import State
from alma_jax.runs import progress, settings
from alma_jax.runs.listeners import Listener
from alma_jax.runs.snapshot import Growth
from alma_jax.store import metrics, run_files
from alma_jax.store.run_files import TRAIN
from alma_jax.store.run_folder import RunFolder
from alma_jax.training import loop

# Progress and signals are handled between dispatches: seconds of a dispatch, and training steps of the first one.
_TARGET_SECONDS, _FIRST_ROWS = 0.25, 1


class Trainer:
  """Trains the stages of a session of a run."""

  def __init__(self, train: Any, folder: RunFolder, shown: progress.Progress, listeners: Sequence[Listener], now: State,
               of_stages: str, is_due: Callable[[], bool], save: Callable[[Growth], None]):
    """Prepares the training of stages.

    Args:
      train: the section `train` of the config.
      folder: of the run.
      shown: the progress.
      listeners: hear of the lines of train.jsonl.
      now: the state of the run.
      of_stages: as in " of 50", if the number of stages is known.
      is_due: whether the run should be saved now.
      save: saves the run inside a stage.
    """
    self._train, self._folder, self._shown, self._listeners, self.now = train, folder, shown, listeners, now
    self._of_stages, self._is_due, self._save = of_stages, is_due, save
    self._compiled = False  # whether the programs of the present shapes exist
    self._rows = _FIRST_ROWS  # training steps of the next dispatch, adapted to its length

  def forget_programs(self) -> None:
    """Frees the programs of shapes that never occur again, which hold memory."""
    runtime.forget_programs()
    self._compiled = False

  def train(self, grown: Growth, data: loop.StageData, began: float) -> loop.FitState:
    """Advances to the end of the stage; one dispatch is always under way.

    Args:
      grown: the stage; its training may have begun.
      data: of the stage.
      began: time.monotonic() at the beginning of the stage.

    Raises:
      Diverged: the training loss is not finite.
    """
    fit, done, pending = grown.fit, False, None
    total, plan = loop.num_steps(fit), self._train.plan(len(data.train), data.share)
    while not done and fit.cursor < total:
      since, start = time.monotonic(), fit.cursor
      with contextlib.nullcontext() if self._compiled else self._shown.phase(progress.COMPILING):
        fit, records = loop.advance(fit, self._rows)
      self._compiled = True
      if pending is not None:
        done = self._record(fit, pending, began)
      pending = records
      if not done and self._is_due():
        done, pending = self._record(fit, pending, began), None
        if not done:
          self._save(dataclasses.replace(grown, fit=fit))
      self._pace(fit.cursor - start, time.monotonic() - since, fit.spec.problem.max_steps)
      self._shown.steps((fit.cursor - start) * plan.samples // total, data.stage,
                        fit.cursor // -(-total // plan.rounds), plan.rounds)
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
      entry: metrics.Entry = dict(stage=fit.data.stage, epoch=now.epoch)
      if not problem.in_epochs:
        entry["step"] = step
      train = fit.spec.train
      factor, = train.factors(fit.data.stage, [step - 1], plan.steps) or [1.0]
      rate = float(train.rate(step - 1)) * float(np.float32(factor))
      entry |= dict(joint, lr=rate, seconds=time.monotonic() - began)
      if len(members[f"val_{problem.metric}"]) > 1:
        finite = lambda values: [float(value) if np.isfinite(value) else None for value in values]
        entry["members"] = {key: finite(value) for key, value in members.items()}
      self._folder.append(TRAIN, entry)
      now.num_train_lines += 1
      now.train_total = run_files.chained(now.train_total, entry)
      for listener in self._listeners:
        listener.epoch(entry)
    return done

  def _refuse_divergence(self, joint: dict[str, Any], problem: Any) -> None:
    for key, value in joint.items():
      if value is not None and not np.isfinite(value).all():
        raise Diverged(f"{key} is no longer finite in stage {self.now.stage + 1}{self._of_stages}, "
                       f"{settings.round_name(problem)} {self.now.epoch}; lower "
                       f"train.learning_rate={self._train.learning_rate}. Everything before is saved in "
                       f"{self._folder.path}.")

  def _pace(self, rows: int, seconds: float, most: int) -> None:
    """Adapts the number of steps of a dispatch, so that it takes about _TARGET_SECONDS."""
    aim = rows * _TARGET_SECONDS / max(seconds, 1e-4)
    self._rows = sharding.agree(int(np.clip(aim, 1, min(2 * self._rows, most))))
