"""The figure of replay: what it costs and gains to train on earlier mega-batches again."""
import math
from collections.abc import Collection
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from alma_jax.reports import drawing, panels, scales, sizes, studies
from alma_jax.reports.factors import order, plain, short
from alma_jax.reports.read import COMP, LEARNER, WAITING
from alma_jax.reports.studies import REPLAY, Study


class Pair(NamedTuple):
  """A kind of run without replay, and the kind that differs from it only by the most replay.

  Attributes:
    row: of the table of means, without replay.
    before, after: (compute, score) without replay and with it.
  """
  row: Any
  before: tuple[float, float]
  after: tuple[float, float]


def caption(study: Study, waits: Collection[float] = ()) -> str:
  """What the figure shows; `waits`: see panels.waits."""
  shown, num = len(panels.shown(places(study), waits)), len(places(study))
  size = sizes.field(study)
  what = f"pairs of waiting time and {short(size)}" if size else "waiting times"
  rows = " Each row of panels has a y axis of its own." if shown > panels.across(shown) else ""
  return (f"{study.score_title} against compute: an arrow leads from a learner without replay (filled marker) to the "
          f"same learner with the most replay (open marker, stream.replay up to {study.runs[REPLAY].max():g}). "
          f"Means over seeds.{rows} As in the paper's Figures 4 and 8."
          + (f" The figure shows {shown} of {num} {what}." if shown < num else ""))


def places(study: Study) -> list[panels.Place]:
  """The waiting times and sizes with kinds of runs that differ only in replay, ascending."""
  size = sizes.field(study)
  found = {(_value(pair.row, WAITING), _value(pair.row, size)) for pair in _pairs(study)}
  return sorted(found, key=lambda place: [*map(order, place)])


@drawing.styled
def replay(study: Study, waits: Collection[float] = ()) -> Figure:
  """An arrow for each kind of run, from its score and compute without replay to those with its most replay.

  There is a panel for each of `places`, or for as many as fit. Dashes tell the other kinds of a learner apart, or
  labels if they are many.
  """
  shown, size = panels.shown(places(study), waits), sizes.field(study)
  of_place = {place: [pair for pair in _pairs(study) if _is_at(pair.row, size, place)] for place in shown}
  names = {place: _names(pairs, study) for place, pairs in of_place.items()}
  looks = sorted({name for its in names.values() for name in its}, key=lambda name: (len(name) > 0, name))
  drawn = [pair for pairs in of_place.values() for pair in pairs]
  learners = {pair.row[LEARNER] for pair in drawn}
  ends = drawing.look_keys(["without replay", "with replay"], learners, marked=True, lines=False)
  dashed = drawing.look_keys(looks, learners, marked=False) if len(looks) <= drawing.NUM_LOOKS else []
  keys = [*drawing.learner_keys(learners), *ends, *(key for key in dashed if key.get_label())]
  across = panels.across(len(shown))
  height = 2.0 if across == 1 else 1.7
  figure = drawing.figure(height * -(-len(shown) // across) + 0.4, keys, panels.width(across), hspace=0.22)
  grid = panels.grid(figure, len(shown), across, shared="row")
  several = len({value for _, value in shown}) > 1
  for axes, ((wait, value), pairs) in zip(grid, of_place.items()):
    for pair, name in zip(pairs, names[wait, value]):
      _draw(axes, pair, str(dashed[looks.index(name)].get_linestyle()) if dashed else "-")
    its_size = [f"{short(size)} = {plain(value)}"] if size and several and not pd.isna(value) else []
    axes.set_title(", ".join([*panels.title(wait, pd.DataFrame({WAITING: [wait]})), *its_size]))
    scales.cost_axis(axes, [x for pair in drawn for x, _ in (pair.before, pair.after)])
  drawing.x_label(figure, panels.COSTS[COMP])
  for axes in grid[::across]:
    axes.set_ylabel(study.score_name)
  scales.score_axes(grid)
  for axes, (place, pairs) in zip(grid, of_place.items()) if not dashed else []:  # once the shared limits are final
    _label(axes, pairs, names[place])
  return figure


def _draw(axes: Axes, pair: Pair, linestyle: str) -> None:
  colour, marker = drawing.style(pair.row[LEARNER])
  axes.annotate("", pair.after, pair.before, arrowprops=dict(
      arrowstyle="->", mutation_scale=7, color=colour, linewidth=0.9, linestyle=linestyle, shrinkA=2, shrinkB=2))
  axes.plot(*pair.before, marker, color=colour, markersize=drawing.MARKER)
  axes.plot(*pair.after, marker, color=colour, markerfacecolor="white", markersize=drawing.MARKER)


def _names(pairs: list[Pair], study: Study) -> list[str]:
  """What differs among the arrows of a learner in a panel, for each arrow."""
  rows = pd.DataFrame([pair.row for pair in pairs])
  varying = [f for f in study.factors if f != REPLAY and (rows.groupby(LEARNER)[f].nunique(dropna=False) > 1).any()]
  kinds = [studies.label(pair.row, varying, studies.switches(rows, varying)) for pair in pairs]
  return [kind.removeprefix(pair.row[LEARNER]).removeprefix(", ") for kind, pair in zip(kinds, pairs)]


def _label(axes: Axes, pairs: list[Pair], names: list[str]) -> None:
  """Writes names at the ends of arrows."""
  labels = []
  for (row, before, after), name in zip(pairs, names):
    colour = drawing.style(row[LEARNER])[0]
    labels += [(name, *after, colour), ("", *before, colour)]
  drawing.place_labels(axes, labels, [(pair.before, pair.after) for pair in pairs])


def _is_at(row: Any, size: str | None, place: panels.Place) -> bool:
  return all(value == its or (pd.isna(value) and pd.isna(its))
             for value, its in zip((_value(row, WAITING), _value(row, size)), place))


def _value(row: Any, field: str | None) -> Any:
  """The value of a field; math.nan if the row lacks it, which is equal to itself in a tuple."""
  value = row.get(field) if field else None
  return math.nan if value is None or pd.isna(value) else value


def _pairs(study: Study) -> list[Pair]:
  """The kinds of runs that differ only in replay, without it and with the most."""
  if REPLAY not in study.factors:
    return []
  table = panels.means(study, study.score, COMP)
  others = [f for f in study.factors if f != REPLAY]
  pairs = []
  for _, mine in table.groupby([LEARNER, *others], dropna=False, sort=False):
    mine = mine.sort_values(REPLAY)
    if len(mine) > 1 and mine[REPLAY].iloc[0] == 0:
      before, after = (tuple(mine.iloc[i][[COMP, study.score]]) for i in (0, -1))
      pairs.append(Pair(mine.iloc[0], before, after))
  return pairs
