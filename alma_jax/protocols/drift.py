"""Drift of the data: an alarm where the prequential metric rises, by river's ADWIN (Bifet and Gavaldà, 2007).

ADWIN keeps a window of the newest values, which are 0 to 1, and drops its older part where the two parts have different
means. Nothing but what metrics.jsonl holds is used, so that a resumed run goes on with the same detector:
  images  Every example of a mega-batch is 1 if it was predicted wrongly, else 0. Only the error rate is known, so the
          wrong examples are spread evenly over the mega-batch.
  text    The loss per token of every window, in units of ln(vocabulary), the loss of guessing; more counts as 1. Only
          the mean and the standard deviation over windows are known, so the values are one deviation above and below
          the mean in turn, which have the same mean and variance. A window is the mean of many tokens, and counts as
          several values; a mega-batch counts as few, because its windows are alike.
"""
import math
from collections.abc import Sequence
from typing import Any

from alma_jax import extras
from alma_jax.store import metrics

_MOST = 256  # examples of a mega-batch that ADWIN hears of; a larger one is represented by so many
_MOST_OF_TEXT, _OF_WINDOW = 64, 4  # values of a mega-batch of text: more would make its topic a drift; of a window

BEFORE, AFTER = metrics.DRIFT_BEFORE, metrics.DRIFT_AFTER


class Detector:
  """Detects rises of the prequential metric.

  Attributes:
    num_heard: number of mega-batches so far.
  """

  def __init__(self, delta: float, metric: str = "prequential_error", guessing: float | None = None):
    """Starts with an empty window.

    Args:
      delta: confidence of ADWIN, about the probability of a false alarm.
      metric: name of the prequential metric.
      guessing: loss of guessing a token in nats, of text; None: images.
    """
    self._adwin: Any = extras.load("river.drift", "log.drift").ADWIN(delta=delta)  # slow to import
    self._metric, self._guessing, self.num_heard = metric, guessing, 0

  def update(self, line: metrics.Entry, num: int) -> metrics.Entry:
    """What the line of a mega-batch says about drift: nothing, or the mean metrics of the part of the window that ADWIN
    dropped (of several such parts the first) and of the part that it kept.

    Args:
      line: of the mega-batch, with its prequential metric, of text also the deviation; None, missing or not finite:
        unknown.
      num: number of its examples or windows.
    """
    self.num_heard += 1
    value = line.get(self._metric)
    if value is None or not math.isfinite(value):  # it would stay in the sums of ADWIN for ever
      return {}
    if self._guessing is None:
      num = min(num, _MOST)
      wrong = round(value * num)
      return self._fed([(i + 1) * wrong // num - i * wrong // num for i in range(num)])
    deviation = line.get(metrics.DEVIATION)
    if deviation is None or not math.isfinite(deviation):  # None: unknown; missing: before log.drift was set
      return {}
    loss, num = math.log(value), min(num * _OF_WINDOW, _MOST_OF_TEXT)
    found = self._fed([min(max((loss + sign * deviation) / self._guessing, 0.0), 1.0)
                       for sign in ([1, -1] * num)[:num]])
    return {key: math.exp(each * self._guessing) for key, each in found.items()}

  def _fed(self, values: Sequence[float]) -> metrics.Entry:
    """Feeds values to ADWIN; the means before and after, if they have risen."""
    alarm = metrics.Entry()
    for value in values:
      adwin = self._adwin
      width, total = adwin.width + 1, adwin.total + value
      adwin.update(value)
      if adwin.drift_detected and width > adwin.width:
        dropped = (total - adwin.total) / (width - adwin.width)
        if adwin.estimation > dropped:
          alarm = {BEFORE: alarm.get(BEFORE, dropped), AFTER: adwin.estimation}
    return alarm
