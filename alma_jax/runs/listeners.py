"""Listeners of a run: the progress display, boards, predictors, the remote copy. They never change results."""
from collections.abc import Callable
from contextlib import AbstractContextManager

from alma_jax.learners.contract import Learner
from alma_jax.parallel import sharding
from alma_jax.predictors import folder as predictors
from alma_jax.protocols.contract import Protocol, Shown, State
from alma_jax.runs import exporting
from alma_jax.store.metrics import Entry
from alma_jax.store.mirror import Mirror
from alma_jax.store.run_files import PREDICTOR
from alma_jax.store.run_folder import RunFolder


class Listener:
  """Base class of listeners. All processes call all methods in the same order; only process 0 shows or writes."""

  def claimed(self, is_new: bool) -> None:
    """The run has claimed its folder and has not changed it yet; `is_new`: the folder has no lines yet."""

  def begin(self, learner: Learner, state: State) -> None:
    """A session begins with this state, or continues with a new learner because new classes have arrived."""

  def epoch(self, entry: Entry) -> None:
    """A line of train.jsonl was written."""

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """A line of metrics.jsonl was written, the last of `state.lines`. It is in no checkpoint yet."""

  def check(self) -> None:
    """Called often. May raise Unsaved if the run cannot continue."""

  def flush(self) -> None:
    """A checkpoint is about to be saved that covers all lines so far."""

  def saved(self, wait: Callable[[], None]) -> None:
    """The run is being saved; `wait()` returns when the checkpoint is on disk."""

  def close(self) -> None:
    """The session ends."""


class Publisher(Listener):
  """Replaces the predictors in the run folder after every stage, except those that the stage has not changed."""

  def __init__(self, protocol: Protocol, folder: RunFolder, phase: Callable[[str], AbstractContextManager[None]]):
    """`protocol` and `folder` of the run; `phase` shows a long activity, see Progress.phase."""
    self._protocol, self._folder, self._phase = protocol, folder, phase
    self._exporter: exporting.Exporter | None = None

  def begin(self, learner: Learner, state: State) -> None:
    """Publishes what is older than the last complete stage, as after `log.predictor` was switched on."""
    ends = (*state.ends, *([state.arrival.t] if state.arrival else []))
    self._exporter = exporting.Exporter(learner, self._protocol.facts(ends).problem, self._protocol.config,
                                        self._folder.path)
    for shown in self._protocol.shown(learner, state) if state.stage and state.complete else ():
      number = (predictors.latest_version(self._folder.path / PREDICTOR / shown.name) or "").partition("-")[0]
      if sharding.agree(int(number) if number.isdecimal() else -1) < shown.stage:
        self._publish(shown, state)

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """Before the checkpoint: no saved stage is without its predictor."""
    for shown in self._protocol.shown(learner, state, state.stage - 1) if entry["updated"] else ():
      self._publish(shown, state)

  def _publish(self, shown: Shown, state: State) -> None:
    assert self._exporter is not None
    with self._phase("writing the predictor"):
      files = self._exporter.files(shown, self._protocol.fingerprint_after(shown.standing.line["t"]))
      self._folder.publish(shown.name, state.stage - 1, files)


class Uploader(Listener):
  """Takes the folder to its store whenever the run is saved, beside the run, if it is the local copy of an address."""

  def __init__(self, mirror: Mirror):
    self._mirror, self._began = mirror, False

  def claimed(self, is_new: bool) -> None:
    if is_new:
      self._mirror.take()  # later there are lines, which a folder without a checkpoint must not have in a store

  def begin(self, learner: Learner, state: State) -> None:
    if (state.lines or state.arrival) and not self._began:
      self._mirror.take()  # not before: only a sound moment of the run may replace what the store holds
    self._began = True

  def check(self) -> None:
    self._mirror.check()

  def saved(self, wait: Callable[[], None]) -> None:
    wait()
    self._mirror.take()
