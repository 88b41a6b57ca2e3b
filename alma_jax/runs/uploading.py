"""Copies the run folder to a store while the run goes on, if it is the local copy of one at an address."""
from collections.abc import Callable

from alma_jax.learners.contract import Learner
from alma_jax.protocols.contract import State
from alma_jax.runs.listeners import Listener
from alma_jax.store.mirror import Mirror


class Uploader(Listener):
  """Takes the folder to its store whenever the run is saved, beside the run."""

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
