"""How reports draw: a Plot describes a figure, and `draw` makes it. A learner has one colour and marker everywhere."""
import itertools
import textwrap
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import matplotlib.colors
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox
from matplotlib.typing import FillStyleType

from alma_jax.runs.plots import STYLES, TASK_STYLES

# Those of learners that are not part of this package, one of which the name chooses.
_OTHERS = [*itertools.product(("#A0522D", "#6B6B00", "#00696B", "#8E0152"), ("h", "d", "p", "8"))]
MARKERS = sorted({marker for _, marker in (*STYLES.values(), *TASK_STYLES.values(), *_OTHERS)})
# Inches, as the text of a paper and as one of its two columns: a figure is drawn in the size in which it is printed.
WIDTH, COLUMN = 7.0, 3.4
_RC: Any = {"font.size": 7, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 7,
            "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
            "ytick.major.size": 2.5, "xtick.minor.size": 1.5, "ytick.minor.size": 1.5, "xtick.major.pad": 2.5,
            "ytick.major.pad": 2.5, "axes.labelpad": 3, "figure.labelsize": 7,
            "axes.titley": 1.0,  # otherwise every title is placed by the extents of all ticks, which is slow
            "svg.hashsalt": "alma_jax"}
_DASHES = ("-", "--", ":", "-.")
_FILLS: tuple[FillStyleType, ...] = ("full", "none", "left", "bottom")
_MARKER, _RING = 3.5, 42  # size of a point, in points, and of a ring around it, in square points
_SMALL, _INK = 6.3, "0.15"  # size in points and colour of a text at a point
_HALO = patheffects.withStroke(linewidth=2, foreground="white")  # keeps text on lines readable
_NEAR = 5  # points between a point and its text
# (right, up, distance in points): where a text is tried, in this order.
_PLACES = [(right, up, far) for far in (_NEAR, 12, 20, 30)
           for right, up in ((1, 0), (1, 1), (1, -1), (-1, 1), (-1, 0), (-1, -1), (0, 1), (0, -1))]
_LETTER, _KEY, _ROW = 0.057, 0.42, 0.145  # inches: width of a letter, of a key without its name, height of its row
_MOST_TICKS = 12
EDGED = 30  # rows up to which cells have edges
_NARROW = 4  # a logarithmic axis that ends at less than so many times its beginning has evenly spaced ticks

Point = tuple[float, float]


class Line(NamedTuple):
  """Points of a panel that one entry of the legend explains.

  Attributes:
    key: the entry, which has the colour, the marker and the dashes.
    x, y: float [N].
    low, high: float [N], the ends of the bars or the edges of the band; None: there are none.
    form: points with bars; a curve with a band, also as steps that change in the `middle` between two x, or `after` an
      x; or an arrow from the first point to the last one, which has an open marker.
    texts: at the points, where there is room; "" for none.
    dashes: of the line, instead of those of the key.
    names: of the points, on a page; empty: that of the key.
  """
  key: Line2D
  x: np.ndarray
  y: np.ndarray
  low: np.ndarray
  high: np.ndarray
  form: Literal["points", "curve", "middle", "after", "arrow"] = "points"
  texts: Sequence[str] = ()
  dashes: Any = None
  names: Sequence[str] = ()


class Grid(NamedTuple):
  """Cells of a panel, and arrows between its rows.

  Attributes:
    rows, columns: their names; "" for none.
    colours: float [R, C, 3]; None: there are no cells.
    texts: in the cells, by row.
    tips: of the cells on a page, instead of `texts`.
    nodes: the colour of a circle at each row, and whether it is filled.
    arrows: (row where it begins, row where it ends, colour).
  """
  rows: Sequence[str]
  columns: Sequence[str] = ()
  colours: np.ndarray | None = None
  texts: Sequence[Sequence[str]] = ()
  tips: Sequence[Sequence[str]] = ()
  nodes: Sequence[tuple[str, bool]] = ()
  arrows: Sequence[tuple[int, int, str]] = ()


class Panel(NamedTuple):
  """A panel of a figure.

  Attributes:
    title: above it.
    lines: in the order in which they are drawn.
    front: (x, y) of a Pareto front, which is drawn as steps; rings mark those that are points of lines.
    grid: instead of lines.
    x, y: names of the axes.
    limits: the ends of the x axis; None: those of the lines.
  """
  title: str
  lines: Sequence[Line] = ()
  front: Sequence[Point] = ()
  grid: Grid | None = None
  x: str = ""
  y: str = ""
  limits: tuple[float, float] | None = None


