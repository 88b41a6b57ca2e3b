"""The axes of figures: logarithmic, with a few numbers that are easy to read."""
import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from alma_jax.reports.factors import plain

# What an axis may count by between two powers of ten; the first choice that gives enough numbers is taken.
_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9))
_PLAIN: Any = (1, 2, 5, 10)  # steps of equal distances
_MOST = 6  # numbers at an axis
_STRETCH, _NEAR = 1.2, 1.1  # the most by which an axis grows to end with a number, or by which it goes beyond one
_LETTER, _APART = 0.6, 1.5  # width of a digit as a share of its height, and the least space between numbers in points


def score_axes(panels: Iterable[Axes]) -> None:
  """Makes the y axes, of scores, logarithmic with a few plain numbers and lines; after all is drawn.

  An axis begins and ends with a number if there is one near, so that values are between numbers.
  """
  panels = list(panels)
  for axes in panels:
    axes.set_yscale("log")
  for axes, (low, high) in [(axes, axes.get_ylim()) for axes in panels]:  # before one of those that share is changed
    if high < low * (1 + 1e-6):  # equal scores
      low, high = low / 1.1, high * 1.1
    marks = _ending(low, high)
    first = next((mark for mark in reversed(marks) if low / _STRETCH <= mark <= low * _NEAR), low)
    last = next((mark for mark in marks if high / _NEAR <= mark <= high * _STRETCH), high)
    low, high = min(first, low), max(last, high)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator([mark for mark in marks if low <= mark <= high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="0.9", linewidth=0.6)


def cost_axis(axes: Axes, costs: Sequence[float], right: float = 1) -> None:
  """Makes the x axis, of costs, logarithmic with few labels; it goes beyond the highest cost by `right`, at least."""
  if min(costs) <= 0:  # a learner that does not train
    return
  margin = 1.6 if max(costs) / min(costs) >= 10 else 1.2
  low, high = min(costs) / margin, max(costs) * max(margin, right)
  axes.set_xscale("log")
  axes.set_xlim(low, high)
  axes.xaxis.set_major_locator(FixedLocator([mark for mark in _choices(low, high, 2)[0] if low <= mark <= high]))
  axes.xaxis.set_major_formatter(FuncFormatter(_large))
  axes.xaxis.set_minor_formatter(NullFormatter())


def value_axis(axes: Axes, values: Iterable[float], log: bool) -> None:
  """Puts a mark at each of some values of the x axis, and numbers where there is room, first at both ends."""
  shown = sorted(set(values))
  if log:
    axes.set_xscale("log")
  axes.xaxis.set_minor_locator(NullLocator())
  axes.set_xticks(shown)
  axes.margins(x=0.025)
  size, dots = float(matplotlib.rcParams["font.size"]), 72 / axes.figure.dpi
  middles = [axes.transData.transform((value, axes.get_ylim()[0]))[0] * dots for value in shown]
  halves = [len(plain(value)) * size * _LETTER / 2 for value in shown]
  kept: list[int] = []
  for i in dict.fromkeys([0, len(shown) - 1, *range(len(shown))]):
    if all(abs(middles[i] - middles[j]) >= halves[i] + halves[j] + _APART for j in kept):
      kept.append(i)
  axes.set_xticklabels([plain(value) if i in kept else "" for i, value in enumerate(shown)])


def _ending(low: float, high: float) -> list[float]:
  """Numbers for an axis of scores; if possible, with one near its upper limit."""
  choices = _choices(low, high, 3)
  ended = (marks for marks in choices if any(high / _NEAR <= mark <= high * _STRETCH for mark in marks)
           and sum(low <= mark <= high for mark in marks) <= _MOST)
  return next(ended, choices[0])


def _choices(low: float, high: float, least: int) -> list[list[float]]:
  """Numbers for a logarithmic axis, ascending: at least `least` between its limits, and those beside the limits."""
  choices = (_multiples(low, high, steps) for steps in _STEPS)
  enough = [marks for marks in choices if sum(low <= mark <= high for mark in marks) >= least]
  return [*enough, list(map(float, MaxNLocator(4, steps=_PLAIN).tick_values(low, high)))]


def _multiples(low: float, high: float, steps: Sequence[float]) -> list[float]:
  """The multiples of powers of ten by `steps` from below `low` to above `high`; if they are many, fewer powers."""
  powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
  apart = -(-(len(powers) - 3) // _MOST) if len(steps) == 1 else 1
  found = np.array([step * 10.0**power for power in powers if power % apart == 0 for step in steps])
  return [float(f"{mark:.12g}") for mark in found]


def _large(value: float, _: Any) -> str:
  """E.g. "1.6e13"."""
  mantissa, power = f"{value:.1e}".split("e")
  return f"{float(mantissa):g}e{int(power)}"
