"""Mega-batches that arrive in a folder while the run goes on (docs/live.md)."""
import pathlib
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from alma_jax.data import feed
from alma_jax.errors import BadInput
from alma_jax.learners.contract import Learner
from alma_jax.parallel.sharding import say
from alma_jax.problems import live
from alma_jax.protocols.contract import Arrival, Facts, Sizes, State
from alma_jax.protocols.offline import Offline
from alma_jax.store import metrics
from alma_jax.store.metrics import Entry


class Live(Offline):
  """The entries of a folder, in the order in which they are complete. New classes and larger stages may come."""
  waits: ClassVar[bool] = True
  source: Any

  def __init__(self, config: Any, data: Any = None, run: pathlib.Path | None = None):
    del data
    source = self.Source(config, run)
    super().__init__(config, source)
    self._least = source.memory.most_val(self.expected_ends)  # validation examples with room for them
    self.named_data = (f"the test set, the classes.txt or the first mega-batch of {config.dataset.path} (restore them "
                       "to go on)")

  def facts(self, ends: Sequence[int]) -> Facts:
    """The room for validation examples at least doubles when it grows, because the programs change with it."""
    sizes, room = self.source.memory.sizes(ends or self.expected_ends), self._least
    for num in sizes.val[:len(ends)].tolist():
      room = num if num > 2 * room else 2 * room if num > room else room
    return self.of_meta(self.config, self.meta(ends))._replace(max_val=room, num_train=int(sizes.train[0]))

  @property
  def expected_ends(self) -> tuple[int, ...]:
    """The end of the first stage."""
    return (self._next(1) or 1,)

  def _next(self, t: int) -> int | None:
    return self.schedule.next(t, self.config.stream.num_megabatches)

  def sizes(self) -> Sizes:
    return super().sizes()._replace(exact=False)

  def attach(self, folder: pathlib.Path, num_lines: int) -> None:
    self.source.feed.attach(folder)
    there = len(self.source.feed.lines)
    if there < num_lines:
      raise BadInput(f"{folder / feed.LEDGER} has {there} mega-batches, but the checkpoint covers {num_lines}; "
                     "restore the file, or --overwrite the run.")

  def arrivals(self, lines: list[Entry]) -> Generator[int | None, None, None]:
    while True:
      if lines[-1:] and lines[-1]["updated"]:
        self.source.release(metrics.ends(lines))
      t = len(lines) + 1
      training = self._next(t)
      after = f"; the next training is after mega-batch {training}" if training is not None and training > t else ""
      if (yield from self.source.feed.until(t, after)):
        yield t
      elif self.schedule.trains_at_end and lines and not lines[-1]["updated"]:
        yield t - 1  # its line was written before the stream was known to end there
      else:
        break
    num = len(lines) - max(metrics.ends(lines), default=0)
    if num:
      last = f"{num} mega-batches were" if num > 1 else "mega-batch was"
      say("the stream has ended before the next training of "
          f"stream.schedule={self.config.stream.schedule.name}: its last {last} not trained on")

  def decide(self, t: int, learner: Learner, state: State) -> Arrival:
    arrival = super().decide(t, learner, state)
    return arrival._replace(notes=arrival.notes | self.source.notes(t))

  def _is_last(self, t: int) -> bool:
    return bool(self.source.feed.is_last(t))

  def covered(self, t: int) -> None:
    """Deletes the run's copies of these mega-batches, unless they may be replayed."""
    if not self.config.stream.replay and not self.config.stream.replay_share:
      self.source.feed.forget(t)


class Images(Live):
  """Images, or other arrays."""
  Source = live.LiveImages


class Texts(Live):
  """Texts."""
  Source = live.LiveTexts
