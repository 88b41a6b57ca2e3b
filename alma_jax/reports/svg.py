"""Figures of a page: a Plot as HTML that is as wide as its page, in the colours of its theme, with values on hover.

A panel is an SVG without a size of its own. Its markers and texts stand at percentages of its size, and its lines are
drawn in a square that is stretched over it: it fills any width, while markers and texts keep their size. page.html has
the styles, and the script that shows the values: those of points are in `data-tip`, those of curves are read off their
paths.
"""
import functools
import html
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.text import Annotation
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Affine2D

from alma_jax.messages import brief_number
from alma_jax.reports import drawing
from alma_jax.reports.drawing import Grid, Line, Panel, Plot

_SIDE = 1000  # of the square
_INCH = 126  # CSS pixels of the height of a panel for each inch of the Figure, so that texts beside points have room
_HEIGHTS = (2.0, 1.75)  # inches of a panel without a size: alone in its row, and beside others
_LETTER, _POINT = 6.2, 1.75  # CSS pixels: width of a letter, and a point of the Figure
_BESIDE = 12  # points between a text and its point; texts that stand apart are left to the tips
_ROUNDING = 1e-6  # a smaller deviation, relative to the value, is rounding
_LEAST_TICKS, _MOST_TICKS = 3, 6  # of an axis, and of an x axis
_DASHES = {"--": "6 3", ":": "1.5 3", "-.": "7 3 1.5 3"}
_FILLS = {"full": "", "none": "open"}  # others are pale


def figure(plot: Plot, drawn: Figure) -> str:
  """HTML of the legend and the panels of a Plot; `drawn` is its matplotlib Figure, whose axes and texts they have."""
  height = round(_INCH * (plot.size[1] if plot.size else _HEIGHTS[plot.across > 1]))
  common = {axis: len({getattr(panel, axis) for panel in plot.panels}) == 1 for axis in "xy"}
  name = lambda panel, axis: f'<p class="{axis}">{html.escape(getattr(panel, axis))}</p>'
  ticks = [_named(panel, axes) for panel, axes in zip(plot.panels, drawn.axes)]
  left = 14 + _LETTER * max((len(label) for _, y in ticks for _, label in y), default=0)  # so the frames align
  panels = "".join(
      f'<div class="panel"><h5>{html.escape(panel.title)}</h5>{"" if common["y"] else name(panel, "y")}'
      f'{_panel(plot.keys, panel, axes, named, height)}{"" if common["x"] else name(panel, "x")}</div>'
      for panel, axes, named in zip(plot.panels, drawn.axes, ticks))
  legend = "".join(_entry(i, key) for i, key in enumerate(plot.keys)) + (_scale(*plot.bar) if plot.bar else "")
  return (f'<div class="legend">{legend}</div>{name(plot.panels[0], "y") if common["y"] else ""}'
          f'<div class="panels" style="--across:{plot.across};--left:{left:.0f}px">{panels}</div>'
          f'{name(plot.panels[0], "x") if common["x"] else ""}')


def symbols() -> str:
  """The markers that the figures of a page refer to."""
  shapes = "".join(f'<path id="{_id(marker)}" d="{_outline(marker)}"/>' for marker in drawing.MARKERS)
  return f'<svg width="0" height="0" style="position:absolute"><defs>{shapes}</defs></svg>'


# ---------------------------------------------------------------------------------------------------------- panels

