"""How long a store has not answered."""
import math
import time


class Outage:
  """The time in which no call of a store has worked, of all threads together, so that objects do not wait in turn."""

  def __init__(self) -> None:
    self._began, self._failed, self._is_known = 0.0, -math.inf, False

  def lasts(self, began: float, patience: float) -> float:
    """Seconds since the first of the calls that failed in it, after another one, begun at `began`, has failed.

    A failure that is older than `patience` seconds belongs to an earlier outage.
    """
    now = time.monotonic()
    if now - self._failed > max(patience, now - began):
      self._began, self._is_known = began, False
    self._failed = now
    return now - min(began, self._began)

  def is_news(self) -> bool:
    """Whether nobody has said so yet."""
    is_known, self._is_known = self._is_known, True
    return not is_known

  def end(self) -> None:
    """A call has worked."""
    self._failed = -math.inf