class Plot(NamedTuple):
  """A figure as data.

  Attributes:
    caption: what it shows.
    panels: at least one.
    keys: entries of the legend.
    across: panels in a row.
    size: width and height of a panel in inches; None: a row fills a column of a paper, or a page if it has 3 or more.
    log: whether the x and the y axes are logarithmic; if not, x has whole numbers, and y begins at 0 or
      below. An x of 0 needs a linear axis.
    shared: which panels share their axes; "row": the x axes of all, and the y axes of each row; "y": only the y axes.
    bar: the colours of cells, and their name.
  """
  caption: str
  panels: Sequence[Panel]
  keys: Sequence[Any] = ()
  across: int = 1
  size: tuple[float, float] | None = None
  log: tuple[bool, bool] = (True, True)
  shared: Literal["all", "row", "y", "none"] = "all"
  bar: tuple[ScalarMappable, str] | None = None


def draw(plot: Plot) -> Figure:
  """The matplotlib Figure of a Plot."""
  with matplotlib.rc_context(_RC):
    down = -(-len(plot.panels) // plot.across)
    wide, high = plot.size or ((COLUMN if plot.across < 3 else WIDTH) / plot.across, 2.0 if plot.across == 1 else 1.6)
    width = max(wide * plot.across, 1.8)
    names = [str(key.get_label()) for key in plot.keys]
    columns = min(max(1, int(width / (text_inches(names) + _KEY))), len(names))
    rows = -(-len(names) // columns) if names else 0
    legend = rows * _ROW + 0.05 if names else 0.0
    figure = Figure(figsize=(width, high * down + legend + 0.15), layout="constrained")
    FigureCanvasAgg(figure)
    shares_x = plot.shared in ("all", "row")
    axes = figure.subplots(down, plot.across, sharex=shares_x, sharey="all" if plot.shared == "y" else plot.shared,
                           squeeze=False)
    for empty in axes.flat[len(plot.panels):]:
      empty.remove()
    panels = [*zip(axes.flat, plot.panels)]
    for ax, _ in panels:
      ax.set_autoscale_on(False)  # otherwise every line scales all panels that share axes anew
    for place, (ax, panel) in enumerate(panels):
      _draw_panel(ax, panel)
      below = not shares_x or place + plot.across >= len(panels)
      first = plot.shared == "none" or place % plot.across == 0
      ax.tick_params(labelbottom=below, labelleft=first, labelsize=_RC["font.size"])
      ax.set_ylabel(panel.y if place % plot.across == 0 or panel.y != plot.panels[0].y else "")
    lowest = min((0.0, *(np.min(line.low) for panel in plot.panels for line in panel.lines if len(line.low))))
    positive = all((line.x > 0).all() for panel in plot.panels for line in panel.lines)
    for ax, panel in panels:
      if panel.grid is None:
        _scale(ax, (plot.log[0] and positive, plot.log[1]), 1.05 * lowest)
      if panel.limits:
        ax.set_xlim(panel.limits)
    x_names = {panel.x for panel in plot.panels}
    if len(x_names) == 1:
      figure.supxlabel(x_names.pop())
    else:
      for ax, panel in panels:
        ax.set_xlabel(panel.x)
    if plot.bar:
      figure.colorbar(plot.bar[0], ax=[ax for ax, _ in panels], label=plot.bar[1], aspect=30)
    if names:
      figure.legend(handles=plot.keys, loc="outside upper left", ncols=-(-len(names) // rows), frameon=False,
                    borderpad=0, borderaxespad=0.2, handletextpad=0.5, columnspacing=1.2, labelspacing=0.4)
    layout: Any = figure.get_layout_engine()
    layout.execute(figure)  # the panels get their places, once for all formats
    figure.set_layout_engine("none")
    for ax, panel in panels:
      _place_texts(ax, panel)
  return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
  """Draws what a panel shows, without the texts at points."""
  axes.set_title(panel.title)
  if panel.grid:
    _draw_grid(axes, panel.grid)
  if panel.front:
    axes.step(*zip(*panel.front), where="post", color="0.6", linestyle=":", linewidth=1, zorder=1)
    points = {point for line in panel.lines for point in zip(line.x, line.y)}
    rings = [point for point in panel.front if point in points]
    if rings:
      x, y = zip(*rings)
      axes.scatter(x, y, s=_RING, facecolors="none", edgecolors="0.35", linewidths=0.8, zorder=3)
  for line in panel.lines:
    key, colour = line.key, line.key.get_color()
    if line.form == "arrow":
      axes.annotate("", (line.x[-1], line.y[-1]), (line.x[0], line.y[0]), arrowprops=dict(
          arrowstyle="->", mutation_scale=7, color=colour, linewidth=0.9, linestyle=key.get_linestyle(), shrinkA=2,
          shrinkB=2))
      for end, face in ((0, colour), (-1, "white")):
        axes.plot(line.x[end], line.y[end], marker=key.get_marker(), color=colour, markersize=_MARKER,
                  markerfacecolor=face)
    elif line.form == "points":
      axes.errorbar(line.x, line.y, yerr=(line.y - line.low, line.high - line.y), color=colour, capsize=1.2,
                    marker=key.get_marker(), markersize=_MARKER, fillstyle=key.get_fillstyle(), linewidth=0.9,
                    linestyle=key.get_linestyle(), elinewidth=0.7, capthick=0.7)
    else:
      where: Any = {"middle": "mid", "after": "post"}.get(line.form)
      axes.plot(line.x, line.y, color=colour, linewidth=0.9, linestyle=line.dashes or key.get_linestyle(), marker="o",
                markevery=[-1], dash_capstyle="butt",
                drawstyle=f"steps-{where}" if where else "default", markersize=2 if len(line.x) > 1 else 3)
      axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0, step=where)


def _draw_grid(axes: Axes, grid: Grid) -> None:
  axes.spines[:].set_visible(False)
  axes.tick_params(length=0)
  num = len(grid.rows)
  axes.set_ylim(num - 0.5, -0.5)
  if grid.colours is not None:
    width = len(grid.columns)
    axes.set_xlim(-0.5, width - 0.5)
    axes.pcolormesh(np.arange(width + 1) - 0.5, np.arange(num + 1) - 0.5, grid.colours[..., :3],
                    edgecolors="white" if num <= EDGED else "face", linewidth=0.5 if num <= EDGED else 0)
    light = grid.colours[..., :3] @ (0.2126, 0.7152, 0.0722) > 0.5
    for row, texts in enumerate(grid.texts):
      for column, text in enumerate(texts):
        axes.text(column, row, text, ha="center", va="center", fontsize=6, color="black" if light[row, column] else
                  "white")
  else:
    axes.set_xlim(-0.12, 1)
    for begin, end, colour in grid.arrows:  # longer ones go farther out
      far = 0.2 + 1.0 * (end - begin) / num
      curve = Path([(0, begin), (far, begin), (far, end), (0.03, end)], [Path.MOVETO, *[Path.CURVE4] * 3])
      axes.add_patch(matplotlib.patches.FancyArrowPatch(
          path=curve, arrowstyle="-|>", mutation_scale=max(4, 9 - num // 8), shrinkA=0, shrinkB=0, linewidth=0.9,
          color=colour, clip_on=False))
    for row, (colour, filled) in enumerate(grid.nodes):
      axes.plot(0, row, "o", color=colour, markersize=max(3, 6 - num // 12), zorder=4,
                markerfacecolor=colour if filled else "white")
  for axis, names in ((axes.xaxis, grid.columns), (axes.yaxis, grid.rows)):
    axis.set_ticks(ticks(names), [names[i] for i in ticks(names)])


def ticks(names: Sequence[str]) -> list[int]:
  """The places of the names of rows or columns that are written: of many numbers only round ones."""
  places = [*range(len(names))]
  if not all(map(str.isdigit, names)):
    return places
  steps = (step * 10**power for power in itertools.count() for step in (1, 2, 5))
  return next(shown for step in steps
              if len(shown := [i for i in places if int(names[i]) % step == 0]) <= _MOST_TICKS)


def _scale(axes: Axes, log: tuple[bool, bool], lowest: float) -> None:
  """Makes the x and the y axis of a panel logarithmic; if not, x has whole numbers, and y begins at `lowest`."""
  axes.grid(axis="y", color="0.9", linewidth=0.6)
  axes.autoscale()
  for axis, is_log, make in zip((axes.xaxis, axes.yaxis), log, (axes.set_xscale, axes.set_yscale)):
    if is_log:
      make("log")
      low, high = axis.get_view_interval()
      axis.set_major_locator(MaxNLocator(6 if axis is axes.yaxis else 3, steps=(1, 2, 5, 10)) if high < _NARROW * low
                             else LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
      axis.set_minor_formatter(NullFormatter())
    else:
      axis.set_major_locator(MaxNLocator(4, integer=axis is axes.xaxis, steps=(1, 2, 5, 10)))
      if axis is axes.yaxis:
        axes.set_ylim(bottom=lowest)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".replace("e+", "e").replace("e0", "e")))


def _place_texts(axes: Axes, panel: Panel) -> None:
  """Writes the texts of lines near their points so that no text covers another one, a point, a bar or a line.

  A line joins a text with its point if it stands apart from it. A text for which there is no room is left out.
  """
  pixels: Any = axes.transData.transform
  dots = axes.figure.dpi / 72
  points = [(point, text) for line in panel.lines for point, text in itertools.zip_longest(
      zip(line.x, line.y), line.texts, fillvalue="")]
  if not any(text for _, text in points):
    return
  frame = axes.get_window_extent().padded(-3)
  boxes = [Bbox.from_extents(*(pixels(point) - 5), *(pixels(point) + 5)) for point, _ in points]
  curves = [Path(pixels([*zip(line.x, line.y)])) for line in panel.lines if line.key.get_linestyle() != "None"]
  curves += [Path(pixels([(x, low), (x, high)])) for line in panel.lines
             for x, low, high in zip(line.x, line.low, line.high) if 0 < low < high]
  front = [corner for (x0, y0), (x1, y1) in itertools.pairwise(panel.front) for corner in ((x0, y0), (x1, y0))]
  curves += [Path(pixels([*front, panel.front[-1]]))] if front else []
  for place, text in points:
    point: Any = place
    dot, size = pixels(point), _size_of(axes, text) if text else np.zeros(2)
    for right, up, far in _PLACES if text else []:
      corner = dot + np.array([right, up]) * far * dots  # of the text, where the line to its point ends
      low = corner - size * (1 - right, 1 - up) / 2
      box = Bbox.from_extents(*low, *(low + size))
      if not (frame.contains(*box.min) and frame.contains(*box.max)) or box.count_overlaps(boxes) or any(
          curve.intersects_bbox(box.padded(1), filled=False) for curve in curves):
        continue
      joint: Any = dict(arrowstyle="-", color="0.6", linewidth=0.6, shrinkA=0, shrinkB=3,
                        relpos=((1 - right) / 2, (1 - up) / 2))
      axes.annotate(text, point, xytext=(right * far, up * far), textcoords="offset points", fontsize=_SMALL,
                    color=_INK, ha=("right", "center", "left")[right + 1], va=("top", "center", "bottom")[up + 1],
                    zorder=5, path_effects=[_HALO], arrowprops=joint if far > _NEAR else None)
      boxes.append(box.padded(3))
      curves += [Path([dot + 0.3 * (corner - dot), corner])] if far > _NEAR else []
      break


def _size_of(axes: Axes, text: str) -> np.ndarray:
  """Width and height [2] of a small text, in pixels."""
  canvas: Any = axes.figure.canvas
  shown = axes.text(0, 0, text, fontsize=_SMALL)
  box = shown.get_window_extent(canvas.get_renderer())
  shown.remove()
  return np.array(box.size)


# ------------------------------------------------------------------------------------------------------------ looks

def style(learner: str) -> tuple[str, str]:
  """(colour, marker) of a learner."""
  return (STYLES | TASK_STYLES).get(learner, _OTHERS[zlib.crc32(learner.encode()) % len(_OTHERS)])


def in_order(learners: Iterable[str]) -> list[str]:
  """Learners in the order in which figures show them: that of their styles, then by name."""
  order = {name: i for i, name in enumerate(STYLES | TASK_STYLES)}
  return sorted(learners, key=lambda name: (order.get(name, len(order)), name))


def key(name: str, learner: str, i: int = 0, marked: bool = True, joined: bool = True) -> Line2D:
  """An entry of a legend for the i-th line of a learner: 16 differ in dashes, filling of markers and shade.

  Args:
    name: in the legend.
    learner: decides colour and marker.
    i: from 0.
    marked: whether there is a marker.
    joined: whether there is a line.
  """
  colour, marker = style(learner)
  dashes: Any = _DASHES[i % len(_DASHES)] if joined else ""
  return Line2D([], [], color=_shade(colour, i // len(_DASHES)), marker=marker if marked else "",
                linestyle=dashes, markersize=_MARKER, linewidth=1, label=name, fillstyle=_FILLS[i % len(_FILLS)])


def _shade(colour: str, i: int) -> str:
  """The i-th shade of a colour: itself, a darker one, a lighter one, a very dark one, and again."""
  if not i % 4:
    return colour
  rgb = np.array(matplotlib.colors.to_rgb(colour))
  return matplotlib.colors.to_hex(tuple((rgb, 0.6 * rgb, 0.55 * rgb + 0.45, 0.3 * rgb)[i % 4]))


def wrapped(text: str, width: float) -> str:
  """A text in lines of at most about this width in inches."""
  return textwrap.fill(text, int(width / _LETTER), break_on_hyphens=False)


def text_inches(names: Iterable[str]) -> float:
  """About the width in inches of the longest name."""
  return max(map(len, names), default=0) * _LETTER