def _panel(keys: Sequence[Any], panel: Panel, axes: Axes, ticks: Sequence[list[tuple[float, str]]], height: int) -> str:
  """The SVG of a panel with the `ticks` of _named, in `height` CSS pixels."""
  if panel.grid:
    (stretched, marks), rules, scale = _grid(panel, panel.grid), "", ""
  else:
    stretched, marks = "", ""
    if panel.front:
      stretched = f'<path class="front" d="{_steps(_inside(axes, *_corners("after", *np.array(panel.front).T)))}"/>'
    for line in panel.lines:
      place = next((i for i, key in enumerate(keys) if key is line.key), -1)
      group = f'<g class="k" data-k="{place}" style="--c:{line.key.get_color()}">{{}}</g>'
      parts = (_points if line.form in ("points", "arrow") else _curve)(axes, panel, line)
      stretched, marks = stretched + group.format(parts[0]), marks + group.format(parts[1])
    marks += "".join(_texts(axes))
    limits = " ".join(f"{limit:.8g}" for limit in (*axes.get_xlim(), *axes.get_ylim()))
    scale = f'data-scale="{limits} {axes.get_xscale()} {axes.get_yscale()}" data-x="{html.escape(panel.x)}"'
    rules = "".join(f'<line class="rule" x2="100%" y1="{at:.1f}%" y2="{at:.1f}%"/>' for at, _ in ticks[1]) + (
        '<line class="axis" x2="100%" y1="100%" y2="100%"/>')
  for axis, at_origin, names in zip("xy", ('y="100%" dy="17"', 'x="-8" dy="4"'), ticks):
    rules += "".join(f'<text class="{axis}" {axis}="{at:.1f}%" {at_origin}>{html.escape(name)}</text>'
                     for at, name in names)
  about = html.escape(": ".join(filter(None, (panel.title, " against ".join(filter(None, (panel.y, panel.x)))))))
  return (f'<svg class="plot" role="img" aria-label="{about}" style="height:{height}px" {scale}>'
          f'{rules}<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none">{stretched}</svg>{marks}</svg>')


def _points(axes: Axes, panel: Panel, line: Line) -> tuple[str, str]:
  """(what is stretched, what is not) of points that a line joins, or of an arrow."""
  key, spread, marks = line.key, (line.high - line.low) / 2, []
  spread[spread < _ROUNDING * abs(line.y)] = 0
  at = _inside(axes, line.x, line.y)
  low, high = (_inside(axes, line.x, np.clip(end, *axes.get_ylim()))[:, 1] for end in (line.low, line.high))
  for i, (x, y) in enumerate(at):
    kind = _FILLS.get("none" if line.form == "arrow" and i else key.get_fillstyle(), "pale")
    deviation = f" ± {spread[i]:.2g}" if spread[i] else ""
    tip = _tip(line.names[i] if line.names else key.get_label(), f"{panel.y}: {_number(line.y[i])}{deviation}",
               f"{panel.x}: {_number(line.x[i])}")
    if spread[i]:
      marks.append(f'<line class="bar" x1="{x:.1%}" x2="{x:.1%}" y1="{low[i]:.1%}" y2="{high[i]:.1%}"/>')
    marks.append(f'<use href="#{_id(key.get_marker())}" class="{kind}" x="{x:.1%}" y="{y:.1%}" {tip}/>')
  joined = key.get_linestyle() != "None" and len(at) > 1
  return f'<path class="line" d="{_lines(at)}" {_dashed(line)}/>' if joined else "", "".join(marks)


def _curve(axes: Axes, panel: Panel, line: Line) -> tuple[str, str]:
  """(what is stretched, what is not) of a curve with its band."""
  x, *edges = _corners(line.form, line.x, line.y, line.low, line.high)
  middle, low, high = (_inside(axes, x, np.clip(edge, *axes.get_ylim())) for edge in edges)
  path = _lines(middle) if line.form == "curve" else _steps(middle)
  curve = f'<path class="curve" d="{path}" {_dashed(line)} data-name="{html.escape(str(line.key.get_label()))}"/>'
  if (line.high > line.low).any():
    around = _lines(np.concatenate([low, high[::-1]])) if line.form == "curve" else (
        _steps(low, 0) + _steps(high[::-1], 0).replace("M", "L"))
    curve = f'<path class="band" d="{around}Z"/>{curve}'
  return curve, f'<circle r="2.5" cx="{middle[-1, 0]:.1%}" cy="{middle[-1, 1]:.1%}"/>'


