"""What hears how a run goes on: the progress display, boards, predictors, the copy in a store. None changes results."""
from collections.abc import Callable

from alma_jax.learners.contract import Learner
from alma_jax.protocols.contract import State
from alma_jax.store.metrics import Entry


class Listener:
  """Hears how a run goes on. All processes call all methods in the same order; only process 0 shows or writes."""

  def claimed(self, is_new: bool) -> None:
    """The folder is the run's, and nothing in it has changed since the last session; `is_new`: it has no lines yet."""

  def begin(self, learner: Learner, state: State) -> None:
    """A session begins with this state, or goes on with another learner after new classes have come."""

  def epoch(self, entry: Entry) -> None:
    """A line of train.jsonl was written."""

  def line(self, entry: Entry, learner: Learner, state: State) -> None:
    """A line of metrics.jsonl was written, the last of `state.lines`. No checkpoint holds it yet."""

  def check(self) -> None:
    """Called often; may raise Unsaved if the run cannot go on."""

  def flush(self) -> None:
    """A checkpoint follows, which covers all lines so far."""

  def saved(self, wait: Callable[[], None]) -> None:
    """The run was saved; `wait` returns when the checkpoint is on disk."""

  def close(self) -> None:
    """The session ends."""
