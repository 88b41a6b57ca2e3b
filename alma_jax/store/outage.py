"""How long a store has not answered."""
import math
import threading
import time


class Outage:
  """The time in which a store has answered no call, of all threads together, so that objects do not wait in turn."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._answered = self._said = -math.inf
    self._began: float | None = None  # None: no call that is made again has failed since the last answer

  def end(self) -> None:
    """The store has answered."""
    with self._lock:
      self._answered, self._began = time.monotonic(), None

  def lasts(self, began: float) -> float:
    """Seconds of the outage, or since `began` if that is longer.

    It begins with the first failure, after the last answer, of a call that is made again.

    Args:
      began: when such a call began that has failed now, by time.monotonic().
    """
    with self._lock:
      if self._began is None:
        self._began = max(began, self._answered)
      return time.monotonic() - min(began, self._began)

  def is_news(self, seconds: float) -> bool:
    """Whether this was not asked in the last `seconds`."""
    with self._lock:
      now = time.monotonic()
      is_news = now - self._said > seconds
      self._said = now if is_news else self._said
      return is_news
