"""Drift of the data: an alarm where the prequential error rises, by river's ADWIN (Bifet and Gavaldà, 2007).

ADWIN keeps a window of the newest values, and drops its older part where the two parts have different means. It learns
about every example of a mega-batch whether it was predicted wrongly. Of a mega-batch only the error rate is known, so
its wrong examples are spread evenly over it.
"""
from typing import Any

from alma_jax.runs import metrics, settings
from alma_jax.runs.snapshot import RunState

_MOST = 256  # examples of a mega-batch that ADWIN hears of; a larger one is represented by so many

BEFORE, AFTER = metrics.DRIFT_BEFORE, metrics.DRIFT_AFTER


def watching(setting: settings.Setting, now: RunState, metric: str) -> "Detector | None":
  """The detector of a run that asks for one, after all mega-batches so far; `metric` is its prequential metric."""
  if not setting.config.log.drift or setting.config.is_language:
    return None
  detector = Detector(setting.config.log.drift)
  source: Any = setting.source
  for t, line in enumerate([*now.lines, *([now.arrived] if now.arrived else [])], 1):
    detector.update(line.get(metric), len(source.tested(t)))
  return detector


class Detector:
  """Detects rises of the prequential error."""

  def __init__(self, delta: float):
    """`delta`: confidence of ADWIN, about the probability of a false alarm."""
    from river import drift  # slow to import
    self._adwin: Any = drift.ADWIN(delta=delta)

  def update(self, error: float | None, num: int) -> metrics.Entry:
    """What the line of a mega-batch says about drift: nothing, or the mean errors of the part of the window that ADWIN
    dropped (of several such parts the first) and of the part that it kept.

    Args:
      error: prequential error rate of the mega-batch; None: unknown.
      num: number of its examples.
    """
    if error is None:
      return {}
    num = min(num, _MOST)
    wrong, alarm = round(error * num), metrics.Entry()
    for i in range(num):
      adwin, value = self._adwin, (i + 1) * wrong // num - i * wrong // num
      width, total = adwin.width + 1, adwin.total + value
      adwin.update(value)
      if adwin.drift_detected and width > adwin.width:
        dropped = (total - adwin.total) / (width - adwin.width)
        if adwin.estimation > dropped:
          alarm = {BEFORE: alarm.get(BEFORE, dropped), AFTER: adwin.estimation}
    return alarm