def _grid(panel: Panel, grid: Grid) -> tuple[str, str]:
  """(what is stretched, what is not) of cells, or of nodes and arrows."""
  high, wide, stretched, marks = 100 / len(grid.rows), 100 / max(len(grid.columns), 1), "", ""
  for row, column in itertools.product(range(len(grid.rows)), range(len(grid.columns))):
    rgb: Any = grid.colours[row, column, :3] if grid.colours is not None else np.ones(3)
    text, tip = (texts[row][column] if texts else "" for texts in (grid.texts, grid.tips or grid.texts))
    if text or (rgb < 1).any():
      tip = _tip(f"{panel.y}: {grid.rows[row]}".removeprefix(": "), f"{panel.x}: {grid.columns[column]}", tip)
      ink = "ink" if rgb @ (0.2126, 0.7152, 0.0722) > 0.5 else ""
      marks += (f'<rect x="{column * wide:.3f}%" y="{row * high:.3f}%" width="{wide:.3f}%" height="{high:.3f}%" '
                f'fill="{matplotlib.colors.to_hex(rgb)}" {tip}/>')
    if text:
      marks += (f'<text class="cell {ink}" dy="4" x="{(column + 0.5) * wide:.2f}%" y="{(row + 0.5) * high:.2f}%">'
                f'{html.escape(text)}</text>')
  marks = f'<g class="dense">{marks}</g>' if len(grid.rows) > drawing.EDGED else marks
  for begin, end, colour in grid.arrows:  # longer ones go farther out
    far, (y0, y1) = min(0.2 + (end - begin) / len(grid.rows), 1.3), (high * (i + 0.5) for i in (begin, end))
    curve = (f"{_SIDE * x:.0f} {_SIDE * y / 100:.0f}" for x, y in ((0, y0), (far, y0), (far, y1), (0, y1)))
    stretched += '<path class="line" style="--c:{}" d="M{}C{} {} {}"/>'.format(colour, *curve)
    marks += f'<use href="#{_id("<")}" class="k" style="--c:{colour}" x="8" y="{y1:.2f}%"/>'
  for row, (colour, filled) in enumerate(grid.nodes):
    marks += (f'<circle class="k {"" if filled else "open"}" style="--c:{colour}" r="4.5" cx="0" '
              f'cy="{(row + 0.5) * high:.2f}%"/>')
  return stretched, marks


def _texts(axes: Axes) -> Iterable[str]:
  """The texts beside points, at the side where the Figure has them."""
  for text in axes.texts:
    if isinstance(text, Annotation) and text.get_text() and max(map(abs, text.xyann)) <= _BESIDE:
      (x, y), (right, up) = _inside(axes, *np.array(text.xy, float)[:, None])[0], text.xyann
      anchor = "start" if right > 0 else "end" if right < 0 else "middle"
      yield (f'<text class="at" text-anchor="{anchor}" x="{x:.1%}" y="{y:.1%}" dx="{_POINT * right:.0f}" '
             f'dy="{4 - _POINT * up:.0f}">{html.escape(text.get_text())}</text>')


# ---------------------------------------------------------------------------------------------------------- legend

def _entry(i: int, key: Any) -> str:
  """A button for the i-th entry of the legend."""
  if isinstance(key, Line2D):
    colour, marker, dashes = key.get_color(), key.get_marker(), str(key.get_linestyle())
    sample = f'<line class="line" x2="26" y1="6" y2="6" stroke-dasharray="{_DASHES.get(dashes, "")}"/>'
    sample = ("" if dashes == "None" else sample) + ("" if marker in ("", "None") else (
        f'<use href="#{_id(marker)}" class="{_FILLS.get(key.get_fillstyle(), "pale")}" x="13" y="6"/>'))
  else:
    colour, sample = matplotlib.colors.to_hex(key.get_facecolor()), '<rect width="12" height="12" x="7"/>'
  return (f'<button type="button" data-k="{i}"><svg class="k" width="26" height="12" style="--c:{colour}">{sample}'
          f"</svg>{html.escape(str(key.get_label()))}</button>")


def _scale(mappable: Any, name: str) -> str:
  """The colours of cells."""
  low, high = mappable.get_clim()
  colours = ", ".join(map(matplotlib.colors.to_hex, mappable.to_rgba(np.linspace(low, high, 9))))
  return (f'<span class="scale">{html.escape(name)} {low:.3g} <i style="background:linear-gradient(90deg, {colours})">'
          f"</i> {high:.3g}</span>")


# --------------------------------------------------------------------------------------------------------- helpers

