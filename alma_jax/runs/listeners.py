"""Listeners of a run: the progress display, boards, predictors, the remote copy. They never change results."""
from collections.abc import Callable

from alma_jax.learners.contract import Learner
from alma_jax.protocols.contract import State
from alma_jax.store.metrics import Entry


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