def _inside(axes: Axes, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Float [N, 2]: where points are in a panel, from (0, 0) at its upper left to (1, 1)."""
  pixels = axes.transData.transform(np.stack([x, y], 1).astype(float))
  return np.array((0, 1)) + np.array((1, -1)) * axes.transAxes.inverted().transform(pixels)


def _named(panel: Panel, axes: Axes) -> tuple[list[tuple[float, str]], ...]:
  """(percent from the upper left, label) of the ticks of the x axis, and of those of the y axis."""
  if panel.grid:
    return tuple([(100 * (i + 0.5) / len(names), names[i]) for i in drawing.ticks(names)]
                 for names in (panel.grid.columns, panel.grid.rows))
  x = _ticks(axes, "x")
  return x[::-(-len(x) // _MOST_TICKS)], _ticks(axes, "y")


def _ticks(axes: Axes, which: str) -> list[tuple[float, str]]:
  """(percent from the upper left, label) of the ticks of the x or the y axis."""
  axis = axes.xaxis if which == "x" else axes.yaxis
  low, high = axis.get_view_interval()
  every = [axis.get_majorticklocs(), MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(low, high)]
  if axis.get_scale() == "log":
    every.insert(1, LogLocator(subs=(1, 2, 5)).tick_values(low, high))
  shown = [np.array([tick for tick in ticks if low <= tick <= high]) for ticks in every]
  at = next((ticks for ticks in shown if len(ticks) >= _LEAST_TICKS), max(shown, key=len))
  other = np.full(len(at), axes.get_xlim()[0] if which == "y" else axes.get_ylim()[0])
  places = _inside(axes, at, other)[:, 0] if which == "x" else _inside(axes, other, at)[:, 1]
  return [(100 * place, _number(tick)) for place, tick in zip(places, at)]


def _corners(form: str, x: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
  """(x, values) of the corners of steps in the `middle` between two x or `after` an x; of other forms unchanged."""
  if form == "middle":
    x = np.concatenate([x[:1], np.repeat((x[1:] + x[:-1]) / 2, 2), x[-1:]])
    return [x, *(np.repeat(each, 2) for each in values)]
  return [np.repeat(x, 2)[1:], *(np.repeat(each, 2)[:-1] for each in values)] if form == "after" else [x, *values]


def _lines(points: np.ndarray) -> str:
  """The path of lines through points [N, 2]."""
  return "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in _SIDE * points)


def _steps(points: np.ndarray, digits: int = 1) -> str:
  """The path of horizontal and vertical lines through the corners of steps [N, 2], in distances from the last one."""
  x, y = np.round(_SIDE * points, digits).T
  short = lambda value: f"{value:.{digits}f}".removesuffix(".0")
  path, at = f"M{short(x[0])} {short(y[0])}", x[0]
  for i in np.flatnonzero(np.diff(y)) + 1:
    path += f"h{short(x[i] - at)}v{short(y[i] - y[i - 1])}"
    at = x[i]
  return f"{path}h{short(x[-1] - at)}"


def _dashed(line: Line) -> str:
  """The attributes of a dashed line."""
  offset, dashes = line.dashes or (0, _DASHES.get(str(line.key.get_linestyle()), "").split())
  return f'stroke-dasharray="{" ".join(map(str, dashes))}" stroke-dashoffset="{-offset}"' if dashes else ""


def _tip(*lines: Any) -> str:
  """The attribute of an element that shows lines on hover."""
  return f'data-tip="{html.escape(chr(10).join(str(line) for line in lines if line))}"'


def _number(value: float) -> str:
  """E.g. "0.0432", "1.8", "2.2 G"."""
  return brief_number(value) if value >= 1000 else f"{value:.4g}"


def _id(marker: Any) -> str:
  """The name of a marker in the page."""
  return f"m{ord(marker)}"


@functools.cache
def _outline(marker: str) -> str:
  """A matplotlib marker as a path around (0, 0)."""
  style, letters = MarkerStyle(marker), {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
  outline = style.get_path().transformed(style.get_transform() + Affine2D().scale(7.5, -7.5))
  return "".join(letters[code] + " ".join(f"{value:.1f}" for value in points) if code in letters else "Z"
                 for points, code in outline.iter_segments())
